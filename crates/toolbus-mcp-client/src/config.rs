//! `[mcp]`: MCP servers, in sections of their own and in the file that other programs read, too.

mod auth;
mod file;
mod placeholders;
mod server;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::pattern::Pattern;
use url::Url;

pub use self::file::{INPUT_PREFIX, ServersFile};
pub use self::placeholders::{misplaced, placeholder};
pub use self::server::{ServerConfig, ServerKind};
use crate::model_tools::RegistrationRules;

/// Most servers of a file, and of a configuration.
const MAX_SERVERS: usize = 200;
/// MCP servers, whose tools are tools on the bus.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct McpConfig {
    /// JSON file with more servers, in the form `mcpServers` that other programs have; relative to the working directory.
    #[schemars(length(min = 1))]
    pub servers_file: Option<PathBuf>,
    /// Names of servers without which the daemon is not ready, ASCII case ignored.
    #[schemars(length(max = MAX_SERVERS), extend("items" = {"type": "string", "format": "toolbus-mcp-server"}))]
    pub required: Vec<String>,
    /// Treatment of a request for a server that is not known here.
    pub unknown_server: UnknownServer,
    /// Whether callers may add servers at run time.
    pub register: RegisterConfig,
    /// The servers, by name.
    #[schemars(extend("maxProperties" = MAX_SERVERS, "propertyNames" = {"format": "toolbus-mcp-server"}))]
    pub servers: BTreeMap<String, ServerConfig>,
    /// Content of `servers_file` when it was read.
    #[serde(skip)]
    pub file: ServersFile,
}

/// Treatment of a request for a server that is not known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum UnknownServer {
    /// The request is answered with an error.
    #[default]
    Answer,
    /// The request is left to another bridge on the bus.
    Ignore,
}

/// Whether callers may add servers at run time, and which.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RegisterConfig {
    /// Whether they may add any.
    pub enabled: bool,
    /// Command lines that they may have run, each a pattern for the program and one for every argument.
    #[schemars(length(max = 1024), extend("items" = {
        "type": "array", "items": {"type": "string", "format": "toolbus-pattern"}, "minItems": 1, "maxItems": 256,
    }))]
    pub commands: Vec<Vec<Pattern>>,
    /// Hosts that they may have connected to, as patterns: `mcp.example.com`, with `:port` where that is not the usual one.
    #[schemars(length(max = 1024), extend("items" = {"type": "string", "format": "toolbus-host"}))]
    pub hosts: Vec<Pattern>,
}

impl RegisterConfig {
    /// Returns the rules for registrations by callers; `None` if callers may register nothing.
    #[must_use]
    pub fn rules(&self) -> Option<RegistrationRules> {
        // Names of hosts are compared in lower case.
        let host = |host: &Pattern| Pattern::parse(&host.as_str().to_lowercase()).ok();
        let line = |line: &Vec<Pattern>| line.clone();
        self.enabled.then(|| RegistrationRules {
            commands: self.commands.iter().map(line).collect(),
            hosts: self.hosts.iter().filter_map(host).collect(),
        })
    }
}

impl McpConfig {
    /// Whether there can be any server.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.servers_file.is_some() || !self.servers.is_empty() || self.register.enabled
    }
}

/// Mistake in the configuration of a server. It never holds a value, which may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Mistake {
    /// The key, as TOML has it; empty: the server as a whole.
    pub key: &'static str,
    /// Text on what is wrong and what is expected.
    pub what: String,
}

impl Mistake {
    fn new(key: &'static str, what: impl Into<String>) -> Self {
        Self { key, what: what.into() }
    }
}

/// Reads the address of an HTTP server; `key` is where it stands.
fn http_url(key: &'static str, text: &str) -> Result<Url, Mistake> {
    let url = Url::parse(text).map_err(|error| {
        let what = format!("`{key}` is no URL ({error}); expected \"https://host/path\"");
        Mistake::new(key, what)
    })?;
    require(matches!(url.scheme(), "http" | "https"), key, "is no HTTP address; expected \"https://host/path\"")?;
    let has_user = !url.username().is_empty() || url.password().is_some();
    require(
        url.fragment().is_none(),
        key,
        "has a fragment (`#…`), which is never sent; expected \"https://host/path\"",
    )?;
    require(!has_user, key, "has a user or a password, which would be shown; use a header instead")?;
    Ok(url)
}

fn require(holds: bool, key: &'static str, what: &str) -> Result<(), Mistake> {
    if holds { Ok(()) } else { Err(Mistake::new(key, format!("`{key}` {what}"))) }
}
