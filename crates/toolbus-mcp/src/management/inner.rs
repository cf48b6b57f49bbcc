//! A call that a tool makes on behalf of its caller.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::Caller;
use toolbus_core::failure::ToolFailure;
use toolbus_core::progress::ProgressSink;
use toolbus_core::tool::ToolOutput;
use toolbus_protocol::TraceContext;

/// Makes calls that pass all steps.
pub trait Invoker: Send + Sync + 'static {
    /// Makes one call.
    ///
    /// # Errors
    ///
    /// As any call.
    fn invoke(&self, call: InnerCall) -> BoxFuture<'_, Result<ToolOutput, ToolFailure>>;
}

/// One call within a call.
#[derive(Debug, Clone)]
pub struct InnerCall {
    /// Who is asking.
    pub caller: Arc<Caller>,
    /// The caller's id of the call around it.
    pub call_id: Arc<str>,
    /// The MCP server that has the tool.
    pub server: Option<String>,
    /// Name of the tool.
    pub tool: String,
    /// Arguments, as text.
    pub arguments: Option<String>,
    /// When to give up.
    pub deadline: Instant,
    /// Cancelled when nobody waits any more.
    pub cancelled: CancellationToken,
    /// The trace to continue.
    pub trace: Option<TraceContext>,
    /// Where to report progress.
    pub progress: Option<ProgressSink>,
}
