//! The tools of this very daemon.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::watch;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::ToolFailure;
use toolbus_core::policy::{EffectiveTools, PolicyHandle};
use toolbus_core::tool::ToolOutput;
use toolbus_core::toolsets::SessionSets;
use toolbus_core::{InnerCall, InnerOrigin, Invoker};
use toolbus_protocol::new_message_id;

use crate::backend::{Backend, BackendCall, Document, Listed, Unavailable};

/// Has texts for callers.
pub trait Shelf: Send + Sync + 'static {
    /// The texts for a caller that may use this much, sorted by address.
    fn documents(&self, effective: &EffectiveTools) -> Vec<Document>;
}

/// Has no text for anybody.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoShelf;

impl Shelf for NoShelf {
    fn documents(&self, _: &EffectiveTools) -> Vec<Document> {
        Vec::new()
    }
}

/// The tools of this daemon, by its policy.
pub struct Local {
    access: PolicyHandle,
    invoker: Arc<dyn Invoker>,
    sessions: SessionSets,
    shelf: Arc<dyn Shelf>,
}

impl Local {
    /// Puts the parts together. `sessions` are ended with those of clients.
    #[must_use]
    pub fn new(access: PolicyHandle, invoker: Arc<dyn Invoker>, sessions: SessionSets, shelf: Arc<dyn Shelf>) -> Self {
        Self { access, invoker, sessions, shelf }
    }
}

impl Backend for Local {
    fn caller(&self, agent: Option<AgentName>, session: Arc<str>) -> Caller {
        let caller = self.access.vouched(agent, Arc::clone(&session));
        // Requests that stand alone share a session that never ends: each of them has the tool sets that are bound now.
        self.access.end_session(&caller, &session);
        caller
    }

    fn list<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<Listed, Unavailable>> {
        let effective = self.access.effective(caller);
        let tools = effective.tools().into_iter().map(|allowed| effective.definition(allowed)).collect();
        ready(Ok(Listed { tools })).boxed()
    }

    fn documents<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<Vec<Document>, Unavailable>> {
        ready(Ok(self.shelf.documents(&self.access.effective(caller)))).boxed()
    }

    fn fingerprints<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, (u64, u64)> {
        let effective = self.access.effective(caller);
        let mut texts = DefaultHasher::new();
        for document in self.shelf.documents(&effective) {
            (document.uri, document.text).hash(&mut texts);
        }
        ready((effective.listing_fingerprint(), texts.finish())).boxed()
    }

    fn tool(&self, caller: &Caller, name: &str) -> Option<Arc<str>> {
        let effective = self.access.effective(caller);
        effective.get(name).map(|allowed| Arc::clone(&allowed.tool.descriptor.name))
    }

    fn call(&self, call: BackendCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
        let BackendCall { caller, tool, arguments, cancelled, trace, progress } = call;
        let invoker = Arc::clone(&self.invoker);
        let inner = InnerCall {
            origin: InnerOrigin::Door,
            caller,
            call_id: new_message_id().into(),
            server: None,
            tool,
            arguments,
            deadline: None,
            cancelled,
            trace,
            progress,
        };
        async move { invoker.invoke(inner).await }.boxed()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.access.changes()
    }

    fn end_session(&self, caller: &Caller) {
        if let Some(session) = &caller.session {
            self.access.end_session(caller, session);
            self.sessions.end_session(&caller.owner, session);
        }
    }
}
