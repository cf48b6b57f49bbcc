//! `tools/call`: a call with all the steps of any call, and its response with progress reports before it.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use toolbus_core::caller::Caller;
use toolbus_core::events::McpServerRequest;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::progress::{Progress, ProgressSink};
use toolbus_core::tool::ToolOutput;
use toolbus_protocol::{TraceContext, header};

use super::ServerParts;
use super::{Flow, FlowStep};
use crate::backend::{Backend, BackendCall};
use crate::content::{self, Response};
use crate::rpc::{self, Id, RpcError, RpcRequest};
use crate::session::{InFlightRequest, Peer};
use crate::version::Version;

/// Longest name of a tool, in bytes: responses repeat it.
const MAX_NAME: usize = 1024;

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct CallParams<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

/// Unlike the rest of `_meta`, it is never ignored: the call would run without it.
#[derive(Deserialize)]
struct IdempotencyMeta {
    #[serde(default, rename = "rb-idempotency-key")]
    key: Option<String>,
}

/// Begins a call.
pub(crate) fn begin(
    parts: &ServerParts,
    peer: &Peer,
    call: &RpcRequest<'_>,
    token: Option<&RawValue>,
    trace: Option<TraceContext>,
) -> Result<Flow, RpcError> {
    let params = call.params.ok_or_else(|| RpcError::invalid_params("The parameter `name` is missing."))?;
    let CallParams { name, arguments, meta } =
        serde_json::from_str(params.get()).map_err(|error| RpcError::unreadable_params(&error))?;
    if name.len() > MAX_NAME {
        let text = format!("The name has {} bytes; at most {MAX_NAME} are taken.", name.len());
        return Err(RpcError::invalid_params(text));
    }
    if arguments.is_some_and(|arguments| !arguments.get().starts_with('{')) {
        return Err(RpcError::invalid_params("The arguments are no JSON object."));
    }
    let idempotency_key = idempotency_key(meta)?;
    let in_flight = ServerParts::enter(peer, &call.id)?;
    let (sink, reports) = token.map(|_| ProgressSink::new()).unzip();
    let running = parts.backend.call(BackendCall {
        caller: Arc::clone(&peer.caller),
        tool: name.clone().into_owned(),
        arguments: arguments.map(|arguments| arguments.get().to_owned()),
        cancelled: in_flight.cancelled.clone(),
        trace,
        progress: sink,
        idempotency_key: idempotency_key.clone(),
    });
    let backend = Arc::clone(&parts.backend);
    let mut flow =
        CallFlow::new(peer, call.id.clone(), backend, name.into_owned(), running, in_flight, token.zip(reports));
    flow.survives |= idempotency_key.is_some();
    Ok(Flow::Call(flow))
}

/// The key by which the client identifies the call.
fn idempotency_key(meta: Option<&RawValue>) -> Result<Option<Arc<str>>, RpcError> {
    let name = header::IDEMPOTENCY_KEY;
    let Some(meta) = meta.filter(|meta| meta.get().starts_with('{')) else { return Ok(None) };
    let read = serde_json::from_str::<IdempotencyMeta>(meta.get());
    let meta = read.map_err(|_| RpcError::invalid_params(format!("`_meta[\"{name}\"]` must be one string.")))?;
    let Some(key) = meta.key else { return Ok(None) };
    if key == header::TOOL_CALL_ID {
        let text = format!("`_meta[\"{name}\"]` is `{key}`, which identifies no call of MCP. Give a key of your own.");
        return Err(RpcError::invalid_params(text));
    }
    if !header::is_idempotency_key(&key) {
        let most = header::MAX_IDEMPOTENCY_KEY;
        let text = format!("`_meta[\"{name}\"]` must have 1 to {most} bytes, without control characters.");
        return Err(RpcError::invalid_params(text));
    }
    Ok(Some(key.into()))
}

type Running = BoxFuture<'static, Result<ToolOutput, ToolFailure>>;

/// A call that is under way.
pub(crate) struct CallFlow {
    id: Id,
    backend: Arc<dyn Backend>,
    caller: Arc<Caller>,
    /// The tool, as the client calls it.
    tool: String,
    running: Option<Running>,
    /// Whether the call has a task of its own.
    is_detached: bool,
    in_flight: Option<InFlightRequest>,
    progress: Option<(Box<RawValue>, mpsc::Receiver<Progress>)>,
    version: Version,
    /// Whether the call continues after the connection is lost: in a session, only `notifications/cancelled` cancels
    /// it; with an idempotency key, its client may request the response again.
    survives: bool,
    pub(super) started: Option<Box<dyn McpServerRequest>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProgressReport<'a> {
    progress_token: &'a RawValue,
    progress: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

enum CallEvent {
    Report(Progress),
    Ended(Result<ToolOutput, ToolFailure>),
}

impl CallFlow {
    pub(crate) fn new(
        peer: &Peer,
        id: Id,
        backend: Arc<dyn Backend>,
        tool: String,
        running: Running,
        in_flight: InFlightRequest,
        progress: Option<(&RawValue, mpsc::Receiver<Progress>)>,
    ) -> Self {
        Self {
            id,
            backend,
            caller: Arc::clone(&peer.caller),
            tool,
            running: Some(running),
            is_detached: false,
            in_flight: Some(in_flight),
            progress: progress.map(|(token, reports)| (token.to_owned(), reports)),
            version: peer.version,
            survives: peer.session.is_some(),
            started: None,
        }
    }

    /// Has the call go on by itself: so that a client that reads slowly does not hold it up.
    pub(super) fn detach(&mut self) {
        if self.is_detached {
            return;
        }
        let Some(running) = self.running.take() else { return };
        self.is_detached = true;
        #[expect(clippy::disallowed_methods, reason = "the flow awaits it, or the task that follows a dropped flow")]
        let running = tokio::spawn(running);
        let ended = async move {
            let gone = || Err(ToolFailure::new(Cause::Cancelled, "The daemon shut down."));
            running.await.unwrap_or_else(|_| gone())
        };
        self.running = Some(ended.boxed());
    }

    pub(super) async fn next(&mut self) -> FlowStep {
        match std::future::poll_fn(|context| self.poll(context)).await {
            None => FlowStep::Nothing,
            Some(CallEvent::Report(progress)) => self.report(&progress).map_or(FlowStep::Nothing, FlowStep::Interim),
            Some(CallEvent::Ended(result)) => self.end(&result),
        }
    }

    /// Reports first: a report after the response would be lost. They are looked at once the call was, because a report
    /// and the result may both arrive in between.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<CallEvent>> {
        let ended = self.running.as_mut().map(|running| Pin::new(running).poll(context));
        let report = self.progress.as_mut().map(|(_, reports)| reports.poll_recv(context));
        match (ended, report) {
            (ended, Some(Poll::Ready(Some(progress)))) => {
                if let Some(Poll::Ready(result)) = ended {
                    self.running = Some(ready(result).boxed());
                }
                Poll::Ready(Some(CallEvent::Report(progress)))
            }
            (Some(Poll::Ready(result)), _) => {
                self.running = None;
                Poll::Ready(Some(CallEvent::Ended(result)))
            }
            (Some(Poll::Pending), _) => Poll::Pending,
            (None, _) => Poll::Ready(None),
        }
    }

    fn report(&self, progress: &Progress) -> Option<bytes::Bytes> {
        let (token, _) = self.progress.as_ref()?;
        let Progress { progress, total, message } = progress;
        let report =
            ProgressReport { progress_token: token, progress: *progress, total: *total, message: message.as_deref() };
        Some(rpc::notification("notifications/progress", Some(report)))
    }

    fn end(&mut self, result: &Result<ToolOutput, ToolFailure>) -> FlowStep {
        let is_cancelled = self.in_flight.take().is_some_and(|in_flight| in_flight.cancelled.is_cancelled());
        let started = self.started.take();
        let finished = |error_type: Option<&str>| {
            if let Some(started) = started {
                started.finished(self.backend.tool(&self.caller, &self.tool).as_deref(), error_type);
            }
        };
        if is_cancelled && result.is_err() {
            finished(Some("cancelled"));
            return FlowStep::Nothing;
        }
        let Response { body, error_type } = content::response_to(&self.id, result, self.version);
        finished(error_type);
        FlowStep::Last(body)
    }
}

impl Drop for CallFlow {
    fn drop(&mut self) {
        let (Some(running), Some(in_flight)) = (self.running.take(), self.in_flight.take()) else { return };
        let started = self.started.take();
        let (backend, caller, tool) =
            (Arc::clone(&self.backend), Arc::clone(&self.caller), std::mem::take(&mut self.tool));
        if !self.survives {
            in_flight.cancelled.cancel();
        }
        // It can still be cancelled by its id until it has ended.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let _ = running.await;
            drop(in_flight);
            if let Some(started) = started {
                started.finished(backend.tool(&caller, &tool).as_deref(), Some("client_gone"));
            }
        });
    }
}
