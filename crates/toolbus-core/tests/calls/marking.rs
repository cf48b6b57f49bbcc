//! Whatever carries something of a tool is marked as that, on every path.

use serde_json::json;
use toolbus_core::failure::ToolFailure;
use toolbus_core::progress::Progress;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

use crate::fixture::{Message, Sent, World, call};

const MARK: &str = "rb-rb-content-trust";

/// Reports its progress, and ends.
struct Reporting;

impl Executor for Reporting {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let message = Some("reading what somebody wrote".to_owned());
        call.progress.as_ref().unwrap().report(Progress { progress: 1.0, total: None, message });
        Ok(ToolOutput::text("done"))
    }
}

#[track_caller]
fn is_marked(sent: &Sent) {
    let type_of = &sent.properties.message_type;
    assert_eq!(sent.properties.header(MARK), Some("tool-output"), "{type_of:?} {}", sent.body);
}

#[tokio::test]
async fn every_reply_to_a_call_is_marked_whatever_its_outcome() {
    let world = World::new();
    let at_a_server = Message { topic: "tool.invoke.mcp", ..call("read_file", json!({})) };
    let calls = [
        (call("echo", json!({"text": "hello"})), "RockBot.Tools.ToolInvokeResponse"),
        (call("sad", json!({})), "RockBot.Tools.ToolInvokeResponse"),
        (call("fail", json!({})), "RockBot.Tools.ToolError"),
        (call("panic", json!({})), "RockBot.Tools.ToolError"),
        (call("huge", json!({})), "RockBot.Tools.ToolError"),
        (call("echo", json!({"text": 1})), "RockBot.Tools.ToolError"),
        (call("nothing", json!({})), "RockBot.Tools.ToolError"),
        (at_a_server.header("rb-rb-mcp-server", "files"), "RockBot.Tools.ToolError"),
    ];
    for (message, message_type) in calls {
        let sent = world.reply(message).await;
        assert_eq!(sent.properties.message_type.as_deref(), Some(message_type), "{}", sent.body);
        is_marked(&sent);
    }
}

#[tokio::test]
async fn progress_of_a_tool_is_marked_like_its_result() {
    let world = World::new();
    world.add(Tool::new(ToolDescriptor::new("report", "test", "local"), Reporting));
    world.deliver(call("report", json!({})).header("rb-rb-progress", "1")).await;
    let sent = world.sent();
    let types: Vec<_> = sent.iter().filter_map(|sent| sent.properties.message_type.as_deref()).collect();
    assert_eq!(types, ["Toolbus.ToolProgress", "RockBot.Tools.ToolInvokeResponse"]);
    sent.iter().for_each(is_marked);
}
