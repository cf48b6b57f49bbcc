use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, poll};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use toolbus_core::caller::{AgentName, Caller};
use tracing::debug;

use super::{Line, TRANSPORT};
use crate::meta::Meta;
use crate::methods::listen::ListChanges;
use crate::methods::{Flow, FlowStep, McpMethod};
use crate::rpc::{self, Id, Message, RpcError, RpcRequest};
use crate::server::{Handled, McpServer};
use crate::session::{InFlightRequest, McpSession, Peer, SessionOwner};

/// Requests under way, without subscriptions.
const MAX_UNDERWAY: usize = 64;
/// Requests that listen.
const MAX_LISTENING: usize = 16;

/// The client, and its requests under way.
pub(super) struct StdioConnection {
    server: McpServer,
    agent: Option<AgentName>,
    outgoing: mpsc::Sender<Bytes>,
    /// The client, where it began with a handshake.
    session: Option<Peer>,
    /// The client, if its requests are stateless. It has an internal session, by which its requests are cancelled and
    /// its state is released.
    alone: Option<Peer>,
    requests: JoinSet<()>,
    listening: JoinSet<()>,
    changes: JoinSet<()>,
}

impl StdioConnection {
    pub(super) fn new(server: McpServer, agent: Option<AgentName>, outgoing: mpsc::Sender<Bytes>) -> Self {
        let (requests, listening, changes) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
        Self { server, agent, outgoing, session: None, alone: None, requests, listening, changes }
    }

    /// Takes a line of the client's. Returns before a request in it has its response.
    pub(super) async fn take(&mut self, line: Line) {
        let line = match line {
            Line::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => return,
            Line::Whole(line) => line,
            Line::TooLong => {
                let limit = self.server.parts.settings.max_body;
                let text = format!("The message has more than {limit} bytes. Send less.");
                return self.send(rpc::failure(None, &RpcError::new(RpcError::INVALID_REQUEST, text))).await;
            }
        };
        match Message::read(&line) {
            Ok(Message::Request(call)) => {
                if let Err(error) = self.request(&call).await {
                    self.send(rpc::failure(Some(&call.id), &error)).await;
                }
            }
            Ok(Message::Notification { method, params }) => self.notified(&method, params),
            Ok(Message::Response) => {}
            Err((id, error)) => self.send(rpc::failure(id.as_ref(), &error)).await,
        }
    }

    /// Waits until the requests under way have their responses, at most so long. No further request is read.
    pub(super) async fn drain(&mut self, patience: Duration) {
        self.listening.shutdown().await;
        self.changes.shutdown().await;
        let finished = async { while self.requests.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(patience, finished).await;
    }

    /// Cancels the requests under way, waits a moment for their end, and ends the sessions.
    pub(super) async fn end(&mut self, patience: Duration) {
        self.changes.shutdown().await;
        for session in self.sessions() {
            self.server.end(session);
        }
        let ended = async {
            while self.requests.join_next().await.is_some() {}
            while self.listening.join_next().await.is_some() {}
        };
        let _ = tokio::time::timeout(patience, ended).await;
        self.requests.shutdown().await;
        self.listening.shutdown().await;
    }

    async fn request(&mut self, call: &RpcRequest<'_>) -> Result<(), RpcError> {
        if call.method == McpMethod::Initialize.as_str() {
            let body = self.begin(call)?;
            self.send(body).await;
            return Ok(());
        }
        let meta = Meta::of(call.params);
        let peer = if meta.stands_alone(&call.method) {
            meta.check_version()?;
            self.alone()?
        } else if let Some(peer) = &self.session {
            peer.clone()
        } else if call.method == McpMethod::Ping.as_str() {
            self.send(rpc::success(&call.id, json!({}))).await;
            return Ok(());
        } else {
            let text = "There is no session. Begin with `initialize`, or say in the request's `_meta` which revision it is written in.";
            return Err(RpcError::new(RpcError::INVALID_REQUEST, text));
        };
        let listens = call.method == McpMethod::Listen.as_str();
        let (set, limit) = match listens {
            true => (&mut self.listening, MAX_LISTENING),
            false => (&mut self.requests, MAX_UNDERWAY),
        };
        while set.try_join_next().is_some() {}
        if set.len() >= limit {
            let text = format!("{limit} such requests are under way. Wait until one is answered, or cancel one.");
            return Err(RpcError::new(RpcError::INVALID_REQUEST, text));
        }
        let in_flight = match (&peer.session, listens) {
            (Some(session), true) => Some(session.enter(&call.id)?),
            _ => None,
        };
        let owned = Owned::of(call);
        let mut responding = respond(self.server.clone(), peer, owned, in_flight, self.outgoing.clone());
        // What comes next may cancel it, so that it must have begun.
        if poll!(&mut responding).is_pending() {
            set.spawn(responding);
        }
        Ok(())
    }

    /// The handshake.
    fn begin(&mut self, call: &RpcRequest<'_>) -> Result<Bytes, RpcError> {
        if self.session.is_some() {
            let text = "There is a session already, which lasts as long as this connection.";
            return Err(RpcError::new(RpcError::INVALID_REQUEST, text));
        }
        let caller = self.caller();
        let (peer, body) = self.server.begin(call, SessionOwner::default(), TRANSPORT, None, caller)?;
        self.session = Some(peer);
        Ok(body)
    }

    /// The client as the sender of stateless requests.
    fn alone(&mut self) -> Result<Peer, RpcError> {
        if let Some(peer) = &self.alone {
            return Ok(peer.clone());
        }
        let peer = self.server.begin_alone(TRANSPORT, self.caller())?;
        self.alone = Some(peer.clone());
        Ok(peer)
    }

    fn notified(&mut self, method: &str, params: Option<&RawValue>) {
        for peer in [&self.session, &self.alone].into_iter().flatten() {
            self.server.notified(peer, method, params);
        }
        if method == "notifications/initialized"
            && self.changes.is_empty()
            && let Some(peer) = &self.session
        {
            self.changes.spawn(notify(self.server.clone(), peer.clone(), self.outgoing.clone()));
        }
    }

    fn caller(&self) -> impl FnOnce(Arc<str>) -> Caller + use<> {
        let (backend, agent) = (Arc::clone(&self.server.parts.backend), self.agent.clone());
        move |session| backend.caller(agent, session)
    }

    fn sessions(&self) -> impl Iterator<Item = &McpSession> {
        [&self.session, &self.alone].into_iter().flatten().filter_map(|peer| peer.session.as_deref())
    }

    async fn send(&self, message: Bytes) {
        // Fails if the output is closed; the loop that reads messages ends then.
        let _ = self.outgoing.send(message).await;
    }
}

/// A request, apart from the line that it came in.
struct Owned {
    id: Id,
    method: String,
    params: Option<Box<RawValue>>,
}

impl Owned {
    fn of(call: &RpcRequest<'_>) -> Self {
        Self {
            id: call.id.clone(),
            method: call.method.clone().into_owned(),
            params: call.params.map(RawValue::to_owned),
        }
    }
}

/// Responds to a request, after the messages that precede its response.
fn respond(
    server: McpServer,
    peer: Peer,
    request: Owned,
    in_flight: Option<InFlightRequest>,
    outgoing: mpsc::Sender<Bytes>,
) -> BoxFuture<'static, ()> {
    async move {
        let Owned { id, method, params } = request;
        let call = RpcRequest { id, method: method.into(), params: params.as_deref() };
        let sent = match server.respond(&peer, &call).await {
            Handled::Now(body) | Handled::Refused(_, body) => outgoing.send(body).await,
            Handled::Later(mut flow) => match &in_flight {
                None => follow(&mut flow, &outgoing).await,
                // A cancelled request gets no response.
                Some(in_flight) => tokio::select! {
                    biased;
                    sent = follow(&mut flow, &outgoing) => sent,
                    () = in_flight.cancelled.cancelled() => Ok(()),
                },
            },
        };
        if sent.is_err() {
            debug!("the client does not read the response to a request");
        }
    }
    .boxed()
}

async fn follow(flow: &mut Flow, outgoing: &mpsc::Sender<Bytes>) -> Result<(), mpsc::error::SendError<Bytes>> {
    loop {
        match flow.next().await {
            FlowStep::Interim(message) => {
                flow.detach();
                outgoing.send(message).await?;
            }
            FlowStep::Last(message) => return outgoing.send(message).await,
            FlowStep::Nothing => return Ok(()),
        }
    }
}

/// Notifies the client of a session of list changes.
async fn notify(server: McpServer, peer: Peer, outgoing: mpsc::Sender<Bytes>) {
    let backend = Arc::clone(&server.parts.backend);
    let mut changes = ListChanges::begin(backend, Arc::clone(&peer.caller), peer.session.as_deref()).await;
    while let Some(method) = changes.next().await {
        if outgoing.send(rpc::notification(method, None::<()>)).await.is_err() {
            return;
        }
    }
}
