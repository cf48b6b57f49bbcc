//! Tools of other daemons as tools of this one: a call goes over the bus, in the name of its caller.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use toolbus_client::{Client, Inbox, Sender, SenderCheck, SignedRequest};
use toolbus_core::Clock;
use toolbus_core::bus::Bus;
use toolbus_core::caller::{AgentName, Caller, Identity, MAX_HOPS};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{Effect, Executor, ToolCall, ToolOutput};
use toolbus_protocol::{Envelope, Properties, ToolInvokeRequest, header, new_message_id, topic};

use crate::calling::{RemoteCall, connected};

/// The other daemon ends a call so much earlier than this one, at the most, so that its reply arrives in time.
const MAX_MARGIN: Duration = Duration::from_millis(250);

/// Makes calls at other daemons. All replies come to one queue, which the first call opens. Cheap to clone.
#[derive(Clone)]
pub struct RemoteDaemons {
    parts: Arc<RemoteParts>,
}

struct RemoteParts {
    bus: Arc<dyn Bus>,
    name: String,
    login: Option<String>,
    identity: Mutex<Arc<Identity>>,
    max_reply: usize,
    client: OnceLock<Client>,
    /// Counts calls that other daemons refused although the definitions here allowed them.
    refused: watch::Sender<u64>,
    /// MCP servers whose announcement was requested, each with the number of the connection to the broker.
    refreshed: Mutex<HashMap<Arc<str>, u64>>,
}

/// Runs one tool of another daemon.
#[derive(Clone)]
pub struct RemoteTool {
    daemons: RemoteDaemons,
    topic: Arc<str>,
    name: Arc<str>,
    effect: Effect,
    program: RemoteProgram,
}

/// Program that runs the calls of a tool.
#[derive(Debug, Clone)]
enum RemoteProgram {
    /// Any daemon that takes calls from the topic.
    Daemon,
    /// A bridge of MCP servers.
    Bridge(BridgedServer),
    /// A program that provides tools, by its name as an agent.
    Provider(AgentName),
}

/// An MCP server that a bridge has: Toolbus, or RockBot's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgedServer {
    /// The server.
    pub server: Arc<str>,
    /// The bridge whose replies count, by its `rb-source`; absent: the one without. Each bridge of the bus replies
    /// to each call.
    pub bridge: Option<Arc<str>>,
}

impl RemoteDaemons {
    /// Opens nothing. `name` is that of this daemon, `login` its user at the broker, `identity` how it knows the senders
    /// of replies, `max_reply` the largest reply that is read, in bytes.
    #[must_use]
    pub fn new(bus: Arc<dyn Bus>, name: String, login: Option<String>, identity: Identity, max_reply: usize) -> Self {
        let (identity, client) = (Mutex::new(Arc::new(identity)), OnceLock::new());
        let (refused, refreshed) = (watch::Sender::new(0), Mutex::default());
        Self { parts: Arc::new(RemoteParts { bus, name, login, identity, max_reply, client, refused, refreshed }) }
    }

    /// Knows the senders of replies to later requests by these rules.
    pub fn identify_by(&self, identity: Identity) {
        *self.parts.identity.lock() = Arc::new(identity);
    }

    /// Returns what runs a tool of the daemon that takes calls from `topic`. `name` is the one by which it is called
    /// here, `effect` what repeating a call would do.
    #[must_use]
    pub fn tool(&self, topic: impl Into<Arc<str>>, name: Arc<str>, effect: Effect) -> RemoteTool {
        RemoteTool { daemons: self.clone(), topic: topic.into(), name, effect, program: RemoteProgram::Daemon }
    }

    pub(crate) fn client(&self) -> &Client {
        let RemoteParts { bus, name, max_reply, .. } = &*self.parts;
        // Where other programs announce that what this daemon may use there has changed.
        let of_agent = |agent: AgentName| [topic::tools_changed(agent.as_str()), topic::mcp_servers(agent.as_str())];
        let of_agent = AgentName::parse(name).ok().map(of_agent);
        let topics: Vec<String> = of_agent.into_iter().flatten().chain([topic::TOOL_ANNOUNCE.to_owned()]).collect();
        let inbox = || Inbox::Own { topics, max_body: *max_reply, is_topic: true };
        self.parts.client.get_or_init(|| Client::start(Arc::clone(bus), "", inbox()))
    }

    /// Check that a reply comes from a provider, which is identified as callers are.
    pub(crate) fn reply_of(&self, provider: AgentName) -> SenderCheck {
        let identity = Arc::clone(&self.parts.identity.lock());
        Arc::new(move |properties| is_of_agent(properties, &provider, &identity))
    }

    fn refused(&self) {
        self.parts.refused.send_modify(|count| *count += 1);
    }

    /// Changes when a call has been refused that the definitions here allowed: those of the other daemon may be others now.
    pub(crate) fn refusals(&self) -> watch::Receiver<u64> {
        self.parts.refused.subscribe()
    }

    /// Whether an announcement of an MCP server was requested over this connection to the broker.
    pub(crate) fn is_refreshed(&self, server: &Arc<str>, connection: u64) -> bool {
        self.parts.refreshed.lock().get(server) == Some(&connection)
    }

    pub(crate) fn note_refreshed(&self, server: &Arc<str>, connection: u64) {
        self.parts.refreshed.lock().insert(Arc::clone(server), connection);
    }

    /// The daemon itself as a sender: an agent of its name, if that is the name of one.
    pub(crate) fn itself(&self) -> Sender {
        let RemoteParts { name, login, .. } = &*self.parts;
        let agent = AgentName::parse(name).ok();
        Sender { agent, unknown: Some(name.clone()), login: login.clone(), ..Sender::default() }
    }

    /// The sender of a call, as the other daemon sees it.
    pub(crate) fn sender(&self, caller: &Caller) -> Sender {
        let text = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
        Sender {
            agent: caller.agent.clone(),
            // An unknown caller is unknown there, too: the owner of its calls is no name of an agent.
            unknown: Some(caller.owner.as_ref().to_owned()),
            login: self.parts.login.clone(),
            binding: text(&caller.binding),
            profile: text(&caller.profile),
        }
    }
}

impl RemoteTool {
    /// The same tool as one of an MCP server that a bridge has.
    #[must_use]
    pub fn of_server(self, bridged: BridgedServer) -> Self {
        Self { program: RemoteProgram::Bridge(bridged), ..self }
    }

    /// The same tool as one that a program provides. Only the program's own replies count.
    #[must_use]
    pub fn of_provider(self, provider: AgentName) -> Self {
        Self { program: RemoteProgram::Provider(provider), ..self }
    }

    fn failed(&self, failure: ToolFailure) -> ToolFailure {
        if matches!(failure.cause, Cause::UnknownTool | Cause::InvalidArguments) {
            self.daemons.refused();
        }
        match self.program {
            RemoteProgram::Provider(_) => {
                not_made(&self.name, failure, "the program that provides it takes no calls now")
            }
            RemoteProgram::Daemon | RemoteProgram::Bridge(_) => unreachable(&self.name, failure),
        }
    }

    fn request(
        &self,
        client: &Client,
        sender: &Sender,
        call: &ToolCall,
        id: &str,
        hops: (String, String),
    ) -> SignedRequest {
        let body = ToolInvokeRequest {
            tool_call_id: Some(id.to_owned()),
            tool_name: call.tool.as_ref().to_owned(),
            arguments: serde_json::to_string(&*call.arguments).ok(),
            session_id: call.caller.session.as_deref().map(str::to_owned),
            batch_id: None,
        };
        let remaining = call.remaining();
        let budget = remaining.saturating_sub(MAX_MARGIN.min(remaining / 20));
        let mut request = client.call(&body, Some(budget), call.trace.clone());
        request.topic = self.topic.as_ref().to_owned();
        let progress = call.progress.as_ref().map(|_| header::PROGRESS);
        let wanted = [Some(header::STRUCTURED_CONTENT), progress].into_iter().flatten();
        let wanted = wanted.map(|name| (header::on_the_wire(name), "1".to_owned()));
        let key = call.idempotency_key.as_deref();
        let key = key.map(|key| (header::on_the_wire(header::IDEMPOTENCY_KEY), key.to_owned()));
        let server = match &self.program {
            RemoteProgram::Bridge(bridged) => {
                Some((header::on_the_wire(header::MCP_SERVER), bridged.server.as_ref().to_owned()))
            }
            RemoteProgram::Daemon | RemoteProgram::Provider(_) => None,
        };
        let headers = wanted.chain(key).chain([hops]).chain(server);
        Arc::make_mut(&mut request.properties).headers.extend(headers);
        sender.sign(request)
    }

    /// The only sender whose reply counts; absent: any.
    fn replier(&self) -> Option<SenderCheck> {
        match &self.program {
            RemoteProgram::Daemon => None,
            RemoteProgram::Bridge(bridged) => {
                let bridge = bridged.bridge.clone().unwrap_or_default();
                Some(Arc::new(move |properties: &Properties| {
                    *bridge == *properties.header(header::SOURCE).unwrap_or_default()
                }))
            }
            RemoteProgram::Provider(provider) => Some(self.daemons.reply_of(provider.clone())),
        }
    }
}

/// Whether a message comes from this agent, as this daemon knows its callers.
fn is_of_agent(properties: &Properties, agent: &AgentName, identity: &Identity) -> bool {
    identity.sender(properties.user_id.as_deref(), &Envelope::read(properties)).as_ref() == Some(agent)
}

/// The header of a call that is passed on once more.
///
/// # Errors
///
/// If as many daemons as may have passed it on already.
pub(crate) fn next_hop(tool: &str, caller: &Caller) -> Result<(String, String), ToolFailure> {
    let hops = caller.hops + 1;
    if hops > MAX_HOPS {
        let text = format!(
            "Tool '{tool}' was not called: {MAX_HOPS} daemons have passed the call on already, perhaps in a circle."
        );
        return Err(ToolFailure::new(Cause::NotAllowed, text));
    }
    Ok((header::on_the_wire(header::HOPS), hops.to_string()))
}

/// A call that was not made at another daemon.
pub(crate) fn unreachable(tool: &str, failure: ToolFailure) -> ToolFailure {
    not_made(tool, failure, "no daemon takes its calls now")
}

/// A call that was not made, without the topic and the broker's texts: these are for the log.
fn not_made(tool: &str, failure: ToolFailure, why: &str) -> ToolFailure {
    if failure.cause != Cause::ConnectFailed {
        return failure;
    }
    let text = format!("Tool '{tool}' was not called: {why}.");
    ToolFailure { message: text, detail: Some(failure.message), ..failure }
}

impl Executor for RemoteTool {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let hops = next_hop(&self.name, &call.caller)?;
        let client = self.daemons.client();
        connected(client, &call.cancelled, call.deadline).await.map_err(|failure| self.failed(failure))?;
        let (id, sender) = (new_message_id(), self.daemons.sender(&call.caller));
        let mut request = self.request(client, &sender, &call, &id, hops);
        // A request that waits for an absent program expires with its call.
        if !matches!(self.program, RemoteProgram::Daemon) {
            request = request.expiring(call.deadline.saturating_duration_since(Clock::SYSTEM.now()));
        }
        let reply = RemoteCall {
            client,
            request,
            sender: &sender,
            id: &id,
            from: self.replier(),
            effect: self.effect,
            progress: call.progress.clone(),
            cancelled: &call.cancelled,
            until: call.deadline,
        };
        let reply = reply.run().await.map_err(|failure| self.failed(failure))?;
        if reply.is_none() && matches!(self.program, RemoteProgram::Bridge(_)) {
            // Another bridge may have the server now.
            self.daemons.refused();
        }
        reply.ok_or_else(|| ToolCall { tool: Arc::clone(&self.name), ..call }.timed_out(None))
    }
}

#[cfg(test)]
mod tests;
