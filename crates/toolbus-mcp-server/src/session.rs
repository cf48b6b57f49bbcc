//! The sessions of clients, each from its handshake to its end, and the peer of a request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::caller::Caller;
use toolbus_protocol::{TraceContext, new_message_id};

use crate::auth::TokenId;
use crate::rpc::{Id, RpcError};
use crate::version::Version;

/// Limits on the number of sessions, and on their time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct McpSessionLimits {
    /// Sessions of all clients together.
    pub(crate) total: usize,
    /// Sessions that one token may have.
    pub(crate) per_token: usize,
    /// Time without a request and without a stream after which a session ends.
    pub(crate) idle: Duration,
}

/// There is no room for another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("There are too many sessions. End one that is not used, or try again later.")]
pub(crate) struct TooManySessions;

/// All sessions.
pub(crate) struct Sessions {
    limits: McpSessionLimits,
    clock: Clock,
    by_id: Mutex<HashMap<Arc<str>, Arc<McpSession>>>,
}

impl Sessions {
    pub(crate) fn new(limits: McpSessionLimits, clock: Clock) -> Self {
        Self { limits, clock, by_id: Mutex::default() }
    }

    /// Begins a session, and returns the one that was evicted for it. For a token at its limit, its session that has
    /// been idle for longest is evicted; at the total limit, a session of a revoked token is evicted first.
    pub(crate) fn begin(
        &self,
        owner: SessionOwner,
        version: Version,
        transport: &'static str,
        caller: impl FnOnce(Arc<str>) -> Caller,
    ) -> Result<(Arc<McpSession>, Option<Arc<McpSession>>), TooManySessions> {
        let token = owner.token;
        let id: Arc<str> = new_message_id().into();
        let caller = caller(Arc::clone(&id)).into();
        let session = Arc::new(McpSession::new(Arc::clone(&id), owner, version, transport, caller, self.clock));
        let mut by_id = self.lock();
        let mut evicted = None;
        let has_all = by_id.values().filter(|other| other.is_of(token)).count() >= self.limits.per_token;
        if has_all || by_id.len() >= self.limits.total {
            let makes_room = |other: &McpSession| other.is_of(token) || (!has_all && other.is_revoked());
            let idle = by_id.values().filter(|other| makes_room(other) && other.is_idle());
            let first = idle.min_by_key(|other| (!other.is_revoked(), other.last_used()));
            let first = first.map(|other| Arc::clone(&other.id)).ok_or(TooManySessions)?;
            evicted = by_id.remove(&first);
        }
        by_id.insert(id, Arc::clone(&session));
        Ok((session, evicted))
    }

    /// The session of this id, if it belongs to this token.
    pub(crate) fn get(&self, id: &str, token: Option<TokenId>) -> Option<Arc<McpSession>> {
        let session = self.lock().get(id).filter(|session| session.is_of(token)).cloned()?;
        session.touch();
        Some(session)
    }

    /// Takes a session away.
    pub(crate) fn end(&self, session: &McpSession) -> Option<Arc<McpSession>> {
        self.lock().remove(&session.id)
    }

    /// Removes and returns expired sessions: idle for too long, or with a revoked token.
    pub(crate) fn expired(&self) -> Vec<Arc<McpSession>> {
        let latest = self.clock.now().checked_sub(self.limits.idle);
        let mut by_id = self.lock();
        let is_unused = |session: &McpSession| latest.is_some_and(|latest| session.last_used() <= latest);
        let is_over = |session: &McpSession| session.is_idle() && (session.is_revoked() || is_unused(session));
        let ids: Vec<_> =
            by_id.values().filter(|session| is_over(session)).map(|session| Arc::clone(&session.id)).collect();
        ids.iter().filter_map(|id| by_id.remove(id)).collect()
    }

    /// Takes all sessions away.
    pub(crate) fn all(&self) -> Vec<Arc<McpSession>> {
        self.lock().drain().map(|(_, session)| session).collect()
    }

    /// Returns the number of sessions.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<McpSession>>> {
        self.by_id.lock()
    }
}

/// Most requests of one session that are under way.
const MAX_UNDERWAY: usize = 512;

/// The owner of a session. The default is anonymous and never revoked.
#[derive(Debug, Clone, Default)]
pub(crate) struct SessionOwner {
    pub(crate) token: Option<TokenId>,
    /// Cancelled when the token is revoked: the session is then unusable.
    pub(crate) revoked: CancellationToken,
}

/// One client's session.
#[derive(Debug)]
pub(crate) struct McpSession {
    pub(crate) id: Arc<str>,
    owner: SessionOwner,
    pub(crate) caller: Arc<Caller>,
    pub(crate) version: Version,
    /// `tcp` or `pipe`.
    pub(crate) transport: &'static str,
    began: Instant,
    clock: Clock,
    /// Cancelled with the session's end.
    pub(crate) ended: CancellationToken,
    state: Mutex<SessionState>,
}

#[derive(Debug)]
struct SessionState {
    last_used: Instant,
    in_flight: HashMap<Id, CancellationToken>,
    /// Ends the present stream of notifications.
    stream: Option<CancellationToken>,
    listed: ListFingerprints,
}

/// Fingerprints of what the client listed last: of the tools and of the texts that there were then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ListFingerprints {
    pub(crate) tools: Option<u64>,
    pub(crate) texts: Option<u64>,
}

/// A request that is under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    session: Option<(Arc<McpSession>, Id)>,
    /// Cancelled when the client does not want its response any more.
    pub(crate) cancelled: CancellationToken,
}

/// An open stream of notifications, until this is dropped.
#[derive(Debug)]
pub(crate) struct SessionStream {
    session: Arc<McpSession>,
    /// Cancelled when there is to be no more of it.
    pub(crate) over: CancellationToken,
}

impl McpSession {
    fn new(
        id: Arc<str>,
        owner: SessionOwner,
        version: Version,
        transport: &'static str,
        caller: Arc<Caller>,
        clock: Clock,
    ) -> Self {
        let now = clock.now();
        let state = Mutex::new(SessionState {
            last_used: now,
            in_flight: HashMap::new(),
            stream: None,
            listed: ListFingerprints::default(),
        });
        Self { id, owner, caller, version, transport, began: now, clock, ended: CancellationToken::new(), state }
    }

    /// Time since it began.
    pub(crate) fn lasted(&self) -> Duration {
        self.clock.since(self.began)
    }

    /// Notes that a request is under way, so that it can be cancelled.
    pub(crate) fn enter(self: &Arc<Self>, id: &Id) -> Result<InFlightRequest, RpcError> {
        let mut state = self.lock();
        if state.in_flight.contains_key(id) {
            let text = format!("A request of the id {} is under way in this session. Use each id once.", id.as_json());
            return Err(RpcError::new(RpcError::INVALID_REQUEST, text));
        }
        if state.in_flight.len() >= MAX_UNDERWAY {
            let text = format!("{MAX_UNDERWAY} requests of this session are under way. Wait until one is answered.");
            return Err(RpcError::new(RpcError::INVALID_REQUEST, text));
        }
        let cancelled = self.ended.child_token();
        state.in_flight.insert(id.clone(), cancelled.clone());
        Ok(InFlightRequest { session: Some((Arc::clone(self), id.clone())), cancelled })
    }

    /// Cancels a request that is under way. An unknown id has its response already.
    pub(crate) fn cancel(&self, id: &Id) {
        if let Some(cancelled) = self.lock().in_flight.get(id) {
            cancelled.cancel();
        }
    }

    /// Begins a stream of notifications, and ends an earlier one.
    pub(crate) fn stream(self: &Arc<Self>) -> SessionStream {
        let over = self.ended.child_token();
        if let Some(before) = self.lock().stream.replace(over.clone()) {
            before.cancel();
        }
        SessionStream { session: Arc::clone(self), over }
    }

    /// Returns the fingerprints of the lists that the client got last. For a list that it never got, the present one
    /// counts, which the argument has.
    pub(crate) fn listed(&self, (tools, texts): (u64, u64)) -> (u64, u64) {
        let listed = &mut self.lock().listed;
        (*listed.tools.get_or_insert(tools), *listed.texts.get_or_insert(texts))
    }

    /// Notes the fingerprints of lists that the client gets; absent ones stay.
    pub(crate) fn lists(&self, now: ListFingerprints) {
        let listed = &mut self.lock().listed;
        listed.tools = now.tools.or(listed.tools);
        listed.texts = now.texts.or(listed.texts);
    }

    /// Checks whether the session is one of this token.
    fn is_of(&self, token: Option<TokenId>) -> bool {
        self.owner.token == token
    }

    /// Whether its token is revoked.
    fn is_revoked(&self) -> bool {
        self.owner.revoked.is_cancelled()
    }

    fn touch(&self) {
        self.lock().last_used = self.clock.now();
    }

    fn last_used(&self) -> Instant {
        self.lock().last_used
    }

    /// Whether no request is under way, and no stream is open.
    fn is_idle(&self) -> bool {
        let state = self.lock();
        state.in_flight.is_empty() && state.stream.as_ref().is_none_or(CancellationToken::is_cancelled)
    }

    fn leave(&self, id: &Id) {
        let mut state = self.lock();
        state.in_flight.remove(id);
        state.last_used = self.clock.now();
    }

    fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }
}

impl InFlightRequest {
    /// A stateless request, which cannot be cancelled by its id.
    pub(crate) fn alone() -> Self {
        Self { session: None, cancelled: CancellationToken::new() }
    }
}

impl Drop for SessionStream {
    fn drop(&mut self) {
        self.over.cancel();
        self.session.touch();
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        if let Some((session, id)) = self.session.take() {
            session.leave(&id);
        }
    }
}

/// The client of a request, with its protocol version. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// The caller that its calls are made by.
    pub(crate) caller: Arc<Caller>,
    pub(crate) version: Version,
    /// `tcp` or `pipe`.
    pub(crate) transport: &'static str,
    /// Absent where each request stands alone.
    pub(crate) session: Option<Arc<McpSession>>,
    /// The trace context of the transport. That of a request's `_meta` takes precedence.
    pub(crate) trace: Option<TraceContext>,
}

impl Peer {
    /// The peer of a stateless request.
    pub(crate) const fn alone(caller: Arc<Caller>, transport: &'static str) -> Self {
        Self { caller, version: Version::V20260728, transport, session: None, trace: None }
    }

    /// The peer of a session.
    pub(crate) fn of(session: Arc<McpSession>) -> Self {
        Self {
            caller: Arc::clone(&session.caller),
            version: session.version,
            transport: session.transport,
            session: Some(session),
            trace: None,
        }
    }

    /// The same peer with the trace context of the transport.
    pub(crate) fn within(self, trace: Option<TraceContext>) -> Self {
        Self { trace, ..self }
    }

    /// Whether the protocol version is stateless: results then have a type and a time to live.
    pub(crate) const fn is_alone(&self) -> bool {
        !self.version.has_sessions()
    }
}

#[cfg(test)]
mod tests {
    use toolbus_core::caller::AgentName;

    use super::*;
    use crate::rpc::{Message, RpcRequest};

    const LIMITS: McpSessionLimits = McpSessionLimits { total: 3, per_token: 2, idle: Duration::from_secs(60) };

    fn owner(token: u64) -> SessionOwner {
        SessionOwner { token: Some(TokenId(token)), ..SessionOwner::default() }
    }

    fn begin(sessions: &Sessions, token: u64) -> Result<(Arc<McpSession>, Option<Arc<McpSession>>), TooManySessions> {
        begin_of(sessions, &owner(token))
    }

    fn begin_of(
        sessions: &Sessions,
        owner: &SessionOwner,
    ) -> Result<(Arc<McpSession>, Option<Arc<McpSession>>), TooManySessions> {
        let caller = |id| Caller { session: Some(id), ..Caller::agent(AgentName::parse("ana").unwrap()) };
        sessions.begin(owner.clone(), Version::V20251125, "tcp", caller)
    }

    fn id(text: &str) -> crate::rpc::Id {
        let message = format!(r#"{{"jsonrpc":"2.0","id":{text},"method":"ping"}}"#);
        match Message::read(message.as_bytes()).unwrap() {
            Message::Request(RpcRequest { id, .. }) => id,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_found_by_its_own_token_alone() {
        let sessions = Sessions::new(LIMITS, Clock::SYSTEM);
        let (session, _) = begin(&sessions, 1).unwrap();
        assert!(sessions.get(&session.id, Some(TokenId(1))).is_some());
        for token in [Some(TokenId(2)), None] {
            assert!(sessions.get(&session.id, token).is_none());
        }
        assert_eq!(session.caller.session.as_ref(), Some(&session.id));
    }

    #[tokio::test(start_paused = true)]
    async fn the_session_of_a_token_that_has_been_idle_for_longest_makes_room() {
        let sessions = Sessions::new(LIMITS, Clock::SYSTEM);
        let (first, _) = begin(&sessions, 1).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let (second, _) = begin(&sessions, 1).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(sessions.get(&first.id, Some(TokenId(1))).is_some());
        let (_, evicted) = begin(&sessions, 1).unwrap();
        assert_eq!(evicted.unwrap().id, second.id);
        assert_eq!(sessions.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_in_use_and_those_of_others_make_no_room() {
        let sessions = Sessions::new(LIMITS, Clock::SYSTEM);
        let (first, second) = (begin(&sessions, 1).unwrap().0, begin(&sessions, 1).unwrap().0);
        let _underway = first.enter(&id("1")).unwrap();
        let _stream = second.stream();
        assert_eq!(begin(&sessions, 1).unwrap_err(), TooManySessions);
        begin(&sessions, 2).unwrap();
        assert_eq!(begin(&sessions, 3).unwrap_err(), TooManySessions);
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_end_when_they_have_been_idle_for_long_enough() {
        let sessions = Sessions::new(LIMITS, Clock::SYSTEM);
        let (idle, used) = (begin(&sessions, 1).unwrap().0, begin(&sessions, 1).unwrap().0);
        let in_flight = used.enter(&id("1")).unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        let ended: Vec<_> = sessions.expired().iter().map(|session| Arc::clone(&session.id)).collect();
        assert_eq!(ended, [Arc::clone(&idle.id)]);
        drop(in_flight);
        assert!(sessions.expired().is_empty(), "in use until now");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(sessions.expired().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_of_a_revoked_token_end_once_idle() {
        let sessions = Sessions::new(LIMITS, Clock::SYSTEM);
        let gone = owner(1);
        let (idle, used) = (begin_of(&sessions, &gone).unwrap().0, begin_of(&sessions, &gone).unwrap().0);
        begin(&sessions, 2).unwrap();
        let in_flight = used.enter(&id("1")).unwrap();
        gone.revoked.cancel();
        let ended: Vec<_> = sessions.expired().iter().map(|session| Arc::clone(&session.id)).collect();
        assert_eq!(ended, [Arc::clone(&idle.id)]);
        drop(in_flight);
        assert_eq!(sessions.expired().len(), 1);
        assert_eq!(sessions.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_of_a_revoked_token_make_room_first() {
        let sessions = Sessions::new(LIMITS, Clock::SYSTEM);
        let gone = owner(1);
        begin(&sessions, 2).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let (first, second) = (begin_of(&sessions, &gone).unwrap().0, begin_of(&sessions, &gone).unwrap().0);
        let stream = second.stream();
        assert_eq!(begin(&sessions, 3).unwrap_err(), TooManySessions);
        gone.revoked.cancel();
        let (_, evicted) = begin(&sessions, 2).unwrap();
        assert_eq!(evicted.unwrap().id, first.id, "and not the token's own, which has been idle for longer");
        drop(stream);
        let (third, evicted) = begin(&sessions, 2).unwrap();
        assert_ne!(evicted.unwrap().id, second.id, "one that has as many as it may makes room by its own");
        let (_, evicted) = begin(&sessions, 3).unwrap();
        assert_eq!(evicted.unwrap().id, second.id);
        assert_eq!(begin(&sessions, 4).unwrap_err(), TooManySessions);
        drop(third);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_cancelled_by_its_id_and_no_id_is_used_twice_at_a_time() {
        let (session, _) = begin(&Sessions::new(LIMITS, Clock::SYSTEM), 1).unwrap();
        let (number, text) = (session.enter(&id("1")).unwrap(), session.enter(&id(r#""1""#)).unwrap());
        assert!(session.enter(&id("1")).is_err());
        session.cancel(&id("1"));
        assert!(number.cancelled.is_cancelled() && !text.cancelled.is_cancelled());
        drop(number);
        session.cancel(&id("1"));
        let again = session.enter(&id("1")).unwrap();
        session.cancel(&id(r#""1""#));
        assert!(text.cancelled.is_cancelled() && !again.cancelled.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_stream_of_a_session_ends_the_earlier_one() {
        let (session, _) = begin(&Sessions::new(LIMITS, Clock::SYSTEM), 1).unwrap();
        let (first, second) = (session.stream(), session.stream());
        assert!(first.over.is_cancelled() && !second.over.is_cancelled());
        drop(first);
        assert!(!second.over.is_cancelled());
        session.ended.cancel();
        assert!(second.over.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_idle_from_the_end_of_its_stream() {
        let sessions = Sessions::new(LIMITS, Clock::SYSTEM);
        let (session, _) = begin(&sessions, 1).unwrap();
        let stream = session.stream();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(sessions.expired().is_empty());
        drop(stream);
        assert!(sessions.expired().is_empty(), "in use until now");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(sessions.expired().len(), 1);
    }
}
