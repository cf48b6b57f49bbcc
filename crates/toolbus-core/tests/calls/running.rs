//! Calls that run, and their replies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use insta::assert_json_snapshot;
use serde_json::json;
use tokio::sync::Notify;
use toolbus_core::bus::Target;
use toolbus_core::failure::ToolFailure;
use toolbus_core::policy::EffectiveTools;
use toolbus_core::registry::Rank;
use toolbus_core::tool::{Tool, ToolDescriptor, ToolOutput};
use toolbus_core::{AllArrived, PendingTools, ToolRef};

use crate::fixture::{World, call, request};
use crate::ledger::code;
use toolbus_core::Clock;

#[tokio::test]
async fn a_successful_call_is_answered_with_its_result() {
    let sent = World::new().reply(call("echo", json!({"text": "hello"}))).await;
    assert_eq!(sent.target, Target::Topic("tool.result.ana".to_owned()));
    assert_json_snapshot!(sent.body, @r#"
    {
      "content": "hello",
      "isError": false,
      "toolCallId": "call_1",
      "toolName": "echo"
    }
    "#);
}

#[tokio::test]
async fn a_reply_has_the_envelope_that_peers_expect() {
    let sent = World::new().reply(call("echo", json!({"text": "hello"}))).await;
    let properties = sent.properties;
    assert_eq!(properties.content_type.as_deref(), Some("application/json"));
    assert_eq!(properties.message_type.as_deref(), Some("RockBot.Tools.ToolInvokeResponse"));
    assert_eq!(properties.correlation_id.as_deref(), Some("corr-1"));
    assert_eq!(properties.reply_to.as_deref(), Some(""));
    assert!(properties.persistent);
    assert!(properties.timestamp.is_some_and(|seconds| seconds > 1_700_000_000));
    assert!(properties.user_id.is_none());
    assert_eq!(properties.message_id.as_ref().unwrap().len(), 32);
    let expected = [
        ("rb-source", "toolbus"),
        ("rb-destination", "ana"),
        ("rb-rb-content-trust", "tool-output"),
        ("rb-rb-tool-provider", "local"),
    ];
    for (name, value) in expected {
        assert_eq!(properties.header(name), Some(value), "{name}");
    }
    for name in ["rb-rb-queue-ms", "rb-rb-duration-ms"] {
        let milliseconds: Option<u64> = properties.header(name).and_then(|value| value.parse().ok());
        assert!(milliseconds.is_some_and(|milliseconds| milliseconds < 60_000), "{name}");
    }
}

#[tokio::test]
async fn arguments_may_be_a_string_or_an_object() {
    let world = World::new();
    for arguments in [json!({"text": "hi"}), json!(r#"{"text": "hi"}"#)] {
        assert_eq!(world.reply(call("echo", arguments)).await.body["content"], "hi");
    }
}

#[tokio::test]
async fn a_call_id_defaults_to_the_message_id() {
    let sent = World::new().reply(request(&json!({"toolName": "pay"}))).await;
    assert_eq!(sent.body["toolCallId"], "0f8fad5bd9cb469fa16570867728950e");
}

#[tokio::test]
async fn a_result_of_a_failing_tool_has_is_error() {
    let sent = World::new().reply(call("sad", json!({}))).await;
    assert_json_snapshot!(sent.body, @r#"
    {
      "content": "no such city",
      "isError": true,
      "toolCallId": "call_1",
      "toolName": "sad"
    }
    "#);
}

#[tokio::test]
async fn a_failure_of_the_daemon_shows_the_caller_no_internals() {
    let sent = World::new().reply(call("fail", json!({}))).await;
    assert_eq!(sent.properties.message_type.as_deref(), Some("RockBot.Tools.ToolError"));
    assert_json_snapshot!(sent.body, @r#"
    {
      "code": "execution_failed",
      "isRetryable": true,
      "message": "The backend could not be reached.",
      "outcome": "not_started",
      "toolCallId": "call_1",
      "toolName": "fail"
    }
    "#);
}

#[tokio::test]
async fn a_panic_is_one_reply_and_the_daemon_goes_on() {
    let world = World::new();
    let sent = world.reply(call("panic", json!({}))).await;
    assert_json_snapshot!(sent.body, @r#"
    {
      "code": "execution_failed",
      "isRetryable": false,
      "message": "Tool 'panic' failed because of a mistake in its code. Whether it had its effect is not known: find out before calling again.",
      "outcome": "unknown",
      "toolCallId": "call_1",
      "toolName": "panic"
    }
    "#);
    assert_eq!(world.reply(call("echo", json!({"text": "still here"}))).await.body["content"], "still here");
}

#[tokio::test]
async fn a_result_of_a_hundred_megabytes_is_refused_with_the_limit() {
    let sent = World::new().reply(call("huge", json!({}))).await;
    assert_eq!(sent.body["code"], "execution_failed");
    assert_json_snapshot!(sent.body["message"], @r#""The result is too large to be sent: 104857600 bytes, and the limit is 16711680. Ask the tool for less at a time.""#);
}

#[tokio::test]
async fn a_tool_that_never_returns_ends_with_the_deadline() {
    let world = World::new();
    let sent = world.reply(call("wait", json!({})).header("rb-timeout-ms", "500")).await;
    assert_json_snapshot!(sent.body, @r#"
    {
      "code": "timeout",
      "isRetryable": true,
      "message": "Tool 'wait' did not answer before the deadline of the call.",
      "toolCallId": "call_1",
      "toolName": "wait"
    }
    "#);
    assert_eq!(world.load.in_flight(), 0);
}

#[tokio::test]
async fn a_declared_effectful_tool_that_timed_out_must_not_be_repeated() {
    let late = async |tool| World::new().reply(call(tool, json!({})).header("rb-timeout-ms", "500")).await;
    assert_eq!(code(&late("wait_effectful").await), ("timeout", "unknown", false));
    let sent = late("wait_undeclared").await;
    assert_eq!(code(&sent), ("timeout", "unknown", true));
    let message = sent.body["message"].as_str().unwrap();
    assert!(message.ends_with(" It may have had its effect: calling again may repeat that."), "{message}");
}

#[tokio::test]
async fn a_request_that_is_too_old_is_not_run() {
    let world = World::new();
    let mut message = call("pay", json!({})).header("rb-timeout-ms", "1000");
    let now = Clock::SYSTEM.since_epoch();
    message.properties.timestamp = Some(now.as_secs() - 5);
    let sent = world.reply(message).await;
    assert_eq!(code(&sent), ("timeout", "not_started", true));
    assert_eq!(world.runs(), 0);
}

#[tokio::test]
async fn an_unknown_tool_is_answered_with_the_nearest_names() {
    let sent = World::new().reply(call("ecoh", json!({}))).await;
    assert_json_snapshot!(sent.body, @r#"
    {
      "code": "tool_not_found",
      "isRetryable": false,
      "message": "Tool 'ecoh' is not registered. Did you mean 'echo'?",
      "toolCallId": "call_1",
      "toolName": "ecoh"
    }
    "#);
}

#[tokio::test]
async fn a_call_over_all_limits_is_overloaded_with_a_time_to_wait() {
    let world = World::with(|settings| (settings.max_in_flight, settings.max_waiting) = (1, 0));
    let (running, _) = world.begin_running(call("wait", json!({}))).await;
    let sent = world.reply(call("wait", json!({})).id("second")).await;
    assert_json_snapshot!(sent.body, @r#"
    {
      "code": "overloaded",
      "isRetryable": true,
      "message": "Too many calls of this agent are waiting. Try again later.",
      "outcome": "not_started",
      "retryAfterMs": 1000,
      "toolCallId": "call_1",
      "toolName": "wait"
    }
    "#);
    world.finish(running).await;
}

#[tokio::test]
async fn waiting_leaves_half_of_the_budget_for_another_try() {
    let world = World::with(|settings| (settings.max_in_flight, settings.max_waiting) = (1, 1));
    let (first, _) = world.begin_running(call("wait", json!({}))).await;
    let begun = Clock::SYSTEM.now();
    let sent = world.reply(call("wait", json!({})).id("second").header("rb-timeout-ms", "1000")).await;
    assert_eq!((&sent.body["code"], &sent.body["outcome"]), (&json!("overloaded"), &json!("not_started")));
    assert_eq!(sent.body["message"], "No place to run this call came free in time. Try again later.");
    assert!(Clock::SYSTEM.since(begun) >= Duration::from_millis(450));
    world.finish(first).await;
}

#[tokio::test]
async fn a_panic_of_the_daemons_own_code_is_one_reply_too_and_frees_the_slot() {
    let world = World::with(|settings| (settings.max_in_flight, settings.max_waiting) = (1, 0));
    world.recorder.break_calls(true);
    let sent = world.reply(call("pay", json!({}))).await;
    assert_json_snapshot!(sent.body, @r#"
    {
      "code": "execution_failed",
      "isRetryable": false,
      "message": "The call failed because of a mistake in the daemon's code. Report it.",
      "toolCallId": "call_1",
      "toolName": "pay"
    }
    "#);
    world.recorder.break_calls(false);
    assert_eq!(world.reply(call("pay", json!({}))).await.body["content"], "paid");
    assert_eq!(world.runs(), 1);
}

/// A server that hangs, until it is released.
#[derive(Default)]
struct Hanging(Notify);

impl PendingTools for Hanging {
    fn expect<'a>(&'a self, _: ToolRef<'a>, _: &'a EffectiveTools, _: Instant) -> Option<BoxFuture<'a, ()>> {
        Some(Box::pin(self.0.notified()))
    }

    fn out_of_reach(&self, _: ToolRef<'_>, _: &EffectiveTools) -> Option<ToolFailure> {
        None
    }
}

#[tokio::test]
async fn calls_that_wait_for_a_server_are_bounded_as_those_that_wait_for_a_permit() {
    let hanging = Arc::new(Hanging::default());
    let world = World::arriving(|settings| settings.max_waiting = 2, Arc::clone(&hanging) as Arc<dyn PendingTools>);
    let numbered = |number: u32| {
        request(&json!({"toolCallId": format!("call_{number}"), "toolName": "unknown", "arguments": {}}))
            .id(&number.to_string())
    };
    let waiting = [1, 2].map(|number| world.begin(numbered(number)));
    world.until_waiting(2).await;
    let refused = world.reply(numbered(3)).await;
    assert_eq!(refused.body["code"], "overloaded");
    assert_eq!(refused.body["message"], "Too many calls of this agent are waiting. Try again later.");
    assert_eq!(world.reply(call("echo", json!({"text": "still served"}))).await.body["content"], "still served");
    hanging.0.notify_waiters();
    for (handled, _) in waiting {
        handled.await.unwrap();
    }
    assert_eq!(world.load.waiting(), 0);
    assert_eq!(world.sent().last().unwrap().body["code"], "tool_not_found");
}

fn arrive(world: &World) {
    let tool = Tool::new(ToolDescriptor::new("arrived", "mcp:a", "mcp"), ToolOutput::text("arrived"));
    world.dispatcher.policy().registry().publish(Rank::Configured, &"mcp:a".into(), vec![tool]).unwrap();
}

#[tokio::test]
async fn a_tool_that_is_registered_and_not_yet_in_the_catalogue_is_there() {
    for arrivals in [Arc::new(AllArrived) as Arc<dyn PendingTools>, Arc::new(Hanging::default())] {
        let world = World::arriving(|_| {}, arrivals);
        arrive(&world);
        assert_eq!(world.reply(call("arrived", json!({}))).await.body["content"], "arrived");
        assert_eq!(world.load.waiting(), 0);
    }
}

#[tokio::test]
async fn calls_that_waited_for_one_server_have_one_catalogue_made() {
    let hanging = Arc::new(Hanging::default());
    let world = World::arriving(|_| {}, Arc::clone(&hanging) as Arc<dyn PendingTools>);
    let numbered = |number: u32| {
        request(&json!({"toolCallId": format!("call_{number}"), "toolName": "arrived", "arguments": {}}))
            .id(&number.to_string())
    };
    let waiting = [1, 2, 3, 4].map(|number| world.begin(numbered(number)));
    world.until_waiting(waiting.len()).await;
    let catalogues = world.dispatcher.policy().changes();
    let before = *catalogues.borrow();
    arrive(&world);
    hanging.0.notify_waiters();
    for (handled, _) in waiting {
        handled.await.unwrap();
    }
    assert!(world.sent().iter().all(|sent| sent.body["content"] == "arrived"));
    assert_eq!(*catalogues.borrow() - before, 1);
}
