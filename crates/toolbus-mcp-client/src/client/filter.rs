//! The filter between rmcp and a transport.
//!
//! rmcp starts a task for every notification and every request of a server, so that a server could fill the memory.
//! The filter replies to, counts or drops them on arrival, so that rmcp sees little else than responses.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use rmcp::RoleClient;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ClientResult, CustomResult, ErrorCode, ErrorData, GetExtensions as _,
    RequestId, RequestMetaObject, ServerJsonRpcMessage, ServerNotification, ServerRequest, ServerResult,
};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::time::{sleep_until, timeout_at};
use toolbus_core::Clock;

use super::notifications::{Notifications, ProgressMark};
use crate::transport::TransportFailure;

/// Longest wait for a response to the probe.
pub(super) const PROBE_TIME: Duration = Duration::from_secs(1);
/// Responses to a server's own requests that wait to be sent; requests beyond are ignored.
const MAX_REPLIES: usize = 64;

/// Consequence of a server that does not respond to the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// The server counts as one of an older protocol version, which may ignore unknown methods: the filter responds
    /// to the probe itself.
    Legacy,
    /// The connection fails, because the transport accepts nothing further before the response.
    Failure,
    /// There is no probe.
    Allowed,
}

/// A transport without the messages that rmcp does not need.
pub(super) struct NotificationFilter<T> {
    inner: T,
    notifications: Arc<Notifications>,
    failure: TransportFailure,
    /// The response to `roots/list`, if there are any.
    roots: Option<Value>,
    silence: Silence,
    clock: Clock,
    probe: Option<PendingProbe>,
    /// A probe that the filter responded to; the server's own response may still arrive.
    late: Option<RequestId>,
    replies: FuturesUnordered<BoxFuture<'static, ()>>,
}

struct PendingProbe {
    id: RequestId,
    until: Instant,
}

impl<T: Transport<RoleClient> + 'static> NotificationFilter<T> {
    pub(super) fn new(
        inner: T,
        notifications: Arc<Notifications>,
        failure: TransportFailure,
        roots: Option<Value>,
        silence: Silence,
        clock: Clock,
    ) -> Self {
        Self {
            inner,
            notifications,
            failure,
            roots,
            silence,
            clock,
            probe: None,
            late: None,
            replies: FuturesUnordered::new(),
        }
    }

    /// Handles a message; returns it if rmcp needs it.
    fn let_in(&mut self, message: ServerJsonRpcMessage) -> Option<ServerJsonRpcMessage> {
        match message {
            ServerJsonRpcMessage::Notification(notification) => match notification.notification {
                ServerNotification::ProgressNotification(report) => {
                    self.notifications.progressed(report.params);
                    None
                }
                ServerNotification::ToolListChangedNotification(_) => {
                    self.notifications.list_changed();
                    None
                }
                ServerNotification::SubscriptionsAcknowledgedNotification(_) => {
                    self.notifications.subscribed();
                    None
                }
                // How a server without sessions ends a subscription.
                ServerNotification::CancelledNotification(_) if !self.notifications.is_initializing() => {
                    Some(ServerJsonRpcMessage::Notification(notification))
                }
                _ => None,
            },
            ServerJsonRpcMessage::Request(request) => {
                self.reply(&request.request, request.id);
                None
            }
            ServerJsonRpcMessage::Response(ref response) => {
                let is_expected = self.expected(Some(&response.id));
                if !is_expected && matches!(response.result, ServerResult::DiscoverResult(_)) {
                    self.notifications.late();
                }
                is_expected.then_some(message)
            }
            ServerJsonRpcMessage::Error(ref error) => self.expected(error.id.as_ref()).then_some(message),
        }
    }

    /// Whether a response belongs to a request that still waits.
    fn expected(&mut self, id: Option<&RequestId>) -> bool {
        if self.late.as_ref().is_some_and(|late| id.is_none_or(|id| is_same(late, id))) {
            self.late = None;
            return false;
        }
        if self.probe.as_ref().is_some_and(|probe| id.is_none_or(|id| is_same(&probe.id, id))) {
            self.probe = None;
        }
        true
    }

    fn reply(&mut self, request: &ServerRequest, id: RequestId) {
        if self.replies.len() >= MAX_REPLIES {
            return;
        }
        let reply = match request {
            ServerRequest::PingRequest(_) => ClientJsonRpcMessage::response(ClientResult::empty(()), id),
            ServerRequest::ListRootsRequest(_) if let Some(roots) = &self.roots => {
                let result = CustomResult::new(roots.clone());
                ClientJsonRpcMessage::response(ClientResult::CustomResult(result), id)
            }
            _ => {
                let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "not offered by this client", None);
                ClientJsonRpcMessage::error(error, Some(id))
            }
        };
        let sending = self.inner.send(reply);
        // A transport that cannot be written to ends by itself.
        self.replies.push(Box::pin(async move { drop(sending.await) }));
    }

    /// The response instead of a silent server's.
    fn substitute(&mut self) -> Option<ServerJsonRpcMessage> {
        let id = self.probe.take()?.id;
        if self.silence == Silence::Failure {
            self.notifications.end("the server kept silent for 1 s", false);
            return None;
        }
        self.notifications.pass_over_probe();
        self.late = Some(id.clone());
        let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "no answer in time", None);
        Some(ServerJsonRpcMessage::error(error, Some(id)))
    }
}

impl<T: Transport<RoleClient> + 'static> Transport<RoleClient> for NotificationFilter<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        mut item: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let mut until = None;
        if let ClientJsonRpcMessage::Request(request) = &mut item {
            match &mut request.request {
                ClientRequest::InitializeRequest(_) => self.notifications.initializing(),
                ClientRequest::DiscoverRequest(_) if self.silence != Silence::Allowed => {
                    let end = self.probe.take().map_or_else(|| self.clock.now() + PROBE_TIME, |probe| probe.until);
                    self.probe = Some(PendingProbe { id: request.id.clone(), until: end });
                    until = Some(end);
                }
                other => set_progress_token(other),
            }
        }
        let sending = self.inner.send(item);
        async move {
            let Some(until) = until else { return sending.await };
            // Some transports have sent a request only when its response is there.
            let mut sending = Box::pin(sending);
            match timeout_at(until.into(), &mut sending).await {
                Ok(sent) => sent,
                Err(_) => {
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "ends with the transport; rmcp waits for it no longer"
                    )]
                    tokio::spawn(sending);
                    Ok(())
                }
            }
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let silence = self.probe.as_ref().map(|probe| probe.until);
            let message = tokio::select! {
                message = self.inner.receive() => message,
                Some(()) = self.replies.next(), if !self.replies.is_empty() => continue,
                () = sleep_to(silence) => return self.substitute(),
            };
            let Some(message) = message else {
                let why = self.failure.get().unwrap_or("the server closed the connection");
                self.notifications.end(why, false);
                return None;
            };
            if let Some(message) = self.let_in(message) {
                return Some(message);
            }
            // A flood of filtered messages must not keep rmcp from sending.
            tokio::task::coop::consume_budget().await;
        }
    }

    fn close(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send {
        self.inner.close()
    }
}

impl<T> Drop for NotificationFilter<T> {
    fn drop(&mut self) {
        self.notifications.end("the connection ended", false);
    }
}

/// rmcp adds a progress token to every request; the filter removes it unless the call reports progress.
fn set_progress_token(request: &mut ClientRequest) {
    let extensions = request.extensions_mut();
    let token = extensions.remove::<ProgressMark>();
    let Some(meta) = extensions.get_mut::<RequestMetaObject>() else { return };
    match token {
        Some(token) => meta.set_progress_token(token.wire()),
        None => drop(meta.remove("progressToken")),
    }
    if meta.is_empty() {
        extensions.remove::<RequestMetaObject>();
    }
}

/// Some servers turn a numeric id into a string.
fn is_same(sent: &RequestId, received: &RequestId) -> bool {
    sent == received
        || matches!((sent, received), (RequestId::Number(n), RequestId::String(text)) if text.parse() == Ok(*n))
}

async fn sleep_to(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until.into()).await,
        None => pending().await,
    }
}
