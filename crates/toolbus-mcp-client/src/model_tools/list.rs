//! `mcp_list_services` and `mcp_get_service_details`: the servers and tools of the caller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use serde_json::json;
use toolbus_core::caller::Caller;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::policy::{AllowedTool, EffectiveTools, PolicyHandle};
use toolbus_core::text::shown;
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_protocol::{McpServerSummary, McpToolDefinition};

use super::args::{Args, SERVER, TOOL};
use super::descriptor;
use crate::servers::ServerControl;
use crate::spec::ServerName;

/// The summary of a lazy server that has not been started.
const STARTS_ON_FIRST_USE: &str =
    "Starts on first use: its tools are not known yet. mcp_get_service_details starts it.";

/// Largest description of a server's tools at once, in bytes of texts and schemas: more than a model reads.
const MAX_DETAILS: usize = 1024 * 1024;

/// The tool `mcp_list_services {}`.
pub(super) fn list(policy: PolicyHandle, servers: Arc<dyn ServerControl>) -> Tool {
    let description = "Lists the MCP servers that you can use, each with the names of its tools. Call \
                       mcp_get_service_details for what a server's tools take.";
    let parameters = json!({"type": "object", "properties": {}});
    let descriptor =
        ToolDescriptor { effect: Effect::ReadOnly, ..descriptor("mcp_list_services", description, parameters) };
    Tool::new(descriptor, ListServers { policy, servers })
}

/// The tool `mcp_get_service_details {server_name, tool_name?}`.
pub(super) fn details(policy: PolicyHandle, servers: Arc<dyn ServerControl>) -> Tool {
    let description = "Describes the tools of an MCP server: what each does and the JSON Schema of its arguments. Call \
                       it before mcp_invoke_tool.";
    let parameters = json!({
        "type": "object",
        "properties": {
            "server_name": {"type": "string", "description": "Name of the MCP server, as mcp_list_services has it"},
            "tool_name": {"type": "string", "description": "One tool of the server; without it all are described"},
        },
        "required": ["server_name"],
    });
    let descriptor =
        ToolDescriptor { effect: Effect::ReadOnly, ..descriptor("mcp_get_service_details", description, parameters) };
    Tool::new(descriptor, Details { policy, servers })
}

struct ListServers {
    policy: PolicyHandle,
    servers: Arc<dyn ServerControl>,
}

struct Details {
    policy: PolicyHandle,
    servers: Arc<dyn ServerControl>,
}

impl Executor for ListServers {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let effective = self.policy.effective(&call.caller);
        let servers = Arc::clone(&self.servers);
        let list = move || {
            let all = summaries(&effective, &*servers);
            as_json(&all.values().collect::<Vec<_>>())
        };
        in_turn(&self.policy, &call, list).await
    }
}

impl Executor for Details {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let args = Args(&call.arguments);
        let (name, tool) = (args.required(SERVER)?.to_owned(), args.text(TOOL)?.map(str::to_owned));
        let effective = awaited(&self.policy, &*self.servers, &call.caller, &name, call.deadline).await;
        in_turn(&self.policy, &call, move || described(&effective, &name, tool.as_deref())).await
    }
}

/// Does what takes long for thousands of tools, beside the threads that calls run on.
async fn in_turn(
    policy: &PolicyHandle,
    call: &ToolCall,
    work: impl FnOnce() -> Result<ToolOutput, ToolFailure> + Send + 'static,
) -> Result<ToolOutput, ToolFailure> {
    let (output, _turn) = policy.turns().run(call.caller.sharer(""), 0, call.deadline, work).await?;
    output
}

/// The tools of a server, or one of them.
fn described(effective: &EffectiveTools, name: &str, tool: Option<&str>) -> Result<ToolOutput, ToolFailure> {
    let visible = servers(effective);
    let error = match definitions(effective, &visible, name, tool, MAX_DETAILS) {
        Ok((_, tools)) => return as_json(&tools),
        Err(error) => error,
    };
    let text = match error {
        DetailsError::NoServer => {
            let known = listed(visible.values().map(|server| &**server.name));
            format!("Unknown MCP server '{}'. Registered servers: {known}.", shown(name))
        }
        DetailsError::NoTool { server, tool } => {
            format!("No tool named '{}' found on server '{}'", shown(tool), shown(server))
        }
        DetailsError::TooLarge { server, count } => format!(
            "The {count} tools of server '{}' are too many to describe at once. Ask for one by its tool_name; \
             mcp_list_services has their names.",
            shown(server)
        ),
    };
    Ok(ToolOutput::error(text))
}

/// Reason why tools are not described.
pub(crate) enum DetailsError<'a> {
    /// The caller sees no such server.
    NoServer,
    /// The server has no such tool for the caller.
    NoTool { server: &'a str, tool: &'a str },
    /// The texts and schemas of the tools are too large together.
    TooLarge { server: &'a str, count: usize },
}

/// The server of this name, with the definitions of its tools, or of one of them. All tools together have at most `max`
/// bytes of texts and schemas.
pub(crate) fn definitions<'a>(
    effective: &EffectiveTools,
    visible: &'a BTreeMap<String, VisibleServer<'_>>,
    name: &str,
    tool: Option<&'a str>,
    max: usize,
) -> Result<(&'a Arc<str>, Vec<McpToolDefinition>), DetailsError<'a>> {
    let server = visible.get(&name.to_lowercase()).ok_or(DetailsError::NoServer)?;
    if let Some(tool) = tool {
        let allowed = server.tools.get(tool).ok_or(DetailsError::NoTool { server: server.name, tool })?;
        return Ok((server.name, vec![defined(effective, tool, *allowed)]));
    }
    let (mut all, mut size) = (Vec::new(), 0);
    for (name, allowed) in &server.tools {
        let tool = defined(effective, name, *allowed);
        size += tool.description.len() + tool.parameters_schema.as_deref().map_or(0, str::len);
        if size > max {
            return Err(DetailsError::TooLarge { server: server.name, count: server.tools.len() });
        }
        all.push(tool);
    }
    Ok((server.name, all))
}

/// The summary of each server for a caller, by the server's name in lower case: its description by the operator or by
/// itself, else its tools.
pub(crate) fn summaries(effective: &EffectiveTools, all: &dyn ServerControl) -> BTreeMap<String, McpServerSummary> {
    let description = |name: &str| all.describe(name).and_then(|about| about.summarised());
    let asleep = all.asleep(effective).into_iter().map(|name| {
        let summary = match description(name.as_str()) {
            Some(description) => format!("{description} ({STARTS_ON_FIRST_USE})"),
            None => STARTS_ON_FIRST_USE.to_owned(),
        };
        let (server_name, summary) = (name.to_string(), Some(summary));
        (name.folded().to_string(), McpServerSummary { server_name, summary, ..McpServerSummary::default() })
    });
    let known = servers(effective);
    // A server whose tools came a moment ago replaces its entry above.
    let known = known.iter().map(|(folded, server)| (folded.clone(), summary_of(server, description(server.name))));
    asleep.chain(known).collect()
}

fn summary_of(server: &VisibleServer<'_>, description: Option<String>) -> McpServerSummary {
    let tool_names: Vec<String> = server.tools.keys().map(|name| (*name).to_owned()).collect();
    McpServerSummary {
        server_name: server.name.to_string(),
        display_name: None,
        summary: Some(description.unwrap_or_else(|| summary(&tool_names))),
        tool_count: tool_names.len(),
        tool_names,
    }
}

fn defined(effective: &EffectiveTools, name: &str, allowed: AllowedTool<'_>) -> McpToolDefinition {
    let definition = effective.definition(allowed);
    McpToolDefinition {
        name: name.to_owned(),
        description: definition.description,
        parameters_schema: definition.parameters.map(|schema| schema.to_string()),
    }
}

fn as_json(value: &impl Serialize) -> Result<ToolOutput, ToolFailure> {
    let written = serde_json::to_string(value).map(ToolOutput::text);
    written.map_err(|error| ToolFailure::new(Cause::Failed, "The answer could not be written.").with_detail(error))
}

/// Most names that a reply lists.
const MAX_LISTED: usize = 20;

/// One server of which the caller may use at least one tool.
pub(crate) struct VisibleServer<'a> {
    /// Name of the server, as configured.
    pub(crate) name: &'a Arc<str>,
    /// Tools of the server, by the names that they have within it.
    pub(crate) tools: BTreeMap<&'a str, AllowedTool<'a>>,
}

/// Every server that the caller sees, by its name in lower case.
pub(crate) fn servers(effective: &EffectiveTools) -> BTreeMap<String, VisibleServer<'_>> {
    let mut servers = BTreeMap::new();
    for allowed in effective.of_servers() {
        let descriptor = &allowed.tool.descriptor;
        let Some(name) = &descriptor.server else { continue };
        let server =
            servers.entry(name.to_lowercase()).or_insert_with(|| VisibleServer { name, tools: BTreeMap::new() });
        server.tools.entry(descriptor.bare_name()).or_insert(allowed);
    }
    servers
}

/// Returns what the caller may use, once the tools of this server are known, if that is before `latest`.
pub(crate) async fn awaited(
    policy: &PolicyHandle,
    known: &dyn ServerControl,
    caller: &Caller,
    server: &str,
    latest: Instant,
) -> EffectiveTools {
    let effective = policy.effective(caller);
    let Ok(server) = ServerName::parse(server) else { return effective };
    // No caller starts a server none of whose tools it could use, or learns from the wait that there is such a server.
    if is_registered(policy, &server) || !known.within_reach(&effective).contains(&server) {
        return effective;
    }
    known.wake(&server, latest).await;
    if !is_registered(policy, &server) {
        return effective;
    }
    // The policy takes up new tools in its own time, which may be after this.
    let refreshed = policy.clone();
    let _ = tokio::task::spawn_blocking(move || refreshed.refresh()).await;
    policy.effective(caller)
}

fn is_registered(policy: &PolicyHandle, server: &ServerName) -> bool {
    let is_its = |name: &Arc<str>| *name.to_lowercase() == **server.folded();
    let known = policy.registry().snapshot();
    known.tools().chain(known.shadowed()).any(|tool| tool.descriptor.server.as_ref().is_some_and(is_its))
}

/// Some names, for a reply: bounded in number and length.
pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let mut listed: Vec<String> = names.by_ref().take(MAX_LISTED).map(shown).collect();
    let more = names.count();
    if more > 0 {
        listed.push(format!("… and {more} more"));
    }
    format!("[{}]", listed.join(", "))
}

/// Most tools that are named.
const MAX_NAMED: usize = 10;

/// The summary of a server without a description: the number of tools and the names of the first ten.
#[must_use]
pub fn summary(tool_names: &[impl AsRef<str>]) -> String {
    if tool_names.is_empty() {
        return "No tools available.".to_owned();
    }
    let count = tool_names.len();
    let named: Vec<&str> = tool_names.iter().take(MAX_NAMED).map(AsRef::as_ref).collect();
    let rest = match count.saturating_sub(MAX_NAMED) {
        0 => ".".to_owned(),
        more => format!(" and {more} more."),
    };
    format!("Provides {count} tool(s): {}{rest}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_names_are_bounded() {
        assert_eq!(listed([]), "[]");
        assert_eq!(listed(["a", "b\u{7}"]), "[a, b\\u{7}]");
        let many = vec!["x"; MAX_LISTED + 3];
        assert!(listed(many).ends_with("x, x, … and 3 more]"));
    }

    fn of(count: usize) -> String {
        let names: Vec<String> = (1..=count).map(|n| format!("t{n}")).collect();
        summary(&names)
    }

    #[test]
    fn a_summary_names_at_most_ten_tools() {
        insta::assert_snapshot!(of(0), @"No tools available.");
        insta::assert_snapshot!(of(1), @"Provides 1 tool(s): t1.");
        insta::assert_snapshot!(of(10), @"Provides 10 tool(s): t1, t2, t3, t4, t5, t6, t7, t8, t9, t10.");
        insta::assert_snapshot!(of(11), @"Provides 11 tool(s): t1, t2, t3, t4, t5, t6, t7, t8, t9, t10 and 1 more.");
    }
}
