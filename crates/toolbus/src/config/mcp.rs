//! `[mcp]`: MCP servers, in sections of their own and in the file that other programs read, too.

mod auth;
mod draft;
mod file;
mod found;
mod placeholders;
mod server;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::pattern::Pattern;
use toolbus_mcp_client::model_tools::Rules;

pub use self::auth::{AgentCredential, ServerAuth};
pub(crate) use self::file::INPUT_PREFIX;
pub use self::file::ServersFile;
pub use self::found::McpServers;
pub(crate) use self::placeholders::{misplaced, placeholder};
pub use self::server::{ServerConfig, ServerKind, Validate};
use super::Config;
use super::pattern::ToolPattern;

/// Most servers of a file, and of a configuration.
pub(crate) const MAX_SERVERS: usize = 200;
/// Names of the tools with which agents look at servers and use them.
pub(crate) const MANAGEMENT_TOOLS: [&str; 5] =
    ["mcp_list_services", "mcp_get_service_details", "mcp_invoke_tool", "mcp_register_server", "mcp_unregister_server"];
/// The source of those tools.
pub(crate) const MANAGEMENT_SOURCE: &str = "mcp:management";

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
    /// What becomes of a request for a server that is not known here.
    pub unknown_server: UnknownServer,
    /// Whether callers may add servers at run time.
    pub register: RegisterConfig,
    /// The servers, by name.
    #[schemars(extend("maxProperties" = MAX_SERVERS, "propertyNames" = {"format": "toolbus-mcp-server"}))]
    pub servers: BTreeMap<String, ServerConfig>,
    /// What `servers_file` said when it was read.
    #[serde(skip)]
    pub(crate) file: ServersFile,
}

/// What becomes of a request for a server that is not known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum UnknownServer {
    /// It is answered with an error.
    #[default]
    Answer,
    /// It is left to another bridge on the bus.
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
    pub commands: Vec<Vec<ToolPattern>>,
    /// Hosts that they may have connected to, as patterns: `mcp.example.com`, with `:port` where that is not the usual one.
    #[schemars(length(max = 1024), extend("items" = {"type": "string", "format": "toolbus-host"}))]
    pub hosts: Vec<ToolPattern>,
}

impl RegisterConfig {
    /// What callers may register; `None`: nothing, because that is switched off.
    #[must_use]
    pub fn rules(&self) -> Option<Rules> {
        // Names of hosts are compared in lower case.
        let host = |host: &ToolPattern| Pattern::parse(&host.as_str().to_lowercase()).ok();
        let line = |line: &Vec<ToolPattern>| line.iter().map(|pattern| Pattern::clone(pattern)).collect();
        self.enabled.then(|| Rules {
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

impl Config {
    /// Reads `mcp.servers_file` again, and nothing else; `environment` is what `${NAME}` in it stands for.
    pub fn read_servers_file(&mut self, environment: &BTreeMap<String, String>) {
        let path = self.mcp.servers_file.as_deref();
        self.mcp.file = path.map(|path| ServersFile::read(path, environment)).unwrap_or_default();
    }
}
