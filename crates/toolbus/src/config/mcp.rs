//! `[mcp]`: MCP servers, in sections of their own and in the file that other programs read, too.

mod auth;
mod file;
mod placeholders;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::pattern::Pattern;
use toolbus_mcp_client::model_tools::RegistrationRules;
use toolbus_mcp_client::spec::{ServerName, ServerSpec};
use toolbus_trust::pins::Level;
use url::Url;

pub(crate) use self::file::INPUT_PREFIX;
pub use self::file::ServersFile;
pub(crate) use self::placeholders::{misplaced, placeholder};
pub use self::server::{ServerConfig, ServerKind};
use super::Config;
use super::pattern::ToolPattern;
use super::toolsets::{Kind, Scope, ToolsetConfig};

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
    /// Treatment of a request for a server that is not known here.
    pub unknown_server: UnknownServer,
    /// Whether callers may add servers at run time.
    pub register: RegisterConfig,
    /// The servers, by name.
    #[schemars(extend("maxProperties" = MAX_SERVERS, "propertyNames" = {"format": "toolbus-mcp-server"}))]
    pub servers: BTreeMap<String, ServerConfig>,
    /// Content of `servers_file` when it was read.
    #[serde(skip)]
    pub(crate) file: ServersFile,
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
    pub commands: Vec<Vec<ToolPattern>>,
    /// Hosts that they may have connected to, as patterns: `mcp.example.com`, with `:port` where that is not the usual one.
    #[schemars(length(max = 1024), extend("items" = {"type": "string", "format": "toolbus-host"}))]
    pub hosts: Vec<ToolPattern>,
}

impl RegisterConfig {
    /// Returns the rules for registrations by callers; `None` if callers may register nothing.
    #[must_use]
    pub fn rules(&self) -> Option<RegistrationRules> {
        // Names of hosts are compared in lower case.
        let host = |host: &ToolPattern| Pattern::parse(&host.as_str().to_lowercase()).ok();
        let line = |line: &Vec<ToolPattern>| line.iter().map(|pattern| Pattern::clone(pattern)).collect();
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

impl Config {
    /// Reads `mcp.servers_file` again, and nothing else; `environment` is what `${NAME}` in it stands for.
    pub fn read_servers_file(&mut self, environment: &BTreeMap<String, String>) {
        let path = self.mcp.servers_file.as_deref();
        self.mcp.file = path.map(|path| ServersFile::read(path, environment)).unwrap_or_default();
    }
}

/// The MCP servers of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct McpServers {
    /// Those that can be used, at most one of each name.
    pub specs: Vec<ServerSpec>,
    /// Pin levels by source, of the servers that set one.
    pub pins: BTreeMap<String, Level>,
    /// Warnings about valid but suspicious settings.
    pub warnings: Vec<String>,
    /// Why servers, or the whole file, cannot be used as they are.
    pub problems: Vec<String>,
    /// Servers of the file that go on as they were, each with what is wrong with it as it is written now.
    pub outdated: BTreeMap<ServerName, String>,
}

impl Config {
    /// The MCP servers, those of `mcp.servers` before those of the file. Reads nothing: the file is as it was when the
    /// configuration was loaded, or when it was last read again.
    #[must_use]
    pub fn mcp_servers(&self) -> McpServers {
        let file = &self.mcp.file;
        let mut found = McpServers {
            warnings: file.warnings.clone(),
            problems: file.problems(),
            outdated: file.outdated(),
            ..McpServers::default()
        };
        let mut names = BTreeSet::new();
        for (name, server) in &self.mcp.servers {
            match server.finish(name) {
                Ok((spec, warnings)) => {
                    found.warnings.extend(warnings.iter().map(|warning| format!("mcp.servers.{name}: {warning}")));
                    names.insert(spec.name.clone());
                    found.pins.extend(server.pin.map(|pin| (spec.name.source().to_string(), pin)));
                    found.specs.push(spec);
                }
                Err(mistake) => found.problems.push(format!("mcp.servers.{name}: {mistake}")),
            }
        }
        let in_sessions = self.session_servers();
        for (spec, location) in &file.entries {
            let name = &spec.name;
            if names.contains(name) {
                found.warnings.push(format!("{location}: `{name}` is not used, because `mcp.servers` has it, too"));
            } else if let Some(mistake) = misplaced_in(spec, &in_sessions) {
                found.problems.push(format!("{location}: `{name}` is left out: {mistake}"));
            } else {
                found.pins.extend(file.pins.get(name).map(|pin| (name.source().to_string(), *pin)));
                found.specs.push(spec.clone());
            }
        }
        let known: BTreeSet<&ServerName> = found.specs.iter().map(|spec| &spec.name).collect();
        let missing = self.toolsets.iter().filter_map(|(set, config)| {
            let server = config.server.as_deref().filter(|_| config.kind == Kind::Mcp)?;
            let is_there = ServerName::parse(server).is_ok_and(|name| known.contains(&name));
            (!is_there).then(|| format!("toolsets.{set}: there is no MCP server `{server}` now"))
        });
        found.problems.extend(missing);
        found
    }

    /// Keeps what `running` has of servers that the file has and that cannot be used as they are written now: they are
    /// unknown then, not gone. A file that cannot be read keeps all of its servers. So does another file, which waits for
    /// a restart.
    pub fn keep_servers_of(&mut self, running: &Self) {
        if self.mcp.servers_file != running.mcp.servers_file {
            self.mcp.file = running.mcp.file.clone();
        } else if self.mcp.file.is_unread() {
            self.mcp.file.keep_all(&running.mcp.file);
        } else {
            let in_sessions = self.session_servers();
            let mistake = |spec: &ServerSpec| misplaced_in(spec, &in_sessions);
            let in_sections: BTreeSet<_> =
                self.mcp.servers.keys().filter_map(|name| ServerName::parse(name).ok()).collect();
            let mut known = running.mcp_servers().specs;
            known.retain(|spec| !in_sections.contains(&spec.name) && mistake(spec).is_none());
            self.mcp.file.keep(&known, &running.pins_of_servers(), mistake);
        }
    }

    /// The tool set that a server backs, with its name.
    pub(crate) fn set_of_server(&self, server: &ServerName) -> Option<(&str, &ToolsetConfig)> {
        let backs = |set: &ToolsetConfig| {
            set.kind == Kind::Mcp
                && set.server.as_deref().is_some_and(|name| ServerName::parse(name).is_ok_and(|name| name == *server))
        };
        self.toolsets.iter().find(|(_, set)| backs(set)).map(|(name, set)| (name.as_str(), set))
    }

    /// Returns the pin levels of the servers that set one.
    fn pins_of_servers(&self) -> BTreeMap<ServerName, Level> {
        let of_section = |(name, pin): (&String, Option<Level>)| Some((ServerName::parse(name).ok()?, pin?));
        let mut pins = self.mcp.file.pins.clone();
        pins.extend(self.mcp.servers.iter().map(|(name, server)| (name, server.pin)).filter_map(of_section));
        pins
    }

    /// The servers that are started for each session.
    fn session_servers(&self) -> BTreeSet<ServerName> {
        let sets = self.toolsets.values().filter(|set| set.kind == Kind::Mcp && set.scope == Scope::Session);
        sets.filter_map(|set| ServerName::parse(set.server.as_deref()?).ok()).collect()
    }
}

/// Returns the problem with a server's placeholders, if there is one.
fn misplaced_in(spec: &ServerSpec, in_sessions: &BTreeSet<ServerName>) -> Option<String> {
    placeholder(spec).filter(|_| !in_sessions.contains(&spec.name)).map(misplaced)
}

/// Why a server cannot be what is said of it. Never holds a value, which may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Mistake {
    /// The key, as TOML has it; empty: the server as a whole.
    pub(crate) key: &'static str,
    /// Text on what is wrong and what is expected.
    pub(crate) what: String,
}

impl Mistake {
    pub(super) fn new(key: &'static str, what: impl Into<String>) -> Self {
        Self { key, what: what.into() }
    }
}

/// Reads the address of an HTTP server; `key` is where it stands.
pub(super) fn http_url(key: &'static str, text: &str) -> Result<Url, Mistake> {
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
