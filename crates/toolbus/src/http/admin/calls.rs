//! Calls of operators on the Unix socket, which `toolbus call` makes where there is no broker. A user of the socket may
//! call as any agent.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::routing::post;
use axum::{Extension, Json, Router};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Effect, ToolFailure};
use toolbus_core::tool::ToolOutput;
use toolbus_core::{Clock, Gates, InnerCall, InnerOrigin, Invoker, milliseconds};
use toolbus_protocol::{ContentBlock, ToolError, ToolInvokeResponse, new_message_id};

use super::routes::{ApiResult, BodyBytes, parsed};
use super::view::{ApiError, CallOutcome, CallRequest};
use crate::http::slots::ConnectionState;

/// The route for calls, which pass `gates` and are run by `invoker` on the current runtime: the socket is served on the
/// thread of health probes.
pub fn calls(gates: Arc<Gates>, invoker: Arc<dyn Invoker>) -> Router {
    Router::new().route("/v1/call", post(call)).with_state(CallState { gates, invoker, workers: Handle::current() })
}

#[derive(Clone)]
struct CallState {
    gates: Arc<Gates>,
    invoker: Arc<dyn Invoker>,
    workers: Handle,
}

async fn call(
    State(CallState { gates, invoker, workers }): State<CallState>,
    connection: Option<Extension<Arc<ConnectionState>>>,
    body: BodyBytes,
) -> ApiResult<CallOutcome> {
    let CallRequest { agent, tool, arguments, server, binding, profile, session, timeout_ms } = parsed(body)?;
    let named = match agent.as_deref() {
        None => Caller::unknown(),
        Some(name) => {
            let name = AgentName::parse(name).map_err(|error| ApiError::bad_request(format!("the agent {error}")))?;
            gates.policy().agent(name)
        }
    };
    if let Some(Extension(connection)) = connection {
        connection.take_any_time();
    }
    let call_id = new_message_id();
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
        progress: None,
        idempotency_key: None,
    };
    // A client that goes away cancels the call, which ends in order and is recorded.
    let _gone = inner.cancelled.clone().drop_guard();
    let running = workers.spawn(async move { invoker.invoke(inner).await });
    let ended = running.await.map_err(|_| ApiError::unavailable("the daemon stops"))?;
    Ok(Json(match ended {
        Ok(output) => CallOutcome::Result(response(call_id, tool, output)),
        Err(failure) => CallOutcome::Error(error(call_id, tool, failure)),
    }))
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
