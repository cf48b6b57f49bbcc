//! The daemon's own secrets in messages to callers.

use std::time::Duration;

use serde_json::{Value, json};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::progress::{Progress, ProgressSink};
use toolbus_core::redact::Redactor;
use toolbus_core::secret::Secret;
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::{InnerCall, Invoker};

use crate::fixture::{World, agent, call, inner_call};
use toolbus_core::Clock;

const SECRET: &str = "s3cr3t-t0ken-0123";

/// Writes the secret to the requested part of its result.
struct Leak;

impl Executor for Leak {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        if let Some(sink) = &call.progress {
            sink.report(Progress { progress: 1.0, total: None, message: Some(format!("with {SECRET}")) });
        }
        match call.arguments.get("how").and_then(Value::as_str).unwrap_or_default() {
            "result" => Ok(ToolOutput::text(format!("it is {SECRET}"))),
            "error" => Ok(ToolOutput::error(format!("not {SECRET}"))),
            "structured" => {
                let structured = Some(Box::new(json!({"token": SECRET, "n": 1})));
                Ok(ToolOutput { structured, ..ToolOutput::text("done") })
            }
            _ => Err(ToolFailure::new(Cause::Failed, format!("broken by {SECRET}")).with_detail(SECRET)),
        }
    }
}

fn world() -> World {
    let redactor = Redactor::default();
    redactor.configure([Secret::new(SECRET)]);
    let world = World::with(|settings| settings.redactor = redactor);
    let descriptor = ToolDescriptor { effect: Effect::ReadOnly, ..ToolDescriptor::new("leak", "test", "local") };
    world.add(Tool::new(descriptor, Leak));
    world
}

fn inner(how: &str, progress: Option<ProgressSink>) -> InnerCall {
    let deadline = Some(Clock::SYSTEM.now() + Duration::from_secs(30));
    InnerCall { deadline, progress, ..inner_call(agent("ana"), "leak", &json!({"how": how})) }
}

#[tokio::test]
async fn a_reply_has_no_secret_whatever_its_outcome() {
    let world = world();
    for (how, expected) in
        [("result", "it is [redacted]"), ("error", "not [redacted]"), ("failure", "broken by [redacted]")]
    {
        let body = world.reply(call("leak", json!({"how": how}))).await.body;
        let text = [&body["content"], &body["message"]].into_iter().find_map(Value::as_str);
        assert_eq!(text, Some(expected), "{body}");
    }
}

#[tokio::test]
async fn an_inner_call_has_no_secret_either() {
    let world = world();
    let output = world.dispatcher.invoke(inner("structured", None)).await.unwrap();
    assert_eq!(output.structured.as_deref(), Some(&json!({"token": "[redacted]", "n": 1})));
    let failure = world.dispatcher.invoke(inner("failure", None)).await.unwrap_err();
    assert_eq!((&*failure.message, failure.detail.as_deref()), ("broken by [redacted]", Some("[redacted]")));
}

#[tokio::test]
async fn a_progress_report_has_no_secret() {
    let world = world();
    let (sink, mut reports) = ProgressSink::new();
    world.dispatcher.invoke(inner("result", Some(sink))).await.unwrap();
    assert_eq!(reports.recv().await.unwrap().message.as_deref(), Some("with [redacted]"));
    let settlement = world.deliver(call("leak", json!({"how": "result"})).header("rb-progress", "1")).await;
    assert!(settlement.get().is_some());
    let reports: Vec<_> = world.sent().into_iter().filter_map(|sent| sent.body.get("message").cloned()).collect();
    assert_eq!(reports, ["with [redacted]"]);
}

#[tokio::test]
async fn an_ordinary_reply_is_the_same_with_secrets_and_without() {
    let arguments = json!({"text": "an ordinary text, 1234567890123, \"quoted\" \\ ünï"});
    let with = world().reply(call("echo", arguments.clone())).await.body;
    let without = World::new().reply(call("echo", arguments)).await.body;
    assert_eq!(with, without);
}
