//! The protocol, independent of transports.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use toolbus_core::caller::Caller;
use toolbus_core::events::{McpServerEvents, McpServerOperation};
use toolbus_protocol::TraceContext;

use crate::backend::Backend;
use crate::meta::Meta;
use crate::methods::{self, Flow, McpMethod, McpServerSettings, ServerParts};
use crate::rpc::{self, RpcError, RpcRequest};
use crate::session::{McpSession, McpSessionLimits, Peer, SessionOwner, Sessions};
use crate::version::Version;

/// Sessions of all clients together.
const MAX_SESSIONS: usize = 10_000;
/// Sessions that one token may have.
const MAX_SESSIONS_OF_TOKEN: usize = 2_000;
/// Time without a request and without a stream after which a session ends.
const SESSION_IDLE: Duration = Duration::from_secs(60 * 60);
/// Time between two looks for sessions that are over.
const SWEEP_PERIOD: Duration = Duration::from_secs(60);

/// The MCP server. Cheap to clone.
#[derive(Clone)]
pub struct McpServer {
    pub(crate) parts: Arc<ServerParts>,
}

/// The response to a request.
pub(crate) enum Handled {
    /// A result, ready to be sent.
    Now(Bytes),
    /// An error, ready to be sent.
    Refused(RpcError, Bytes),
    /// A response that comes later, perhaps after other messages.
    Later(Flow),
}

impl McpServer {
    /// Creates the server. It closes when `closing` is cancelled.
    #[must_use]
    pub fn new(
        settings: McpServerSettings,
        backend: Arc<dyn Backend>,
        events: Arc<dyn McpServerEvents>,
        closing: CancellationToken,
    ) -> Self {
        let limits = McpSessionLimits { total: MAX_SESSIONS, per_token: MAX_SESSIONS_OF_TOKEN, idle: SESSION_IDLE };
        let sessions = Sessions::new(limits, settings.clock);
        Self { parts: Arc::new(ServerParts { settings, backend, events, sessions, closing }) }
    }

    /// Ends idle sessions periodically, and all of them when the server closes.
    pub async fn run(self) {
        let mut sweep = tokio::time::interval(SWEEP_PERIOD);
        while self.parts.closing.run_until_cancelled(sweep.tick()).await.is_some() {
            self.parts.sessions.expired().iter().for_each(|session| self.ended(session));
        }
        self.parts.sessions.all().iter().for_each(|session| self.ended(session));
    }

    /// Number of sessions.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.parts.sessions.len()
    }

    /// Begins a session for `initialize`. `outside` is the trace context of the transport.
    pub(crate) fn begin(
        &self,
        call: &RpcRequest<'_>,
        owner: SessionOwner,
        transport: &'static str,
        outside: Option<TraceContext>,
        caller: impl FnOnce(Arc<str>) -> Caller,
    ) -> Result<(Peer, Bytes), RpcError> {
        let version = methods::initialize::version(call.params)?;
        let trace = Meta::of(call.params).trace().or(outside);
        let begun = self.parts.sessions.begin(owner, version, transport, caller);
        let operation = McpServerOperation {
            method: McpMethod::Initialize.as_str(),
            protocol_version: version.as_str(),
            transport,
            session: begun.as_ref().ok().map(|(session, _)| &*session.id),
            request: call.id.as_json(),
            parent: trace.as_ref(),
        };
        let started = self.parts.events.started(&operation);
        let (session, evicted) = match begun {
            Ok(begun) => begun,
            Err(full) => {
                let error = RpcError::new(RpcError::INTERNAL_ERROR, full.to_string());
                started.finished(None, Some("-32603"));
                return Err(error);
            }
        };
        if let Some(evicted) = evicted {
            self.ended(&evicted);
        }
        let body = rpc::success(&call.id, methods::initialize::result(&self.parts.settings, version));
        started.finished(None, None);
        Ok((Peer::of(session), body))
    }

    /// Begins a session of a client with stateless requests, for its connection by standard input and output.
    pub(crate) fn begin_alone(
        &self,
        transport: &'static str,
        caller: impl FnOnce(Arc<str>) -> Caller,
    ) -> Result<Peer, RpcError> {
        let begun = self.parts.sessions.begin(SessionOwner::default(), Version::V20260728, transport, caller);
        let (session, _) = begun.map_err(|full| RpcError::new(RpcError::INTERNAL_ERROR, full.to_string()))?;
        Ok(Peer::of(session))
    }

    /// Responds to a request.
    pub(crate) async fn respond(&self, peer: &Peer, call: &RpcRequest<'_>) -> Handled {
        let method = McpMethod::parse(&call.method);
        let meta = Meta::of(call.params);
        let trace = meta.trace().or_else(|| peer.trace.clone());
        let operation = McpServerOperation {
            method: method.map_or("unknown", McpMethod::as_str),
            protocol_version: peer.version.as_str(),
            transport: peer.transport,
            session: peer.session.as_ref().map(|session| &*session.id),
            request: call.id.as_json(),
            parent: trace.as_ref(),
        };
        let started = self.parts.events.started(&operation);
        let method = method.filter(|method| method.is_for(peer));
        let response = match method {
            Some(McpMethod::CallTool) => {
                let trace = started.trace().or(trace);
                match methods::call::begin(&self.parts, peer, call, meta.progress_token(), trace) {
                    Ok(flow) => return Handled::Later(flow.observed(started)),
                    Err(error) => Err(error),
                }
            }
            Some(McpMethod::Listen) => match methods::listen::begin(&self.parts, peer, call).await {
                Ok(flow) => return Handled::Later(flow.observed(started)),
                Err(error) => Err(error),
            },
            Some(method) => methods::respond(&self.parts, peer, method, call).await,
            None => Err(RpcError::method_not_found(&call.method)),
        };
        match response {
            Ok(body) => {
                started.finished(None, None);
                Handled::Now(body)
            }
            Err(error) => {
                started.finished(None, Some(&error.code.to_string()));
                let body = rpc::failure(Some(&call.id), &error);
                Handled::Refused(error, body)
            }
        }
    }

    /// Handles a notification.
    pub(crate) fn notified(&self, peer: &Peer, method: &str, params: Option<&RawValue>) {
        if method == "notifications/cancelled"
            && let (Some(session), Some(id)) = (&peer.session, params.and_then(methods::cancelled))
        {
            session.cancel(&id);
        }
    }

    /// Ends a session at its client's wish.
    pub(crate) fn end(&self, session: &McpSession) {
        if let Some(session) = self.parts.sessions.end(session) {
            self.ended(&session);
        }
    }

    fn ended(&self, session: &McpSession) {
        session.ended.cancel();
        self.parts.backend.end_session(&session.caller);
        self.parts.events.session_ended(session.version.as_str(), session.transport, session.lasted());
    }
}
