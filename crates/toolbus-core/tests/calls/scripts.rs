//! Requests for scripts, on `script.invoke`: calls of one tool, with all steps of a call, and a reply of their own
//! form.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use insta::assert_snapshot;
use serde_json::{Value, json};
use tokio::sync::Notify;
use toolbus_core::Service;
use toolbus_core::bus::Target;
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{Effect, Executor, Program, Tool, ToolCall, ToolDescriptor, ToolOutput};

use crate::cancelling::{cancellation, obey};
use crate::fixture::{Message, Settled, World, call, raw};

pub(crate) const TOOL: &str = "execute_python_script";
const REQUEST: Option<&str> = Some("RockBot.Scripts.ScriptInvokeRequest");
const RESPONSE: &str = "RockBot.Scripts.ScriptInvokeResponse";

/// Does what the script's one word stands for.
struct Python {
    runs: Arc<AtomicUsize>,
    go_on: Arc<Notify>,
}

impl Executor for Python {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let run = self.runs.fetch_add(1, Ordering::SeqCst);
        let program = |stdout: &str, stderr: &str, exit_code| Program {
            stdout: Some(stdout.to_owned()),
            stderr: Some(stderr.to_owned()),
            exit_code,
            elapsed: Duration::from_millis(2140),
        };
        Ok(match call.arguments["script"].as_str().unwrap() {
            "both" => ToolOutput::text("hi").of_program(program("hi\n", "careful\n", 0)),
            "count" => ToolOutput::text("").of_program(program(&run.to_string(), "", 0)),
            "huge" => ToolOutput::text("").of_program(program("", &"x".repeat(100 * 1024 * 1024), 0)),
            "panic" => panic!("at /srv/secret/path.rs"),
            "wait" => {
                self.go_on.notified().await;
                ToolOutput::text("waited")
            }
            other => panic!("{other}"),
        })
    }
}

/// A world with a tool that runs scripts.
pub(crate) fn world() -> World {
    let world = World::new();
    add_python(&world);
    world
}

pub(crate) fn add_python(world: &World) {
    let schema = json!({
        "type": "object",
        "properties": {
            "script": {"type": "string"},
            "input_data": {"type": "string"},
            "timeout_seconds": {"type": "integer", "minimum": 1},
            "pip_packages": {"type": "array", "items": {"type": "string"}, "maxItems": 2}
        },
        "required": ["script"],
        "additionalProperties": false
    });
    let descriptor = ToolDescriptor {
        effect: Effect::Effectful,
        parameters: Some(Arc::new(schema)),
        ..ToolDescriptor::new(TOOL, "script", "script")
    };
    let python = Python { runs: Arc::clone(&world.runs), go_on: Arc::clone(&world.go_on) };
    world.add(Tool::new(descriptor, python));
}

/// A peer's request with this body.
pub(crate) fn request(body: &Value) -> Message {
    on_scripts(raw(body.to_string()))
}

/// The same message, as a peer publishes it on `script.invoke`.
pub(crate) fn on_scripts(mut message: Message) -> Message {
    message.topic = "script.invoke";
    message.typed(REQUEST).reply_to(Some("script.result.ana"))
}

impl Message {
    /// The same message on `tool.invoke`.
    pub(crate) fn on_tools(mut self) -> Self {
        self.topic = "tool.invoke";
        self
    }
}

/// A peer's request to run this script.
pub(crate) fn script(text: &str) -> Message {
    request(&json!({
        "toolCallId": "call_1", "script": text, "inputData": null, "timeoutSeconds": 30, "pipPackages": null
    }))
}

/// The body of a reply, which must be of the one type that peers read; with the time left out where it was measured.
pub(crate) fn script_reply(sent: &crate::fixture::Sent) -> String {
    assert_eq!(sent.properties.message_type.as_deref(), Some(RESPONSE));
    let mut body = sent.body.clone();
    if body["elapsedMs"] != 2140 {
        assert!(body["elapsedMs"].is_u64(), "{body}");
        body.as_object_mut().unwrap().remove("elapsedMs");
    }
    body.to_string()
}

#[tokio::test]
async fn a_script_is_run_by_its_tool_and_its_reply_has_both_streams() {
    let sent = world().reply(script("both")).await;
    assert_snapshot!(script_reply(&sent), @r#"{"elapsedMs":2140,"exitCode":0,"isSuccess":true,"output":"hi\n","stderr":"careful\n","toolCallId":"call_1"}"#);
    assert_eq!((sent.target, sent.mandatory), (Target::Topic("script.result.ana".to_owned()), true));
    let header = |name| sent.properties.header(name);
    assert_eq!((header("rb-rb-content-trust"), header("rb-rb-tool-provider")), (Some("tool-output"), Some("script")));
    assert_eq!((header("rb-source"), header("rb-destination")), (Some("toolbus"), Some("ana")));
    assert!(header("rb-rb-queue-ms").is_some() && header("rb-rb-duration-ms").is_some());
}

#[tokio::test]
async fn a_request_without_an_address_is_answered_on_the_topic_of_scripts() {
    let (topic, world) = (Target::Topic("script.result".to_owned()), world());
    let unknown = |mut message: Message| {
        message.properties.headers.clear();
        message
    };
    for message in [script("both"), unknown(script("both")), script("both").typed(None)] {
        assert_eq!(world.reply(message.reply_to(None)).await.target, topic);
    }
}

#[tokio::test]
async fn a_plain_clients_address_is_a_queue_first_and_its_call_has_the_messages_id() {
    let plain = request(&json!({"script": "both"})).typed(None).reply_to(Some("mine"));
    let sent = world().reply(plain).await;
    assert_eq!(sent.target, Target::Queue("mine".to_owned()));
    assert_eq!(sent.body["toolCallId"], "0f8fad5bd9cb469fa16570867728950e");
}

#[tokio::test]
async fn a_reply_has_the_calls_id_and_the_correlation_id() {
    let world = world();
    assert_eq!(world.reply(script("both")).await.properties.correlation_id.as_deref(), Some("corr-1"));
    let mut uncorrelated = script("both");
    uncorrelated.properties.correlation_id = Some(String::new());
    let sent = world.reply(uncorrelated).await;
    assert_eq!((sent.properties.correlation_id.as_deref(), &sent.body["toolCallId"]), (Some(""), &json!("call_1")));
}

#[tokio::test]
async fn a_redelivered_request_for_a_script_gets_the_same_reply_and_is_not_run_again() {
    for text in ["count", "panic"] {
        let world = world();
        let first = world.reply(script(text)).await;
        let again = world.reply(script(text).redelivered()).await;
        assert_eq!(world.runs(), 1);
        assert_eq!(
            (script_reply(&first), first.properties),
            (script_reply(&again), again.properties),
            "message id included"
        );
    }
}

#[tokio::test]
async fn a_script_is_cancelled_by_the_id_of_its_call() {
    let world = world();
    let (running, settled) = world.begin_running(script("wait")).await;
    let service = Service::new(world.dispatcher.clone());
    obey(&world, &service, [cancellation()]).await;
    running.await.unwrap();
    service.drain(Duration::from_secs(30)).await;
    let sent = world.sent().into_iter().find(|sent| sent.properties.message_type.as_deref() == Some(RESPONSE));
    assert_snapshot!(script_reply(&sent.unwrap()), @r#"{"exitCode":-1,"isSuccess":false,"output":null,"stderr":"The call was cancelled while the tool ran. Whether it had its effect is not known: find out before calling again.","toolCallId":"call_1"}"#);
    assert_eq!(settled.get(), Some(Settled::Acknowledged));
}

#[tokio::test]
async fn a_script_called_as_a_tool_gets_the_reply_of_a_tool() {
    let sent = world().reply(call(TOOL, json!({"script": "both"}))).await;
    assert_snapshot!(sent.body, @r#"{"content":"hi","isError":false,"toolCallId":"call_1","toolName":"execute_python_script"}"#);
}

#[tokio::test]
async fn a_script_runs_by_its_tool_though_a_header_names_a_server() {
    let sent = world().reply(script("both").header("rb-rb-mcp-server", "other")).await;
    assert_eq!(sent.body["exitCode"], 0);
}
