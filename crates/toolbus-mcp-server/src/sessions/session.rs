use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::Caller;

use crate::rpc::{Id, RpcError};
use crate::version::Version;
use crate::visitor::TokenId;

/// Most requests of one session that are under way.
const MAX_UNDERWAY: usize = 512;

/// Whose a session is. By default nobody's in particular, for ever.
#[derive(Debug, Clone, Default)]
pub(crate) struct Owner {
    pub(crate) token: Option<TokenId>,
    /// Cancelled once the token does not count any more: from then on nobody can use the session.
    pub(crate) revoked: CancellationToken,
}

/// One client's session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: Arc<str>,
    owner: Owner,
    pub(crate) caller: Arc<Caller>,
    pub(crate) version: Version,
    /// `tcp` or `pipe`.
    pub(crate) transport: &'static str,
    pub(crate) began: Instant,
    /// Cancelled with the session's end.
    pub(crate) ended: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    last_used: Instant,
    underway: HashMap<Id, CancellationToken>,
    /// Ends the present stream of news.
    stream: Option<CancellationToken>,
    listed: Listed,
}

/// Fingerprints of what the client listed last: of the tools and of the texts that there were then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) tools: Option<u64>,
    pub(crate) texts: Option<u64>,
}

/// A request that is under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct Underway {
    session: Option<(Arc<Session>, Id)>,
    /// Cancelled when the client does not want its answer any more.
    pub(crate) cancelled: CancellationToken,
}

/// A stream of news that is open, until this is dropped.
#[derive(Debug)]
pub(crate) struct Streaming {
    session: Arc<Session>,
    /// Cancelled when there is to be no more of it.
    pub(crate) over: CancellationToken,
}

impl Session {
    pub(super) fn new(
        id: Arc<str>,
        owner: Owner,
        version: Version,
        transport: &'static str,
        caller: Arc<Caller>,
    ) -> Self {
        let now = Instant::now();
        let state =
            Mutex::new(State { last_used: now, underway: HashMap::new(), stream: None, listed: Listed::default() });
        Self { id, owner, caller, version, transport, began: now, ended: CancellationToken::new(), state }
    }

    /// Notes that a request is under way, so that it can be cancelled.
    pub(crate) fn enter(self: &Arc<Self>, id: &Id) -> Result<Underway, RpcError> {
        let mut state = self.lock();
        if state.underway.contains_key(id) {
            let text = format!("A request of the id {} is under way in this session. Use each id once.", id.as_json());
            return Err(RpcError::new(RpcError::INVALID_REQUEST, text));
        }
        if state.underway.len() >= MAX_UNDERWAY {
            let text = format!("{MAX_UNDERWAY} requests of this session are under way. Wait until one is answered.");
            return Err(RpcError::new(RpcError::INVALID_REQUEST, text));
        }
        let cancelled = self.ended.child_token();
        state.underway.insert(id.clone(), cancelled.clone());
        Ok(Underway { session: Some((Arc::clone(self), id.clone())), cancelled })
    }

    /// Cancels a request that is under way. One that is not was answered meanwhile.
    pub(crate) fn cancel(&self, id: &Id) {
        if let Some(cancelled) = self.lock().underway.get(id) {
            cancelled.cancel();
        }
    }

    /// Begins a stream of news in the place of one that there may be.
    pub(crate) fn stream(self: &Arc<Self>) -> Streaming {
        let over = self.ended.child_token();
        if let Some(before) = self.lock().stream.replace(over.clone()) {
            before.cancel();
        }
        Streaming { session: Arc::clone(self), over }
    }

    /// What the client listed last. What it never listed is as it was when it began to listen, which is `now`.
    pub(crate) fn listed(&self, (tools, texts): (u64, u64)) -> (u64, u64) {
        let listed = &mut self.lock().listed;
        (*listed.tools.get_or_insert(tools), *listed.texts.get_or_insert(texts))
    }

    /// Notes that the client lists what has these fingerprints; it keeps what is absent.
    pub(crate) fn lists(&self, now: Listed) {
        let listed = &mut self.lock().listed;
        listed.tools = now.tools.or(listed.tools);
        listed.texts = now.texts.or(listed.texts);
    }

    /// Whether it is one of this token.
    pub(super) fn is_of(&self, token: Option<TokenId>) -> bool {
        self.owner.token == token
    }

    /// Whether its token does not count any more.
    pub(super) fn is_revoked(&self) -> bool {
        self.owner.revoked.is_cancelled()
    }

    pub(super) fn touch(&self) {
        self.lock().last_used = Instant::now();
    }

    pub(super) fn last_used(&self) -> Instant {
        self.lock().last_used
    }

    /// Whether nothing is under way, and no stream is open.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.underway.is_empty() && state.stream.as_ref().is_none_or(CancellationToken::is_cancelled)
    }

    fn leave(&self, id: &Id) {
        let mut state = self.lock();
        state.underway.remove(id);
        state.last_used = Instant::now();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Underway {
    /// A request that stands alone: nobody can name it to cancel it.
    pub(crate) fn alone() -> Self {
        Self { session: None, cancelled: CancellationToken::new() }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.over.cancel();
        self.session.touch();
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        if let Some((session, id)) = self.session.take() {
            session.leave(&id);
        }
    }
}
