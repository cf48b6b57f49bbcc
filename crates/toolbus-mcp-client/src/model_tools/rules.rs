//! Rules for registrations by callers: whole command lines, and hosts. Only what a pattern names is allowed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toolbus_core::pattern::Pattern;
use url::{Host, Url};

use crate::spec::{Credentials, HttpKind, HttpSpec, StdioSpec, TransportSpec};

/// Longest command and longest argument, in bytes.
const MAX_ARGUMENT: usize = 1024;
/// Longest URL, in bytes.
const MAX_URL: usize = 2048;

/// Command lines and hosts that callers may register.
///
/// A command line is allowed by a list of patterns, one for the command and one for each argument, no more and no
/// fewer. A pattern with `*` or `?` stands for one value: never for an empty one, for one with `..`, or for an option
/// unless it begins with `-` itself. `*` stands for `/`, `@` and `:` as well.
///
/// A host is allowed by a pattern, on the port of the scheme; on another port by a pattern `host:port`. A pattern with
/// `*` or `?` in its host never stands for an address or for this machine, which must be written out; an IPv6 address
/// without brackets.
#[derive(Debug, Clone, Default)]
pub struct RegistrationRules {
    /// Command lines: the command, then its arguments.
    pub commands: Vec<Vec<Pattern>>,
    /// Hosts.
    pub hosts: Vec<Pattern>,
}

/// Target of a registration, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum RegisteredTransport {
    /// A program.
    Command {
        command: String,
        #[serde(default)]
        args: Vec<String>,
    },
    /// An HTTP server.
    Url {
        url: String,
        #[serde(rename = "type", default)]
        kind: RegisteredHttpKind,
    },
}

/// A transport over HTTP, as it is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RegisteredHttpKind {
    #[default]
    Detect,
    Http,
    Sse,
}

/// Reason why something may not be registered. The texts are for callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum RuleViolation {
    #[error("this command line is none of those that an operator allows")]
    Command,
    #[error("the url is not usable; expected https://host/path of at most {MAX_URL} bytes")]
    Url,
    #[error("the url must begin with https://; http:// is for this machine alone")]
    Scheme,
    #[error("the url must not hold a user name or a password")]
    Login,
    #[error("the host of this url, on its port, is none of those that an operator allows")]
    Host,
}

impl RegistrationRules {
    /// Returns the transport to the server that a caller wants, if the rules allow it.
    pub(super) fn transport(&self, target: &RegisteredTransport) -> Result<TransportSpec, RuleViolation> {
        match target {
            RegisteredTransport::Command { command, args } => {
                let is_allowed = |patterns: &Vec<Pattern>| line_fits(patterns, command, args);
                if !self.commands.iter().any(is_allowed) {
                    return Err(RuleViolation::Command);
                }
                let (command, args) = (command.clone(), args.clone());
                Ok(TransportSpec::Stdio(StdioSpec {
                    command,
                    args,
                    env: BTreeMap::new(),
                    cwd: None,
                    roots: Vec::new(),
                }))
            }
            RegisteredTransport::Url { url, kind } => {
                let url = self.url(url)?;
                let kind = HttpKind::from(*kind);
                let headers = BTreeMap::new();
                Ok(TransportSpec::Http(HttpSpec { url, kind, headers, credentials: Credentials::None }))
            }
        }
    }

    fn url(&self, text: &str) -> Result<Url, RuleViolation> {
        if text.len() > MAX_URL {
            return Err(RuleViolation::Url);
        }
        let mut url = Url::parse(text).map_err(|_| RuleViolation::Url)?;
        let (Some(host), Some(port)) = (url.host().map(|host| host.to_owned()), url.port_or_known_default()) else {
            return Err(RuleViolation::Url);
        };
        match url.scheme() {
            "https" => {}
            "http" if is_this_machine(&host) => {}
            _ => return Err(RuleViolation::Scheme),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(RuleViolation::Login);
        }
        let port = url.port().map(|_| port);
        if !self.hosts.iter().any(|pattern| host_fits(pattern, &host, port)) {
            return Err(RuleViolation::Host);
        }
        url.set_fragment(None);
        Ok(url)
    }
}

impl From<RegisteredHttpKind> for HttpKind {
    fn from(kind: RegisteredHttpKind) -> Self {
        match kind {
            RegisteredHttpKind::Detect => Self::Detect,
            RegisteredHttpKind::Http => Self::Streamable,
            RegisteredHttpKind::Sse => Self::Sse,
        }
    }
}

fn line_fits(patterns: &[Pattern], command: &str, args: &[String]) -> bool {
    let Some((first, rest)) = patterns.split_first() else { return false };
    let fits = |(pattern, text): (&Pattern, &String)| value_fits(pattern, text);
    value_fits(first, command) && rest.len() == args.len() && rest.iter().zip(args).all(fits)
}

fn value_fits(pattern: &Pattern, text: &str) -> bool {
    if pattern.is_exact() {
        return pattern.as_str() == text;
    }
    let is_usable = (1..=MAX_ARGUMENT).contains(&text.len()) && !text.contains(char::is_control);
    let is_option = text.starts_with('-') && !pattern.literal_prefix().starts_with('-');
    // Programs read `..` in many positions: in a path, behind `=`, in a URL.
    is_usable && !is_option && !text.contains("..") && pattern.matches(text)
}

/// Whether a pattern stands for a host, and for its port if that is not the scheme's own.
fn host_fits(pattern: &Pattern, host: &Host, port: Option<u16>) -> bool {
    let text = pattern.as_str();
    if let Host::Ipv6(address) = host {
        return port.is_none() && text.parse() == Ok(*address);
    }
    let host_part = text.split(':').next().unwrap_or_default();
    let is_written_out = !host_part.contains(['*', '?']);
    if !is_written_out && (matches!(host, Host::Ipv4(_)) || is_this_machine(host)) {
        return false;
    }
    match (port, text.contains(':')) {
        (None, false) => pattern.matches(&host.to_string()),
        (Some(port), true) => pattern.matches(&format!("{host}:{port}")),
        _ => false,
    }
}

fn is_this_machine(host: &Host) -> bool {
    match host {
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => address.is_loopback(),
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            name == "localhost" || name.ends_with(".localhost")
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::parse(text).unwrap()).collect()
    }

    pub(crate) fn rules() -> RegistrationRules {
        RegistrationRules {
            commands: vec![
                patterns(&["npx", "-y", "@scope/*"]),
                patterns(&["uvx", "mcp-server-time"]),
                patterns(&["mcp-files", "--root=/data/*"]),
                patterns(&["true"]),
            ],
            hosts: patterns(&[
                "mcp.example.com",
                "*.tools.example",
                "odd.example:8443",
                "many.example:*",
                "127.0.0.1:*",
                "::1",
            ]),
        }
    }

    fn refused_line(line: &[&str]) -> Option<RuleViolation> {
        let (command, args) = line.split_first().unwrap();
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        rules().transport(&RegisteredTransport::Command { command: (*command).to_owned(), args }).err()
    }

    fn refused_url(url: &str) -> Option<RuleViolation> {
        refused_by(&rules(), url)
    }

    fn refused_by(rules: &RegistrationRules, url: &str) -> Option<RuleViolation> {
        rules.transport(&RegisteredTransport::Url { url: url.to_owned(), kind: RegisteredHttpKind::Detect }).err()
    }

    #[test]
    fn a_command_line_is_allowed_as_a_whole_or_not_at_all() {
        let allowed: [&[&str]; 5] = [
            &["npx", "-y", "@scope/server"],
            &["uvx", "mcp-server-time"],
            &["mcp-files", "--root=/data/a"],
            &["mcp-files", "--root=/data/ünï"],
            &["true"],
        ];
        for line in allowed {
            assert_eq!(refused_line(line), None, "{line:?}");
        }
        let refused: [&[&str]; 22] = [
            &["npx"],
            &["npx", "-y"],
            &["npx", "-y", "@scope/server", "--flag"],
            &["npx", "@scope/server", "-y"],
            &["NPX", "-y", "@scope/server"],
            &["/tmp/npx", "-y", "@scope/server"],
            &["npx -y @scope/server"],
            &["npx", "-y", "@scope/../../evil"],
            &["npx", "-y", "@scope/\u{0}"],
            &["npx", "-y", "@scope/a\nb"],
            &["npx", "-y", "@ѕcope/a"],
            &["npx", "--yes", "@scope/a"],
            &["npx", "-y", ""],
            &["sh", "-c", "true"],
            &["true", ""],
            &["true "],
            &[""],
            &["uvx", "mcp-server-time", ""],
            &["mcp-files", "--root=/data/../etc"],
            &["mcp-files", "--root=/data"],
            &["mcp-files", "--root", "/data/a"],
            &["mcp-files", "--other=/data/a"],
        ];
        for line in refused {
            assert_eq!(refused_line(line), Some(RuleViolation::Command), "{line:?}");
        }
    }

    #[test]
    fn a_glob_stands_for_one_value_and_never_for_an_option() {
        let any = patterns(&["tool", "*"]);
        let fits = |arg: &str| line_fits(&any, "tool", &[arg.to_owned()]);
        assert!(fits("a") && fits("a b") && fits("a-b") && fits("/etc"));
        for arg in ["", "-x", "--option=a", "-", "..", "a/..", "a=../b", "a\u{1b}b", &"x".repeat(MAX_ARGUMENT + 1)] {
            assert!(!fits(arg), "{arg:?}");
        }
        assert!(line_fits(&patterns(&["tool", "-*"]), "tool", &["-x".to_owned()]));
    }

    #[test]
    fn without_a_pattern_nothing_is_allowed() {
        let nothing = RegistrationRules::default();
        let line = RegisteredTransport::Command { command: "true".to_owned(), args: Vec::new() };
        assert_eq!(nothing.transport(&line), Err(RuleViolation::Command));
        assert_eq!(refused_by(&nothing, "https://example.com"), Some(RuleViolation::Host));
        assert!(!line_fits(&[], "", &[]));
    }

    #[test]
    fn hosts_are_allowed_on_the_port_of_the_scheme_unless_a_port_is_written() {
        for url in [
            "https://mcp.example.com/mcp?x=1#part",
            "https://mcp.example.com:443/",
            "HTTPS://MCP.EXAMPLE.COM/",
            "https://a.tools.example",
            "https://odd.example:8443/",
            "https://many.example:1/",
            "http://127.0.0.1:8080/sse",
            "https://127.0.0.1:8080/sse",
            "http://[::1]/",
            "http://[0:0::1]/",
        ] {
            assert_eq!(refused_url(url), None, "{url}");
        }
        let table = [
            ("https://mcp.example.com:8443/", RuleViolation::Host),
            ("https://odd.example/", RuleViolation::Host),
            ("https://odd.example:8444/", RuleViolation::Host),
            ("https://many.example/", RuleViolation::Host),
            ("https://tools.example/", RuleViolation::Host),
            ("https://mcp.example.com.evil.example/", RuleViolation::Host),
            ("https://mcp.example.com./", RuleViolation::Host),
            ("https://evil.example/mcp.example.com", RuleViolation::Host),
            ("https://evil.example/?.tools.example", RuleViolation::Host),
            ("https://evil.example\\.tools.example/", RuleViolation::Host),
            ("https://mcp.example.com@evil.example/", RuleViolation::Login),
            ("https://a:b@mcp.example.com/", RuleViolation::Login),
            ("https://:b@mcp.example.com/", RuleViolation::Login),
            ("https://[::1]:8080/", RuleViolation::Host),
            ("https://[::ffff:127.0.0.1]:8080/", RuleViolation::Host),
            ("http://127.0.0.1/", RuleViolation::Host),
            ("http://localhost:80/", RuleViolation::Host),
            ("http://mcp.example.com/", RuleViolation::Scheme),
            ("http://10.0.0.1:8080/", RuleViolation::Scheme),
            ("ftp://mcp.example.com/", RuleViolation::Scheme),
            ("ws://mcp.example.com/", RuleViolation::Scheme),
            ("file:///etc/passwd", RuleViolation::Url),
            ("file://mcp.example.com/etc/passwd", RuleViolation::Url),
            ("unix:/run/x", RuleViolation::Url),
            ("mcp.example.com", RuleViolation::Url),
            ("", RuleViolation::Url),
            ("https://", RuleViolation::Url),
        ];
        for (url, refused) in table {
            assert_eq!(refused_url(url), Some(refused), "{url}");
        }
        assert_eq!(refused_url(&format!("https://mcp.example.com/{}", "x".repeat(MAX_URL))), Some(RuleViolation::Url));
    }

    #[test]
    fn no_glob_stands_for_an_address_or_for_this_machine() {
        let any = RegistrationRules { hosts: patterns(&["*", "*:*", "1*", "?oc*"]), ..RegistrationRules::default() };
        assert_eq!(refused_by(&any, "https://example.com:1"), None);
        for url in [
            "http://127.0.0.1/",
            "https://127.0.0.1:8080/",
            "https://2130706433/",
            "https://0x7f.1/",
            "https://169.254.169.254/",
            "https://10.0.0.1:8443/",
            "http://localhost/",
            "https://a.localhost./",
            "https://LOCALHOST:1/",
            "https://[::1]/",
            "https://[fe80::1]:8080/",
        ] {
            assert_eq!(refused_by(&any, url), Some(RuleViolation::Host), "{url}");
        }
    }

    #[test]
    fn allowed_servers_have_no_environment_headers_or_fragment() {
        let line = RegisteredTransport::Command { command: "true".to_owned(), args: Vec::new() };
        insta::assert_debug_snapshot!(rules().transport(&line).unwrap(), @r#"
    Stdio(
        StdioSpec {
            command: "true",
            args: [],
            env: {},
            cwd: None,
            roots: [],
        },
    )
    "#);
        let url =
            RegisteredTransport::Url { url: "https://mcp.example.com/mcp#x".to_owned(), kind: RegisteredHttpKind::Sse };
        let TransportSpec::Http(endpoint) = rules().transport(&url).unwrap() else { panic!("not HTTP") };
        assert_eq!((endpoint.url.as_str(), endpoint.kind), ("https://mcp.example.com/mcp", HttpKind::Sse));
        assert_eq!((endpoint.headers, endpoint.credentials), (BTreeMap::new(), Credentials::None));
    }

    /// Commands and arguments as an attacker would choose them: near the allowed ones, shells, options, ways out.
    pub(crate) fn hostile_line() -> impl Strategy<Value = Vec<String>> {
        let known = select(vec![
            "npx",
            "-y",
            "@scope/a",
            "uvx",
            "mcp-server-time",
            "mcp-files",
            "--root=/data/a",
            "true",
            "sh",
            "bash",
            "-c",
            "/bin/sh",
            "env",
            "--option=",
            "--root=/data/..",
            "..",
            "",
            " ",
            "npx ",
            "$(id)",
            ";",
            "`id`",
            "-",
            "--",
        ]);
        vec(prop_oneof![4 => known.prop_map(str::to_owned), 1 => "\\PC{0,6}", 1 => "--root=/data/[a./]{0,4}"], 1..5)
    }

    /// URLs as an attacker would choose them.
    pub(crate) fn hostile_url() -> impl Strategy<Value = String> {
        let scheme = select(vec!["https://", "http://", "HTTPS:\\\\", "ftp://", "https:/", ""]);
        let login = select(vec!["", "", "", "a@", "a:b@", "mcp.example.com@"]);
        let host = prop_oneof![
            select(vec![
                "mcp.example.com",
                "a.tools.example",
                "evil.example",
                "127.0.0.1",
                "[::1]",
                "odd.example",
                "0x7f.1"
            ])
            .prop_map(str::to_owned),
            "[a-c.]{0,3}\\.tools\\.example",
            "\\PC{0,4}\\.tools\\.example",
        ];
        let port = select(vec!["", "", ":443", ":8443", ":80", ":0"]);
        let rest = select(vec!["", "/", "/mcp?a=b", "#x", "\\.tools.example", "@evil.example/"]);
        (scheme, login, host, port, rest)
            .prop_map(|(scheme, login, host, port, rest)| format!("{scheme}{login}{host}{port}{rest}"))
    }

    /// The rules above, implemented a second time and differently.
    pub(crate) fn is_allowed_line(line: &[String]) -> bool {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let is_clean = |text: &str| !text.contains("..") && !text.chars().any(char::is_control);
        match line.as_slice() {
            ["true"] | ["uvx", "mcp-server-time"] => true,
            ["npx", "-y", package] => package.starts_with("@scope/") && is_clean(package),
            ["mcp-files", root] => root.starts_with("--root=/data/") && is_clean(root),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn no_command_line_passes_that_the_patterns_do_not_allow(line in hostile_line()) {
            let target = RegisteredTransport::Command { command: line[0].clone(), args: line[1..].to_vec() };
            match rules().transport(&target) {
                Ok(TransportSpec::Stdio(program)) => {
                    prop_assert!(is_allowed_line(&line), "{:?}", line);
                    prop_assert_eq!((&program.command, program.args.as_slice()), (&line[0], &line[1..]));
                }
                Ok(other) => prop_assert!(false, "{:?}", other),
                Err(_) => prop_assert!(!is_allowed_line(&line), "{:?}", line),
            }
        }

        #[test]
        fn no_url_passes_whose_host_the_patterns_do_not_allow(text in hostile_url()) {
            if let Ok(TransportSpec::Http(endpoint)) = rules().transport(&RegisteredTransport::Url { url: text, kind: RegisteredHttpKind::Detect }) {
                let url = endpoint.url;
                let (host, port) = (url.host_str().unwrap(), url.port());
                prop_assert!(url.username().is_empty() && url.password().is_none(), "{}", url);
                let is_local = matches!(host, "127.0.0.1" | "[::1]");
                prop_assert!(url.scheme() == "https" || (url.scheme() == "http" && is_local), "{}", url);
                let is_named = match host {
                    "mcp.example.com" | "[::1]" => port.is_none(),
                    "odd.example" => port == Some(8443),
                    "127.0.0.1" => port.is_some(),
                    _ => host.ends_with(".tools.example") && port.is_none(),
                };
                prop_assert!(is_named, "{}", url);
            }
        }
    }
}
