//! The MCP servers of a configuration: those in sections of their own, and those of the file that other programs read, too.

use std::collections::{BTreeMap, BTreeSet};

use toolbus_mcp_client::config::{ServersFile, misplaced, placeholder};
use toolbus_mcp_client::spec::{ServerName, ServerSpec};
use toolbus_trust::pins::Level;

use super::Config;
use super::toolsets::{Kind, Scope, ToolsetConfig};

/// Names of the tools with which agents look at servers and use them.
pub(crate) const MANAGEMENT_TOOLS: [&str; 5] =
    ["mcp_list_services", "mcp_get_service_details", "mcp_invoke_tool", "mcp_register_server", "mcp_unregister_server"];
/// The source of those tools.
pub(crate) const MANAGEMENT_SOURCE: &str = "mcp:management";

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
    /// Usable servers, at most one of each name.
    pub specs: Vec<ServerSpec>,
    /// Pin levels by source, of the servers that set one.
    pub pins: BTreeMap<String, Level>,
    /// Warnings about valid but suspicious settings.
    pub warnings: Vec<String>,
    /// Reason why servers, or the whole file, cannot be used as they are.
    pub problems: Vec<String>,
    /// Servers of the file that keep their previous definitions, each with the mistake in its present one.
    pub outdated: BTreeMap<ServerName, String>,
}

impl Config {
    /// The MCP servers, those of `mcp.servers` before those of the file. Reads nothing: the contents of the file are
    /// those of the last load or reload.
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

    /// Keeps the definitions that `running` has of servers whose present ones in the file have a mistake: they are
    /// unknown then, not gone. A file that cannot be read keeps all of its servers. So does another file, which waits
    /// for a restart.
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
