//! The backend of the server, and [`Local`], the tools of this daemon.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::ToolFailure;
use toolbus_core::listing::{ListedTool, version};
use toolbus_core::policy::{EffectiveTools, PolicyHandle};
use toolbus_core::progress::ProgressSink;
use toolbus_core::results::{READER, READER_SOURCE};
use toolbus_core::tool::ToolOutput;
use toolbus_core::toolsets::SessionSets;
use toolbus_core::{InnerCall, InnerOrigin, Invoker};
use toolbus_protocol::{TraceContext, new_message_id};

use crate::short_list::ShortLists;

/// Tools that a caller may use, at one moment.
#[derive(Debug, Clone, Default)]
pub struct CallerListing {
    /// Tools of the caller, sorted by name.
    pub tools: Vec<ListedTool>,
}

/// A text that clients can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Address of the document.
    pub uri: String,
    /// Name of the document.
    pub name: String,
    /// Name of the document as people are shown it.
    pub title: String,
    /// Description of the content.
    pub description: String,
    /// MIME type of its text.
    pub mime_type: &'static str,
    /// The text.
    pub text: Arc<str>,
}

/// The backend is unavailable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// A call of a tool.
#[derive(Debug)]
pub struct BackendCall {
    /// The caller.
    pub caller: Arc<Caller>,
    /// The tool.
    pub tool: String,
    /// The arguments, as a JSON object; absent: none.
    pub arguments: Option<String>,
    /// Cancelled when the client no longer waits.
    pub cancelled: CancellationToken,
    /// The trace that it belongs to.
    pub trace: Option<TraceContext>,
    /// Takes the tool's reports of progress.
    pub progress: Option<ProgressSink>,
    /// The key by which the client identifies the call, so that it is never run twice.
    pub idempotency_key: Option<Arc<str>>,
}

/// The backend of the server.
pub trait Backend: Send + Sync + 'static {
    /// The caller of an agent in a session. `agent` is `None` for an anonymous client.
    fn caller(&self, agent: Option<AgentName>, session: Arc<str>) -> Caller;

    /// Returns what this caller may use now.
    fn list<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<CallerListing, Unavailable>>;

    /// The texts that this caller may read, sorted by address.
    fn documents<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<Vec<Document>, Unavailable>>;

    /// Fingerprints of the caller's tools and texts.
    fn fingerprints<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, (u64, u64)>;

    /// The tool that `name` means for this caller, if it has the tool.
    fn tool(&self, caller: &Caller, name: &str) -> Option<Arc<str>>;

    /// Whether [`READER`] reads entries of working memory, as far as that is known; a call of it may still be refused.
    fn has_entries(&self, _caller: &Caller) -> bool {
        true
    }

    /// Runs a call with all its steps, while it is polled.
    fn call(&self, call: BackendCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>>;

    /// Changes whenever what some caller may use may have changed.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Ends the caller's session, and the servers started for it.
    fn end_session(&self, caller: &Caller);
}

/// Provides the texts of `resources/list`.
pub trait Resources: Send + Sync + 'static {
    /// The texts for a caller with these effective tools, sorted by URI.
    fn documents(&self, effective: &EffectiveTools) -> Vec<Document>;
}

/// The tools of this daemon, by its policy.
pub struct Local {
    policy: PolicyHandle,
    invoker: Arc<dyn Invoker>,
    sessions: SessionSets,
    resources: Option<Arc<dyn Resources>>,
    short_lists: Option<Arc<ShortLists>>,
}

impl Local {
    /// Puts the parts together. `sessions` are ended with those of clients.
    #[must_use]
    pub fn new(
        policy: PolicyHandle,
        invoker: Arc<dyn Invoker>,
        sessions: SessionSets,
        resources: Option<Arc<dyn Resources>>,
    ) -> Self {
        Self { policy, invoker, sessions, resources, short_lists: None }
    }

    /// The same, with short lists for clients that have many tools.
    #[must_use]
    pub fn with_short_lists(self, short_lists: Option<ShortLists>) -> Self {
        Self { short_lists: short_lists.map(Arc::new), ..self }
    }

    /// The definitions that a caller is listed.
    fn listed(&self, caller: &Caller, effective: &EffectiveTools) -> Vec<ListedTool> {
        let tools = match &self.short_lists {
            Some(lists) => lists.listed(caller, effective),
            None => effective.tools(),
        };
        tools.into_iter().map(|allowed| effective.definition(allowed)).collect()
    }

    fn documents_for(&self, effective: &EffectiveTools) -> Vec<Document> {
        self.resources.as_ref().map(|resources| resources.documents(effective)).unwrap_or_default()
    }
}

impl Backend for Local {
    fn caller(&self, agent: Option<AgentName>, session: Arc<str>) -> Caller {
        let caller = self.policy.vouched(agent, Arc::clone(&session));
        // Requests that stand alone share a session that never ends: each of them has the tool sets that are bound now.
        self.policy.end_session(&caller, &session);
        caller
    }

    fn list<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<CallerListing, Unavailable>> {
        let effective = self.policy.effective(caller);
        ready(Ok(CallerListing { tools: self.listed(caller, &effective) })).boxed()
    }

    fn documents<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<Vec<Document>, Unavailable>> {
        ready(Ok(self.documents_for(&self.policy.effective(caller)))).boxed()
    }

    fn fingerprints<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, (u64, u64)> {
        let effective = self.policy.effective(caller);
        let mut texts = DefaultHasher::new();
        for document in self.documents_for(&effective) {
            (document.uri, document.text).hash(&mut texts);
        }
        let tools = match &self.short_lists {
            // Changes of unlisted tools are not announced.
            Some(_) => {
                let mut tools = DefaultHasher::new();
                version(&self.listed(caller, &effective)).hash(&mut tools);
                tools.finish()
            }
            None => effective.listing_fingerprint(),
        };
        ready((tools, texts.finish())).boxed()
    }

    fn tool(&self, caller: &Caller, name: &str) -> Option<Arc<str>> {
        let effective = self.policy.effective(caller);
        effective.get(name).map(|allowed| Arc::clone(&allowed.tool.descriptor.name))
    }

    /// A tool of that name from elsewhere reads no entries.
    fn has_entries(&self, caller: &Caller) -> bool {
        let effective = self.policy.effective(caller);
        effective.get(READER).is_some_and(|allowed| &*allowed.tool.descriptor.source == READER_SOURCE)
    }

    fn call(&self, call: BackendCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
        let BackendCall { caller, tool, arguments, cancelled, trace, progress, idempotency_key } = call;
        let invoker = Arc::clone(&self.invoker);
        if let Some(lists) = &self.short_lists
            && let Some(name) = self.tool(&caller, &tool)
        {
            lists.count_call(&caller, &name);
        }
        let inner = InnerCall {
            idempotency_key,
            origin: InnerOrigin::McpClient,
            caller,
            call_id: new_message_id().into(),
            server: None,
            tool,
            arguments,
            deadline: None,
            cancelled,
            trace,
            around: None,
            progress,
        };
        async move { invoker.invoke(inner).await }.boxed()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.policy.changes()
    }

    fn end_session(&self, caller: &Caller) {
        if let Some(session) = &caller.session {
            self.policy.end_session(caller, session);
            self.sessions.end_session(&caller.owner, session);
        }
    }
}
