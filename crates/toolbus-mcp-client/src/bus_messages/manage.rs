//! `mcp.manage`: what agents ask about servers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::log::shown;
use toolbus_core::policy::{EffectiveTools, PolicyHandle};
use toolbus_core::{ControlError, ControlHandler, ControlReply, ControlRequest, InnerCall, InnerOrigin, Invoker};
use toolbus_protocol::{
    McpEchoed, McpGetServiceDetailsRequest, McpGetServiceDetailsResponse, McpToolDefinition, ParseError,
    message_type as types,
};

use super::wait_limits::WaitLimits;
use super::{register, unserved};
use crate::model_tools::SOURCE;
use crate::model_tools::list::defined;
use crate::model_tools::visible::{awaited, servers};
use crate::servers::ServerControl;

/// Longest time that a request takes, whatever its sender says: agents wait for 30 s, and get an answer a little before.
const MANAGE_TIME: Duration = Duration::from_secs(25);
/// Largest answer, in bytes: what surely fits into a message.
const MAX_ANSWER: usize = 8 * 1024 * 1024;
/// The kind of backend, as answers name it.
const PROVIDER: &str = "mcp";

/// Answers what agents ask about servers: with what the asking agent may use, and with an error rather than not at all.
pub struct ManageHandler {
    access: PolicyHandle,
    servers: Arc<dyn ServerControl>,
    invoker: Arc<dyn Invoker>,
    waiting: WaitLimits,
    /// Whether requests for servers that the caller does not have are left to other bridges.
    ignores_unknown: bool,
}

impl ManageHandler {
    /// Answers from `access` and `servers`; what changes something is a call through `invoker`. With `ignores_unknown`,
    /// requests for servers that the caller does not have are not answered.
    #[must_use]
    pub fn new(
        access: PolicyHandle,
        servers: Arc<dyn ServerControl>,
        invoker: Arc<dyn Invoker>,
        ignores_unknown: bool,
    ) -> Self {
        Self { access, servers, invoker, waiting: WaitLimits::default(), ignores_unknown }
    }

    /// Whether another bridge may be meant, and not this one.
    async fn is_others(&self, request: &ControlRequest) -> bool {
        if !self.ignores_unknown {
            return false;
        }
        // Whoever may register servers here does so.
        if request.envelope.message_type.eq_ignore_ascii_case(types::MCP_REGISTER_SERVER_REQUEST) {
            return self.access.effective(&request.caller).get(register::REGISTER).is_none();
        }
        let server = McpEchoed::parse(&request.body).unwrap_or_default().server_name;
        let effective = self.awaited(request, &server).await;
        !servers(&effective).contains_key(&server.to_lowercase())
    }

    /// What the sender may use, when the tools of this server are known; of a sender that has others of its requests wait
    /// for servers, what it may use now.
    async fn awaited(&self, request: &ControlRequest, server: &str) -> EffectiveTools {
        let effective = self.access.effective(&request.caller);
        let Some(_turn) = self.waiting.take(effective.section_name()) else { return effective };
        awaited(&self.access, &*self.servers, &request.caller, server, request.deadline(MANAGE_TIME)).await
    }

    async fn details(&self, request: &ControlRequest) -> ControlReply {
        let name = match McpGetServiceDetailsRequest::parse(&request.body) {
            Ok(request) => request.server_name,
            Err(error) => return details_said(&failed(String::new(), unreadable(&error))),
        };
        let effective = self.awaited(request, &name).await;
        let (servers, server) = (Arc::clone(&self.servers), name.clone());
        let work = move || {
            let said = details_said(&details_of(&effective, &*servers, &server));
            if said.size() <= MAX_ANSWER {
                return said;
            }
            let error = "The server's tools are too many for one message. Ask for one with mcp_get_service_details and \
                         its tool_name.";
            details_said(&failed(server, error.to_owned()))
        };
        let turns = self.access.turns();
        match turns.run(request.sharer(), request.body.len(), request.deadline(MANAGE_TIME), work).await {
            Ok((said, turn)) => said.in_turn(turn),
            Err(failure) => details_said(&failed(name, failure.message)),
        }
    }

    /// Calls a management tool for the sender of a request, as if the sender had called it.
    async fn call(&self, request: &ControlRequest, call: register::Call) -> ControlReply {
        // A request may hold secrets, which are nothing for a tool that merely has the name.
        let known = self.access.registry().snapshot();
        if known.get(call.tool).is_none_or(|tool| *tool.descriptor.source != *SOURCE) {
            let text = format!("Tool '{}' is not registered: registration is off.", call.tool);
            return call.said(Err(ToolFailure::new(Cause::UnknownTool, text)));
        }
        let Some(_turn) = self.waiting.take(self.access.effective(&request.caller).section_name()) else {
            let text = "Others of your requests about servers are still under way. Try again when they have ended.";
            return call.said(Err(ToolFailure::new(Cause::Overloaded, text)));
        };
        let id = request.envelope.message_id.as_deref().map(|id| toolbus_protocol::bounded(id).into());
        let inner = InnerCall {
            origin: InnerOrigin::Tool,
            caller: Arc::clone(&request.caller),
            call_id: id.unwrap_or_else(|| toolbus_protocol::new_message_id().into()),
            server: None,
            tool: call.tool.to_owned(),
            arguments: Some(call.arguments.to_string()),
            deadline: Some(request.deadline(MANAGE_TIME)),
            cancelled: tokio_util::sync::CancellationToken::new(),
            trace: request.envelope.trace.clone(),
            progress: None,
        };
        let result = self.invoker.invoke(inner).await;
        call.said(result)
    }
}

impl ControlHandler for ManageHandler {
    fn message_type(&self) -> Option<&'static str> {
        None
    }

    fn answer<'a>(&'a self, request: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        Box::pin(async move {
            let is = |name: &str| request.envelope.message_type.eq_ignore_ascii_case(name);
            // No question is held here, so that there is none to let go of, and nobody waits for an answer.
            if is(types::MCP_RELEASE_SESSION_QUESTIONS_REQUEST) {
                return Ok(None);
            }
            if !request.has_address() {
                return Err(ControlError::NoAddress);
            }
            if self.is_others(request).await {
                return Ok(None);
            }
            let said = if is(types::MCP_GET_SERVICE_DETAILS_REQUEST) {
                self.details(request).await
            } else if is(types::MCP_REGISTER_SERVER_REQUEST) {
                match register::Call::register(&request.body) {
                    Ok(call) => self.call(request, call).await,
                    Err(error) => register::refused_register(&unreadable(&error)),
                }
            } else if is(types::MCP_UNREGISTER_SERVER_REQUEST) {
                match register::Call::unregister(&request.body) {
                    Ok(call) => self.call(request, call).await,
                    Err(error) => register::refused_unregister(&unreadable(&error)),
                }
            } else {
                unserved::said(&request.envelope.message_type, &request.body)?
            };
            Ok(Some(said.of(PROVIDER)))
        })
    }
}

fn details_of(effective: &EffectiveTools, known: &dyn ServerControl, name: &str) -> McpGetServiceDetailsResponse {
    let visible = servers(effective);
    let Some(server) = visible.get(&name.to_lowercase()) else {
        let name = shown(name);
        let error = format!("Server '{name}' is not connected");
        return failed(name, error);
    };
    let tools: Vec<McpToolDefinition> =
        server.tools.iter().map(|(name, granted)| defined(effective, name, *granted)).collect();
    let about = known.describe(server.name).unwrap_or_default();
    McpGetServiceDetailsResponse {
        server_name: server.name.to_string(),
        description: about.description,
        instructions: about.instructions,
        tools,
        error: None,
    }
}

fn details_said(response: &McpGetServiceDetailsResponse) -> ControlReply {
    ControlReply::new(types::MCP_GET_SERVICE_DETAILS_RESPONSE, response)
}

/// What the sender of a body that cannot be read is told.
fn unreadable(error: &ParseError) -> String {
    format!("The request cannot be read: {error}.")
}

fn failed(server_name: String, error: String) -> McpGetServiceDetailsResponse {
    McpGetServiceDetailsResponse { server_name, error: Some(error), ..McpGetServiceDetailsResponse::default() }
}
