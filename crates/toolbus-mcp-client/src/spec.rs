//! The configuration of an MCP server.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolbus_core::caller::AgentName;
use toolbus_core::pattern::Pattern;
use toolbus_core::secret::Secret;
use toolbus_core::tool::{Naming, Validation};
pub use toolbus_outbound::{ClientCredentials, Credential};
use url::Url;

/// Longest name of a server, in characters.
const MAX_NAME: usize = 64;
/// Names that sources of other tools have.
const RESERVED: [&str; 1] = ["management"];

/// The name of a server: 1 to 64 characters, none of them a control character. Two names that differ in the case of
/// letters alone are equal, because peers write server names in lower case.
#[derive(Debug, Clone)]
pub struct ServerName {
    written: Arc<str>,
    folded: Arc<str>,
    source: Arc<str>,
}

/// A text that names no server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerNameError {
    /// Empty, too long, or with characters that cannot be shown.
    #[error("is no name of an MCP server; expected 1 to {MAX_NAME} characters, none of them a control character")]
    Unusable,
    /// A name that would be mistaken for another source.
    #[error("is a reserved name; choose another name for this MCP server")]
    Reserved,
}

impl ServerName {
    /// Reads a name.
    ///
    /// # Errors
    ///
    /// If `text` is not 1 to 64 characters without control characters, or is reserved.
    pub fn parse(text: &str) -> Result<Self, ServerNameError> {
        let folded = text.to_lowercase();
        let is_usable =
            !text.trim().is_empty() && text.chars().count() <= MAX_NAME && !text.chars().any(char::is_control);
        if !is_usable {
            return Err(ServerNameError::Unusable);
        }
        if RESERVED.contains(&folded.as_str()) {
            return Err(ServerNameError::Reserved);
        }
        Ok(Self { written: text.into(), folded: folded.into(), source: format!("mcp:{text}").into() })
    }

    /// The name as it was written.
    #[must_use]
    pub const fn as_str(&self) -> &Arc<str> {
        &self.written
    }

    /// The name in lower case: by which it is compared.
    #[must_use]
    pub const fn folded(&self) -> &Arc<str> {
        &self.folded
    }

    /// The source of the server's tools: `mcp:{name}`.
    #[must_use]
    pub const fn source(&self) -> &Arc<str> {
        &self.source
    }
}

impl PartialEq for ServerName {
    fn eq(&self, other: &Self) -> bool {
        self.folded == other.folded
    }
}

impl Eq for ServerName {}

impl PartialOrd for ServerName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ServerName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.folded.cmp(&other.folded)
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// Everything that is configured of one server. The spelling of the name counts, because the source of the tools contains
/// it.
#[derive(Debug, Clone, Eq)]
pub struct ServerSpec {
    /// Name of the server.
    pub name: ServerName,
    /// Transport to the server.
    pub transport: TransportSpec,
    /// Which of its tools are offered, by the server's own names.
    pub tools: ToolFilter,
    /// Naming of the server's tools, without what a tool set adds.
    pub naming: Naming,
    /// Treatment of arguments that the tools' schemas do not allow.
    pub validation: Validation,
    /// Longest run of one call; absent: the daemon's.
    pub tool_timeout: Option<Duration>,
    /// Whether the first call starts the server, and idleness stops it.
    pub is_lazy: bool,
    /// Whether the server is configured but disabled.
    pub is_disabled: bool,
    /// Origin of the server.
    pub origin: ServerOrigin,
    /// Purpose of the server, in the operator's words: at most 300 characters.
    pub summary: Option<Arc<str>>,
}

impl ServerSpec {
    /// A server with a name and a transport, without further settings.
    pub(crate) fn new(name: ServerName, transport: TransportSpec, origin: ServerOrigin) -> Self {
        Self {
            name,
            transport,
            tools: ToolFilter::default(),
            naming: Naming::default(),
            validation: Validation::Enforce,
            tool_timeout: None,
            is_lazy: false,
            is_disabled: false,
            origin,
            summary: None,
        }
    }

    /// A configured server.
    #[cfg(test)]
    pub(crate) fn of_tests(name: &str, transport: TransportSpec) -> Self {
        Self::new(ServerName::parse(name).unwrap(), transport, ServerOrigin::Configuration)
    }
}

impl PartialEq for ServerSpec {
    fn eq(&self, other: &Self) -> bool {
        self.runs_like(other) && self.summary == other.summary
    }
}

impl ServerSpec {
    /// Whether a server needs no restart for the other configuration: they differ in the summary at most.
    #[must_use]
    pub fn runs_like(&self, other: &Self) -> bool {
        let Self { name, transport, tools, naming, validation, tool_timeout, is_lazy, is_disabled, origin, summary: _ } =
            self;
        name.written == other.name.written
            && *transport == other.transport
            && *tools == other.tools
            && *naming == other.naming
            && *validation == other.validation
            && *tool_timeout == other.tool_timeout
            && *is_lazy == other.is_lazy
            && *is_disabled == other.is_disabled
            && *origin == other.origin
    }
}

/// Origin of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerOrigin {
    /// An operator, by configuration.
    Configuration,
    /// A caller, at run time.
    Registration,
}

/// Transport to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransportSpec {
    /// A child process, connected by its standard input and output.
    Stdio(StdioSpec),
    /// An HTTP server.
    Http(HttpSpec),
}

/// A program to run. `args`, `env`, `cwd` and `roots` of a server that is started for each session may contain
/// `{agent}` and `{session}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StdioSpec {
    /// Name or path of the program; a name is looked up in `PATH`.
    pub command: String,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Variables of its environment, besides the few that every program needs.
    pub env: BTreeMap<String, Secret>,
    /// Working directory; `None`: the daemon's.
    pub cwd: Option<PathBuf>,
    /// Directories sent to the server as MCP roots.
    pub roots: Vec<PathBuf>,
}

/// An HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSpec {
    /// Address of the server. Every request stays on the origin of this URL.
    pub url: Url,
    /// Transport of the server.
    pub kind: HttpKind,
    /// Headers of every request.
    pub headers: BTreeMap<String, Secret>,
    /// Authorisation of requests.
    pub credentials: Credentials,
}

/// A transport over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpKind {
    /// Detected: Streamable HTTP if the server responds to it, else HTTP+SSE.
    Detect,
    /// Streamable HTTP.
    Streamable,
    /// HTTP+SSE, as of protocol version 2024-11-05.
    Sse,
}

/// Authorisation of requests to an HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// Without credentials besides the headers.
    None,
    /// By one credential for all callers.
    Shared(Credential),
    /// By a credential of the caller's agent. An agent without one is refused. The tools are listed with the first.
    PerAgent(BTreeMap<AgentName, Credential>),
}

impl Credentials {
    /// Every credential, those of agents in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = &Credential> {
        let (shared, agents) = match self {
            Self::None => (None, None),
            Self::Shared(credential) => (Some(credential), None),
            Self::PerAgent(agents) => (None, Some(agents)),
        };
        shared.into_iter().chain(agents.into_iter().flat_map(BTreeMap::values))
    }
}

/// Lists of tools, ASCII case ignored. Deny wins over allow; no list of allowed tools allows all.
///
/// An entry is a name, or a glob as [`Pattern`] has it: `*` stands for any run of characters, `?` for one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolFilter {
    allowed: Vec<NamePattern>,
    denied: Vec<NamePattern>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum NamePattern {
    Pattern(Pattern),
    /// A text that is no pattern. A server may still have a tool of exactly that name.
    Name(String),
}

impl NamePattern {
    fn new(text: &str) -> Self {
        let folded = text.trim().to_ascii_lowercase();
        Pattern::parse(&folded).map_or(Self::Name(folded), Self::Pattern)
    }

    fn matches(&self, folded: &str) -> bool {
        match self {
            Self::Pattern(pattern) => pattern.matches(folded),
            Self::Name(name) => name == folded,
        }
    }
}

impl ToolFilter {
    /// A filter of two lists; spaces around an entry do not count.
    #[must_use]
    pub fn new(allowed: Vec<String>, denied: Vec<String>) -> Self {
        let entries = |texts: Vec<String>| texts.iter().map(|text| NamePattern::new(text)).collect();
        Self { allowed: entries(allowed), denied: entries(denied) }
    }

    /// Whether the tool of this name is offered.
    #[must_use]
    pub fn admits(&self, name: &str) -> bool {
        let folded = name.to_ascii_lowercase();
        let is_in = |entries: &[NamePattern]| entries.iter().any(|entry| entry.matches(&folded));
        !is_in(&self.denied) && (self.allowed.is_empty() || is_in(&self.allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(allowed: &[&str], denied: &[&str]) -> ToolFilter {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        ToolFilter::new(owned(allowed), owned(denied))
    }

    #[test]
    fn tools_are_admitted_by_both_lists() {
        let table: [(&[&str], &[&str], &str, bool); 16] = [
            (&[], &[], "echo", true),
            (&["echo"], &[], "echo", true),
            (&["echo"], &[], "echoes", false),
            (&["ECHO"], &[], "Echo", true),
            (&["echo"], &["Echo"], "echo", false),
            (&[], &["delete_*"], "Delete_File", false),
            (&[], &["delete_*"], "read_file", true),
            (&["*_file"], &["delete_*"], "read_file", true),
            (&["*_file"], &["delete_*"], "delete_file", false),
            (&["get_?"], &[], "get_a", true),
            (&["get_?"], &[], "get_ab", false),
            (&[" echo "], &[], "echo", true),
            (&[""], &[], "echo", false),
            // Only the case of ASCII letters is ignored.
            (&["ÄRGER"], &[], "ärger", false),
            // No pattern, and yet a name.
            (&[], &["a|b"], "A|B", false),
            (&[], &["a|b"], "a", true),
        ];
        for (allowed, denied, name, expected) in table {
            assert_eq!(filter(allowed, denied).admits(name), expected, "{allowed:?} {denied:?} {name}");
        }
    }

    #[test]
    fn lists_that_differ_in_case_alone_are_equal() {
        assert_eq!(filter(&["Echo"], &["X*"]), filter(&["echo"], &["x*"]));
    }
}
