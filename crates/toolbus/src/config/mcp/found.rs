//! The servers of a configuration, from its sections and its file.

use std::collections::BTreeSet;

use toolbus_mcp::spec::{ServerName, ServerSpec};

use super::draft::placeholder;
use crate::config::Config;
use crate::config::toolsets::{Kind, Scope};

/// The MCP servers of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct McpServers {
    /// Those that can be used, at most one of each name.
    pub specs: Vec<ServerSpec>,
    /// What is allowed and yet hardly meant, in words.
    pub warnings: Vec<String>,
    /// Servers, or the whole file, that cannot be used as they are, in words.
    pub problems: Vec<String>,
}

impl Config {
    /// The MCP servers, those of `mcp.servers` before those of the file. Reads nothing: the file is as it was when the
    /// configuration was loaded, or when it was last read again.
    #[must_use]
    pub fn mcp_servers(&self) -> McpServers {
        let file = &self.mcp.file;
        let mut found =
            McpServers { specs: Vec::new(), warnings: file.warnings.clone(), problems: file.problems.clone() };
        let mut names = BTreeSet::new();
        for (name, server) in &self.mcp.servers {
            match server.finish(name) {
                Ok((spec, warnings)) => {
                    found.warnings.extend(warnings.iter().map(|warning| format!("mcp.servers.{name}: {warning}")));
                    names.insert(spec.name.clone());
                    found.specs.push(spec);
                }
                Err(mistake) => found.problems.push(format!("mcp.servers.{name}: {mistake}")),
            }
        }
        let in_sessions = self.session_servers();
        for (spec, place) in &file.entries {
            let name = &spec.name;
            if names.contains(name) {
                found.warnings.push(format!("{place}: `{name}` is not used, because `mcp.servers` has it, too"));
            } else if let Some(key) = placeholder(spec).filter(|_| !in_sessions.contains(name)) {
                found.problems.push(format!("{place}: `{name}` is left out: {}", misplaced(key)));
            } else {
                found.specs.push(spec.clone());
            }
        }
        let known: BTreeSet<&ServerName> = found.specs.iter().map(|spec| &spec.name).collect();
        let missing = self.toolsets.iter().filter_map(|(set, config)| {
            let server = config.server.as_deref()?;
            let is_there = ServerName::parse(server).is_ok_and(|name| known.contains(&name));
            (!is_there).then(|| format!("toolsets.{set}: there is no MCP server `{server}` now"))
        });
        found.problems.extend(missing);
        found
    }

    /// The servers that are started for each session.
    fn session_servers(&self) -> BTreeSet<ServerName> {
        let sets = self.toolsets.values().filter(|set| set.kind == Kind::Mcp && set.scope == Scope::Session);
        sets.filter_map(|set| ServerName::parse(set.server.as_deref()?).ok()).collect()
    }
}

/// What is wrong with a placeholder in a server that all callers share.
pub(crate) fn misplaced(key: &str) -> String {
    format!(
        "`{key}` has `{{agent}}` or `{{session}}`, which have a value only in the server of a tool set of scope \"session\""
    )
}
