//! What tests of several families of tools have in common.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::caller::{AgentName, Caller, Identity};
use toolbus_core::failure::ToolFailure;
use toolbus_core::policy::{AgentPolicy, Capacity, Policy, PolicyHandle};
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolOutput};

/// Time of a call.
const TIME: Duration = Duration::from_secs(120);

/// A tool that is found and not run.
pub(crate) struct Unused;

impl Executor for Unused {
    async fn execute(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput::default())
    }
}

/// Agents with these sections, and room for their calls.
pub(crate) fn policy<const N: usize>(registry: Registry, agents: [(&str, AgentPolicy); N]) -> PolicyHandle {
    let agents = agents.map(|(name, section)| (AgentName::parse(name).unwrap(), section)).into();
    let capacity = Capacity { max_in_flight: 64, max_waiting: 64 };
    PolicyHandle::new(registry, Identity::default(), Policy { agents, ..Policy::default() }, capacity)
}

/// An agent of this name.
pub(crate) fn agent(name: &str) -> Caller {
    Caller::agent(AgentName::parse(name).unwrap())
}

/// Runs one of these tools for a caller, without the dispatcher.
pub(crate) fn run(
    tools: &[Tool],
    caller: Caller,
    name: &str,
    arguments: Value,
    clock: Clock,
) -> BoxFuture<'static, Result<ToolOutput, ToolFailure>> {
    let tool = tools.iter().find(|tool| &*tool.descriptor.name == name).unwrap();
    let call = ToolCall {
        tool: name.into(),
        caller: Arc::new(caller),
        call_id: "call-1".into(),
        arguments: Arc::new(serde_json::from_value(arguments).unwrap()),
        deadline: clock.now() + TIME,
        limit: TIME,
        cancelled: CancellationToken::new(),
        trace: None,
        progress: None,
        idempotency_key: None,
        room: None,
    };
    Arc::clone(&tool.executor).execute_boxed(call)
}
