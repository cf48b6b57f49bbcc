//! Lists of another daemon, which the test is.

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
    news: mpsc::UnboundedReceiver<RemoteNews>,
    /// `rb-source` of what it publishes.
    source: Option<String>,
    _follower: JoinHandle<()>,
}

/// A request for a list.
struct ListRequest {
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
        let mut follower = follow(&daemons(bus.connect())).unwrap();
        let (sender, news) = mpsc::unbounded_channel();
        let following = async move { while sender.send(follower.next().await).is_ok() {} };
        Self { bus, requests, news, source: None, _follower: tokio::spawn(following) }
    }

    async fn next(&mut self) -> ListRequest {
        let delivery = self.requests.recv().await.unwrap();
        let header = |name| delivery.properties.header(name).unwrap_or_default().to_owned();
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        assert_eq!(body["format"], "mcp");
        let wanted = ListRequest {
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
        let envelope = Envelope { message_type, correlation_id, source: self.source.clone(), ..Envelope::default() };
        let properties = envelope.into_properties().into();
        let body = body.to_string().into();
        let message = Outgoing { target, mandatory: false, proven: false, properties, body };
        self.bus.publish(&message).await.unwrap();
    }

    async fn reply(&self, wanted: &ListRequest, body: &Value) {
        let target = Target::Queue(wanted.reply_to.clone());
        self.publish(target, &wanted.correlation, message_type::TOOL_LIST_RESPONSE, body).await;
    }

    async fn announce(&self) {
        let target = Target::Topic("tool.meta.tools.front".to_owned());
        let body = json!({"version": "x", "added": [], "removed": []});
        self.publish(target, "", message_type::TOOLS_CHANGED, &body).await;
    }

    async fn report(&mut self) -> String {
        match self.news.recv().await.unwrap() {
            RemoteNews::Listed(listing) => format!("{} tools for {}", listing.tools.len(), listing.agent),
            RemoteNews::Unchanged => "unchanged".to_owned(),
            RemoteNews::Away(reason) => format!("away: {reason}"),
        }
    }
}

fn daemons(bus: Embedded) -> RemoteDaemons {
    RemoteDaemons::new(Arc::new(bus), "front".to_owned(), None, Identity::default(), MAX_REPLY)
}

fn list(version: &str, tools: usize) -> Value {
    let tools: Vec<Value> = (0..tools).map(|number| json!({"name": format!("t{number}")})).collect();
    json!({"agent": "front", "version": version, "tools": tools})
}

#[tokio::test(start_paused = true)]
async fn a_list_is_requested_in_this_daemons_name_and_again_after_an_announcement() {
    let mut lab = Lister::new();
    let first = lab.next().await;
    assert_eq!((&*first.source, &*first.timeout, &*first.hops), ("front", "10000", "1"));
    assert_eq!(first.version, Value::Null);
    lab.reply(&first, &list("1", 2)).await;
    assert_eq!(lab.report().await, "2 tools for front");
    lab.announce().await;
    let second = lab.next().await;
    assert_eq!(second.version, "1");
    lab.reply(&second, &json!({"agent": "front", "version": "1", "tools": [], "notModified": true})).await;
    assert_eq!(lab.report().await, "unchanged");
    let begun = Clock::SYSTEM.now();
    let third = lab.next().await;
    assert_eq!(Clock::SYSTEM.since(begun), LOOK_PERIOD, "without an announcement");
    lab.reply(&third, &list("2", 1)).await;
    assert_eq!(lab.report().await, "1 tools for front");
}

#[tokio::test(start_paused = true)]
async fn a_provider_is_queried_when_it_announces_itself_and_lists_of_others_do_not_count() {
    let mut lab = Lister::of_provider("lab");
    let announcement = Target::Topic(topic::TOOL_ANNOUNCE.to_owned());
    let forged = lab.next().await;
    lab.reply(&forged, &list("1", 7)).await;
    insta::assert_snapshot!(lab.report().await, @"away: a reply came from `unknown` without a verified login, which is not the agent `lab`, and does not count: see `identity`.");
    let begun = Clock::SYSTEM.now();
    lab.publish(announcement, "", message_type::TOOL_ANNOUNCEMENT, &json!({})).await;
    let wanted = lab.next().await;
    assert!(Clock::SYSTEM.since(begun) < RETRY_PERIOD, "{:?}", Clock::SYSTEM.since(begun));
    lab.source = Some("lab".to_owned());
    lab.reply(&wanted, &list("2", 2)).await;
    assert_eq!(lab.report().await, "2 tools for front");
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_announcements_causes_one_request_per_second() {
    let mut lab = Lister::new();
    let begun = Clock::SYSTEM.now();
    for number in 0..5 {
        let wanted = lab.next().await;
        for _ in 0..100 {
            lab.announce().await;
        }
        lab.reply(&wanted, &list(&number.to_string(), number)).await;
    }
    assert!(Clock::SYSTEM.since(begun) >= MIN_PERIOD * 4, "{:?}", Clock::SYSTEM.since(begun));
}

#[tokio::test(start_paused = true)]
async fn a_silent_daemon_is_queried_less_often_and_its_late_reply_counts() {
    let mut lab = Lister::new();
    let mut timeouts = Vec::new();
    for _ in 0..5 {
        timeouts.push(lab.next().await.timeout);
        assert_eq!(lab.report().await, "away: no answer came within 10.0s.");
    }
    assert_eq!(timeouts, ["10000", "20000", "40000", "60000", "60000"]);
    let last = lab.next().await;
    assert_eq!(lab.report().await, "away: no answer came within 10.0s.");
    tokio::time::sleep(Duration::from_secs(20)).await;
    lab.reply(&last, &list("1", 3)).await;
    assert_eq!(lab.report().await, "3 tools for front");
}

#[tokio::test(start_paused = true)]
async fn the_first_reply_with_the_correlation_id_counts() {
    let mut lab = Lister::new();
    let wanted = lab.next().await;
    let forged = ListRequest { correlation: "0123456789abcdef".to_owned(), ..wanted };
    lab.reply(&forged, &list("forged", 7)).await;
    let begun = Clock::SYSTEM.now();
    assert_eq!(lab.report().await, "away: no answer came within 10.0s.");
    let wanted = lab.next().await;
    lab.reply(&wanted, &list("1", 1)).await;
    lab.reply(&wanted, &list("2", 9)).await;
    assert_eq!(lab.report().await, "1 tools for front");
    assert_eq!(lab.next().await.version, "1");
    assert!(Clock::SYSTEM.since(begun) >= LOOK_PERIOD, "a second reply causes no request");
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_no_list_changes_nothing() {
    let mut lab = Lister::new();
    let wanted = lab.next().await;
    lab.reply(&wanted, &list("1", 1)).await;
    assert_eq!(lab.report().await, "1 tools for front");
    let mut reports = Vec::new();
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
        reports.push(lab.report().await);
    }
    let expected = ["could not be read", "could not be read", "unexpected type", "Too often. (rate_limited)"];
    for (report, expected) in reports.iter().zip(expected) {
        assert!(report.starts_with("away: ") && report.contains(expected), "{expected}: {report}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_version_is_not_sent_back() {
    let mut lab = Lister::new();
    let wanted = lab.next().await;
    lab.reply(&wanted, &list(&"v".repeat(MAX_VERSION + 1), 1)).await;
    assert_eq!(lab.report().await, "1 tools for front");
    lab.announce().await;
    assert_eq!(lab.next().await.version, Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_topic_without_a_queue_is_queried_again_soon() {
    let daemons = daemons(Embedded::new());
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
