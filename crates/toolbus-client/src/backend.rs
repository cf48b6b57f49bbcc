//! The tools of a daemon elsewhere, over the bus, as the backend of an MCP server that runs without a daemon in its
//! process.

mod call;
mod listing;
mod response;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_core::bus;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::ToolOutput;
use toolbus_mcp_server::{Backend, BackendCall, CallerListing, Document, Unavailable};
use toolbus_protocol::{SessionEnd, message_type, topic};
use tracing::debug;

use crate::{Client, ClientError, Inbox, Sender};
use listing::ListCaches;

/// Longest wait for the broker to confirm a message that has no reply.
const TELL_TIME: Duration = Duration::from_secs(1);

/// How a daemon elsewhere is called.
#[derive(Debug, Clone)]
pub struct BackendSettings {
    /// Topic of calls.
    pub topic: String,
    /// Who asks, and as what.
    pub sender: Sender,
    /// Where answers are heard.
    pub inbox: Inbox,
    /// Longest time for a call.
    pub max_timeout: Duration,
}

/// The tools of a daemon elsewhere, as one agent may use them. Cheap to clone.
#[derive(Clone)]
pub struct BusBackend {
    parts: Arc<BackendParts>,
}

struct BackendParts {
    client: Client,
    sender: Sender,
    max_timeout: Duration,
    listing: ListCaches,
    /// Tasks that no call waits for.
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl BusBackend {
    /// Starts listening for answers. The broker need not be there yet.
    #[must_use]
    pub fn start(bus: Arc<dyn bus::Bus>, settings: BackendSettings) -> Self {
        let BackendSettings { topic, sender, inbox, max_timeout } = settings;
        let client = Client::start(bus, &topic, inbox);
        let (listing, tasks, closing) = (ListCaches::new(client.clock), TaskTracker::new(), CancellationToken::new());
        let parts = Arc::new(BackendParts { client, sender, max_timeout, listing, tasks, closing });
        let (kept, closing) = (Arc::clone(&parts), parts.closing.clone());
        parts.tasks.spawn(async move { closing.run_until_cancelled(kept.keep_lists()).await });
        Self { parts }
    }

    /// Waits until what is under way has ended, at most `patience`. The bus is left to its owner.
    pub async fn close(&self, patience: Duration) {
        self.parts.closing.cancel();
        self.parts.tasks.close();
        let _ = tokio::time::timeout(patience, self.parts.tasks.wait()).await;
    }
}

impl BackendParts {
    /// Publishes a message that has no reply, if the broker is connected.
    async fn tell(&self, topic: &str, message_type: &str, body: &impl serde::Serialize) {
        let message = self.sender.sign(self.client.tell(topic, message_type, body));
        match tokio::time::timeout(TELL_TIME, self.client.publish(&message)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(topic, %error, "not told"),
            Err(_) => debug!(topic, "not told: the broker does not answer"),
        }
    }
}

impl Backend for BusBackend {
    fn caller(&self, agent: Option<AgentName>, session: Arc<str>) -> Caller {
        self.parts.listing.begin(&session);
        let Sender { binding, profile, .. } = &self.parts.sender;
        let known = agent.map_or_else(Caller::unknown, Caller::agent);
        Caller {
            binding: binding.as_deref().map(Arc::from),
            profile: profile.as_deref().map(Arc::from),
            session: Some(session),
            ..known
        }
    }

    fn list<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<CallerListing, Unavailable>> {
        async {
            let list = self.parts.list(caller.session.as_ref()).await?;
            Ok(CallerListing { tools: list.tools.to_vec() })
        }
        .boxed()
    }

    /// None: what servers say about their use does not travel with lists of tools.
    fn documents<'a>(&'a self, _: &'a Caller) -> BoxFuture<'a, Result<Vec<Document>, Unavailable>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn fingerprints<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, (u64, u64)> {
        async {
            let known = match self.parts.listing.known(caller.session.as_ref()) {
                Some(list) => Some(list),
                None => self.parts.list(caller.session.as_ref()).await.ok(),
            };
            let mut version = DefaultHasher::new();
            known.map(|list| list.version.clone()).hash(&mut version);
            (version.finish(), 0)
        }
        .boxed()
    }

    fn tool(&self, caller: &Caller, name: &str) -> Option<Arc<str>> {
        let list = self.parts.listing.known(caller.session.as_ref())?;
        list.tool(name).map(|tool| Arc::clone(&tool.name))
    }

    fn call(&self, call: BackendCall) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
        let parts = Arc::clone(&self.parts);
        let running = self.parts.tasks.spawn(async move { parts.run(call).await });
        let lost = |_| Err(ToolFailure::new(Cause::Cancelled, "The process that made the call is ending."));
        running.map(move |ended| ended.unwrap_or_else(lost)).boxed()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.parts.listing.changes()
    }

    fn end_session(&self, caller: &Caller) {
        let Some(session) = caller.session.clone() else { return };
        let is_known = self.parts.listing.end(&session);
        if !is_known {
            // The daemon never heard of it.
            return;
        }
        let parts = Arc::clone(&self.parts);
        self.parts.tasks.spawn(async move {
            let end = SessionEnd { session_id: session.as_ref().to_owned() };
            parts.tell(topic::TOOL_SESSION_END, message_type::SESSION_END, &end).await;
        });
    }
}

/// An error as the end of a sentence.
fn sentence(error: &ClientError) -> String {
    let text = error.to_string();
    if text.ends_with('?') { text } else { text + "." }
}

#[cfg(test)]
mod tests;
