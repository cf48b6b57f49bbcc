//! Running a tool as the dispatcher does.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{Tool, ToolCall, ToolOutput};

/// A call of `tool` with 30 s to go.
pub(crate) fn call(tool: &Tool, arguments: Value) -> ToolCall {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    ToolCall {
        idempotency_key: None,
        tool: Arc::clone(&tool.descriptor.name),
        call_id: "call-1".into(),
        caller: std::sync::Arc::new(toolbus_core::caller::Caller::unknown()),
        arguments: Arc::new(arguments),
        deadline: Clock::SYSTEM.now() + Duration::from_secs(30),
        limit: Duration::from_secs(30),
        cancelled: CancellationToken::new(),
        trace: None,
        number: None,
        room: None,
        turns: toolbus_core::Turns::default(),
        progress: None,
    }
}

/// Runs `tool` once.
pub(crate) async fn run(tool: &Tool, arguments: Value) -> Result<ToolOutput, ToolFailure> {
    Arc::clone(&tool.executor).execute_boxed(call(tool, arguments)).await
}
