//! List that another daemon gives to this one: requested, and requested again whenever it may have changed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use toolbus_client::{ClientError, Expectation, Expected, Received};
use toolbus_core::Clock;
use toolbus_core::bus::BusState;
use toolbus_core::caller::AgentName;
use toolbus_core::text::shown;
use toolbus_protocol::{
    Format, McpGetServiceDetailsRequest, McpMetadataRefreshRequest, Properties, ToolListRequest, ToolListResponse,
    header, message_type, topic,
};

use crate::RemoteDaemons;
use crate::bridge::{self, MAX_BRIDGES, ServerDetails};
use crate::calling::{lost, sentence};

/// Longest wait for the broker, and then for a reply, before the other daemon counts as away.
const LIST_TIME: Duration = Duration::from_secs(10);
/// Longest time between two requests to a daemon that is away; the reply to the last one still counts.
const MAX_PATIENCE: Duration = Duration::from_secs(60);
/// Time between two requests where no queue takes them, or a reply is of no use.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Time between two checks whether a list has changed without an announcement: the daemon may have been replaced.
const LOOK_PERIOD: Duration = Duration::from_secs(60);
/// Shortest time between two requests, whatever is announced.
const MIN_PERIOD: Duration = Duration::from_secs(1);
/// Largest list, in bytes: no daemon sends more.
const MAX_LIST: usize = 16 * 1024 * 1024;
/// Longest digest of a list that is sent back, in bytes.
const MAX_VERSION: usize = 256;

/// Follows the lists of the daemons that take calls from one topic, or of the bridges that have an MCP server.
pub struct RemoteFollower {
    daemons: RemoteDaemons,
    question: ListQuestion,
    /// The provider whose lists count; absent: any program.
    provider: Option<AgentName>,
    version: Option<String>,
    /// Time for which the next reply counts.
    patience: Duration,
    /// A reply that is late, and until when it counts.
    late: Option<(Expected, Instant)>,
    /// Time of the last request to the daemon, and of the last report to the caller.
    requested_at: Option<Instant>,
    reported_at: Option<Instant>,
    is_away: bool,
    /// Reason why a bridge does not have the server.
    problem: Option<String>,
    changes: RefreshReasons,
}

/// News for the caller.
#[derive(Debug)]
pub enum RemoteNews {
    /// The daemon lists other tools than before.
    Listed(RemoteListing),
    /// Same list as before.
    Unchanged,
    /// There is no list that can be used; the reason is for an operator. What was listed before may still be called.
    Away(String),
}

/// List that a daemon gives.
#[derive(Debug)]
pub struct RemoteListing {
    /// Name of this daemon, as the other one knows it.
    pub agent: String,
    /// The tools, as an MCP server lists them; as they came.
    pub tools: Vec<Value>,
    /// Reason why there are none, if there are none.
    pub notice: Option<String>,
    /// The bridge that has them, by its `rb-source`; absent for a daemon.
    pub bridge: Option<String>,
    /// Other bridges that have a server of the same name.
    pub rivals: Vec<String>,
}

/// List that is requested.
enum ListQuestion {
    /// The tools of a daemon, on this topic.
    Tools(String),
    /// The tools of this MCP server.
    Server(Arc<str>),
}

/// Reply to a request for a list.
enum ListReply {
    Tools(Received),
    Server(ServerDetails),
}

/// Failure to get a list that can be used.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No program takes the requests of a provider.
    #[error("no queue takes topic `{topic}`: is the program running, as the agent `{provider}`?")]
    NoProvider { topic: String, provider: AgentName },
    /// A sender other than the provider replied.
    #[error("a reply came from {sender}, which is not the agent `{provider}`, and does not count: see `identity`")]
    OtherSender { sender: String, provider: AgentName },
}

/// Reasons for another request.
struct RefreshReasons {
    news: watch::Receiver<u64>,
    refusals: watch::Receiver<u64>,
    state: watch::Receiver<BusState>,
    losses: u64,
}

impl RemoteDaemons {
    /// Follows the daemons that take calls from `topic`; `None` if they have no topic of their own for lists.
    #[must_use]
    pub fn follow(&self, topic: &str) -> Option<RemoteFollower> {
        Some(self.following(ListQuestion::Tools(topic::control_of(topic::TOOL_LIST, topic)?), None))
    }

    /// Follows a program that provides tools. Only its own lists count, as far as this daemon knows senders apart.
    #[must_use]
    pub fn follow_provider(&self, provider: AgentName) -> Option<RemoteFollower> {
        let topic = topic::control_of(topic::TOOL_LIST, &topic::of_provider(provider.as_str()))?;
        Some(self.following(ListQuestion::Tools(topic), Some(provider)))
    }

    /// Follows the bridges that have an MCP server.
    #[must_use]
    pub fn follow_server(&self, server: Arc<str>) -> RemoteFollower {
        self.following(ListQuestion::Server(server), None)
    }

    fn following(&self, question: ListQuestion, provider: Option<AgentName>) -> RemoteFollower {
        let client = self.client();
        let changes =
            RefreshReasons { news: client.news(), refusals: self.refusals(), state: client.state(), losses: 0 };
        RemoteFollower {
            daemons: self.clone(),
            question,
            provider,
            version: None,
            patience: LIST_TIME,
            late: None,
            requested_at: None,
            reported_at: None,
            is_away: false,
            problem: None,
            changes,
        }
    }
}

impl RemoteFollower {
    /// Waits until there is something to report. The first call queries the daemon at once.
    pub async fn next(&mut self) -> RemoteNews {
        let reply = match self.late().await {
            Some(reply) => Ok(reply),
            None => {
                self.due().await;
                self.request_list().await
            }
        };
        let news = match reply {
            Ok(reply) => self.read(reply).await,
            Err(error) => Err(error),
        };
        self.reported_at = Some(Clock::SYSTEM.now());
        self.is_away = news.is_err();
        let problem = self.problem.take();
        news.unwrap_or_else(|error| RemoteNews::Away(problem.unwrap_or_else(|| reason(&error))))
    }

    /// The reply to the last request, if it comes before there is a reason for another request.
    async fn late(&mut self) -> Option<ListReply> {
        let (mut expected, until) = self.late.take()?;
        tokio::select! {
            reply = reply(&self.question, &mut expected, &mut self.problem) => reply.ok(),
            () = tokio::time::sleep_until(until.into()) => None,
            () = self.changes.any() => None,
        }
    }

    /// Waits until there is a reason for a request.
    async fn due(&mut self) {
        let Some(requested_at) = self.requested_at else { return };
        // A list that takes long to process is requested less often.
        let busy = self.reported_at.map_or(Duration::ZERO, |at| Clock::SYSTEM.since(at)) * 4;
        let period = if self.is_away { RETRY_PERIOD } else { LOOK_PERIOD };
        tokio::select! {
            () = tokio::time::sleep_until((requested_at + period).into()) => {}
            () = self.changes.any() => {}
        }
        tokio::time::sleep_until((requested_at + MIN_PERIOD.max(busy)).into()).await;
    }

    async fn request_list(&mut self) -> Result<ListReply, ListError> {
        let daemons = self.daemons.clone();
        let client = daemons.client();
        self.changes.mark_seen();
        self.requested_at = Some(Clock::SYSTEM.now());
        client.ready(LIST_TIME).await?;
        self.changes.mark_seen();
        let now = Clock::SYSTEM.now();
        self.requested_at = Some(now);
        let mut request = match &self.question {
            ListQuestion::Tools(topic) => {
                let if_version = self.version.clone();
                let body = ToolListRequest { format: Some(Format::Mcp), if_version, ..ToolListRequest::default() };
                client.ask(topic, message_type::TOOL_LIST_REQUEST, &body)
            }
            ListQuestion::Server(server) => {
                let body = McpGetServiceDetailsRequest { server_name: server.as_ref().to_owned() };
                client.ask(topic::MCP_MANAGE, message_type::MCP_GET_SERVICE_DETAILS_REQUEST, &body)
            }
        };
        // A daemon that was away does not make a list that is no longer waited for, and a list for a daemon is without what
        // daemons list.
        let timeout = (header::on_the_wire(header::TIMEOUT_MS), self.patience.as_millis().to_string());
        let hops = (header::on_the_wire(header::HOPS), "1".to_owned());
        Arc::make_mut(&mut request.properties).headers.extend([timeout, hops]);
        let mut request = daemons.itself().sign(request);
        if matches!(self.question, ListQuestion::Server(_)) || self.provider.is_some() {
            request = request.expiring(self.patience);
        }
        let from = self.provider.clone().map(|provider| daemons.reply_of(provider));
        let replies = if matches!(self.question, ListQuestion::Server(_)) { MAX_BRIDGES } else { 1 };
        let mut expected = client.expect(&request, Expectation { replies, from, ..Expectation::default() });
        let exchange = async {
            if let ListQuestion::Server(server) = &self.question {
                refresh(&daemons, server).await;
            }
            client.publish(&request).await?;
            reply(&self.question, &mut expected, &mut self.problem).await
        };
        if let Ok(reply) = tokio::time::timeout(LIST_TIME, exchange).await {
            self.patience = LIST_TIME;
            return match (reply, &self.provider) {
                (Err(ClientError::NoConsumer(topic)), Some(provider)) => {
                    Err(ListError::NoProvider { topic, provider: provider.clone() })
                }
                (reply, _) => Ok(reply?),
            };
        }
        let other = expected.other_reply();
        self.late = Some((expected, now + self.patience));
        self.patience = (self.patience * 2).min(MAX_PATIENCE);
        match (other, &self.provider) {
            (Some(other), Some(provider)) => {
                Err(ListError::OtherSender { sender: sender(&other), provider: provider.clone() })
            }
            _ => Err(ClientError::NoReply(LIST_TIME).into()),
        }
    }

    async fn read(&mut self, reply: ListReply) -> Result<RemoteNews, ListError> {
        self.problem = None;
        let received = match reply {
            ListReply::Tools(received) => received,
            ListReply::Server(details) => return Ok(self.read_details(details)),
        };
        if received.body.len() > MAX_LIST {
            return Err(ClientError::TooLarge(received.body.len()).into());
        }
        // Thousands of definitions: not on a thread that calls run on.
        let reading = spawn_blocking(move || received.read::<ToolListResponse>(message_type::TOOL_LIST_RESPONSE));
        let response = reading.await.map_err(|_| ClientError::Closed)??;
        let ToolListResponse { agent, version, tools, notice, not_modified } = response;
        if not_modified && self.version.as_ref() == Some(&version) {
            return Ok(RemoteNews::Unchanged);
        }
        self.version = (version.len() <= MAX_VERSION).then_some(version);
        Ok(RemoteNews::Listed(RemoteListing { agent, tools, notice, bridge: None, rivals: Vec::new() }))
    }

    fn read_details(&mut self, details: ServerDetails) -> RemoteNews {
        let ServerDetails { bridge, tools, rivals, version } = details;
        if self.version.as_ref() == Some(&version) {
            return RemoteNews::Unchanged;
        }
        self.version = Some(version);
        let agent = self.daemons.itself().agent.map(|agent| agent.to_string()).unwrap_or_default();
        RemoteNews::Listed(RemoteListing { agent, tools, notice: None, bridge, rivals })
    }
}

impl RefreshReasons {
    async fn any(&mut self) {
        let Self { news, refusals, state, losses } = self;
        tokio::select! {
            Ok(()) = news.changed() => {}
            Ok(()) = refusals.changed() => {}
            // Announcements sent while the connection was lost did not arrive.
            () = lost(state, *losses) => {}
        }
    }

    fn mark_seen(&mut self) {
        self.news.mark_unchanged();
        self.refusals.mark_unchanged();
        self.losses = self.state.borrow_and_update().reconnects;
    }
}

/// Requests the bridges to announce a server, once with each connection to the broker: they then list its tools again,
/// and one of RockBot's that could not reach the server tries to.
async fn refresh(daemons: &RemoteDaemons, server: &Arc<str>) {
    let client = daemons.client();
    let connection = client.state().borrow().reconnects;
    if daemons.is_refreshed(server, connection) {
        return;
    }
    let body = McpMetadataRefreshRequest { server_name: Some(server.as_ref().to_owned()) };
    let request = client.tell(topic::MCP_REFRESH, message_type::MCP_METADATA_REFRESH_REQUEST, &body);
    match client.publish(&daemons.itself().sign(request).expiring(MAX_PATIENCE)).await {
        // The first bridge that comes is to get it.
        Err(ClientError::NoConsumer(_)) => return,
        Err(error) => {
            let reason = sentence(&error);
            tracing::warn!(server = &**server, reason, "bridges were not asked to announce an MCP server");
        }
        Ok(()) => {}
    }
    daemons.note_refreshed(server, connection);
}

async fn reply(
    question: &ListQuestion,
    expected: &mut Expected,
    problem: &mut Option<String>,
) -> Result<ListReply, ClientError> {
    match question {
        ListQuestion::Tools(_) => expected.received().await.map(ListReply::Tools),
        ListQuestion::Server(_) => bridge::details(expected, MAX_LIST, problem).await.map(ListReply::Server),
    }
}

/// The sender of a message, for an operator.
fn sender(properties: &Properties) -> String {
    match (properties.user_id.as_deref(), properties.header(header::SOURCE)) {
        (Some(login), _) => format!("the login `{}`", shown(login)),
        (None, source) => format!("`{}` without a verified login", shown(source.unwrap_or("unknown"))),
    }
}

fn reason(error: &ListError) -> String {
    match error {
        ListError::Client(ClientError::Tool(refused)) => {
            format!("The other daemon refuses: {} ({}).", refused.message, refused.code)
        }
        error => sentence(error),
    }
}

#[cfg(test)]
mod tests;
