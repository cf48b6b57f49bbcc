//! `mcp.manage`: requests of agents about servers. Requests that change something are calls of management tools.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::policy::{EffectiveTools, PolicyHandle};
use toolbus_core::text::shown;
use toolbus_core::tool::ToolOutput;
use toolbus_core::{ControlError, ControlHandler, ControlReply, ControlRequest, InnerCall, InnerOrigin, Invoker};
use toolbus_protocol::{
    McpEchoed, McpGetServiceDetailsRequest, McpGetServiceDetailsResponse, McpRegisterServerRequest,
    McpRegisterServerResponse, McpUnregisterServerRequest, McpUnregisterServerResponse, ParseError,
    message_type as types,
};

use super::unserved;
use crate::model_tools::SOURCE;
use crate::model_tools::list::{DetailsError, awaited, definitions, servers};
use crate::servers::ServerControl;

/// Timeout of a request: agents wait for 30 s, and get a response shortly before.
const MANAGE_TIME: Duration = Duration::from_secs(25);
/// Largest reply, in bytes: what surely fits into a message.
const MAX_REPLY: usize = 8 * 1024 * 1024;
/// The kind of backend, as replies name it.
const PROVIDER: &str = "mcp";

/// Replies to agents' requests about servers: with what the agent may use, and with an error rather than not at all.
pub struct ManageHandler {
    policy: PolicyHandle,
    servers: Arc<dyn ServerControl>,
    invoker: Arc<dyn Invoker>,
    waiting: WaitLimits,
    /// Whether requests for servers that the caller does not have are left to other bridges.
    ignores_unknown: bool,
}

impl ManageHandler {
    /// Replies from `policy` and `servers`; what changes something is a call through `invoker`. With `ignores_unknown`,
    /// requests for servers that the caller does not have get no reply.
    #[must_use]
    pub fn new(
        policy: PolicyHandle,
        servers: Arc<dyn ServerControl>,
        invoker: Arc<dyn Invoker>,
        ignores_unknown: bool,
    ) -> Self {
        Self { policy, servers, invoker, waiting: WaitLimits::default(), ignores_unknown }
    }

    /// Whether the request may be meant for another bridge.
    async fn is_others(&self, request: &ControlRequest) -> bool {
        if !self.ignores_unknown {
            return false;
        }
        // A caller that may register servers here has its request handled here.
        if request.envelope.message_type.eq_ignore_ascii_case(types::MCP_REGISTER_SERVER_REQUEST) {
            return self.policy.effective(&request.caller).get(REGISTER).is_none();
        }
        let server = McpEchoed::parse(&request.body).unwrap_or_default().server_name;
        let effective = self.awaited(request, &server).await;
        !servers(&effective).contains_key(&server.to_lowercase())
    }

    /// Returns what the sender may use, once the tools of this server are known; for a sender that has other requests
    /// waiting for servers, what it may use now.
    async fn awaited(&self, request: &ControlRequest, server: &str) -> EffectiveTools {
        let effective = self.policy.effective(&request.caller);
        let Some(_turn) = self.waiting.take(effective.section_name()) else { return effective };
        awaited(&self.policy, &*self.servers, &request.caller, server, request.deadline(MANAGE_TIME)).await
    }

    async fn details(&self, request: &ControlRequest) -> ControlReply {
        let name = match McpGetServiceDetailsRequest::parse(&request.body) {
            Ok(request) => request.server_name,
            Err(error) => return details_reply(&failed(String::new(), unreadable(&error))),
        };
        let effective = self.awaited(request, &name).await;
        let (servers, server) = (Arc::clone(&self.servers), name.clone());
        let work = move || {
            let reply = details_of(&effective, &*servers, &server).map(|details| details_reply(&details));
            reply.filter(|reply| reply.size() <= MAX_REPLY).unwrap_or_else(|| {
                let error = "The server's tools are too many for one message. Ask for one with \
                             mcp_get_service_details and its tool_name.";
                details_reply(&failed(server, error.to_owned()))
            })
        };
        let turns = self.policy.turns();
        match turns.run(request.sharer(), request.body.len(), request.deadline(MANAGE_TIME), work).await {
            Ok((reply, turn)) => reply.in_turn(turn),
            Err(failure) => details_reply(&failed(name, failure.message)),
        }
    }

    /// Calls a management tool for the sender of a request, as if the sender had called it.
    async fn call(&self, request: &ControlRequest, call: ManagedCall) -> ControlReply {
        // A request may hold secrets, which are nothing for a tool that merely has the name.
        let known = self.policy.registry().snapshot();
        if known.get(call.tool).is_none_or(|tool| *tool.descriptor.source != *SOURCE) {
            let text = format!("Tool '{}' is not registered: registration is off.", call.tool);
            return call.reply(Err(ToolFailure::new(Cause::UnknownTool, text)));
        }
        let Some(_turn) = self.waiting.take(self.policy.effective(&request.caller).section_name()) else {
            let text = "Others of your requests about servers are still under way. Try again when they have ended.";
            return call.reply(Err(ToolFailure::new(Cause::Overloaded, text)));
        };
        let id = request.envelope.message_id.as_deref().map(|id| toolbus_protocol::bounded(id).into());
        let inner = InnerCall {
            idempotency_key: None,
            origin: InnerOrigin::Tool,
            caller: Arc::clone(&request.caller),
            call_id: id.unwrap_or_else(|| toolbus_protocol::new_message_id().into()),
            server: None,
            tool: call.tool.to_owned(),
            arguments: Some(call.arguments.to_string()),
            deadline: Some(request.deadline(MANAGE_TIME)),
            cancelled: tokio_util::sync::CancellationToken::new(),
            trace: request.envelope.trace.clone(),
            around: None,
            progress: None,
        };
        let result = self.invoker.invoke(inner).await;
        call.reply(result)
    }
}

impl ControlHandler for ManageHandler {
    fn message_type(&self) -> Option<&'static str> {
        None
    }

    fn handle<'a>(&'a self, request: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        Box::pin(async move {
            let is = |name: &str| request.envelope.message_type.eq_ignore_ascii_case(name);
            // Questions are not supported, so that there is none to release. The message expects no response.
            if is(types::MCP_RELEASE_SESSION_QUESTIONS_REQUEST) {
                return Ok(None);
            }
            if !request.has_address() {
                return Err(ControlError::NoAddress);
            }
            if self.is_others(request).await {
                return Ok(None);
            }
            let reply = if is(types::MCP_GET_SERVICE_DETAILS_REQUEST) {
                self.details(request).await
            } else if is(types::MCP_REGISTER_SERVER_REQUEST) {
                match ManagedCall::register(&request.body) {
                    Ok(call) => self.call(request, call).await,
                    Err(error) => refused_register(&unreadable(&error)),
                }
            } else if is(types::MCP_UNREGISTER_SERVER_REQUEST) {
                match ManagedCall::unregister(&request.body) {
                    Ok(call) => self.call(request, call).await,
                    Err(error) => refused_unregister(&unreadable(&error)),
                }
            } else {
                unserved::reply(&request.envelope.message_type, &request.body)?
            };
            Ok(Some(reply.of(PROVIDER)))
        })
    }
}

/// The server and its tools; `None` if they are too large for a reply.
fn details_of(
    effective: &EffectiveTools,
    known: &dyn ServerControl,
    name: &str,
) -> Option<McpGetServiceDetailsResponse> {
    let visible = servers(effective);
    let (server, tools) = match definitions(effective, &visible, name, None, MAX_REPLY) {
        Ok(defined) => defined,
        Err(DetailsError::TooLarge { .. }) => return None,
        Err(DetailsError::NoServer | DetailsError::NoTool { .. }) => {
            let name = shown(name);
            let error = format!("Server '{name}' is not connected");
            return Some(failed(name, error));
        }
    };
    let about = known.describe(server).unwrap_or_default();
    Some(McpGetServiceDetailsResponse {
        server_name: server.to_string(),
        description: about.description,
        instructions: about.instructions,
        tools,
        error: None,
    })
}

fn details_reply(response: &McpGetServiceDetailsResponse) -> ControlReply {
    ControlReply::new(types::MCP_GET_SERVICE_DETAILS_RESPONSE, response)
}

/// The error of a body that cannot be parsed.
fn unreadable(error: &ParseError) -> String {
    format!("The request cannot be read: {error}.")
}

fn failed(server_name: String, error: String) -> McpGetServiceDetailsResponse {
    McpGetServiceDetailsResponse { server_name, error: Some(error), ..McpGetServiceDetailsResponse::default() }
}

/// Most requests of one agent that wait at a time. All agents share the room that a topic has, which is more than this.
const MAX_WAITING: usize = 4;

/// Slots by name of the section that a caller has: callers without one are one agent, so that there are no more names
/// than the configuration gives.
#[derive(Default)]
pub(super) struct WaitLimits(Mutex<HashMap<Arc<str>, Arc<Semaphore>>>);

impl WaitLimits {
    /// A slot to wait in, until it is dropped; `None` if the section has all of its slots already.
    pub(super) fn take(&self, section: &str) -> Option<OwnedSemaphorePermit> {
        let mut all = self.0.lock();
        let limits = all.entry(section.into()).or_insert_with(|| Arc::new(Semaphore::new(MAX_WAITING)));
        Arc::clone(limits).try_acquire_owned().ok()
    }
}

/// A call that a request stands for.
pub(super) struct ManagedCall {
    /// The tool.
    pub(super) tool: &'static str,
    /// The tool's arguments.
    pub(super) arguments: Value,
    server: String,
}

/// The tool that adds a server.
pub(super) const REGISTER: &str = "mcp_register_server";
const UNREGISTER: &str = "mcp_unregister_server";

impl ManagedCall {
    /// The call that adds a server.
    pub(super) fn register(body: &[u8]) -> Result<Self, ParseError> {
        let request = McpRegisterServerRequest::parse(body)?;
        let listed = |texts: Vec<String>| (!texts.is_empty()).then(|| Value::from(texts));
        let environment: Map<String, Value> =
            request.env.into_iter().map(|(name, value)| (name, value.into())).collect();
        let given = [
            ("server_name", Some(request.server_name.clone().into())),
            ("type", Some(request.kind).filter(|kind| !kind.is_empty()).map(Value::from)),
            ("url", request.url.map(Value::from)),
            ("command", request.command.map(Value::from)),
            ("arguments", listed(request.args)),
            // The tool rejects it with an explanation.
            ("env", Some(environment).filter(|environment| !environment.is_empty()).map(Value::from)),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let arguments: Map<String, Value> = given.collect();
        Ok(Self { tool: REGISTER, arguments: arguments.into(), server: request.server_name })
    }

    /// The call that removes a server.
    pub(super) fn unregister(body: &[u8]) -> Result<Self, ParseError> {
        let server = McpUnregisterServerRequest::parse(body)?.server_name;
        let arguments = serde_json::json!({"server_name": server});
        Ok(Self { tool: UNREGISTER, arguments, server })
    }

    /// The response to the request, from the result of the call.
    pub(super) fn reply(self, result: Result<ToolOutput, ToolFailure>) -> ControlReply {
        let name = shown(&self.server);
        let is_register = self.tool == REGISTER;
        // Agents prefix the text themselves, with the same words as the tools.
        let (done, not_done) = match is_register {
            true => {
                (format!("Server '{name}' registered successfully. "), format!("Failed to register server '{name}': "))
            }
            false => (format!("Server '{name}' removed successfully."), format!("Failed to remove server '{name}': ")),
        };
        let bare = |text: String, words: &str| text.strip_prefix(words).map(str::to_owned).unwrap_or(text);
        let (summary, error) = match result {
            Ok(output) if output.is_error => (None, Some(bare(output.content.unwrap_or_default(), &not_done))),
            Ok(output) => (output.content.map(|text| bare(text, &done)), None),
            Err(failure) => (None, Some(failure.message)),
        };
        let success = error.is_none();
        if is_register {
            let response = McpRegisterServerResponse { server_name: name, success, summary, error };
            return ControlReply::new(types::MCP_REGISTER_SERVER_RESPONSE, &response);
        }
        let response = McpUnregisterServerResponse { server_name: name, success, error };
        ControlReply::new(types::MCP_UNREGISTER_SERVER_RESPONSE, &response)
    }
}

/// The reply to a request to add a server that cannot be read.
pub(super) fn refused_register(error: &str) -> ControlReply {
    let response = McpRegisterServerResponse { error: Some(error.to_owned()), ..McpRegisterServerResponse::default() };
    ControlReply::new(types::MCP_REGISTER_SERVER_RESPONSE, &response)
}

/// The reply to a request to remove a server that cannot be read.
pub(super) fn refused_unregister(error: &str) -> ControlReply {
    let response =
        McpUnregisterServerResponse { error: Some(error.to_owned()), ..McpUnregisterServerResponse::default() };
    ControlReply::new(types::MCP_UNREGISTER_SERVER_RESPONSE, &response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_agent_has_its_own_slots_and_gets_them_back() {
        let limits = WaitLimits::default();
        let mut held: Vec<_> = (0..MAX_WAITING).map(|_| limits.take("ana").unwrap()).collect();
        assert!(limits.take("ana").is_none());
        assert!(limits.take("bob").is_some());
        held.pop();
        assert!(limits.take("ana").is_some());
    }
}
