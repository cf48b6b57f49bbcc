//! Calls at another daemon, which the test is.

#![expect(clippy::disallowed_methods, reason = "tasks of a test end with its runtime")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolbus_broker::embedded::Embedded;
use toolbus_core::bus::{Bus, Delivery, Outgoing, Ownership, Subscription, Target};
use toolbus_core::caller::{AgentName, Caller, Identity, IdentitySource};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::progress::ProgressSink;
use toolbus_core::tool::{Effect, Executor as _, ToolCall, ToolOutput};
use toolbus_protocol::{Envelope, Properties, message_type, topic};

use super::{BridgedServer, RemoteDaemons, RemoteTool, is_of_agent};

const TOPIC: &str = "tool.invoke.lab";
const LIMIT: Duration = Duration::from_secs(10);
const MAX_REPLY: usize = 4_096;

type Running = JoinHandle<Result<ToolOutput, ToolFailure>>;

/// The other daemon, and what calls it.
struct Lab {
    bus: Embedded,
    requests: mpsc::Receiver<Delivery>,
    tool: RemoteTool,
}

impl Lab {
    fn new() -> Self {
        let bus = Embedded::new();
        let requests = bus.consume(Subscription {
            queue: "lab".to_owned(),
            topics: vec![TOPIC.to_owned(), topic::TOOL_CANCEL.to_owned()],
            prefetch: 100,
            max_body: usize::MAX,
            ownership: Ownership::Replica,
            is_inbox: false,
        });
        let tool = tool(bus.connect());
        Self { bus, requests, tool }
    }

    fn start(&self, call: ToolCall) -> Running {
        let tool = self.tool.clone();
        tokio::spawn(async move { tool.execute(call).await })
    }

    /// Makes a call, and what the other daemon is asked then.
    async fn begin(&mut self, call: ToolCall) -> (Running, Asked) {
        (self.start(call), self.next().await)
    }

    async fn next(&mut self) -> Asked {
        let delivery = self.requests.recv().await.unwrap();
        let header = |name| delivery.properties.header(name).unwrap_or_default().to_owned();
        let asked = Asked {
            topic: delivery.routing_key.to_string(),
            reply_to: delivery.properties.reply_to.clone().unwrap_or_default(),
            correlation: delivery.properties.correlation_id.clone().unwrap_or_default(),
            headers: ["rb-source", "rb-rb-hops", "rb-rb-timeout-ms", "rb-rb-binding", "rb-rb-idempotency-key"]
                .map(header),
            body: serde_json::from_slice(&delivery.body).unwrap(),
            expiration: delivery.properties.expiration,
        };
        delivery.settle.acknowledge().await;
        asked
    }

    async fn say(&self, asked: &Asked, correlation: &str, kind: &str, body: &Value) {
        let envelope =
            Envelope { message_type: kind.to_owned(), correlation_id: correlation.to_owned(), ..Envelope::default() };
        self.publish(asked, envelope, body).await;
    }

    async fn publish(&self, asked: &Asked, envelope: Envelope, body: &Value) {
        let message = Outgoing {
            target: Target::Queue(asked.reply_to.clone()),
            mandatory: false,
            proven: false,
            properties: envelope.into_properties().into(),
            body: body.to_string().into(),
        };
        self.bus.publish(&message).await.unwrap();
    }

    async fn answer(&self, asked: &Asked, content: &str) {
        self.say(asked, &asked.correlation, message_type::TOOL_INVOKE_RESPONSE, &asked.result(content)).await;
    }
}

/// A tool of the other daemon's, as this one has it on this bus.
fn tool(bus: Embedded) -> RemoteTool {
    let daemons = RemoteDaemons::new(Arc::new(bus), "front".to_owned(), None, Identity::default(), MAX_REPLY);
    daemons.tool(TOPIC, "lab.pay".into(), Effect::Effectful)
}

/// Request that the other daemon received.
struct Asked {
    topic: String,
    reply_to: String,
    correlation: String,
    headers: [String; 5],
    body: Value,
    expiration: Option<u64>,
}

impl Asked {
    fn result(&self, content: &str) -> Value {
        json!({"toolCallId": self.body["toolCallId"], "toolName": "pay", "content": content, "isError": false})
    }
}

fn ana() -> Caller {
    Caller {
        session: Some("s1".into()),
        binding: Some("mail:sales".into()),
        ..Caller::agent(AgentName::parse("ana").unwrap())
    }
}

fn call(caller: Caller) -> ToolCall {
    ToolCall {
        call_id: "call_0".into(),
        idempotency_key: Some("key-1".into()),
        ..ToolCall::new("pay", caller, Map::from_iter([("sum".to_owned(), json!(7))]), LIMIT)
    }
}

fn told(ended: Result<ToolOutput, ToolFailure>) -> String {
    let failure = ended.unwrap_err();
    format!("{:?} {:?}: {}", failure.cause, failure.verdict.and_then(|verdict| verdict.outcome), failure.message)
}

#[tokio::test(start_paused = true)]
async fn a_call_is_made_in_the_name_of_its_caller_within_its_time() {
    let mut lab = Lab::new();
    let (running, asked) = lab.begin(call(Caller { hops: 1, ..ana() })).await;
    assert_eq!(asked.topic, TOPIC);
    assert_eq!(asked.headers, ["ana", "2", "9750", "mail:sales", "key-1"]);
    let mut body = asked.body.clone();
    assert_ne!(body["toolCallId"].take(), "call_0", "ids of models come again");
    insta::assert_snapshot!(body.to_string(), @r#"{"arguments":"{\"sum\":7}","batchId":null,"sessionId":"s1","toolCallId":null,"toolName":"pay"}"#);
    lab.answer(&asked, "paid").await;
    assert_eq!(running.await.unwrap(), Ok(ToolOutput::text("paid")));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_unknown_here_is_unknown_there() {
    let mut lab = Lab::new();
    let claimed = Caller { name: "ana".into(), owner: "unknown:0::ana".into(), ..Caller::unknown() };
    let cancelled = CancellationToken::new();
    let (running, asked) = lab.begin(ToolCall { cancelled: cancelled.clone(), ..call(claimed) }).await;
    let [source, ..] = &asked.headers;
    assert!(AgentName::parse(source).is_err(), "{source}");
    cancelled.cancel();
    let cancel = lab.next().await;
    assert_eq!((&*cancel.topic, &cancel.headers[0]), (topic::TOOL_CANCEL, source), "only the caller can cancel a call");
    lab.answer(&asked, "paid").await;
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn many_calls_at_once_are_answered_on_one_queue_each_its_own() {
    let mut lab = Lab::new();
    let running: Vec<_> = (0..50).map(|_| lab.start(call(ana()))).collect();
    let mut asked = Vec::new();
    for _ in 0..50 {
        asked.push(lab.next().await);
    }
    assert!(asked.iter().all(|one| one.reply_to == asked[0].reply_to));
    for one in asked.iter().rev() {
        lab.answer(one, one.body["toolCallId"].as_str().unwrap()).await;
    }
    let mut replies: Vec<_> = Vec::new();
    for one in running {
        replies.push(one.await.unwrap().unwrap().content.unwrap());
    }
    let mut ids: Vec<_> = asked.iter().map(|one| one.body["toolCallId"].as_str().unwrap().to_owned()).collect();
    replies.sort();
    ids.sort();
    assert_eq!(replies, ids);
}

#[tokio::test(start_paused = true)]
async fn progress_is_passed_on() {
    let mut lab = Lab::new();
    let (sink, mut reports) = ProgressSink::new();
    let (running, asked) = lab.begin(ToolCall { progress: Some(sink), ..call(ana()) }).await;
    let report = json!({"toolCallId": "x", "toolName": "pay", "progress": 1.0, "message": "half"});
    lab.say(&asked, &asked.correlation, message_type::TOOL_PROGRESS, &report).await;
    assert_eq!(reports.recv().await.unwrap().message.as_deref(), Some("half"));
    lab.answer(&asked, "paid").await;
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_under_another_id_is_not_taken() {
    let mut lab = Lab::new();
    let (running, asked) = lab.begin(call(ana())).await;
    lab.say(&asked, "0123456789abcdef", message_type::TOOL_INVOKE_RESPONSE, &asked.result("forged")).await;
    lab.answer(&asked, "paid").await;
    lab.answer(&asked, "paid again").await;
    assert_eq!(running.await.unwrap(), Ok(ToolOutput::text("paid")), "the first one of its id");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_answer_to_the_call_is_told_as_that() {
    let mut lab = Lab::new();
    let mut texts = Vec::new();
    for body in [
        json!({"toolCallId": "another", "toolName": "pay", "content": "paid", "isError": false}),
        json!({"toolCallId": 7}),
    ] {
        let (running, asked) = lab.begin(call(ana())).await;
        lab.say(&asked, &asked.correlation, message_type::TOOL_INVOKE_RESPONSE, &body).await;
        texts.push(told(running.await.unwrap()));
    }
    insta::assert_snapshot!(texts.join("\n"), @"
    InvalidResult Some(Unknown): There is no result: the answer is that of another call. Whether it had its effect is not known: find out before calling again.
    InvalidResult Some(Unknown): There is no result: the answer could not be read: invalid type: integer `7`, expected a string at line 1 column 15. Whether it had its effect is not known: find out before calling again.
    ");
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_is_cancelled_there_and_given_up() {
    let mut lab = Lab::new();
    let (running, asked) = lab.begin(call(ana())).await;
    let cancel = lab.next().await;
    assert_eq!((&*cancel.topic, &cancel.body), (topic::TOOL_CANCEL, &json!({"toolCallId": asked.body["toolCallId"]})));
    assert_eq!(cancel.headers[0], "ana");
    lab.answer(&asked, "too late").await;
    insta::assert_snapshot!(told(running.await.unwrap()), @"DeadlineExceeded None: Tool 'lab.pay' did not answer within 10 s.");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_cancelled_there() {
    let mut lab = Lab::new();
    let cancelled = CancellationToken::new();
    let (running, asked) = lab.begin(ToolCall { cancelled: cancelled.clone(), ..call(ana()) }).await;
    cancelled.cancel();
    assert_eq!(lab.next().await.topic, topic::TOOL_CANCEL);
    let error = json!({"toolCallId": asked.body["toolCallId"], "toolName": "pay", "code": "cancelled",
        "message": "The call was cancelled.", "isRetryable": false, "outcome": "unknown"});
    lab.say(&asked, &asked.correlation, message_type::TOOL_ERROR, &error).await;
    insta::assert_snapshot!(told(running.await.unwrap()), @"Cancelled Some(Unknown): The call was cancelled.");
}

#[tokio::test(start_paused = true)]
async fn no_daemon_is_told_without_its_topic_and_a_circle_is_not_gone_round() {
    let tool = tool(Embedded::new());
    let failure = tool.execute(call(ana())).await.unwrap_err();
    assert_eq!(failure.cause, Cause::ConnectFailed);
    assert!(failure.detail.as_deref().unwrap().contains(TOPIC), "{failure:?}");
    insta::assert_snapshot!(failure.message, @"Tool 'lab.pay' was not called: no daemon takes its calls now.");
    let far = tool.execute(call(Caller { hops: 4, ..ana() })).await;
    insta::assert_snapshot!(told(far), @"NotAllowed None: Tool 'lab.pay' was not called: 4 daemons have passed the call on already, perhaps in a circle.");
}

/// A caller that cancels waits for nothing: the dispatcher drops the call at once.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_is_cancelled_there() {
    let mut lab = Lab::new();
    let (running, asked) = lab.begin(call(ana())).await;
    running.abort();
    let cancel = lab.next().await;
    assert_eq!((&*cancel.topic, &cancel.headers[0]), (topic::TOOL_CANCEL, &"ana".to_owned()));
    assert_eq!(cancel.body, json!({"toolCallId": asked.body["toolCallId"]}));
    assert_eq!(lab.next().await.topic, topic::TOOL_CANCEL, "the first may have overtaken its call");

    // One that has ended is not.
    let (running, asked) = lab.begin(call(ana())).await;
    lab.answer(&asked, "paid").await;
    running.await.unwrap().unwrap();
    assert!(tokio::time::timeout(LIMIT, lab.requests.recv()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn of_a_bridge_without_a_name_no_other_answers_for_it() {
    let mut lab = Lab::new();
    lab.tool = lab.tool.clone().of_server(BridgedServer { server: "pay".into(), bridge: None });
    let (running, asked) = lab.begin(call(ana())).await;
    // A bridge that comes back later must not make a call that was given up.
    assert!(
        asked.expiration.is_some_and(|time| (1..=LIMIT.as_millis()).contains(&time.into())),
        "{:?}",
        asked.expiration
    );
    let error = json!({"toolCallId": asked.body["toolCallId"], "toolName": "pay", "code": "tool_not_found",
        "message": "There is no such server.", "isRetryable": false});
    let envelope = Envelope {
        message_type: message_type::TOOL_ERROR.to_owned(),
        correlation_id: asked.correlation.clone(),
        source: Some("other-bridge".to_owned()),
        ..Envelope::default()
    };
    lab.publish(&asked, envelope, &error).await;
    lab.answer(&asked, "paid").await;
    assert_eq!(running.await.unwrap(), Ok(ToolOutput::text("paid")));
}

#[tokio::test(start_paused = true)]
async fn of_a_provider_only_its_own_replies_and_reports_count() {
    let mut lab = Lab::new();
    lab.tool = lab.tool.clone().of_provider(AgentName::parse("lab").unwrap());
    let (progress, mut reports) = ProgressSink::new();
    let (running, asked) = lab.begin(ToolCall { progress: Some(progress), ..call(ana()) }).await;
    assert!(asked.expiration.is_some(), "a provider that comes back later must not run it");
    for (source, content) in [(None, "forged"), (Some("thief"), "stolen"), (Some("lab"), "paid")] {
        let envelope = |kind: &str| Envelope {
            message_type: kind.to_owned(),
            correlation_id: asked.correlation.clone(),
            source: source.map(str::to_owned),
            ..Envelope::default()
        };
        let report =
            json!({"toolCallId": asked.body["toolCallId"], "toolName": "pay", "progress": 1, "message": content});
        lab.publish(&asked, envelope(message_type::TOOL_PROGRESS), &report).await;
        lab.publish(&asked, envelope(message_type::TOOL_INVOKE_RESPONSE), &asked.result(content)).await;
    }
    assert_eq!(running.await.unwrap(), Ok(ToolOutput::text("paid")));
    assert_eq!(reports.recv().await.unwrap().message.as_deref(), Some("paid"));
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_is_away_is_told_as_that() {
    let tool = tool(Embedded::new()).of_provider(AgentName::parse("lab").unwrap());
    insta::assert_snapshot!(told(tool.execute(call(ana())).await), @"ConnectFailed Some(NotStarted): Tool 'lab.pay' was not called: the program that provides it takes no calls now.");
}

#[test]
fn an_agent_is_known_by_its_login_where_the_broker_verifies_callers() {
    let lab = AgentName::parse("lab").unwrap();
    let sent = |login: Option<&str>, source: &str| {
        let envelope = Envelope { source: Some(source.to_owned()), ..Envelope::default() };
        let properties = Properties { user_id: login.map(str::to_owned), ..envelope.into_properties() };
        let by = |source| is_of_agent(&properties, &lab, &Identity { source, ..Identity::default() });
        [IdentitySource::Broker, IdentitySource::Header].map(by)
    };
    assert_eq!(sent(Some("lab"), "other"), [true, false]);
    assert_eq!(sent(Some("thief"), "lab"), [false, true]);
    assert_eq!(sent(None, "lab"), [false, true]);
}
