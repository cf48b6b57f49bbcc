//! Calls of operators, as any agent: on the Unix socket, where `toolbus call` makes them without a broker, and in the
//! console, where those of others can be cancelled.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Effect, ToolFailure};
use toolbus_core::tool::ToolOutput;
use toolbus_core::{Clock, Dispatcher, Gates, InnerCall, InnerOrigin, Invoker as _, milliseconds};
use toolbus_protocol::{ContentBlock, ToolError, ToolInvokeResponse};

use super::view::{ApiError, CallOutcome, CallRequest};
use crate::http::SharedState;
use crate::http::slots::ConnectionState;

/// Makes calls of operators as any agent. They pass every gate.
#[derive(Clone)]
pub struct OperatorCalls {
    gates: Arc<Gates>,
    dispatcher: Dispatcher,
    shared: watch::Receiver<SharedState>,
    workers: Handle,
}

impl OperatorCalls {
    /// Calls that pass `gates` and are run by `dispatcher` on the current runtime, once the `shared` state has been
    /// read.
    pub fn new(gates: Arc<Gates>, dispatcher: Dispatcher, shared: watch::Receiver<SharedState>) -> Self {
        Self { gates, dispatcher, shared, workers: Handle::current() }
    }

    /// Cancels the calls under way with this id of callers of this name.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(in crate::http) fn cancel(&self, name: &str, call_id: &str) -> Result<(), ApiError> {
        match self.dispatcher.cancel_named(name, call_id) {
            0 => Err(ApiError::not_found("no such call is under way: it has ended")),
            _ => Ok(()),
        }
    }

    /// Makes a call with this id. The HTTP request for it, on `connection`, gets as much time as the call.
    ///
    /// # Errors
    ///
    /// If nothing can be called yet or any more, or no agent can have the given name.
    pub(in crate::http) async fn call(
        &self,
        call_id: String,
        request: CallRequest,
        connection: Option<&ConnectionState>,
    ) -> Result<CallOutcome, ApiError> {
        if self.shared.borrow().is_unread {
            return Err(ApiError::unavailable("the daemon waits for its store; try again later"));
        }
        let CallRequest { agent, tool, arguments, server, binding, profile, session, timeout_ms } = request;
        let named = match agent.as_deref() {
            None => Caller::unknown(),
            Some(name) => {
                let name =
                    AgentName::parse(name).map_err(|error| ApiError::bad_request(format!("the agent {error}")))?;
                self.gates.policy().agent(name)
            }
        };
        if let Some(connection) = connection {
            connection.take_any_time();
        }
        let part = |text: Option<String>| text.filter(|text| !text.is_empty()).map(Arc::from);
        let inner = InnerCall {
            origin: InnerOrigin::McpClient,
            caller: Caller { binding: part(binding), profile: part(profile), session: part(session), ..named }.into(),
            call_id: call_id.as_str().into(),
            server,
            tool: tool.clone(),
            arguments: arguments.map(|raw| raw.get().to_owned()),
            deadline: timeout_ms.and_then(|timeout| Clock::SYSTEM.now().checked_add(Duration::from_millis(timeout))),
            cancelled: CancellationToken::new(),
            trace: None,
            around: None,
            progress: None,
            idempotency_key: None,
        };
        // A client that goes away cancels the call, which ends in order and is recorded.
        let _gone = inner.cancelled.clone().drop_guard();
        let dispatcher = self.dispatcher.clone();
        let running = self.workers.spawn(async move { dispatcher.invoke(inner).await });
        let ended = running.await.map_err(|_| ApiError::unavailable("the daemon stops"))?;
        Ok(match ended {
            Ok(output) => CallOutcome::Result(response(call_id, tool, output)),
            Err(failure) => CallOutcome::Error(error(call_id, tool, failure)),
        })
    }
}

fn response(tool_call_id: String, tool_name: String, output: ToolOutput) -> ToolInvokeResponse {
    let ToolOutput { content, mut blocks, is_error, .. } = output;
    blocks.retain(|block| !ContentBlock::is_structured(block));
    let content_blocks = (!blocks.is_empty()).then_some(blocks);
    ToolInvokeResponse { tool_call_id, tool_name, content, content_blocks, is_error }
}

fn error(tool_call_id: String, tool_name: String, failure: ToolFailure) -> ToolError {
    let verdict = failure.verdict(Effect::Undeclared, false);
    let ToolFailure { message, retry_after, .. } = failure;
    ToolError {
        tool_call_id,
        tool_name,
        code: verdict.code,
        message,
        is_retryable: verdict.is_retryable,
        retry_after_ms: retry_after.map(milliseconds),
        outcome: verdict.outcome,
    }
}
