//! `mcp_register_server` and `mcp_unregister_server`: servers that callers add and remove.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolbus_core::failure::ToolFailure;
use toolbus_core::text::shown;
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

use super::args::{ARGUMENTS, Args, Names, SERVER};
use super::descriptor;
use super::registrar::Registrar;
use super::rules::{RegisteredHttpKind, RegisteredTransport};

const COMMAND: Names = &["command"];
const URL: Names = &["url"];
const TYPE: Names = &["type"];
/// Parameters of other bridges that are accepted and ignored.
const IGNORED: Names = &["display_name", "description"];
/// Part of a call's time that is reserved for undoing a registration that failed.
const RESERVE: Duration = Duration::from_millis(500);

/// The tool `mcp_register_server {server_name, command | url, arguments?, type?}`.
pub(super) fn register(registrar: Arc<Registrar>) -> Tool {
    let description = "Adds an MCP server, by the command line that starts it or by its URL, and waits until it is \
                       connected. An operator decides which command lines and hosts are allowed.";
    let parameters = json!({
        "type": "object",
        "properties": {
            "server_name": {
                "type": "string",
                "description": "Name of the new server: 1 to 64 letters, digits, '.', '_' and '-'",
            },
            "command": {"type": "string", "description": "Program that is the server; give this or url"},
            "arguments": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Arguments of the program, one by one",
            },
            "url": {"type": "string", "description": "URL of the server; give this or command"},
            "type": {
                "type": "string",
                "enum": ["stdio", "http", "sse"],
                "description": "How the server is spoken to; without it that is found out",
            },
        },
        "required": ["server_name"],
    });
    let descriptor =
        ToolDescriptor { effect: Effect::Effectful, ..descriptor("mcp_register_server", description, parameters) };
    Tool::new(descriptor, Register(registrar))
}

/// The tool `mcp_unregister_server {server_name}`.
pub(super) fn unregister(registrar: Arc<Registrar>) -> Tool {
    let description = "Removes an MCP server that was added with mcp_register_server.";
    let parameters = json!({
        "type": "object",
        "properties": {"server_name": {"type": "string", "description": "Name of the server"}},
        "required": ["server_name"],
    });
    let descriptor =
        ToolDescriptor { effect: Effect::Effectful, ..descriptor("mcp_unregister_server", description, parameters) };
    Tool::new(descriptor, Unregister(registrar))
}

struct Register(Arc<Registrar>);

struct Unregister(Arc<Registrar>);

impl Executor for Register {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let args = Args(&call.arguments);
        let name = args.required(SERVER)?;
        args.only(
            &[SERVER, COMMAND, URL, TYPE, ARGUMENTS, IGNORED],
            "A server that needs an environment, headers or credentials must be configured by an operator.",
        )?;
        let target = target(args)?;
        let latest = latest(call.deadline, self.0.clock.now());
        let done = self.0.register(&call.caller, name, target, latest, call.cancelled.clone()).await;
        Ok(match done {
            Ok(tools) => ToolOutput::text(format!(
                "Server '{}' registered successfully. {tools} tool(s) available. {}",
                shown(name),
                self.0.lasting()
            )),
            Err(refusal) => ToolOutput::error(format!(
                "Failed to register server '{}': {}.",
                shown(name),
                refusal.to_string().trim_end_matches('.')
            )),
        })
    }
}

impl Executor for Unregister {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let name = Args(&call.arguments).required(SERVER)?;
        Ok(match self.0.unregister(&call.caller, name).await {
            Ok(()) => ToolOutput::text(format!("Server '{}' removed successfully.", shown(name))),
            Err(refusal) => ToolOutput::error(format!("Failed to remove server '{}': {refusal}.", shown(name))),
        })
    }
}

/// Reads the target of a registration.
fn target(args: Args<'_>) -> Result<RegisteredTransport, ToolFailure> {
    let arguments = arguments(args)?;
    let kind = args.text(TYPE)?;
    match (args.text(COMMAND)?, args.text(URL)?) {
        (None, None) => Err(ToolFailure::invalid("Missing required parameter: command or url")),
        (Some(_), Some(_)) => Err(ToolFailure::invalid("Give either 'command' or 'url', and not both.")),
        (Some(command), None) => match kind {
            None | Some("stdio") => Ok(RegisteredTransport::Command { command: command.to_owned(), args: arguments }),
            Some(_) => Err(ToolFailure::invalid("A server with a 'command' is of type 'stdio'. Leave 'type' out.")),
        },
        (None, Some(_)) if !arguments.is_empty() => {
            Err(ToolFailure::invalid("A server with a 'url' takes no 'arguments'. Leave them out."))
        }
        (None, Some(url)) => {
            let kind = match kind {
                None => RegisteredHttpKind::Detect,
                Some("http" | "streamable-http" | "streamableHttp") => RegisteredHttpKind::Http,
                Some("sse") => RegisteredHttpKind::Sse,
                Some(_) => {
                    return Err(ToolFailure::invalid(
                        "A server with a 'url' is of type 'http' or 'sse'. Leave 'type' out.",
                    ));
                }
            };
            Ok(RegisteredTransport::Url { url: url.to_owned(), kind })
        }
    }
}

fn arguments(args: Args<'_>) -> Result<Vec<String>, ToolFailure> {
    let wrong = || {
        ToolFailure::invalid("Parameter 'arguments' must be a list of strings, one for each argument of the program.")
    };
    match args.value(ARGUMENTS)? {
        None => Ok(Vec::new()),
        Some(Value::Array(args)) => args.iter().map(|arg| arg.as_str().map(str::to_owned).ok_or_else(wrong)).collect(),
        Some(_) => Err(wrong()),
    }
}

/// Until when a server may take to connect.
pub(super) fn latest(deadline: Instant, now: Instant) -> Instant {
    let left = deadline.saturating_duration_since(now);
    deadline.checked_sub(RESERVE.min(left / 4)).unwrap_or(deadline)
}
