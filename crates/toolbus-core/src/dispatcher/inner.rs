//! Calls that no message brings: what a tool calls for its caller, what MCP clients call, and what is called at a time
//! that an agent gave. They take the same steps as calls from the bus.

use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use toolbus_protocol::TraceContext;

use super::call::Call;
use super::{Abort, Dispatcher, cancelled, given_up_while_it_ran, shut_down};
use crate::caller::Caller;
use crate::failure::{Cause, Status, ToolFailure};
use crate::progress::ProgressSink;
use crate::reply::REPLY_GRACE;
use crate::telemetry::CallEnd;
use crate::tool::ToolOutput;

/// A call that a tool makes for its caller, that an MCP client makes, or whose time has come.
#[derive(Debug, Clone)]
pub struct InnerCall {
    /// Where it comes from.
    pub origin: InnerOrigin,
    /// The caller.
    pub caller: Arc<Caller>,
    /// Id of the call: that of the call around it, if there is one.
    pub call_id: Arc<str>,
    /// The MCP server that has the tool; absent: any tool of the name.
    pub server: Option<String>,
    /// The tool.
    pub tool: String,
    /// The arguments, as a JSON object; absent: none.
    pub arguments: Option<String>,
    /// When the call must have ended; absent: by the limits of daemon and tool.
    pub deadline: Option<Instant>,
    /// Cancelled with the call around it, or by its caller.
    pub cancelled: CancellationToken,
    /// The trace that it belongs to.
    pub trace: Option<TraceContext>,
    /// [`ToolCall::number`](crate::tool::ToolCall::number) of the call around it; absent: there is none.
    pub around: Option<u64>,
    /// Takes the tool's reports of progress.
    pub progress: Option<ProgressSink>,
    /// From a tool: [`ToolCall::idempotency_key`](crate::tool::ToolCall::idempotency_key) of the call around it, if
    /// that makes this one call alone; it goes on to the backend. Else: the key that identifies the call, which is then
    /// recorded, and run once.
    pub idempotency_key: Option<Arc<str>>,
}

/// Where a call comes from that no message brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InnerOrigin {
    /// From a tool. The call around it logs its failure.
    Tool,
    /// From a client of the MCP server.
    McpClient,
    /// From the scheduler: its time has come.
    Schedule,
}

/// Runs calls that no message brings.
pub trait Invoker: Send + Sync + 'static {
    /// Runs one, with all steps. One from a tool runs to its end, whether or not its future is polled; another one only
    /// while it is.
    ///
    /// # Errors
    ///
    /// Those of a call of the caller's own; the failure has the message for the caller.
    fn invoke(&self, call: InnerCall) -> BoxFuture<'_, Result<ToolOutput, ToolFailure>>;
}

impl Invoker for Dispatcher {
    fn invoke(&self, call: InnerCall) -> BoxFuture<'_, Result<ToolOutput, ToolFailure>> {
        let dispatcher = self.clone();
        let running = match call.origin {
            // A task of its own: when the call around it is given up, this one still ends in order, and is recorded.
            InnerOrigin::Tool => self.parts.tasks.spawn(async move { dispatcher.run_within(call).await }),
            InnerOrigin::McpClient | InnerOrigin::Schedule if self.parts.direct.is_closed() => {
                return ready(Err(shut_down(false))).boxed();
            }
            // In the caller's own task: the caller drives it to its end.
            InnerOrigin::McpClient | InnerOrigin::Schedule => {
                let running = async move {
                    match call.idempotency_key {
                        None => dispatcher.run_within(call).await,
                        Some(_) => dispatcher.run_identified(call).await,
                    }
                };
                return self.parts.direct.track_future(running).boxed();
            }
        };
        async move { running.await.unwrap_or_else(|_| Err(cancelled("The daemon shut down."))) }.boxed()
    }
}

impl Dispatcher {
    async fn run_within(&self, inner: InnerCall) -> Result<ToolOutput, ToolFailure> {
        let span = self.parts.telemetry.nested(inner.trace.as_ref(), inner.around);
        let origin = inner.origin;
        let mut call = Call::within(&self.parts, inner, span);
        let (end, outcome, result) = match self.run_contained(&mut call).await {
            Ok(output) => {
                let status = if output.is_error { Status::Error } else { Status::Ok };
                (CallEnd { status, cause: None }, None, Ok(output))
            }
            Err(abort) => {
                let failure = match abort {
                    Abort::Failed(failure) | Abort::Ignored(failure) => failure,
                    Abort::Requeued | Abort::Known(_) => shut_down(call.timing.ran.is_some()),
                };
                if origin != InnerOrigin::Tool {
                    self.parts.replies.log_failure(&call, &failure);
                }
                let verdict = call.verdict(&failure, call.timing.ran.is_some());
                let end = CallEnd { status: Status::Refused(verdict.code), cause: Some(failure.cause) };
                (end, verdict.outcome, Err(ToolFailure { verdict: Some(verdict), ..failure }))
            }
        };
        call.executed(&end);
        self.parts.completer.record_audit(&call, end, outcome);
        call.end(Some(end));
        result
    }

    /// Runs a call that its client may make again: as a request of the bus, whose reply is recorded, but goes to the
    /// client.
    async fn run_identified(&self, inner: InnerCall) -> Result<ToolOutput, ToolFailure> {
        let span = self.parts.telemetry.nested(inner.trace.as_ref(), inner.around);
        let given_up = inner.cancelled.clone();
        let (client, reply) = oneshot::channel();
        let mut call = Call::within(&self.parts, inner, span);
        call.delivery.direct = Some(client);
        let latest = self.clock().now() + self.parts.settings.budgets.max + REPLY_GRACE;
        if let Some(call) = self.unless_known(call).await {
            self.run_to_end(call).await;
        }
        // It is there by now, unless the call has attached to one that is under way.
        tokio::select! {
            biased;
            reply = reply => match reply {
                Ok(reply) => reply.read(),
                Err(_) => {
                    let text = "The request with this idempotency key went back to its queue unanswered. Call again with the same key.";
                    Err(cancelled(text).begun())
                }
            },
            () = given_up.cancelled() => Err(given_up_while_it_ran()),
            () = tokio::time::sleep_until(latest.into()) => {
                let text = "The call with this idempotency key that is under way was not answered in time.";
                Err(ToolFailure::new(Cause::DeadlineExceeded, text).begun())
            }
        }
    }
}
