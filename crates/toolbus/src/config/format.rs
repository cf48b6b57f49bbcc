//! The `format`s that the JSON Schema of the configuration names.

use std::net::{Ipv6Addr, SocketAddr};

use toolbus_config::{ByteSize, Check, Cpu, HumanDuration, LargeSize, expected, nearest};
use toolbus_core::caller::AgentName;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::Profile;
use toolbus_core::recipients::RecipientPath;
use toolbus_mcp_client::spec::ServerName;
use toolbus_outbound::egress::HostRule;
use toolbus_protocol::MAX_SHORT_STRING;
use toolbus_scripts::requirement::AllowedPackages;
use toolbus_store::StoreUrl;
use url::Url;

use super::agents::{DEFAULT_SECTION, UNKNOWN_AGENT};
use super::bus::{AmqpUrl, BusUrl};

/// Longest queue prefix in bytes: the longest queue name, with its own endings, stays a short string.
const MAX_PREFIX: usize = 180;

/// Every format and its check.
pub(crate) const FORMATS: [(&str, Check); 35] = [
    ("toolbus-duration", |text| checked(text.parse::<HumanDuration>())),
    ("toolbus-size", |text| checked(text.parse::<ByteSize>())),
    ("toolbus-large-size", |text| checked(text.parse::<LargeSize>())),
    ("toolbus-cpu", |text| checked(text.parse::<Cpu>())),
    ("toolbus-package", package),
    ("toolbus-module", module),
    ("toolbus-bus-url", |text| checked(text.parse::<BusUrl>())),
    ("toolbus-amqp-url", |text| checked(text.parse::<AmqpUrl>())),
    ("toolbus-broker-host", broker_host),
    ("toolbus-socket-address", socket_address),
    ("toolbus-http-url", http_url),
    ("toolbus-name", name),
    ("toolbus-exchange", exchange),
    ("toolbus-queue-prefix", queue_prefix),
    ("toolbus-compat-queue", compat_queue),
    ("toolbus-mcp-server", mcp_server),
    ("toolbus-host", host_pattern),
    ("toolbus-host-name", host_name),
    ("toolbus-egress-host", |text| checked(text.parse::<HostRule>())),
    ("toolbus-search-url", search_url),
    ("toolbus-service-url", service_url),
    ("toolbus-origin", origin),
    ("toolbus-topic", topic),
    ("toolbus-topic-pattern", topic_pattern),
    ("toolbus-log-filter", log_filter),
    ("toolbus-socket-path", socket_path),
    ("toolbus-store-url", |text| checked(text.parse::<StoreUrl>())),
    ("toolbus-pattern", pattern),
    ("toolbus-agent", agent),
    ("toolbus-agent-section", agent_section),
    ("toolbus-prefix", prefix),
    ("toolbus-channel", channel),
    ("toolbus-account", account),
    ("toolbus-profile", profile),
    ("toolbus-recipient-path", recipient_path),
];

fn checked<T, E: ToString>(result: Result<T, E>) -> Result<(), String> {
    result.map(|_| ()).map_err(|error| error.to_string())
}

fn require(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}

fn socket_address(text: &str) -> Result<(), String> {
    checked(text.parse::<SocketAddr>())
        .map_err(|_| format!("{:?} is not an address; expected IP:PORT, such as \"127.0.0.1:8471\"", shortened(text)))
}

/// Longest path of a Unix socket, in bytes: the limit of the system.
const MAX_SOCKET_PATH: usize = 107;

fn socket_path(text: &str) -> Result<(), String> {
    require(!text.is_empty(), r#"empty; expected a path, or "none" for no socket"#)?;
    require(!text.chars().any(char::is_control), "holds a control character; expected a path")?;
    let too_long = format!("{} bytes long; the path of a socket has at most {MAX_SOCKET_PATH}", text.len());
    require(text.len() <= MAX_SOCKET_PATH, &too_long)
}

fn http_url(text: &str) -> Result<(), String> {
    const EXPECTED: &str = "expected \"http://host:port\" or \"https://host:port\"";
    let url = Url::parse(text).map_err(|error| format!("not a URL ({error}); {EXPECTED}"))?;
    require(matches!(url.scheme(), "http" | "https"), &format!("not an HTTP address; {EXPECTED}"))?;
    require(
        url.username().is_empty() && url.password().is_none(),
        "credentials in this address would be shown; use the variable OTEL_EXPORTER_OTLP_HEADERS instead",
    )?;
    require(
        url.query().is_none(),
        "a query in this address would be shown; use the variable OTEL_EXPORTER_OTLP_HEADERS for credentials",
    )?;
    // Where a password with a reserved character ended too early, the user is the host.
    require(
        url.fragment().is_none() && !url.path().contains('@'),
        &format!("has `#` or `@` behind the host; {EXPECTED}"),
    )
}

fn service_url(text: &str) -> Result<(), String> {
    const EXPECTED: &str = "expected an address such as \"https://host/path\"";
    let url = Url::parse(text).map_err(|error| format!("not a URL ({error}); {EXPECTED}"))?;
    require(matches!(url.scheme(), "http" | "https"), &format!("not an HTTP address; {EXPECTED}"))?;
    let is_open = url.username().is_empty() && url.password().is_none();
    require(is_open, &format!("credentials in an address would be shown; {EXPECTED}"))?;
    require(url.fragment().is_none(), &format!("has a fragment, which is never sent; {EXPECTED}"))
}

fn search_url(text: &str) -> Result<(), String> {
    const EXPECTED: &str = "expected an address such as \"https://host/search?q={query}&n={count}\"";
    require(text.contains("{query}"), &format!("without `{{query}}`; {EXPECTED}"))?;
    let url = Url::parse(&text.replace("{query}", "x").replace("{count}", "1"));
    let url = url.map_err(|error| format!("not a URL ({error}); {EXPECTED}"))?;
    require(matches!(url.scheme(), "http" | "https"), &format!("not an HTTP address; {EXPECTED}"))
}

fn name(text: &str) -> Result<(), String> {
    short_string(text)?;
    require(!text.chars().any(char::is_control), "holds a control character; expected printable text")
}

fn short_string(text: &str) -> Result<(), String> {
    require(!text.is_empty(), "empty; expected a text of 1 to 255 bytes")?;
    let too_long = format!("{} bytes long; AMQP allows at most {MAX_SHORT_STRING}", text.len());
    require(text.len() <= MAX_SHORT_STRING, &too_long)
}

fn exchange(text: &str) -> Result<(), String> {
    name(text)?;
    require(!text.starts_with("amq."), "names that start with `amq.` belong to the broker; expected another name")
}

fn queue_prefix(text: &str) -> Result<(), String> {
    const EXPECTED: &str = "expected a name such as \"toolbus\"";
    require(!text.is_empty(), &format!("empty; {EXPECTED}"))?;
    let too_long = format!("{} bytes long; at most {MAX_PREFIX} leave room for the names of queues", text.len());
    require(text.len() <= MAX_PREFIX, &too_long)?;
    let foreign = ["rockbot.", "amq."].into_iter().find(|owned| format!("{text}.").starts_with(owned));
    if let Some(owned) = foreign {
        return Err(format!("queues that start with `{owned}` belong to others; {EXPECTED}"));
    }
    let usual = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    require(text.chars().all(usual), &format!("only letters, digits, `.`, `_` and `-` can be used; {EXPECTED}"))
}

fn compat_queue(text: &str) -> Result<(), String> {
    name(text)?;
    require(!text.starts_with("amq."), "queues that start with `amq.` belong to the broker; expected another name")
}

fn topic(text: &str) -> Result<(), String> {
    topic_pattern(text)?;
    require(!text.contains(['*', '#']), "a pattern; expected one topic, such as \"tool.result\"")
}

fn topic_pattern(text: &str) -> Result<(), String> {
    name(text)?;
    let is_word = |word: &str| !word.is_empty() && (matches!(word, "*" | "#") || !word.contains(['*', '#']));
    require(
        text.split('.').all(is_word),
        "not a topic; expected words with dots between them, where `*` stands for one word and `#` for any number",
    )
}

fn log_filter(text: &str) -> Result<(), String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let levels = text.split(',').map(|part| part.rsplit('=').next().unwrap_or_default().trim());
    let near = levels.filter(|level| !LEVELS.contains(level)).find_map(|level| nearest(level, LEVELS));
    let hint = near.map(|level| format!("; did you mean `{level}`?")).unwrap_or_default();
    toolbus_telemetry::logging::check_filter(text).map_err(|error| format!("{error}{hint}"))
}

fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Longest name of a host, in bytes.
const MAX_HOST: usize = 253;
/// Longest origin, in bytes.
const MAX_ORIGIN: usize = 300;

/// The name of a host, alone.
fn host_name(text: &str) -> Result<(), String> {
    let what = format!(
        "{:?} is no name of a host; expected one alone, without scheme, port and wildcard, such as \
         \"toolbus.example.com\"",
        shortened(text)
    );
    let is_label =
        |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    require(text.len() <= MAX_HOST && text.split('.').all(is_label), &what)
}

/// The name or the IP address of a broker's host, alone. Not repeated: it may be an address with a password.
fn broker_host(text: &str) -> Result<(), String> {
    const WHAT: &str = "no host; expected a name or an IP address alone, such as \"rabbitmq.example\"; the others are \
                        bus.port, bus.vhost, bus.user and bus.password";
    require(text.parse::<Ipv6Addr>().is_ok() || host_name(text).is_ok(), WHAT)
}

/// Checks an origin, as browsers send it.
fn origin(text: &str) -> Result<(), String> {
    let what = format!(
        "{:?} is no origin as browsers send it; expected scheme, host and, where it is not the usual one, port, such as \
         \"https://app.example.com\"",
        shortened(text)
    );
    let (scheme, host) = text.split_once("://").ok_or_else(|| what.clone())?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_lowercase())
        && scheme.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    let is_host = !host.is_empty()
        && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '[' | ']'));
    let is_written_so = !matches!(scheme, "http" | "https")
        || Url::parse(text).is_ok_and(|url| url.origin().ascii_serialization() == text);
    require(text.len() <= MAX_ORIGIN && is_scheme && is_host && is_written_so, &what)
}

fn mcp_server(text: &str) -> Result<(), String> {
    ServerName::parse(text).map(|_| ()).map_err(|error| format!("{:?} {error}", shortened(text)))
}

/// A pattern of hosts, with a port where that is not the usual one.
fn host_pattern(text: &str) -> Result<(), String> {
    pattern(text)?;
    let (name, port) = match text.split_once(':') {
        _ if text.parse::<Ipv6Addr>().is_ok() => return Ok(()),
        Some((name, port)) => (name, port),
        None => (text, "443"),
    };
    let is_wild = |c: char| matches!(c, '*' | '?');
    let is_name =
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c) || is_wild(c));
    let is_port = !port.is_empty() && port.chars().all(|c| c.is_ascii_digit() || is_wild(c));
    let what = format!(
        "{:?} is no host; expected for example \"mcp.example.com\", \"*.example.com:8443\" or \"::1\"",
        shortened(text)
    );
    require(is_name && is_port, &what)
}

/// Longest prefix of a tool set, in bytes.
const MAX_TOOL_PREFIX: usize = 32;
/// Longest name of a channel or an account, in bytes.
const MAX_BINDING: usize = 64;

fn pattern(text: &str) -> Result<(), String> {
    Pattern::parse(text).map(|_| ()).map_err(|error| format!("{:?} {error}", shortened(text)))
}

/// One agent by its name.
fn agent(text: &str) -> Result<(), String> {
    agent_section(text)?;
    require(text != DEFAULT_SECTION, "stands for every agent without a section; expected the name of one agent")
}

/// One agent, or all that have no section.
fn agent_section(text: &str) -> Result<(), String> {
    AgentName::parse(text).map_err(|error| format!("{:?} {error}", shortened(text)))?;
    require(text != UNKNOWN_AGENT, "no agent can have this name; callers without a section are `agents.default`")
}

fn prefix(text: &str) -> Result<(), String> {
    let usual = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-');
    let fits = (1..=MAX_TOOL_PREFIX).contains(&text.len()) && text.bytes().all(usual);
    let what =
        format!("{:?} is no prefix; expected 1 to {MAX_TOOL_PREFIX} letters, digits, `_` or `-`", shortened(text));
    require(fits, &what)
}

fn channel(text: &str) -> Result<(), String> {
    account(text)?;
    require(!text.contains(':'), "holds a colon, which ends the name of the channel in `channel:account`")
}

fn account(text: &str) -> Result<(), String> {
    let fits = (1..=MAX_BINDING).contains(&text.len()) && !text.chars().any(char::is_control);
    require(fits, &format!("expected 1 to {MAX_BINDING} bytes of printable text"))
}

fn profile(text: &str) -> Result<(), String> {
    let profiles = Profile::all();
    let names: Vec<&str> = profiles.iter().map(Profile::name).collect();
    let unknown = || format!("there is no profile {:?}; {}", shortened(text), expected(text, &names));
    if profiles.iter().any(|profile| profile.is_named(text)) { Ok(()) } else { Err(unknown()) }
}

fn recipient_path(text: &str) -> Result<(), String> {
    RecipientPath::parse(text)
        .map(|_| ())
        .map_err(|error| format!("{:?} is no path to recipients; {error}", shortened(text)))
}

/// Longest name of a module, in bytes.
const MAX_MODULE: usize = 128;

/// A module of Python, by its full name.
fn module(text: &str) -> Result<(), String> {
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let what = format!("{:?} is no module; expected a name such as \"json\" or \"os.path\"", shortened(text));
    require(text.len() <= MAX_MODULE && text.split('.').all(is_word), &what)
}

/// A package with or without versions, or any.
fn package(text: &str) -> Result<(), String> {
    let mistake = AllowedPackages::parse(&[text]).err().and_then(|mistakes| mistakes.into_iter().next());
    mistake.map_or(Ok(()), |(_, mistake)| Err(mistake.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_accepts_and_refuses_its_examples() {
        let long = "x".repeat(256);
        let table = [
            ("toolbus-bus-url", "embedded", true),
            ("toolbus-bus-url", "amqps://broker", true),
            ("toolbus-amqp-url", "embedded", false),
            ("toolbus-socket-address", "[::1]:0", true),
            ("toolbus-socket-address", "localhost:1", false),
            ("toolbus-http-url", "http://127.0.0.1:4317", true),
            ("toolbus-http-url", "127.0.0.1:4317", false),
            ("toolbus-http-url", "https://ana:hunter2@collector", false),
            ("toolbus-http-url", "https://collector/?key=hunter2", false),
            ("toolbus-http-url", "https://ana:12#hunter2@collector", false),
            ("toolbus-http-url", "https://ana:12/hunter2@collector", false),
            ("toolbus-amqp-url", "amqp://broker/%2f?frame_max=131072", true),
            ("toolbus-amqp-url", "amqp://broker/%2f?heartbeat=5&frame_max=131071", false),
            ("toolbus-amqp-url", "amqp://broker/%2f?frame_max=0", false),
            ("toolbus-amqp-url", "amqp://broker/%2f?frame_max=x", false),
            ("toolbus-broker-host", "rabbitmq.svc.cluster.local", true),
            ("toolbus-broker-host", "2001:db8::1", true),
            ("toolbus-broker-host", "ana:hunter2@host", false),
            ("toolbus-broker-host", "amqp://host", false),
            ("toolbus-name", "a b", true),
            ("toolbus-name", "a\nb", false),
            ("toolbus-name", &long, false),
            ("toolbus-exchange", "amq.topic", false),
            ("toolbus-queue-prefix", "toolbus.ana", true),
            ("toolbus-queue-prefix", "rockbot", false),
            ("toolbus-queue-prefix", "rockbots", true),
            ("toolbus-queue-prefix", "amq.x", false),
            ("toolbus-queue-prefix", "toolbus.{agent}", false),
            ("toolbus-compat-queue", "rockbot.mcp-bridge.RockBot", true),
            ("toolbus-compat-queue", "amq.gen-x", false),
            ("toolbus-mcp-server", "My Server", true),
            ("toolbus-mcp-server", "", false),
            ("toolbus-mcp-server", "Management", false),
            ("toolbus-host", "mcp.example.com", true),
            ("toolbus-host", "127.0.0.1:8080", true),
            ("toolbus-host", "::1", true),
            ("toolbus-host", "*.example.com:*", true),
            ("toolbus-host", "[::1]:8080", false),
            ("toolbus-host", "mcp.example.com:", false),
            ("toolbus-host", "mcp.exämple.com", false),
            ("toolbus-host", "https://mcp.example.com", false),
            ("toolbus-host", "mcp.example.com/x", false),
            ("toolbus-host", "ana@mcp.example.com", false),
            ("toolbus-host", "", false),
            ("toolbus-egress-host", "*.example.com:8443", true),
            ("toolbus-egress-host", "10.0.0.0/8", true),
            ("toolbus-egress-host", "https://example.com", false),
            ("toolbus-search-url", "https://host/search?q={query}&n={count}", true),
            ("toolbus-search-url", "https://host/search", false),
            ("toolbus-search-url", "ftp://host/{query}", false),
            ("toolbus-host-name", "toolbus.example.com", true),
            ("toolbus-host-name", "intra", true),
            ("toolbus-host-name", "*.example.com", false),
            ("toolbus-host-name", "toolbus.example.com:443", false),
            ("toolbus-host-name", "https://toolbus.example.com", false),
            ("toolbus-host-name", "toolbus..com", false),
            ("toolbus-host-name", "", false),
            ("toolbus-origin", "https://app.example.com", true),
            ("toolbus-origin", "http://app.example.com:8080", true),
            ("toolbus-origin", "vscode-webview://1a2b", true),
            ("toolbus-origin", "https://app.example.com/", false),
            ("toolbus-origin", "https://App.example.com", false),
            ("toolbus-origin", "https://app.example.com:443", false),
            ("toolbus-origin", "https://*.example.com", false),
            ("toolbus-origin", "https://ana@app.example.com", false),
            ("toolbus-origin", "app.example.com", false),
            ("toolbus-origin", "null", false),
            ("toolbus-origin", "*", false),
            ("toolbus-topic", "tool.result", true),
            ("toolbus-topic", "tool.#", false),
            ("toolbus-topic-pattern", "tool.#", true),
            ("toolbus-topic-pattern", "tool..x", false),
            ("toolbus-topic-pattern", "tool.re*", false),
            ("toolbus-log-filter", "info,toolbus_broker=debug", true),
            ("toolbus-log-filter", "inof", false),
            ("toolbus-log-filter", "", false),
            ("toolbus-socket-path", "/run/toolbus/toolbus.sock", true),
            ("toolbus-socket-path", "none", true),
            ("toolbus-socket-path", &long[..107], true),
            ("toolbus-socket-path", &long[..108], false),
            ("toolbus-socket-path", "", false),
            ("toolbus-pattern", "fs.read_*", true),
            ("toolbus-pattern", "[ab]*", false),
            ("toolbus-agent", "ana.b-c", true),
            ("toolbus-agent", "ána", false),
            ("toolbus-agent", "unknown", false),
            ("toolbus-agent", "default", false),
            ("toolbus-agent-section", "default", true),
            ("toolbus-agent-section", "unknown", false),
            ("toolbus-prefix", "file-system_2", true),
            ("toolbus-prefix", "a.b", false),
            ("toolbus-prefix", "", false),
            ("toolbus-prefix", &long[..32], true),
            ("toolbus-prefix", &long[..33], false),
            ("toolbus-channel", "whatsapp", true),
            ("toolbus-channel", "whats:app", false),
            ("toolbus-channel", &long[..65], false),
            ("toolbus-account", "a:b", true),
            ("toolbus-account", "a\nb", false),
            ("toolbus-account", "", false),
            ("toolbus-profile", "subagent", true),
            ("toolbus-profile", "A2ASynthesis", true),
            ("toolbus-profile", "Mein", false),
            ("toolbus-recipient-path", "/cc/*", true),
            ("toolbus-recipient-path", "cc", false),
            ("toolbus-large-size", "1024GiB", true),
            ("toolbus-large-size", "1025GiB", false),
            ("toolbus-cpu", "500m", true),
            ("toolbus-cpu", "50%", false),
            ("toolbus-module", "os.path", true),
            ("toolbus-module", "_x1", true),
            ("toolbus-module", "os.", false),
            ("toolbus-module", "1x", false),
            ("toolbus-module", "os; import sys", false),
            ("toolbus-module", "", false),
            ("toolbus-package", "*", true),
            ("toolbus-package", "requests==2.31.0", true),
            ("toolbus-package", "--index-url=https://evil", false),
            ("toolbus-package", "../numpy", false),
        ];
        for (format, text, expected) in table {
            let check = FORMATS.iter().find(|(name, _)| *name == format).unwrap().1;
            assert_eq!(check(text).is_ok(), expected, "{format} {text}");
        }
    }
}
