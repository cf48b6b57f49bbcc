//! List that another daemon gives to this one: asked for, and asked for again whenever it may have changed.

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

/// Follows what the daemons that take calls from one topic list for this daemon, or what bridges say of an MCP server.
pub struct RemoteFollower {
    daemons: RemoteDaemons,
    question: ListQuestion,
    /// The provider whose lists count; absent: any program that is asked.
    provider: Option<AgentName>,
    version: Option<String>,
    /// Time for which the next reply counts.
    patience: Duration,
    /// A reply that is late, and until when it counts.
    late: Option<(Expected, Instant)>,
    /// When the daemon was asked last, and when the caller was told last.
    asked: Option<Instant>,
    told: Option<Instant>,
    is_away: bool,
    /// Why a bridge does not have the server.
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
    /// As whom this daemon asked, by the other one's account.
    pub agent: String,
    /// The tools, as an MCP server lists them; as they came.
    pub tools: Vec<Value>,
    /// Why there are none, if there are none.
    pub notice: Option<String>,
    /// The bridge that has them, by its `rb-source`; absent for a daemon.
    pub bridge: Option<String>,
    /// Other bridges that have a server of the same name.
    pub rivals: Vec<String>,
}

/// Question that is asked.
enum ListQuestion {
    /// The tools of a daemon, on this topic.
    Tools(String),
    /// Those of this MCP server.
    Server(Arc<str>),
}

/// Reply to a question.
enum ListReply {
    Tools(Received),
    Server(ServerDetails),
}

/// Why there is no list that can be used.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No program takes the requests of a provider.
    #[error("no queue takes topic `{topic}`: is the program running, as the agent `{provider}`?")]
    NoProvider { topic: String, provider: AgentName },
    /// Another sender replied in the place of a provider.
    #[error("a reply came from {sender}, which is not the agent `{provider}`, and does not count: see `identity`")]
    OtherSender { sender: String, provider: AgentName },
}

/// Reasons to ask again.
struct RefreshReasons {
    news: watch::Receiver<u64>,
    refusals: watch::Receiver<u64>,
    state: watch::Receiver<BusState>,
    losses: u64,
}

impl RemoteDaemons {
    /// Follows the daemons that take calls from `topic`; `None` if there is no topic on which they alone are asked for lists.
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
            asked: None,
            told: None,
            is_away: false,
            problem: None,
            changes,
        }
    }
}

impl RemoteFollower {
    /// Waits until there is something to tell. The first time, the daemon is asked at once.
    pub async fn next(&mut self) -> RemoteNews {
        let reply = match self.late().await {
            Some(reply) => Ok(reply),
            None => {
                self.due().await;
                self.ask().await
            }
        };
        let news = match reply {
            Ok(reply) => self.read(reply).await,
            Err(error) => Err(error),
        };
        self.told = Some(Clock::SYSTEM.now());
        self.is_away = news.is_err();
        let problem = self.problem.take();
        news.unwrap_or_else(|error| RemoteNews::Away(problem.unwrap_or_else(|| reason(&error))))
    }

    /// The reply to the last request, if it comes before there is a reason to ask again.
    async fn late(&mut self) -> Option<ListReply> {
        let (mut expected, until) = self.late.take()?;
        tokio::select! {
            reply = reply(&self.question, &mut expected, &mut self.problem) => reply.ok(),
            () = tokio::time::sleep_until(until.into()) => None,
            () = self.changes.any() => None,
        }
    }

    /// Waits until there is a reason to ask.
    async fn due(&mut self) {
        let Some(asked) = self.asked else { return };
        // A list that takes long to sort out is not asked for all the time.
        let busy = self.told.map_or(Duration::ZERO, |told| Clock::SYSTEM.since(told)) * 4;
        let period = if self.is_away { RETRY_PERIOD } else { LOOK_PERIOD };
        tokio::select! {
            () = tokio::time::sleep_until((asked + period).into()) => {}
            () = self.changes.any() => {}
        }
        tokio::time::sleep_until((asked + MIN_PERIOD.max(busy)).into()).await;
    }

    async fn ask(&mut self) -> Result<ListReply, ListError> {
        let daemons = self.daemons.clone();
        let client = daemons.client();
        self.changes.mark_seen();
        self.asked = Some(Clock::SYSTEM.now());
        client.ready(LIST_TIME).await?;
        self.changes.mark_seen();
        let now = Clock::SYSTEM.now();
        self.asked = Some(now);
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

/// Asks the bridges to announce a server, once with each connection to the broker: they then list its tools again, and one
/// of RockBot's that could not reach the server tries to.
async fn refresh(daemons: &RemoteDaemons, server: &Arc<str>) {
    let client = daemons.client();
    let connection = client.state().borrow().reconnects;
    if daemons.was_asked_for(server, connection) {
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
    daemons.note_asked_for(server, connection);
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
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tasks of a test end with its runtime")]

    use serde_json::json;
    use tokio::sync::mpsc;
    use tokio::task::JoinHandle;
    use toolbus_broker::embedded::Embedded;
    use toolbus_core::bus::{Bus, Delivery, Outgoing, Ownership, Subscription, Target};
    use toolbus_core::caller::Identity;
    use toolbus_protocol::Envelope;

    use super::*;

    const MAX_REPLY: usize = 4_096;

    /// The other daemon, which the test is; and what follows it.
    struct Lister {
        bus: Embedded,
        requests: mpsc::Receiver<Delivery>,
        told: mpsc::UnboundedReceiver<RemoteNews>,
        /// `rb-source` of what it publishes.
        source: Option<String>,
        _follower: JoinHandle<()>,
    }

    /// A request for a list.
    struct AskedList {
        source: String,
        timeout: String,
        hops: String,
        reply_to: String,
        correlation: String,
        version: Value,
    }

    impl Lister {
        fn new() -> Self {
            Self::following("tool.list.lab", |daemons| daemons.follow("tool.invoke.lab"))
        }

        fn of_provider(name: &str) -> Self {
            let provider = AgentName::parse(name).unwrap();
            let topic = format!("tool.list.provider.{name}");
            Self::following(&topic, |daemons| daemons.follow_provider(provider))
        }

        fn following(topic: &str, follow: impl FnOnce(&RemoteDaemons) -> Option<RemoteFollower>) -> Self {
            let bus = Embedded::new();
            let requests = bus.consume(Subscription {
                queue: "lab".to_owned(),
                topics: vec![topic.to_owned()],
                prefetch: 100,
                max_body: usize::MAX,
                ownership: Ownership::Replica,
                is_inbox: false,
            });
            let daemons =
                RemoteDaemons::new(Arc::new(bus.connect()), "front".to_owned(), None, Identity::default(), MAX_REPLY);
            let mut follower = follow(&daemons).unwrap();
            let (sender, told) = mpsc::unbounded_channel();
            let following = async move { while sender.send(follower.next().await).is_ok() {} };
            Self { bus, requests, told, source: None, _follower: tokio::spawn(following) }
        }

        async fn next(&mut self) -> AskedList {
            let delivery = self.requests.recv().await.unwrap();
            let header = |name| delivery.properties.header(name).unwrap_or_default().to_owned();
            let body: Value = serde_json::from_slice(&delivery.body).unwrap();
            assert_eq!(body["format"], "mcp");
            let wanted = AskedList {
                source: header("rb-source"),
                timeout: header("rb-rb-timeout-ms"),
                hops: header("rb-rb-hops"),
                reply_to: delivery.properties.reply_to.clone().unwrap_or_default(),
                correlation: delivery.properties.correlation_id.clone().unwrap_or_default(),
                version: body["ifVersion"].clone(),
            };
            delivery.settle.acknowledge().await;
            wanted
        }

        async fn publish(&self, target: Target, correlation: &str, kind: &str, body: &Value) {
            let (message_type, correlation_id) = (kind.to_owned(), correlation.to_owned());
            let envelope =
                Envelope { message_type, correlation_id, source: self.source.clone(), ..Envelope::default() };
            let properties = envelope.into_properties().into();
            let body = body.to_string().into();
            let message = Outgoing { target, mandatory: false, proven: false, properties, body };
            self.bus.publish(&message).await.unwrap();
        }

        async fn answer(&self, wanted: &AskedList, body: &Value) {
            let target = Target::Queue(wanted.reply_to.clone());
            self.publish(target, &wanted.correlation, message_type::TOOL_LIST_RESPONSE, body).await;
        }

        async fn announce(&self) {
            let target = Target::Topic("tool.meta.tools.front".to_owned());
            let body = json!({"version": "x", "added": [], "removed": []});
            self.publish(target, "", message_type::TOOLS_CHANGED, &body).await;
        }

        async fn told(&mut self) -> String {
            match self.told.recv().await.unwrap() {
                RemoteNews::Listed(listing) => format!("{} tools for {}", listing.tools.len(), listing.agent),
                RemoteNews::Unchanged => "unchanged".to_owned(),
                RemoteNews::Away(reason) => format!("away: {reason}"),
            }
        }
    }

    fn list(version: &str, tools: usize) -> Value {
        let tools: Vec<Value> = (0..tools).map(|number| json!({"name": format!("t{number}")})).collect();
        json!({"agent": "front", "version": version, "tools": tools})
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_is_asked_under_the_name_of_this_one_and_again_when_it_announces_a_change() {
        let mut lab = Lister::new();
        let first = lab.next().await;
        assert_eq!((&*first.source, &*first.timeout, &*first.hops), ("front", "10000", "1"));
        assert_eq!(first.version, Value::Null);
        lab.answer(&first, &list("1", 2)).await;
        assert_eq!(lab.told().await, "2 tools for front");
        lab.announce().await;
        let second = lab.next().await;
        assert_eq!(second.version, "1");
        lab.answer(&second, &json!({"agent": "front", "version": "1", "tools": [], "notModified": true})).await;
        assert_eq!(lab.told().await, "unchanged");
        let begun = Clock::SYSTEM.now();
        let third = lab.next().await;
        assert_eq!(Clock::SYSTEM.since(begun), LOOK_PERIOD, "without an announcement");
        lab.answer(&third, &list("2", 1)).await;
        assert_eq!(lab.told().await, "1 tools for front");
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_is_asked_when_it_announces_itself_and_lists_of_others_do_not_count() {
        let mut lab = Lister::of_provider("lab");
        let announcement = Target::Topic(topic::TOOL_ANNOUNCE.to_owned());
        let forged = lab.next().await;
        lab.answer(&forged, &list("1", 7)).await;
        insta::assert_snapshot!(lab.told().await, @"away: a reply came from `unknown` without a verified login, which is not the agent `lab`, and does not count: see `identity`.");
        let begun = Clock::SYSTEM.now();
        lab.publish(announcement, "", message_type::TOOL_ANNOUNCEMENT, &json!({})).await;
        let asked = lab.next().await;
        assert!(Clock::SYSTEM.since(begun) < RETRY_PERIOD, "{:?}", Clock::SYSTEM.since(begun));
        lab.source = Some("lab".to_owned());
        lab.answer(&asked, &list("2", 2)).await;
        assert_eq!(lab.told().await, "2 tools for front");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_announcements_is_a_request_each_second() {
        let mut lab = Lister::new();
        let begun = Clock::SYSTEM.now();
        for number in 0..5 {
            let wanted = lab.next().await;
            for _ in 0..100 {
                lab.announce().await;
            }
            lab.answer(&wanted, &list(&number.to_string(), number)).await;
        }
        assert!(Clock::SYSTEM.since(begun) >= MIN_PERIOD * 4, "{:?}", Clock::SYSTEM.since(begun));
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_does_not_answer_is_asked_less_and_less_and_a_late_answer_counts() {
        let mut lab = Lister::new();
        let mut timeouts = Vec::new();
        for _ in 0..5 {
            timeouts.push(lab.next().await.timeout);
            assert_eq!(lab.told().await, "away: no answer came within 10.0s.");
        }
        assert_eq!(timeouts, ["10000", "20000", "40000", "60000", "60000"]);
        let last = lab.next().await;
        assert_eq!(lab.told().await, "away: no answer came within 10.0s.");
        tokio::time::sleep(Duration::from_secs(20)).await;
        lab.answer(&last, &list("1", 3)).await;
        assert_eq!(lab.told().await, "3 tools for front");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_answer_under_its_id_counts() {
        let mut lab = Lister::new();
        let wanted = lab.next().await;
        let forged = AskedList { correlation: "0123456789abcdef".to_owned(), ..wanted };
        lab.answer(&forged, &list("forged", 7)).await;
        let begun = Clock::SYSTEM.now();
        assert_eq!(lab.told().await, "away: no answer came within 10.0s.");
        let wanted = lab.next().await;
        lab.answer(&wanted, &list("1", 1)).await;
        lab.answer(&wanted, &list("2", 9)).await;
        assert_eq!(lab.told().await, "1 tools for front");
        assert_eq!(lab.next().await.version, "1");
        assert!(Clock::SYSTEM.since(begun) >= LOOK_PERIOD, "a second answer is no reason to ask");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_no_list_changes_nothing() {
        let mut lab = Lister::new();
        let wanted = lab.next().await;
        lab.answer(&wanted, &list("1", 1)).await;
        assert_eq!(lab.told().await, "1 tools for front");
        let mut told = Vec::new();
        let hostile = [
            (message_type::TOOL_LIST_RESPONSE, json!([1, 2])),
            (message_type::TOOL_LIST_RESPONSE, json!({"agent": "front", "version": "2", "tools": {"a": 1}})),
            (message_type::TOOL_INVOKE_RESPONSE, list("2", 1)),
            (
                message_type::TOOL_ERROR,
                json!({"toolCallId": "", "toolName": "", "code": "rate_limited", "message": "Too often.", "isRetryable": true}),
            ),
        ];
        lab.announce().await;
        for (kind, body) in hostile {
            let wanted = lab.next().await;
            assert_eq!(wanted.version, "1");
            lab.publish(Target::Queue(wanted.reply_to), &wanted.correlation, kind, &body).await;
            told.push(lab.told().await);
        }
        let expected = ["could not be read", "could not be read", "unexpected type", "Too often. (rate_limited)"];
        for (told, expected) in told.iter().zip(expected) {
            assert!(told.starts_with("away: ") && told.contains(expected), "{expected}: {told}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_is_not_short_is_not_sent_back() {
        let mut lab = Lister::new();
        let wanted = lab.next().await;
        lab.answer(&wanted, &list(&"v".repeat(MAX_VERSION + 1), 1)).await;
        assert_eq!(lab.told().await, "1 tools for front");
        lab.announce().await;
        assert_eq!(lab.next().await.version, Value::Null);
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_that_no_queue_takes_is_asked_again_soon() {
        let daemons =
            RemoteDaemons::new(Arc::new(Embedded::new()), "front".to_owned(), None, Identity::default(), MAX_REPLY);
        let mut follower = daemons.follow("tool.invoke.lab").unwrap();
        let RemoteNews::Away(reason) = follower.next().await else { panic!("there is no daemon") };
        assert!(reason.contains("tool.list.lab"), "{reason}");
        let begun = Clock::SYSTEM.now();
        follower.next().await;
        assert_eq!(Clock::SYSTEM.since(begun), RETRY_PERIOD);
        assert!(daemons.follow("lab.calls").is_none());
        let mut follower = daemons.follow_provider(AgentName::parse("billing").unwrap()).unwrap();
        let RemoteNews::Away(reason) = follower.next().await else { panic!("there is no program") };
        insta::assert_snapshot!(reason, @"no queue takes topic `tool.list.provider.billing`: is the program running, as the agent `billing`?");
    }
}
