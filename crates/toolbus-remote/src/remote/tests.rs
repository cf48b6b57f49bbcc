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

    /// Starts a call, and returns the request that the other daemon receives.
    async fn begin(&mut self, call: ToolCall) -> (Running, ReceivedRequest) {
        (self.start(call), self.next().await)
    }

    async fn next(&mut self) -> ReceivedRequest {
        let delivery = self.requests.recv().await.unwrap();
        let header = |name| delivery.properties.header(name).unwrap_or_default().to_owned();
        let request = ReceivedRequest {
            topic: delivery.routing_key.to_string(),
            reply_to: delivery.properties.reply_to.clone().unwrap_or_default(),
            correlation: delivery.properties.correlation_id.clone().unwrap_or_default(),
            headers: ["rb-source", "rb-rb-hops", "rb-rb-timeout-ms", "rb-rb-binding", "rb-rb-idempotency-key"]
                .map(header),
            body: serde_json::from_slice(&delivery.body).unwrap(),
            expiration: delivery.properties.expiration,
        };
        delivery.settle.acknowledge().await;
        request
    }

    async fn send(&self, request: &ReceivedRequest, correlation: &str, kind: &str, body: &Value) {
        let envelope =
            Envelope { message_type: kind.to_owned(), correlation_id: correlation.to_owned(), ..Envelope::default() };
        self.publish(request, envelope, body).await;
    }

    async fn publish(&self, request: &ReceivedRequest, envelope: Envelope, body: &Value) {
        let message = Outgoing {
            target: Target::Queue(request.reply_to.clone()),
            mandatory: false,
            proven: false,
            properties: envelope.into_properties().into(),
            body: body.to_string().into(),
        };
        self.bus.publish(&message).await.unwrap();
    }

    async fn reply(&self, request: &ReceivedRequest, content: &str) {
        self.send(request, &request.correlation, message_type::TOOL_INVOKE_RESPONSE, &request.result(content)).await;
    }
}

/// A tool of the other daemon's, as this one has it on this bus.
fn tool(bus: Embedded) -> RemoteTool {
    let daemons = RemoteDaemons::new(Arc::new(bus), "front".to_owned(), None, Identity::default(), MAX_REPLY);
    daemons.tool(TOPIC, "lab.pay".into(), Effect::Effectful)
}

/// Request that the other daemon received.
struct ReceivedRequest {
    topic: String,
    reply_to: String,
    correlation: String,
    headers: [String; 5],
    body: Value,
    expiration: Option<u64>,
}

impl ReceivedRequest {
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

fn failure_text(ended: Result<ToolOutput, ToolFailure>) -> String {
    let failure = ended.unwrap_err();
    format!("{:?} {:?}: {}", failure.cause, failure.verdict.and_then(|verdict| verdict.outcome), failure.message)
}

#[tokio::test(start_paused = true)]
async fn a_call_is_made_in_the_name_of_its_caller_within_its_time() {
    let mut lab = Lab::new();
    let (running, request) = lab.begin(call(Caller { hops: 1, ..ana() })).await;
    assert_eq!(request.topic, TOPIC);
    assert_eq!(request.headers, ["ana", "2", "9750", "mail:sales", "key-1"]);
    let mut body = request.body.clone();
    assert_ne!(body["toolCallId"].take(), "call_0", "ids of models come again");
    insta::assert_snapshot!(body.to_string(), @r#"{"arguments":"{\"sum\":7}","batchId":null,"sessionId":"s1","toolCallId":null,"toolName":"pay"}"#);
    lab.reply(&request, "paid").await;
    assert_eq!(running.await.unwrap(), Ok(ToolOutput::text("paid")));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_is_unknown_here_is_unknown_there() {
    let mut lab = Lab::new();
    let claimed = Caller { name: "ana".into(), owner: "unknown:0::ana".into(), ..Caller::unknown() };
    let cancelled = CancellationToken::new();
    let (running, request) = lab.begin(ToolCall { cancelled: cancelled.clone(), ..call(claimed) }).await;
    let [source, ..] = &request.headers;
    assert!(AgentName::parse(source).is_err(), "{source}");
    cancelled.cancel();
    let cancel = lab.next().await;
    assert_eq!((&*cancel.topic, &cancel.headers[0]), (topic::TOOL_CANCEL, source), "only the caller can cancel a call");
    lab.reply(&request, "paid").await;
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_share_one_queue_and_each_gets_its_own_reply() {
    let mut lab = Lab::new();
    let running: Vec<_> = (0..50).map(|_| lab.start(call(ana()))).collect();
    let mut requests = Vec::new();
    for _ in 0..50 {
        requests.push(lab.next().await);
    }
    assert!(requests.iter().all(|one| one.reply_to == requests[0].reply_to));
    for one in requests.iter().rev() {
        lab.reply(one, one.body["toolCallId"].as_str().unwrap()).await;
    }
    let mut replies: Vec<_> = Vec::new();
    for one in running {
        replies.push(one.await.unwrap().unwrap().content.unwrap());
    }
    let mut ids: Vec<_> = requests.iter().map(|one| one.body["toolCallId"].as_str().unwrap().to_owned()).collect();
    replies.sort();
    ids.sort();
    assert_eq!(replies, ids);
}

#[tokio::test(start_paused = true)]
async fn progress_is_passed_on() {
    let mut lab = Lab::new();
    let (sink, mut reports) = ProgressSink::new();
    let (running, request) = lab.begin(ToolCall { progress: Some(sink), ..call(ana()) }).await;
    let report = json!({"toolCallId": "x", "toolName": "pay", "progress": 1.0, "message": "half"});
    lab.send(&request, &request.correlation, message_type::TOOL_PROGRESS, &report).await;
    assert_eq!(reports.recv().await.unwrap().message.as_deref(), Some("half"));
    lab.reply(&request, "paid").await;
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reply_with_another_correlation_id_is_ignored() {
    let mut lab = Lab::new();
    let (running, request) = lab.begin(call(ana())).await;
    lab.send(&request, "0123456789abcdef", message_type::TOOL_INVOKE_RESPONSE, &request.result("forged")).await;
    lab.reply(&request, "paid").await;
    lab.reply(&request, "paid again").await;
    assert_eq!(running.await.unwrap(), Ok(ToolOutput::text("paid")), "the first one of its id");
}

#[tokio::test(start_paused = true)]
async fn a_foreign_or_unreadable_reply_is_an_invalid_result() {
    let mut lab = Lab::new();
    let mut texts = Vec::new();
    for body in [
        json!({"toolCallId": "another", "toolName": "pay", "content": "paid", "isError": false}),
        json!({"toolCallId": 7}),
    ] {
        let (running, request) = lab.begin(call(ana())).await;
        lab.send(&request, &request.correlation, message_type::TOOL_INVOKE_RESPONSE, &body).await;
        texts.push(failure_text(running.await.unwrap()));
    }
    insta::assert_snapshot!(texts.join("\n"), @"
    InvalidResult Some(Unknown): There is no result: the answer is that of another call. Whether it had its effect is not known: find out before calling again.
    InvalidResult Some(Unknown): There is no result: the answer could not be read: invalid type: integer `7`, expected a string at line 1 column 15. Whether it had its effect is not known: find out before calling again.
    ");
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_reply_is_cancelled_there_and_given_up() {
    let mut lab = Lab::new();
    let (running, request) = lab.begin(call(ana())).await;
    let cancel = lab.next().await;
    assert_eq!(
        (&*cancel.topic, &cancel.body),
        (topic::TOOL_CANCEL, &json!({"toolCallId": request.body["toolCallId"]}))
    );
    assert_eq!(cancel.headers[0], "ana");
    lab.reply(&request, "too late").await;
    insta::assert_snapshot!(failure_text(running.await.unwrap()), @"DeadlineExceeded None: Tool 'lab.pay' did not answer within 10 s.");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_cancelled_there() {
    let mut lab = Lab::new();
    let cancelled = CancellationToken::new();
    let (running, request) = lab.begin(ToolCall { cancelled: cancelled.clone(), ..call(ana()) }).await;
    cancelled.cancel();
    assert_eq!(lab.next().await.topic, topic::TOOL_CANCEL);
    let error = json!({"toolCallId": request.body["toolCallId"], "toolName": "pay", "code": "cancelled",
        "message": "The call was cancelled.", "isRetryable": false, "outcome": "unknown"});
    lab.send(&request, &request.correlation, message_type::TOOL_ERROR, &error).await;
    insta::assert_snapshot!(failure_text(running.await.unwrap()), @"Cancelled Some(Unknown): The call was cancelled.");
}

#[tokio::test(start_paused = true)]
async fn a_failure_does_not_show_the_topic_and_a_circle_of_daemons_ends() {
    let tool = tool(Embedded::new());
    let failure = tool.execute(call(ana())).await.unwrap_err();
    assert_eq!(failure.cause, Cause::ConnectFailed);
    assert!(failure.detail.as_deref().unwrap().contains(TOPIC), "{failure:?}");
    insta::assert_snapshot!(failure.message, @"Tool 'lab.pay' was not called: no daemon takes its calls now.");
    let far = tool.execute(call(Caller { hops: 4, ..ana() })).await;
    insta::assert_snapshot!(failure_text(far), @"NotAllowed None: Tool 'lab.pay' was not called: 4 daemons have passed the call on already, perhaps in a circle.");
}

/// A caller that cancels waits for nothing: the dispatcher drops the call at once.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_is_cancelled_there() {
    let mut lab = Lab::new();
    let (running, request) = lab.begin(call(ana())).await;
    running.abort();
    let cancel = lab.next().await;
    assert_eq!((&*cancel.topic, &cancel.headers[0]), (topic::TOOL_CANCEL, &"ana".to_owned()));
    assert_eq!(cancel.body, json!({"toolCallId": request.body["toolCallId"]}));
    assert_eq!(lab.next().await.topic, topic::TOOL_CANCEL, "the first may have overtaken its call");

    // One that has ended is not.
    let (running, request) = lab.begin(call(ana())).await;
    lab.reply(&request, "paid").await;
    running.await.unwrap().unwrap();
    assert!(tokio::time::timeout(LIMIT, lab.requests.recv()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_reply_of_a_named_bridge_does_not_count_for_one_without_a_name() {
    let mut lab = Lab::new();
    lab.tool = lab.tool.clone().of_server(BridgedServer { server: "pay".into(), bridge: None });
    let (running, request) = lab.begin(call(ana())).await;
    // A bridge that comes back later must not make a call that was given up.
    assert!(
        request.expiration.is_some_and(|time| (1..=LIMIT.as_millis()).contains(&time.into())),
        "{:?}",
        request.expiration
    );
    let error = json!({"toolCallId": request.body["toolCallId"], "toolName": "pay", "code": "tool_not_found",
        "message": "There is no such server.", "isRetryable": false});
    let envelope = Envelope {
        message_type: message_type::TOOL_ERROR.to_owned(),
        correlation_id: request.correlation.clone(),
        source: Some("other-bridge".to_owned()),
        ..Envelope::default()
    };
    lab.publish(&request, envelope, &error).await;
    lab.reply(&request, "paid").await;
    assert_eq!(running.await.unwrap(), Ok(ToolOutput::text("paid")));
}

#[tokio::test(start_paused = true)]
async fn only_the_providers_own_replies_and_reports_count() {
    let mut lab = Lab::new();
    lab.tool = lab.tool.clone().of_provider(AgentName::parse("lab").unwrap());
    let (progress, mut reports) = ProgressSink::new();
    let (running, request) = lab.begin(ToolCall { progress: Some(progress), ..call(ana()) }).await;
    assert!(request.expiration.is_some(), "a provider that comes back later must not run it");
    for (source, content) in [(None, "forged"), (Some("thief"), "stolen"), (Some("lab"), "paid")] {
        let envelope = |kind: &str| Envelope {
            message_type: kind.to_owned(),
            correlation_id: request.correlation.clone(),
            source: source.map(str::to_owned),
            ..Envelope::default()
        };
        let report =
            json!({"toolCallId": request.body["toolCallId"], "toolName": "pay", "progress": 1, "message": content});
        lab.publish(&request, envelope(message_type::TOOL_PROGRESS), &report).await;
        lab.publish(&request, envelope(message_type::TOOL_INVOKE_RESPONSE), &request.result(content)).await;
    }
    assert_eq!(running.await.unwrap(), Ok(ToolOutput::text("paid")));
    assert_eq!(reports.recv().await.unwrap().message.as_deref(), Some("paid"));
}

#[tokio::test(start_paused = true)]
async fn a_call_to_an_absent_provider_reports_its_absence() {
    let tool = tool(Embedded::new()).of_provider(AgentName::parse("lab").unwrap());
    insta::assert_snapshot!(failure_text(tool.execute(call(ana())).await), @"ConnectFailed Some(NotStarted): Tool 'lab.pay' was not called: the program that provides it takes no calls now.");
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
