//! `mcp_list_services` and `mcp_get_service_details`: which servers and tools there are for the caller.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::json;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::log::shown;
use toolbus_core::policy::{Access, Effective, Granted};
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_protocol::{McpServerSummary, McpToolDefinition};

use super::descriptor;
use super::given::{Given, SERVER, TOOL};
use super::visible::{Server, awaited, listed, servers};
use crate::peers::Servers;
use crate::spec::ServerName;
use crate::summary::summary;

/// The summary of a server whose tools are not known because nobody has used it.
const STARTS_ON_FIRST_USE: &str =
    "Starts on first use: its tools are not known yet. mcp_get_service_details starts it.";

/// The tool `mcp_list_services {}`.
pub(super) fn list(access: Access, servers: Arc<dyn Servers>) -> Tool {
    let description = "Lists the MCP servers that you can use, each with the names of its tools. Call \
                       mcp_get_service_details for what a server's tools take.";
    let parameters = json!({"type": "object", "properties": {}});
    let descriptor =
        ToolDescriptor { effect: Effect::ReadOnly, ..descriptor("mcp_list_services", description, parameters) };
    Tool::new(descriptor, List { access, servers })
}

/// The tool `mcp_get_service_details {server_name, tool_name?}`.
pub(super) fn details(access: Access, servers: Arc<dyn Servers>) -> Tool {
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
    Tool::new(descriptor, Details { access, servers })
}

struct List {
    access: Access,
    servers: Arc<dyn Servers>,
}

struct Details {
    access: Access,
    servers: Arc<dyn Servers>,
}

impl Executor for List {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let effective = self.access.effective(&call.caller);
        let all = summaries(&effective, &self.servers.asleep(&effective));
        as_json(&all.values().collect::<Vec<_>>())
    }
}

impl Executor for Details {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let given = Given(&call.arguments);
        let (name, tool) = (given.required(SERVER)?, given.text(TOOL)?);
        let effective = awaited(&self.access, &*self.servers, &call.caller, name, call.deadline).await;
        let visible = servers(&effective);
        let Some(server) = visible.get(&name.to_lowercase()) else {
            let known = listed(visible.values().map(|server| &**server.name));
            let text = format!("Unknown MCP server '{}'. Registered servers: {known}.", shown(name));
            return Ok(ToolOutput::error(text));
        };
        let is_asked = |known: &str| tool.is_none_or(|tool| tool == known);
        let tools = server.tools.iter().filter(|(known, _)| is_asked(known));
        let all: Vec<McpToolDefinition> = tools.map(|(name, granted)| defined(&effective, name, *granted)).collect();
        match tool {
            Some(tool) if all.is_empty() => {
                let text = format!("No tool named '{}' found on server '{}'", shown(tool), shown(server.name));
                Ok(ToolOutput::error(text))
            }
            _ => as_json(&all),
        }
    }
}

/// What a caller is told of each server, by the server's name in lower case; `asleep` are those whose tools nobody knows.
pub(crate) fn summaries(effective: &Effective, asleep: &[ServerName]) -> BTreeMap<String, McpServerSummary> {
    let asleep = asleep.iter().map(|name| {
        let summary = Some(STARTS_ON_FIRST_USE.to_owned());
        let server_name = name.to_string();
        (name.folded().to_string(), McpServerSummary { server_name, summary, ..McpServerSummary::default() })
    });
    let known = servers(effective);
    // One whose tools came a moment ago has them.
    asleep.chain(known.iter().map(|(folded, server)| (folded.clone(), summary_of(server)))).collect()
}

fn summary_of(server: &Server<'_>) -> McpServerSummary {
    let tool_names: Vec<String> = server.tools.keys().map(|name| (*name).to_owned()).collect();
    McpServerSummary {
        server_name: server.name.to_string(),
        display_name: None,
        summary: Some(summary(&tool_names)),
        tool_count: tool_names.len(),
        tool_names,
    }
}

pub(crate) fn defined(effective: &Effective, name: &str, granted: Granted<'_>) -> McpToolDefinition {
    let definition = effective.definition(granted);
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
