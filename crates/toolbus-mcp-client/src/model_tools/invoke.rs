//! `mcp_invoke_tool`: a call of a server's tool within a call.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolbus_core::failure::ToolFailure;
use toolbus_core::policy::{EffectiveTools, PolicyHandle};
use toolbus_core::text::shown;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::{InnerCall, InnerOrigin, Invoker};

use super::args::{ARGUMENTS, Args, SERVER, TOOL};
use super::descriptor;

/// Most fields that a reply names.
const MAX_FIELDS: usize = 20;

/// The tool `mcp_invoke_tool {server_name, tool_name, arguments}`.
pub(super) fn tool(policy: PolicyHandle, invoker: Arc<dyn Invoker>) -> Tool {
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
    let descriptor = ToolDescriptor { delegates: true, ..descriptor(super::INVOKE, description, parameters) };
    Tool::new(descriptor, Invoke { policy, invoker })
}

struct Invoke {
    policy: PolicyHandle,
    invoker: Arc<dyn Invoker>,
}

impl Executor for Invoke {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let args = Args(&call.arguments);
        let (server, tool) = (args.required(SERVER)?, args.required(TOOL)?);
        args.only(&[SERVER, TOOL, ARGUMENTS], "Pass what the inner tool takes nested inside 'arguments'.")?;
        let arguments = inner_arguments(args)?;
        if arguments.is_none() {
            needs_nothing(&self.policy.effective(&call.caller), server, tool)?;
        }
        let inner = InnerCall {
            origin: InnerOrigin::Tool,
            server: Some(server.to_owned()),
            tool: tool.to_owned(),
            arguments,
            caller: call.caller,
            call_id: call.call_id,
            deadline: Some(call.deadline),
            cancelled: call.cancelled,
            trace: call.trace,
            around: call.number,
            progress: call.progress,
            idempotency_key: call.idempotency_key,
        };
        self.invoker.invoke(inner).await
    }
}

/// The inner tool's arguments as text, which the inner call reads; `None` if empty.
fn inner_arguments(args: Args<'_>) -> Result<Option<String>, ToolFailure> {
    match args.value(ARGUMENTS)? {
        None => Ok(None),
        Some(Value::Object(fields)) if fields.is_empty() => Ok(None),
        Some(Value::Object(fields)) => Ok(Some(Value::from(fields.clone()).to_string())),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => {
            Err(ToolFailure::invalid("Parameter 'arguments' must be an object, or a string that holds one as JSON."))
        }
    }
}

/// Refuses a call without arguments of a tool that needs some, with what to do about it. Of a tool that is not known,
/// or not to the caller, it reports nothing: the inner call does.
fn needs_nothing(effective: &EffectiveTools, server: &str, tool: &str) -> Result<(), ToolFailure> {
    let Some(allowed) = effective.of_server(server, tool) else { return Ok(()) };
    let Some(schema) = effective.definition(allowed).parameters else { return Ok(()) };
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
    let retry = json!({"server_name": server, "tool_name": tool, "arguments": arguments});
    let names: Vec<String> = fields.iter().take(MAX_FIELDS).map(|field| shown(field)).collect();
    Err(ToolFailure::invalid(format!(
        "Call to '{}/{}' carried no inner arguments. This tool requires: {}. Pass the inner-tool parameters nested inside \
         the 'arguments' field of mcp_invoke_tool. Retry with shape: {retry}",
        shown(server),
        shown(tool),
        names.join(", ")
    )))
}
