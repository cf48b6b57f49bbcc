//! Running a tool as the dispatcher does.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolbus_core::caller::Caller;
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{Tool, ToolCall, ToolOutput};

/// A call of `tool` with 30 s to go.
pub(crate) fn call(tool: &Tool, arguments: Value) -> ToolCall {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    ToolCall::new(Arc::clone(&tool.descriptor.name), Caller::unknown(), arguments, Duration::from_secs(30))
}

/// Runs `tool` once.
pub(crate) async fn run(tool: &Tool, arguments: Value) -> Result<ToolOutput, ToolFailure> {
    Arc::clone(&tool.executor).execute_boxed(call(tool, arguments)).await
}
