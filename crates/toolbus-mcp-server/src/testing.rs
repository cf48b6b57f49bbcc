//! A backend with tools that tests script.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::events::Discard;
use toolbus_core::failure::ToolFailure;
use toolbus_core::listing::{ListedTool, definition};
use toolbus_core::tool::{ToolDescriptor, ToolOutput};

use crate::backend::{Backend, BackendCall, CallerListing, Document, Unavailable};
use crate::methods::McpServerSettings;
use crate::server::McpServer;

/// Runs a call.
pub(crate) type Run = fn(Arc<Fake>, BackendCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>>;

/// Tools and texts, by agent, and what became of calls.
pub(crate) struct Fake {
    run: Run,
    tools: Mutex<BTreeMap<String, Vec<String>>>,
    documents: Mutex<Vec<Document>>,
    changes: watch::Sender<u64>,
    /// Events that happened, in order.
    log: Mutex<Vec<String>>,
    /// Lets calls of `wait` end.
    pub(crate) release: Notify,
    /// Outcome of the next call of `scripted`.
    pub(crate) scripted: Mutex<Option<Result<ToolOutput, ToolFailure>>>,
    /// The idempotency keys of calls, in order.
    pub(crate) keys: Mutex<Vec<Option<String>>>,
}

impl Fake {
    /// A backend that runs calls by `run`, for an agent `ana` with these tools.
    pub(crate) fn new(run: Run, tools: &[&str]) -> Arc<Self> {
        let fake = Self {
            run,
            tools: Mutex::default(),
            documents: Mutex::default(),
            changes: watch::Sender::new(0),
            log: Mutex::default(),
            release: Notify::new(),
            scripted: Mutex::default(),
            keys: Mutex::default(),
        };
        fake.has("ana", tools);
        Arc::new(fake)
    }

    /// A server with this backend, until `closing`.
    pub(crate) fn serve(self: &Arc<Self>, version: &str, max_body: usize, closing: &CancellationToken) -> McpServer {
        let (name, version) = ("toolbus".to_owned(), version.to_owned());
        let settings = McpServerSettings { name, version, max_body, clock: Clock::SYSTEM };
        McpServer::new(settings, Arc::new(Shared(Arc::clone(self))), Arc::new(Discard), closing.clone())
    }

    pub(crate) fn has(&self, agent: &str, tools: &[&str]) {
        let tools = tools.iter().map(|tool| (*tool).to_owned()).collect();
        self.tools.lock().insert(agent.to_owned(), tools);
        self.changes.send_modify(|version| *version += 1);
    }

    pub(crate) fn set_instructions(&self, text: &str) {
        let document = Document {
            uri: "toolbus://servers/one/instructions".to_owned(),
            name: "one-instructions".to_owned(),
            title: "Instructions of one".to_owned(),
            description: "What one says.".to_owned(),
            mime_type: "text/plain",
            text: text.into(),
        };
        *self.documents.lock() = vec![document];
        self.changes.send_modify(|version| *version += 1);
    }

    pub(crate) fn script(&self, result: Result<ToolOutput, ToolFailure>) {
        *self.scripted.lock() = Some(result);
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().clone()
    }

    pub(crate) fn note(&self, what: impl Into<String>) {
        self.log.lock().push(what.into());
    }

    pub(crate) fn tools_of(&self, caller: &Caller) -> Vec<String> {
        let mut tools = self.tools.lock().get(&*caller.owner).cloned().unwrap_or_default();
        tools.sort();
        tools
    }
}

/// A backend that a server shares with its test.
struct Shared(Arc<Fake>);

impl Backend for Shared {
    fn caller(&self, agent: Option<AgentName>, session: Arc<str>) -> Caller {
        Caller { session: Some(session), ..agent.map_or_else(Caller::unknown, Caller::agent) }
    }

    fn list<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<CallerListing, Unavailable>> {
        let defined = |name: String| definition(&ToolDescriptor::new(name, "tests", "local"));
        let tools: Vec<ListedTool> = self.0.tools_of(caller).into_iter().map(defined).collect();
        ready(Ok(CallerListing { tools })).boxed()
    }

    fn documents<'a>(&'a self, _: &'a Caller) -> BoxFuture<'a, Result<Vec<Document>, Unavailable>> {
        ready(Ok(self.0.documents.lock().clone())).boxed()
    }

    fn fingerprints<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, (u64, u64)> {
        let [mut tools, mut texts] = [DefaultHasher::new(), DefaultHasher::new()];
        self.0.tools_of(caller).hash(&mut tools);
        self.0.documents.lock().iter().for_each(|document| document.text.hash(&mut texts));
        ready((tools.finish(), texts.finish())).boxed()
    }

    fn tool(&self, caller: &Caller, name: &str) -> Option<Arc<str>> {
        self.0.tools_of(caller).iter().any(|tool| tool == name).then(|| name.into())
    }

    fn call(&self, call: BackendCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
        (self.0.run)(Arc::clone(&self.0), call)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn end_session(&self, caller: &Caller) {
        self.0.note(format!("end of a session of {}", caller.owner));
    }
}
