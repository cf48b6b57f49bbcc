//! `mcp_invoke_tool`: a call of a server's tool within a call.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::log::shown;
use toolbus_core::policy::{Access, Effective, Granted};
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::{InnerCall, Invoker};

use super::given::{ARGUMENTS, Given, SERVER, TOOL, invalid};
use super::visible::{Server, awaited, listed, servers};
use super::{descriptor, unknown_server};
use crate::peers::Servers;

/// Most fields that an answer names.
const MAX_FIELDS: usize = 20;

/// The tool `mcp_invoke_tool {server_name, tool_name, arguments}`.
pub(super) fn tool(access: Access, servers: Arc<dyn Servers>, invoker: Arc<dyn Invoker>) -> Tool {
    let description = "Calls a tool of an MCP server. Call mcp_get_service_details first for what the tool takes.";
    let parameters = json!({
        "type": "object",
        "properties": {
            "server_name": {"type": "string", "description": "Name of the MCP server, as mcp_list_services has it"},
            "tool_name": {"type": "string", "description": "Name of the tool, as mcp_get_service_details has it"},
            "arguments": {
                "type": "object",
                "description": "The tool's own arguments, as its parametersSchema wants them",
                "additionalProperties": true,
            },
        },
        "required": ["server_name", "tool_name"],
    });
    let descriptor = ToolDescriptor { delegates: true, ..descriptor("mcp_invoke_tool", description, parameters) };
    Tool::new(descriptor, Invoke { access, servers, invoker })
}

struct Invoke {
    access: Access,
    servers: Arc<dyn Servers>,
    invoker: Arc<dyn Invoker>,
}

impl Executor for Invoke {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let given = Given(&call.arguments);
        let (name, tool) = (given.required(SERVER)?, given.required(TOOL)?);
        given.only(&[SERVER, TOOL, ARGUMENTS], "Pass what the inner tool takes nested inside 'arguments'.")?;
        let arguments = inner_arguments(given)?;
        let effective = awaited(&self.access, &*self.servers, &call.caller, name, call.deadline).await;
        let server = {
            let mut visible = servers(&effective);
            let Some(server) = visible.remove(&name.to_lowercase()) else {
                return Err(ToolFailure::new(Cause::UnknownTool, unknown_server(name, &visible)));
            };
            let Some(granted) = server.tools.get(tool) else {
                return Err(ToolFailure::new(Cause::UnknownTool, unknown_tool(&server, tool)));
            };
            if arguments.is_none() {
                needs_nothing(&effective, *granted, &server, tool)?;
            }
            server.name.to_string()
        };
        let inner = InnerCall {
            server: Some(server),
            tool: tool.to_owned(),
            arguments,
            caller: Arc::clone(&call.caller),
            call_id: Arc::clone(&call.call_id),
            deadline: call.deadline,
            cancelled: call.cancelled.clone(),
            trace: call.trace.clone(),
            progress: call.progress.clone(),
        };
        self.invoker.invoke(inner).await
    }
}

/// The inner tool's arguments as text, which the inner call reads; absent when nothing is in them.
fn inner_arguments(given: Given<'_>) -> Result<Option<String>, ToolFailure> {
    match given.value(ARGUMENTS)? {
        None => Ok(None),
        Some(Value::Object(members)) if members.is_empty() => Ok(None),
        Some(Value::Object(members)) => Ok(Some(Value::from(members.clone()).to_string())),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(invalid("Parameter 'arguments' must be an object, or a string that holds one as JSON.")),
    }
}

/// Refuses a call without arguments of a tool that needs some, with what to do about it.
fn needs_nothing(
    effective: &Effective,
    granted: Granted<'_>,
    server: &Server<'_>,
    tool: &str,
) -> Result<(), ToolFailure> {
    let Some(schema) = effective.definition(granted).parameters else { return Ok(()) };
    let required = schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let fields: Vec<&str> = required.iter().filter_map(Value::as_str).collect();
    if fields.is_empty() {
        return Ok(());
    }
    let kind = |field: &str| schema.get("properties").and_then(|all| all.get(field)?.get("type")?.as_str());
    let shape = |field: &&str| {
        let kind = kind(field).map_or_else(|| "…".to_owned(), shown);
        (shown(field), Value::from(format!("<{kind}>")))
    };
    let arguments: Map<String, Value> = fields.iter().take(MAX_FIELDS).map(shape).collect();
    let retry = json!({"server_name": **server.name, "tool_name": tool, "arguments": arguments});
    let names: Vec<String> = fields.iter().take(MAX_FIELDS).map(|field| shown(field)).collect();
    Err(invalid(format!(
        "Call to '{}/{}' carried no inner arguments. This tool requires: {}. Pass the inner-tool parameters nested inside \
         the 'arguments' field of mcp_invoke_tool. Retry with shape: {retry}",
        shown(server.name),
        shown(tool),
        names.join(", ")
    )))
}

fn unknown_tool(server: &Server<'_>, tool: &str) -> String {
    format!(
        "Unknown tool '{}' on server '{}'. Available tools: {}. Re-invoke with one of those names, or call \
         mcp_get_service_details(server_name: \"{}\") for their schemas.",
        shown(tool),
        shown(server.name),
        listed(server.tools.keys().copied()),
        shown(server.name)
    )
}
