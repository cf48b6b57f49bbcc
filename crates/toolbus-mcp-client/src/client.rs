//! One connection to a server: its handshake, its requests and its end.

mod call;
mod failure;
mod filter;
mod handshake;
mod inflight;
mod list;
pub(crate) mod message;
mod notifications;
mod redacted;
mod result;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rmcp::RoleClient;
use rmcp::model::{
    ClientConfig, ClientRequest, DiscoverRequest, DiscoverRequestParams, PingRequest, RequestMetaObject, ServerResult,
};
use rmcp::service::{Peer, PeerRequestOptions, RunningService, ServiceError};
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};
use toolbus_core::events::McpClientSession;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::redact::Redactor;
use toolbus_core::results::too_large;
use toolbus_core::tool::{ToolCall, ToolOutput};

use self::inflight::{ConnectionLabels, InFlight, PendingRequest, RequestTimer};
use self::notifications::{Notifications, ProgressMark};
use crate::transport::MAX_MESSAGE;
use crate::transport::stdio::FastPath;

pub(crate) use self::failure::{CallError, RequestError};
pub(crate) use self::handshake::{HandshakeContext, ServerInfo};
pub(crate) use self::list::{ServerListing, size};

/// Timeout of listing the tools, over all pages.
const LIST_TIME: Duration = Duration::from_secs(30);
/// Timeout of closing in order.
const CLOSE_TIME: Duration = Duration::from_secs(10);

/// Whether a server has sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionMode {
    /// In sessions that begin with `initialize`.
    Sessions,
    /// Stateless: each request carries version and capabilities.
    Stateless,
}

/// A connection that takes requests until it is closed or lost.
pub(crate) struct Connection {
    peer: Peer<RoleClient>,
    running: Mutex<Option<RunningService<RoleClient, ClientConfig>>>,
    notifications: Arc<Notifications>,
    /// The fast path of calls, if the transport has one.
    fast_path: Option<FastPath>,
    /// The `_meta` of every request to a stateless server.
    meta: Option<RequestMetaObject>,
    session_mode: SessionMode,
    server_info: ServerInfo,
    redactor: Redactor,
    labels: Arc<ConnectionLabels>,
    inflight: InFlight,
    /// Microseconds; 0 before the first response.
    latency: AtomicU64,
}

impl Connection {
    /// Reports the end of the connection to the observer, without keeping it alive.
    fn attend(&self, began: Instant, subscribes: bool) {
        let (peer, notifications, labels) =
            (self.peer.clone(), Arc::clone(&self.notifications), Arc::clone(&self.labels));
        let clock = labels.clock;
        #[expect(clippy::disallowed_methods, reason = "ends with the connection, whose end it reports")]
        tokio::spawn(async move {
            let subscribing = async {
                if subscribes {
                    notifications::keep(peer, clock).await;
                }
                std::future::pending::<()>().await;
            };
            let end = tokio::select! {
                end = notifications.ended() => end,
                () = subscribing => return,
            };
            labels.observer.session(&McpClientSession {
                server: &labels.server,
                protocol_version: &labels.protocol_version,
                transport: labels.transport,
                duration: clock.since(began),
                error_type: (!end.is_ours).then_some("connection_lost"),
            });
        });
    }

    /// The session mode of the server.
    pub(crate) const fn session_mode(&self) -> SessionMode {
        self.session_mode
    }

    /// Name, version and instructions of the server.
    pub(crate) const fn server_info(&self) -> &ServerInfo {
        &self.server_info
    }

    /// Whether the server may be working on a call, and may therefore not respond to pings.
    pub(crate) fn is_busy(&self) -> bool {
        self.inflight.may_be_working()
    }

    /// Time of the last response to a ping or a call.
    pub(crate) fn last_latency(&self) -> Option<Duration> {
        Some(self.latency.load(Ordering::Relaxed)).filter(|micros| *micros > 0).map(Duration::from_micros)
    }

    /// Counts the change notifications of the server's tool list.
    pub(crate) fn list_changes(&self) -> watch::Receiver<u64> {
        self.notifications.list_changes()
    }

    /// Lists the server's tools.
    ///
    /// # Errors
    ///
    /// If the server does not list its tools within 30 s.
    pub(crate) async fn list_tools(&self) -> Result<ServerListing, RequestError> {
        match timeout(LIST_TIME, list::all(self)).await {
            Ok(Ok(mut listed)) => {
                redacted::listed(&self.redactor, &mut listed);
                Ok(listed)
            }
            Ok(Err(error)) => Err(self.failed(list::METHOD, &error)),
            Err(_) => {
                Err(RequestError::Failed(format!("the server did not list its tools within {} s", LIST_TIME.as_secs())))
            }
        }
    }

    /// Calls a tool by its own name.
    ///
    /// # Errors
    ///
    /// If there is no result. A result with `isError` is a result.
    pub(crate) async fn call(&self, tool: &str, call: &ToolCall) -> Result<ToolOutput, CallError> {
        let entered = self.inflight.enter();
        let followed = call.progress.as_ref().and_then(|sink| self.notifications.follow(sink));
        let timer = RequestTimer::new(&self.labels, "tools/call", Some(tool));
        let response = tokio::select! {
            biased;
            response = self.run(tool, call, followed.as_ref().map(|followed| followed.token)) => response,
            () = call.cancelled.cancelled() => {
                timer.end(Some("cancelled"));
                let text = format!("The call of tool '{tool}' was cancelled.");
                return Err(ToolFailure::new(Cause::Cancelled, text).into());
            }
            () = sleep_until(call.deadline.into()) => {
                timer.end(Some("timeout"));
                return Err(call.timed_out(None).into());
            }
        };
        if matches!(response, Ok(_) | Err(ServiceError::McpError(_))) {
            entered.responded();
        }
        if response.is_ok() {
            self.note(timer.elapsed());
        }
        let error_type = error_type(&response);
        let output = match response {
            Ok(result) => {
                call::output(tool, result).and_then(|output| roomed(tool, call, output)).map_err(CallError::from)
            }
            Err(error) => Err(failure::call(tool, error, self.why_ended().as_deref())),
        };
        let is_error = output.as_ref().map_or(true, |output| output.is_error);
        timer.end(error_type.as_deref().or(is_error.then_some("tool_error")));
        output
    }

    /// Pings the server. Any response counts, also an error.
    ///
    /// # Errors
    ///
    /// If there is no response. The caller sets the timeout.
    pub(crate) async fn ping(&self) -> Result<Duration, RequestError> {
        let (method, request) = match self.session_mode {
            SessionMode::Sessions => ("ping", ClientRequest::PingRequest(PingRequest::default())),
            // There is no other request that every server responds to.
            SessionMode::Stateless => {
                let discover = DiscoverRequest::new(DiscoverRequestParams {});
                ("server/discover", ClientRequest::DiscoverRequest(discover))
            }
        };
        let clock = self.labels.clock;
        let began = clock.now();
        let response = self.request_timed(method, request).await;
        let latency = clock.since(began);
        match response {
            Err(error) if !matches!(error, ServiceError::McpError(_)) => Err(self.failed(method, &error)),
            _ => {
                self.note(latency);
                Ok(latency)
            }
        }
    }

    /// Whether the connection is over, so that it takes no further requests.
    pub(crate) fn is_over(&self) -> bool {
        self.notifications.why_ended().is_some()
    }

    /// Waits for the end of the connection, and returns the reason.
    pub(crate) async fn closed(&self) -> String {
        self.notifications.ended().await.why.as_ref().to_owned()
    }

    /// Ends the connection. Calls that wait fail at once; returns when the transport is closed, or after 10 s.
    pub(crate) async fn close(&self) {
        self.notifications.end("the connection was closed", true);
        let running = self.running.lock().take();
        if let Some(mut running) = running {
            // It is dropped, and with it the transport, if it does not close.
            let _ = running.close_with_timeout(CLOSE_TIME).await;
        }
    }

    /// Sends the request of a call and waits for its response. Reports of progress come before it only where they take
    /// the same way.
    async fn run(
        &self,
        tool: &str,
        call: &ToolCall,
        token: Option<ProgressMark>,
    ) -> Result<ServerResult, ServiceError> {
        match &self.fast_path {
            Some(fast_path) if token.is_none() && fast_path.is_open() => {
                let params = call::params(tool, call, self.meta.as_ref());
                self.response(fast_path.request("tools/call", &params)).await
            }
            _ => self.request(call::request(tool, call, token)).await,
        }
    }

    /// Sends a request and waits for its response. If dropped before, it sends `notifications/cancelled`.
    async fn request(&self, request: ClientRequest) -> Result<ServerResult, ServiceError> {
        let sending = async {
            let handle = self.peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
            PendingRequest::new(handle).response().await
        };
        self.response(sending).await
    }

    /// The response to a request, or an error once the connection has ended.
    async fn response(
        &self,
        sending: impl Future<Output = Result<ServerResult, ServiceError>>,
    ) -> Result<ServerResult, ServiceError> {
        let mut response = tokio::select! {
            biased;
            response = sending => response,
            // rmcp fails what waits only when the transport is closed, which can take seconds.
            _ = self.notifications.ended() => Err(ServiceError::TransportClosed),
        };
        // This error is rmcp's own: the server has forgotten the request.
        if matches!(&response, Err(ServiceError::McpError(error)) if failure::is_of_past_session(error)) {
            response = Err(ServiceError::TransportClosed);
        }
        redacted::response(&self.redactor, &mut response);
        response
    }

    /// Like [`Self::request`], and reports the operation to the observer.
    async fn request_timed(&self, method: &'static str, request: ClientRequest) -> Result<ServerResult, ServiceError> {
        let timer = RequestTimer::new(&self.labels, method, None);
        let response = self.request(request).await;
        if matches!(response, Ok(_) | Err(ServiceError::McpError(_))) {
            self.inflight.responded();
        }
        timer.end(error_type(&response).as_deref());
        response
    }

    fn note(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latency.store(micros.max(1), Ordering::Relaxed);
    }

    fn failed(&self, method: &str, error: &ServiceError) -> RequestError {
        failure::request(method, error, self.why_ended().as_deref())
    }

    fn why_ended(&self) -> Option<Arc<str>> {
        self.notifications.why_ended().map(|end| end.why)
    }
}

/// Takes room for a result that is larger than others.
fn roomed(tool: &str, call: &ToolCall, output: ToolOutput) -> Result<ToolOutput, ToolFailure> {
    let bytes = output.size();
    match &call.room {
        _ if bytes <= MAX_MESSAGE => {}
        Some(room) => room.take(tool, bytes)?,
        None => return Err(too_large(tool, MAX_MESSAGE)),
    }
    Ok(output)
}

/// The `error_type` label of a response.
fn error_type(response: &Result<ServerResult, ServiceError>) -> Option<String> {
    match response {
        Ok(_) => None,
        Err(ServiceError::McpError(error)) => Some(error.code.0.to_string()),
        Err(_) => Some("connection_lost".to_owned()),
    }
}
