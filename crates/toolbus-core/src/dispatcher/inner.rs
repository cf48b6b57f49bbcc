//! Calls within calls: what a tool calls for its caller takes the same steps as the caller's own calls.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use toolbus_protocol::TraceContext;

use super::call::Call;
use super::{Dispatcher, Ended, cancelled};
use crate::bulkhead;
use crate::caller::Caller;
use crate::failure::{Status, ToolFailure, verdict};
use crate::progress::ProgressSink;
use crate::telemetry::End;
use crate::tool::{Effect, ToolOutput};

/// A call that a tool makes for its caller.
#[derive(Debug, Clone)]
pub struct InnerCall {
    /// Who is asking.
    pub caller: Arc<Caller>,
    /// The caller's id of the call around it.
    pub call_id: Arc<str>,
    /// The MCP server that has the tool; absent: any tool of the name.
    pub server: Option<String>,
    /// The tool.
    pub tool: String,
    /// The arguments, as a JSON object; absent: none.
    pub arguments: Option<String>,
    /// When the call must have ended.
    pub deadline: Instant,
    /// Cancelled with the call around it.
    pub cancelled: CancellationToken,
    /// The trace of the call around it.
    pub trace: Option<TraceContext>,
    /// Takes the tool's reports of progress.
    pub progress: Option<ProgressSink>,
}

/// Runs calls within calls.
pub trait Invoker: Send + Sync + 'static {
    /// Runs one, with all steps.
    ///
    /// # Errors
    ///
    /// As a call of the caller's own would be answered; the failure says what the caller is to be told.
    fn invoke(&self, call: InnerCall) -> BoxFuture<'_, Result<ToolOutput, ToolFailure>>;
}

impl Invoker for Dispatcher {
    fn invoke(&self, call: InnerCall) -> BoxFuture<'_, Result<ToolOutput, ToolFailure>> {
        let dispatcher = self.clone();
        // A task of its own: when the call around it is given up, this one still ends in order, and is recorded.
        let running = tokio::spawn(async move { dispatcher.run_within(call).await });
        async move { running.await.unwrap_or_else(|_| Err(cancelled("The daemon shut down."))) }.boxed()
    }
}

impl Dispatcher {
    async fn run_within(&self, inner: InnerCall) -> Result<ToolOutput, ToolFailure> {
        let span = self.parts.telemetry.nested(inner.trace.as_ref());
        let mut call = Call::within(inner, span);
        let result = AssertUnwindSafe(self.run(&mut call)).catch_unwind().await;
        let result = match result.unwrap_or_else(|panic| Err(bulkhead::broken(&*panic).into())) {
            Ok(output) => Ok(output),
            Err(Ended::Failed(failure)) => Err(failure),
            Err(Ended::Ignored(failure)) => Err(failure),
            Err(Ended::Requeued) => Err(cancelled("The daemon shut down.")),
        };
        let (end, outcome, result) = match result {
            Ok(output) => {
                let status = if output.is_error { Status::Error } else { Status::Ok };
                (End { status, cause: None }, None, Ok(output))
            }
            Err(failure) => {
                let effect = call.tool.as_ref().map_or(Effect::Undeclared, |tool| tool.effect);
                let told = failure.verdict.unwrap_or_else(|| verdict(failure.cause, effect, call.ran.is_some()));
                let end = End { status: Status::Refused(told.code), cause: Some(failure.cause) };
                (end, told.outcome, Err(ToolFailure { verdict: Some(told), ..failure }))
            }
        };
        call.executed(&end);
        self.audit(&call, end, outcome);
        call.conclude(Some(end), Instant::now(), Duration::ZERO);
        result
    }
}
