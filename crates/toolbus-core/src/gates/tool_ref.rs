//! Which tool a caller means: a name, and where to look for it.

use crate::failure::{Cause, ToolFailure};
use crate::log::shown;
use crate::policy::{AllowedTool, EffectiveTools};

/// Most names that an answer lists.
const MAX_LISTED: usize = 20;

/// Where a tool is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// Among all tools, by the name that they are registered with.
    Name,
    /// Among the tools of MCP servers: by the name that they are registered with, or else by their servers' own.
    AnyServer,
    /// Among the tools of this MCP server, by its own name for them.
    Server(&'a str),
}

/// The tool that a caller means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolRef<'a> {
    /// Where to look.
    pub route: Lookup<'a>,
    /// The name.
    pub name: &'a str,
}

impl<'a> ToolRef<'a> {
    /// The tool that is registered with this name.
    #[must_use]
    pub const fn named(name: &'a str) -> Self {
        Self { route: Lookup::Name, name }
    }

    /// The tool, if the caller may use it.
    pub(crate) fn find<'e>(&self, effective: &'e EffectiveTools) -> Option<AllowedTool<'e>> {
        match self.route {
            Lookup::Name => effective.get(self.name),
            Lookup::AnyServer => effective.of_any_server(self.name),
            Lookup::Server(server) => effective.of_server(server, self.name),
        }
    }
}

/// Says what the caller can do instead, with names that it may see: a server of which it may use nothing is none.
pub(super) fn not_at_server(effective: &EffectiveTools, server: &str, tool: &str) -> ToolFailure {
    let mut servers = Vec::new();
    let mut tools = Vec::new();
    let folded = server.to_lowercase();
    for allowed in effective.of_servers() {
        let Some(of) = &allowed.tool.descriptor.server else { continue };
        if of.to_lowercase() == folded {
            tools.push(&**allowed.tool.descriptor.bare_name());
        }
        if servers.last() != Some(&&**of) {
            servers.push(&**of);
        }
    }
    let (server, tool) = (shown(server), shown(tool));
    if tools.is_empty() {
        let text = format!("Unknown MCP server '{server}'. Registered servers: {}.", listed(&servers));
        return ToolFailure::new(Cause::UnknownServer, text);
    }
    let text = format!(
        "Unknown tool '{tool}' on server '{server}'. Available tools: {}. Re-invoke with one of those names, or call \
         mcp_get_service_details(server_name: \"{server}\") for their schemas.",
        listed(&tools)
    );
    ToolFailure::new(Cause::UnknownTool, text)
}

fn listed(names: &[&str]) -> String {
    let mut text = names.iter().take(MAX_LISTED).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
    if names.len() > MAX_LISTED {
        text.push_str(", …");
    }
    format!("[{text}]")
}
