//! What callers may register: whole command lines, and hosts. Nothing is allowed that no pattern names.

#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toolbus_core::pattern::Pattern;
use url::{Host, Url};

use crate::spec::{Credentials, Endpoint, HttpKind, Program, TransportSpec};

/// Longest command and longest argument, in bytes.
const MAX_ARGUMENT: usize = 1024;
/// Longest URL, in bytes.
const MAX_URL: usize = 2048;

/// What callers may register.
///
/// A command line is allowed by a list of patterns, one for the command and one for each argument, no more and no fewer.
/// A pattern with `*` or `?` stands for one value: never for an empty one, for one with `..`, or for an option unless it
/// begins with `-` itself. `*` stands for `/`, `@` and `:` as well.
///
/// A host is allowed by a pattern, on the port of the scheme; on another port by a pattern `host:port`. A pattern with `*`
/// or `?` in its host never stands for an address or for this machine, which must be written out; an IPv6 address without
/// brackets.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Command lines: the command, then its arguments.
    pub commands: Vec<Vec<Pattern>>,
    /// Hosts.
    pub hosts: Vec<Pattern>,
}

/// What a caller wants to register, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Target {
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
        kind: Kind,
    },
}

/// A transport over HTTP, as it is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    #[default]
    Detect,
    Http,
    Sse,
}

/// Why something may not be registered. The texts are for callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
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

impl Rules {
    /// How the server is reached that a caller wants, if it may.
    pub(super) fn transport(&self, target: &Target) -> Result<TransportSpec, Refused> {
        match target {
            Target::Command { command, args } => {
                let is_allowed = |patterns: &Vec<Pattern>| line_fits(patterns, command, args);
                if !self.commands.iter().any(is_allowed) {
                    return Err(Refused::Command);
                }
                let (command, args) = (command.clone(), args.clone());
                Ok(TransportSpec::Stdio(Program { command, args, env: BTreeMap::new(), cwd: None, roots: Vec::new() }))
            }
            Target::Url { url, kind } => {
                let url = self.url(url)?;
                let kind = HttpKind::from(*kind);
                let headers = BTreeMap::new();
                Ok(TransportSpec::Http(Endpoint { url, kind, headers, credentials: Credentials::None }))
            }
        }
    }

    fn url(&self, text: &str) -> Result<Url, Refused> {
        if text.len() > MAX_URL {
            return Err(Refused::Url);
        }
        let mut url = Url::parse(text).map_err(|_| Refused::Url)?;
        let (Some(host), Some(port)) = (url.host().map(|host| host.to_owned()), url.port_or_known_default()) else {
            return Err(Refused::Url);
        };
        match url.scheme() {
            "https" => {}
            "http" if is_this_machine(&host) => {}
            _ => return Err(Refused::Scheme),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::Login);
        }
        let port = url.port().map(|_| port);
        if !self.hosts.iter().any(|pattern| host_fits(pattern, &host, port)) {
            return Err(Refused::Host);
        }
        url.set_fragment(None);
        Ok(url)
    }
}

impl From<Kind> for HttpKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Detect => Self::Detect,
            Kind::Http => Self::Streamable,
            Kind::Sse => Self::Sse,
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
    // Programs read `..` in many places: in a path, behind `=`, in a URL.
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
