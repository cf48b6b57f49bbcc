//! What stands behind the door: who has which tools, and what runs them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::ToolFailure;
use toolbus_core::listing::Definition;
use toolbus_core::progress::ProgressSink;
use toolbus_core::tool::ToolOutput;
use toolbus_protocol::TraceContext;

/// What a caller may use, at one moment.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// Its tools, sorted by name.
    pub tools: Vec<Definition>,
}

/// A text that clients can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its address, which is all that it is asked for by.
    pub uri: String,
    /// Its name.
    pub name: String,
    /// Its name as people are shown it.
    pub title: String,
    /// What is in it.
    pub description: String,
    /// MIME type of its text.
    pub mime_type: &'static str,
    /// The text.
    pub text: Arc<str>,
}

/// What is behind the door cannot be asked now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// A call of a tool.
#[derive(Debug)]
pub struct BackendCall {
    /// Who is asking.
    pub caller: Arc<Caller>,
    /// The tool.
    pub tool: String,
    /// The arguments, as a JSON object; absent: none.
    pub arguments: Option<String>,
    /// Cancelled when nobody waits any more.
    pub cancelled: CancellationToken,
    /// The trace that it belongs to.
    pub trace: Option<TraceContext>,
    /// Takes the tool's reports of progress.
    pub progress: Option<ProgressSink>,
}

/// What stands behind the door.
pub trait Backend: Send + Sync + 'static {
    /// The caller that an agent is in a session; absent for a client that nobody knows.
    fn caller(&self, agent: Option<AgentName>, session: Arc<str>) -> Caller;

    /// What this caller may use now.
    fn list<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<Listed, Unavailable>>;

    /// The texts that this caller may read, sorted by address.
    fn documents<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<Vec<Document>, Unavailable>>;

    /// Numbers for the caller's tools and texts: others when those are others.
    fn fingerprints<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, (u64, u64)>;

    /// The name of the tool that this caller means by `name`, if it has one.
    fn tool(&self, caller: &Caller, name: &str) -> Option<Arc<str>>;

    /// Runs a call with all its steps, while it is polled.
    fn call(&self, call: BackendCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>>;

    /// Changes whenever what some caller may use may have changed.
    fn changes(&self) -> watch::Receiver<u64>;

    /// The caller's session is over, and with it what was built for it.
    fn end_session(&self, caller: &Caller);
}
