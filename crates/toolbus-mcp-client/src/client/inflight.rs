//! Requests in flight: cancellation, timing, and whether a silent server may still be working on one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rmcp::RoleClient;
use rmcp::model::ServerResult;
use rmcp::service::{RequestHandle, ServiceError};
use tokio::runtime::Handle;
use toolbus_core::Clock;
use toolbus_core::events::{McpClientEvents, McpClientOperation};

use crate::transport::GIVEN_UP;

/// A call cancelled sooner does not make the server suspect.
const FAIR_WAIT: Duration = Duration::from_secs(1);

/// The calls of a connection that wait for their responses.
///
/// A server that works on a call may respond to nothing else. After a call without a response for its whole time, later
/// calls do not count: otherwise steady calls would excuse a dead server for ever.
#[derive(Default)]
pub(super) struct InFlight {
    calls: Mutex<InflightCalls>,
    clock: Clock,
}

#[derive(Default)]
struct InflightCalls {
    next: u64,
    waiting: BTreeSet<u64>,
    /// The first call that came after one had been given up, since the server's last response.
    suspect: Option<u64>,
}

/// One call, until it is dropped.
pub(super) struct InFlightCall<'a> {
    inflight: &'a InFlight,
    id: u64,
    since: Instant,
    has_response: bool,
}

impl InFlight {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// A call begins.
    pub(super) fn enter(&self) -> InFlightCall<'_> {
        let mut calls = self.calls();
        let id = calls.next;
        calls.next += 1;
        calls.waiting.insert(id);
        InFlightCall { inflight: self, id, since: self.clock.now(), has_response: false }
    }

    /// The server responded to a request.
    pub(super) fn responded(&self) {
        self.calls().suspect = None;
    }

    /// Whether the server may be at work on a call.
    pub(super) fn may_be_working(&self) -> bool {
        let calls = self.calls();
        calls.waiting.first().is_some_and(|first| calls.suspect.is_none_or(|suspect| *first < suspect))
    }

    fn calls(&self) -> MutexGuard<'_, InflightCalls> {
        self.calls.lock()
    }
}

impl InFlightCall<'_> {
    /// The call has its response.
    pub(super) fn responded(mut self) {
        self.has_response = true;
        self.inflight.responded();
    }
}

impl Drop for InFlightCall<'_> {
    fn drop(&mut self) {
        let mut calls = self.inflight.calls();
        calls.waiting.remove(&self.id);
        if !self.has_response && self.inflight.clock.since(self.since) >= FAIR_WAIT {
            let next = calls.next;
            calls.suspect.get_or_insert(next);
        }
    }
}

/// A request in flight. Dropping it sends `notifications/cancelled`.
pub(super) struct PendingRequest(Option<RequestHandle<RoleClient>>);

impl PendingRequest {
    pub(super) const fn new(handle: RequestHandle<RoleClient>) -> Self {
        Self(Some(handle))
    }

    /// Waits for the response.
    pub(super) async fn response(mut self) -> Result<ServerResult, ServiceError> {
        let Some(handle) = &mut self.0 else { return Err(ServiceError::TransportClosed) };
        let response = (&mut handle.rx).await;
        self.0 = None;
        response.unwrap_or(Err(ServiceError::TransportClosed))
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let Some(handle) = self.0.take() else { return };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                // Fails only if the connection has ended.
                let _ = handle.cancel(Some(GIVEN_UP.to_owned())).await;
            });
        }
    }
}

/// The labels of a connection's events.
pub(super) struct ConnectionLabels {
    pub(super) server: Arc<str>,
    pub(super) transport: &'static str,
    pub(super) protocol_version: String,
    pub(super) observer: Arc<dyn McpClientEvents>,
    pub(super) clock: Clock,
}

/// One request. It counts as cancelled when it is dropped before its end.
pub(super) struct RequestTimer<'a> {
    labels: &'a ConnectionLabels,
    method: &'static str,
    tool: Option<&'a str>,
    began: Instant,
    is_over: bool,
}

impl ConnectionLabels {
    pub(super) fn report(
        &self,
        method: &'static str,
        tool: Option<&str>,
        duration: Duration,
        error_type: Option<&str>,
    ) {
        self.observer.operation(&McpClientOperation {
            method,
            tool,
            server: &self.server,
            protocol_version: &self.protocol_version,
            transport: self.transport,
            duration,
            error_type,
        });
    }
}

impl<'a> RequestTimer<'a> {
    pub(super) fn new(labels: &'a ConnectionLabels, method: &'static str, tool: Option<&'a str>) -> Self {
        Self { labels, method, tool, began: labels.clock.now(), is_over: false }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.labels.clock.since(self.began)
    }

    pub(super) fn end(mut self, error_type: Option<&str>) {
        self.is_over = true;
        self.labels.report(self.method, self.tool, self.elapsed(), error_type);
    }
}

impl Drop for RequestTimer<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.labels.report(self.method, self.tool, self.elapsed(), Some("cancelled"));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_may_be_working_while_a_call_waits() {
        let busy = InFlight::default();
        assert!(!busy.may_be_working());
        let call = busy.enter();
        advance(Duration::from_secs(3600)).await;
        assert!(busy.may_be_working());
        drop(call);
        assert!(!busy.may_be_working());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_after_a_given_up_one_do_not_excuse_a_silent_server() {
        let busy = InFlight::default();
        let (first, second) = (busy.enter(), busy.enter());
        advance(FAIR_WAIT).await;
        drop(first);
        assert!(busy.may_be_working(), "the server may be at work on the second");
        let third = busy.enter();
        drop(second);
        assert!(!busy.may_be_working());
        busy.responded();
        assert!(busy.may_be_working(), "it responds");
        drop(third);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_shows_that_the_server_is_alive() {
        let busy = InFlight::default();
        let (first, second) = (busy.enter(), busy.enter());
        advance(FAIR_WAIT).await;
        drop(first);
        let third = busy.enter();
        second.responded();
        assert!(busy.may_be_working());
        drop(third);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_given_up_soon_is_no_sign_of_a_dead_server() {
        let busy = InFlight::default();
        let hasty = busy.enter();
        advance(FAIR_WAIT / 2).await;
        drop(hasty);
        let call = busy.enter();
        assert!(busy.may_be_working());
        drop(call);
    }
}
