//! The web tools against servers of every kind.

mod browse;
mod search;
mod server;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::caller::Caller;
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{Tool, ToolCall, ToolOutput};
use toolbus_outbound::egress::HostLookup;

/// Calls a tool as a caller that has two minutes.
async fn call(tool: &Tool, arguments: Value) -> Result<ToolOutput, ToolFailure> {
    call_for(tool, arguments, Duration::from_secs(120)).await
}

async fn call_for(tool: &Tool, arguments: Value, time: Duration) -> Result<ToolOutput, ToolFailure> {
    let call = ToolCall {
        tool: Arc::clone(&tool.descriptor.name),
        caller: Arc::new(Caller::unknown()),
        call_id: "call-1".into(),
        arguments: Arc::new(arguments.as_object().unwrap().clone()),
        deadline: Clock::SYSTEM.now() + time,
        limit: time,
        cancelled: CancellationToken::new(),
        trace: None,
        room: None,
        progress: None,
        idempotency_key: None,
    };
    Arc::clone(&tool.executor).execute_boxed(call).await
}

/// The text of a result that is no error.
async fn text(tool: &Tool, arguments: Value) -> String {
    let output = call(tool, arguments).await.unwrap();
    assert!(!output.is_error, "{:?}", output.content);
    output.content.unwrap()
}

/// The text of a result that is an error of the tool.
async fn error(tool: &Tool, arguments: Value) -> String {
    let output = call(tool, arguments).await.unwrap();
    assert!(output.is_error, "{:?}", output.content);
    output.content.unwrap()
}

/// Resolves names as a table says, and no others.
fn names(table: &'static [(&'static str, &'static str)]) -> HostLookup {
    Arc::new(move |host| {
        let found: Vec<IpAddr> =
            table.iter().filter(|(name, _)| *name == host).map(|(_, address)| address.parse().unwrap()).collect();
        Box::pin(async move { if found.is_empty() { Err(std::io::Error::other("NXDOMAIN")) } else { Ok(found) } })
    })
}
