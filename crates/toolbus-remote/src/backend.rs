//! The tools of a daemon elsewhere, over the bus, as the backend of an MCP server that runs without a daemon in its
//! process.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbus_client::{Client, Inbox, Sender, SignedRequest};
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{Effect, ToolOutput, time_text};
use toolbus_core::{Clock, bus};
use toolbus_mcp_server::{Backend, BackendCall, CallerListing, Document, Unavailable};
use toolbus_protocol::{SessionEnd, ToolInvokeRequest, header, message_type, new_message_id, topic};

use crate::calling::{RemoteCall, connected, failed, notify};
use crate::listing::ListCaches;

/// Time beyond a call's own in which its reply may still arrive.
const GRACE: Duration = Duration::from_secs(5);

/// Settings for calling a daemon elsewhere.
#[derive(Debug, Clone)]
pub struct BackendSettings {
    /// Topic of calls.
    pub topic: String,
    /// The sender of calls.
    pub sender: Sender,
    /// Inbox for replies.
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
    client: Arc<Client>,
    sender: Sender,
    max_timeout: Duration,
    listing: ListCaches,
    /// Tasks that no call waits for.
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl BusBackend {
    /// Starts listening for replies. The broker need not be there yet.
    #[must_use]
    pub fn start(bus: Arc<dyn bus::Bus>, settings: BackendSettings) -> Self {
        let BackendSettings { topic, sender, inbox, max_timeout } = settings;
        let client = Arc::new(Client::start(bus, &topic, inbox));
        let listing = ListCaches::new(Arc::clone(&client), sender.clone());
        let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
        let parts = Arc::new(BackendParts { client, sender, max_timeout, listing, tasks, closing });
        let (kept, closing) = (Arc::clone(&parts), parts.closing.clone());
        parts.tasks.spawn(async move { closing.run_until_cancelled(kept.listing.keep_lists()).await });
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
    /// Makes a call, and waits for what becomes of it.
    async fn run(&self, call: BackendCall) -> Result<ToolOutput, ToolFailure> {
        connected(&self.client, &call.cancelled, Clock::SYSTEM.now() + self.max_timeout).await?;
        let (id, effect) = (new_message_id(), self.effect(&call));
        let request = self.request(&call, &id);
        let reply = RemoteCall {
            client: &self.client,
            from: None,
            request,
            sender: &self.sender,
            id: &id,
            effect,
            progress: call.progress,
            cancelled: &call.cancelled,
            until: Clock::SYSTEM.now() + self.max_timeout + GRACE,
        };
        let text = || format!("No answer came within {}. Check that the daemon runs.", time_text(self.max_timeout));
        reply.run().await?.ok_or_else(|| failed(Cause::DeadlineExceeded, &text(), effect))
    }

    fn request(&self, call: &BackendCall, id: &str) -> SignedRequest {
        let body = ToolInvokeRequest {
            tool_call_id: Some(id.to_owned()),
            tool_name: call.tool.clone(),
            arguments: call.arguments.clone(),
            session_id: call.caller.session.as_deref().map(str::to_owned),
            batch_id: None,
        };
        // With a budget, the daemon does not begin a call after its caller has stopped waiting.
        let mut request = self.client.call(&body, Some(self.max_timeout), call.trace.clone());
        let progress = call.progress.as_ref().map(|_| header::PROGRESS);
        let wanted = [Some(header::STRUCTURED_CONTENT), Some(header::RESOURCE_LINKS), progress].into_iter().flatten();
        let wanted = wanted.map(|name| (header::on_the_wire(name), "1".to_owned()));
        let key = call.idempotency_key.as_deref();
        let key = key.map(|key| (header::on_the_wire(header::IDEMPOTENCY_KEY), key.to_owned()));
        Arc::make_mut(&mut request.properties).headers.extend(wanted.chain(key));
        self.sender.sign(request)
    }

    /// Returns what repeating the call would do, as far as the daemon has listed it.
    fn effect(&self, call: &BackendCall) -> Effect {
        let list = self.listing.known(call.caller.session.as_ref());
        list.and_then(|list| list.tool(&call.tool).map(|tool| tool.effect)).unwrap_or_default()
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
            let list = self.parts.listing.list(caller.session.as_ref()).await?;
            Ok(CallerListing { tools: list.tools.to_vec() })
        }
        .boxed()
    }

    /// None: instructions of servers do not travel with lists of tools.
    fn documents<'a>(&'a self, _: &'a Caller) -> BoxFuture<'a, Result<Vec<Document>, Unavailable>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn fingerprints<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, (u64, u64)> {
        async {
            let known = match self.parts.listing.known(caller.session.as_ref()) {
                Some(list) => Some(list),
                None => self.parts.listing.list(caller.session.as_ref()).await.ok(),
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
            // The daemon does not know the session.
            return;
        }
        let parts = Arc::clone(&self.parts);
        self.parts.tasks.spawn(async move {
            let end = SessionEnd { session_id: session.as_ref().to_owned() };
            let message = parts.client.tell(topic::TOOL_SESSION_END, message_type::SESSION_END, &end);
            notify(&parts.client, &parts.sender.sign(message)).await;
        });
    }
}

#[cfg(test)]
mod tests;
