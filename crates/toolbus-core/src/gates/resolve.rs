//! Step 4: the tool that a caller means, of those that it may use.

use crate::Clock;
use crate::caller::Caller;
use crate::failure::{Cause, ToolFailure};
use crate::policy::{AllowedTool, EffectiveTools};
use crate::request::{Lookup, ToolRef};
use crate::suggest::Suggestions;
use crate::text::{list, shown};

/// Most names that a refusal lists.
const MAX_LISTED: usize = 20;

/// Finds tools, and names near ones for a tool that is not there.
pub(super) struct Resolver {
    suggestions: Suggestions,
}

impl Resolver {
    pub(super) fn new(clock: Clock) -> Self {
        Self { suggestions: Suggestions::new(clock) }
    }

    /// The tool that the caller means.
    ///
    /// # Errors
    ///
    /// Those of [`super::Gates::resolve`].
    pub(super) fn resolve<'a>(
        &self,
        effective: &'a EffectiveTools,
        caller: &Caller,
        wanted: ToolRef<'_>,
    ) -> Result<AllowedTool<'a>, ToolFailure> {
        let Some(allowed) = find(effective, wanted) else { return Err(self.not_found(effective, wanted)) };
        let member = allowed.tool.descriptor.toolset.as_ref();
        if member.is_some_and(|member| member.needs_session) && caller.session.is_none() {
            let text = format!("Tool '{}' works within a session. Give the call a sessionId.", shown(wanted.name));
            return Err(ToolFailure::invalid(text));
        }
        Ok(allowed)
    }

    /// The failure of a call whose tool the caller cannot use.
    pub(super) fn not_found(&self, effective: &EffectiveTools, wanted: ToolRef<'_>) -> ToolFailure {
        let name = wanted.name;
        if let Lookup::Server(server) = wanted.route {
            return not_at_server(effective, server, name);
        }
        // A call of any server's tool is, if the tool is none of these servers', for another one.
        let cause = match wanted.route {
            Lookup::AnyServer => Cause::UnknownServer,
            _ => Cause::UnknownTool,
        };
        if effective.lacks_toolset(name) {
            return ToolFailure::new(cause, format!("Toolset not found for {}", shown(name)));
        }
        let near = self.suggestions.near(effective.section_number(), name, effective.names());
        let mut text = match wanted.route {
            Lookup::Name => format!("Tool '{}' is not registered.", shown(name)),
            _ => format!("Tool '{}' not found on any connected MCP server.", shown(name)),
        };
        if !near.is_empty() {
            let offered: Vec<String> = near.iter().map(|name| format!("'{name}'")).collect();
            text = format!("{text} Did you mean {}?", offered.join(" or "));
        }
        ToolFailure::new(cause, text)
    }
}

/// The tool that is meant, if the caller may use it.
pub(crate) fn find<'e>(effective: &'e EffectiveTools, wanted: ToolRef<'_>) -> Option<AllowedTool<'e>> {
    match wanted.route {
        Lookup::Name => effective.get(wanted.name),
        Lookup::AnyServer => effective.of_any_server(wanted.name),
        Lookup::Server(server) => effective.of_server(server, wanted.name),
    }
}

/// Refusal with the alternatives of the caller, by names that it may see: a server of which it may use nothing is none.
fn not_at_server(effective: &EffectiveTools, server: &str, tool: &str) -> ToolFailure {
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
        let text = format!("Unknown MCP server '{server}'. Registered servers: {}.", quoted(&servers));
        return ToolFailure::new(Cause::UnknownServer, text);
    }
    let text = format!(
        "Unknown tool '{tool}' on server '{server}'. Available tools: {}. Re-invoke with one of those names, or call \
         mcp_get_service_details(server_name: \"{server}\") for their schemas.",
        quoted(&tools)
    );
    ToolFailure::new(Cause::UnknownTool, text)
}

fn quoted(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().take(MAX_LISTED + 1).map(|name| shown(name)).collect();
    format!("[{}]", list(&names, MAX_LISTED))
}
