//! Calls over the bus, and their ends.

#![expect(clippy::disallowed_methods, reason = "tasks of a test end with its runtime")]

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolbus_client::Inbox;
use toolbus_core::Clock;
use toolbus_core::bus::Target;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::progress::ProgressSink;
use toolbus_core::tool::ToolOutput;
use toolbus_mcp_server::Backend as _;
use toolbus_protocol::{message_type, topic};

use super::fixture::{Fixture, MAX_TIMEOUT, ReceivedRequest};

/// Three tools, of which one changes nothing.
fn tools() -> Value {
    let hints = |read_only: bool| json!({"readOnlyHint": read_only, "idempotentHint": read_only});
    json!([{"name": "read", "annotations": hints(true)}, {"name": "write", "annotations": hints(false)}])
}

fn result(request: &ReceivedRequest, content: &str) -> Value {
    let [id, name] = ["toolCallId", "toolName"].map(|field| &request.body[field]);
    json!({"toolCallId": id, "toolName": name, "content": content, "isError": false})
}

type Running = JoinHandle<Result<ToolOutput, ToolFailure>>;

impl Fixture {
    /// Calls a tool: the running call, its cancellation, and the request that the daemon receives.
    async fn begin(&mut self, tool: &str) -> (Running, CancellationToken, ReceivedRequest) {
        let (call, cancelled) = self.call(tool);
        let running = tokio::spawn(self.remote.call(call));
        (running, cancelled, self.next_request_on(topic::TOOL_INVOKE).await)
    }
}

fn failure_text(failure: &ToolFailure) -> String {
    let verdict = failure.verdict.unwrap();
    format!("{:?} {} {} {:?}: {}", failure.cause, verdict.code, verdict.is_retryable, verdict.outcome, failure.message)
}

#[tokio::test(start_paused = true)]
async fn a_request_carries_caller_and_options_and_its_result_is_read() {
    let mut fixture = Fixture::listed(&tools()).await;
    let (mut call, _cancelled) = fixture.call("read");
    let (sink, mut reports) = ProgressSink::new();
    (call.progress, call.idempotency_key) = (Some(sink), Some("order-7".into()));
    let running = tokio::spawn(fixture.remote.call(call));
    let request = fixture.next_request_on(topic::TOOL_INVOKE).await;
    let mut body = request.body.clone();
    assert_eq!(body["toolCallId"].take().as_str().unwrap().len(), 32);
    insta::assert_snapshot!(body.to_string(), @r#"{"arguments":"{\"a\":1}","batchId":null,"sessionId":"session","toolCallId":null,"toolName":"read"}"#);
    let headers = ["rb-source", "rb-rb-binding", "rb-rb-timeout-ms", "rb-rb-progress", "rb-rb-structured-content"];
    assert_eq!(headers.map(|name| request.header(name)), ["ana", "chat:one", "120000", "1", "1"]);
    let more = ["rb-rb-resource-links", "rb-rb-idempotency-key"];
    assert_eq!(more.map(|name| request.header(name)), ["1", "order-7"]);
    let report = json!({"toolCallId": "", "toolName": "", "progress": 1.0, "total": 2.0, "message": "half"});
    fixture.reply(&request, message_type::TOOL_PROGRESS, &report).await;
    let report = reports.recv().await.unwrap();
    assert_eq!((report.progress, report.total, report.message.as_deref()), (1.0, Some(2.0), Some("half")));
    let structured = json!({"type": "resource", "uri": "toolbus:structured-content", "text": "{\"b\":2}"});
    let mut reply = result(&request, "two");
    reply["contentBlocks"] = json!([{"type": "text", "text": "two"}, structured]);
    fixture.reply(&request, message_type::TOOL_INVOKE_RESPONSE, &reply).await;
    let output = running.await.unwrap().unwrap();
    assert_eq!((output.content.as_deref(), output.structured.as_deref()), (Some("two"), Some(&json!({"b": 2}))));
}

#[tokio::test(start_paused = true)]
async fn a_failure_keeps_the_code_and_outcome_of_the_daemon() {
    let mut fixture = Fixture::listed(&tools()).await;
    let mut table = String::new();
    for (code, more) in [
        ("tool_not_found", json!({})),
        ("invalid_arguments", json!({})),
        ("timeout", json!({"isRetryable": true, "outcome": "unknown"})),
        ("not_allowed", json!({"outcome": "not_started"})),
        ("rate_limited", json!({"isRetryable": true, "retryAfterMs": 1500, "outcome": "not_started"})),
        ("overloaded", json!({"isRetryable": true})),
        ("cancelled", json!({})),
        ("auth_required", json!({})),
        ("execution_failed", json!({"outcome": "failed"})),
        ("something_new", json!({})),
    ] {
        let (running, _, request) = fixture.begin("write").await;
        let mut error = json!({"toolCallId": "", "toolName": "", "code": code, "message": "Why."});
        error.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fixture.reply(&request, message_type::TOOL_ERROR, &error).await;
        let failure = running.await.unwrap().unwrap_err();
        table += &format!("{} {:?}\n", failure_text(&failure), failure.retry_after);
    }
    insta::assert_snapshot!(table, @"
    UnknownTool tool_not_found false None: Why. None
    InvalidArguments invalid_arguments false None: Why. None
    DeadlineExceeded timeout true Some(Unknown): Why. None
    NotAllowed not_allowed false Some(NotStarted): Why. None
    RateLimited rate_limited true Some(NotStarted): Why. Some(1.5s)
    Overloaded overloaded true None: Why. None
    Cancelled cancelled false None: Why. None
    AuthRequired auth_required false None: Why. None
    Failed execution_failed false Some(Failed): Why. None
    InvalidResult execution_failed false Some(Unknown): There is no result: the answer could not be read: unknown variant `something_new`, expected one of `tool_not_found`, `invalid_arguments`, `timeout`, `execution_failed`, `not_allowed`, `rate_limited`, `overloaded`, `cancelled`, `auth_required` at line 1 column 23. Whether it had its effect is not known: find out before calling again. None
    ");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_cancelled_at_the_daemon_again_and_again_for_a_while() {
    let mut fixture = Fixture::listed(&tools()).await;
    let (running, cancelled, request) = fixture.begin("write").await;
    cancelled.cancel();
    for _ in 0..4 {
        let cancel = fixture.next_request_on(topic::TOOL_CANCEL).await;
        assert_eq!(
            (cancel.body, cancel.properties.reply_to.as_deref()),
            (json!({"toolCallId": request.body["toolCallId"]}), Some(""))
        );
    }
    insta::assert_snapshot!(failure_text(&running.await.unwrap().unwrap_err()), @"Cancelled cancelled false Some(Unknown): The call was cancelled. Whether it had its effect is not known: find out before calling again.");

    // A call with a reply meanwhile has its result.
    let (running, cancelled, request) = fixture.begin("write").await;
    cancelled.cancel();
    fixture.next_request_on(topic::TOOL_CANCEL).await;
    fixture.reply(&request, message_type::TOOL_INVOKE_RESPONSE, &result(&request, "done")).await;
    assert_eq!(running.await.unwrap(), Ok(ToolOutput::text("done")));
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_reply_fails_with_the_known_outcome() {
    let mut fixture = Fixture::listed(&tools()).await;
    let mut table = String::new();
    for (tool, is_lost) in [("read", false), ("write", false), ("none", false), ("read", true), ("write", true)] {
        let began = Clock::SYSTEM.now();
        let (running, ..) = fixture.begin(tool).await;
        if is_lost {
            fixture.lose();
        }
        let failure = running.await.unwrap().unwrap_err();
        let seconds = Clock::SYSTEM.since(began).as_secs();
        assert_eq!(seconds, if is_lost { 30 } else { MAX_TIMEOUT.as_secs() + 5 }, "{tool}");
        table += &format!("{}\n", failure_text(&failure));
        // The daemon is to stop work that no caller waits for.
        fixture.next_request_on(topic::TOOL_CANCEL).await;
    }
    insta::assert_snapshot!(table, @"
    DeadlineExceeded timeout true None: No answer came within 2 minutes. Check that the daemon runs.
    DeadlineExceeded timeout false Some(Unknown): No answer came within 2 minutes. Check that the daemon runs. Whether it had its effect is not known: find out before calling again.
    DeadlineExceeded timeout true Some(Unknown): No answer came within 2 minutes. Check that the daemon runs. Whether it had its effect is not known: find out before calling again.
    ConnectionLost execution_failed true None: The connection to the broker was lost, and no answer has come since.
    ConnectionLost execution_failed false Some(Unknown): The connection to the broker was lost, and no answer has come since. Whether it had its effect is not known: find out before calling again.
    ");
}

#[tokio::test(start_paused = true)]
async fn a_reply_after_a_lost_connection_counts() {
    let mut fixture = Fixture::listed(&tools()).await;
    let (running, _, request) = fixture.begin("write").await;
    fixture.lose();
    tokio::time::sleep(Duration::from_secs(29)).await;
    fixture.reply(&request, message_type::TOOL_INVOKE_RESPONSE, &result(&request, "late")).await;
    assert_eq!(running.await.unwrap(), Ok(ToolOutput::text("late")));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_one_of_several_queues_rejected_may_run_and_its_reply_counts() {
    let mut fixture = Fixture::listed(&tools()).await;
    fixture.reject();
    let (running, _, request) = fixture.begin("write").await;
    fixture.reply(&request, message_type::TOOL_INVOKE_RESPONSE, &result(&request, "done")).await;
    assert_eq!(running.await.unwrap(), Ok(ToolOutput::text("done")));
    let (call, _cancelled) = fixture.call("write");
    insta::assert_snapshot!(failure_text(&fixture.remote.call(call).await.unwrap_err()), @"ConnectionLost execution_failed false Some(Unknown): The broker did not confirm the request, and no answer has come since. Whether it had its effect is not known: find out before calling again.");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_be_sent_was_not_made() {
    let fixture = Fixture::without_a_daemon(Inbox::default());
    let (call, cancelled) = fixture.call("read");
    insta::assert_snapshot!(failure_text(&fixture.remote.call(call).await.unwrap_err()), @"ConnectFailed execution_failed true Some(NotStarted): The call was not made: no queue of this exchange takes topic `tool.invoke`: is a daemon running with this topic in invoke.topics?");
    fixture.disconnect("broker: connection refused");
    let (call, _) = fixture.call("read");
    insta::assert_snapshot!(failure_text(&fixture.remote.call(call).await.unwrap_err()), @"ConnectFailed execution_failed true Some(NotStarted): The call was not made: the broker could not be reached within 10.0s: broker: connection refused.");
    let (call, early) = fixture.call("read");
    early.cancel();
    assert_eq!(fixture.remote.call(call).await.unwrap_err().cause, Cause::CancelledBeforeStart);
    drop(cancelled);
}

#[tokio::test(start_paused = true)]
async fn in_a_shared_queue_only_replies_by_topic_count() {
    let mut fixture = Fixture::given("svc-ana.replies", "tool.result.ana").await;
    let (running, _, request) = fixture.begin("read").await;
    assert_eq!(request.properties.reply_to.as_deref(), Some("tool.result.ana"));
    let correlation = request.properties.correlation_id.clone();
    let replies = [
        (Target::Queue("svc-ana.replies".to_owned()), "forged"),
        (Target::Topic("tool.result.ana".to_owned()), "true"),
    ];
    for (target, content) in replies {
        let body = result(&request, content);
        fixture.publish(target, message_type::TOOL_INVOKE_RESPONSE, correlation.clone(), &body).await;
    }
    assert_eq!(running.await.unwrap(), Ok(ToolOutput::text("true")));
}
