//! Calls within calls, through a dispatcher.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use toolbus_broker::embedded::Embedded;
use toolbus_core::bus::Bus;
use toolbus_core::caller::Caller;
use toolbus_core::events::Discard;
use toolbus_core::failure::ToolFailure;
use toolbus_core::policy::PolicyHandle;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::{
    AllArrived, Budgets, Clock, Dispatcher, DispatcherSettings, Gates, InnerCall, InnerOrigin, Invoker, ReplyRules,
};
use toolbus_protocol::Random;

use super::fixture::{Fixture, agent};
use crate::model_tools::invoke;

/// A dispatcher with room for one call, and the tool that calls others.
fn dispatcher(access: &PolicyHandle) -> Dispatcher {
    let replies = ReplyRules {
        reply_topics: Vec::new(),
        request_topics: Vec::new(),
        queue_prefix: "bus".to_owned(),
        default_topic: "tool.result".to_owned(),
        own_topics_only: false,
    };
    let settings = DispatcherSettings {
        name: "toolbus".to_owned(),
        replies,
        budgets: Budgets { default: Duration::from_secs(60), max: Duration::from_secs(60) },
        max_body: 1024 * 1024,
        max_in_flight: 1,
        max_waiting: 1,
        redactor: Default::default(),
        ignores_unknown_servers: false,
        ledger: None,
        results: None,
        clock: Clock::SYSTEM,
        random: Random::SYSTEM,
    };
    let dispatcher = Dispatcher::new(
        settings,
        Arc::new(Gates::new(access.clone())),
        Arc::new(Embedded::new()) as Arc<dyn Bus>,
        Arc::new(Discard),
        Arc::new(Discard),
        Arc::default(),
        Arc::new(AllArrived),
    );
    let tool = invoke::tool(access.clone(), Arc::new(dispatcher.clone()));
    access.registry().register_all(vec![tool, caller_tool()]).unwrap();
    access.refresh();
    dispatcher
}

/// A tool of the server `Echo` that returns its caller, session and arguments.
fn caller_tool() -> Tool {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": false});
    let descriptor = ToolDescriptor {
        parameters: Some(Arc::new(schema)),
        server: Some("Echo".into()),
        ..ToolDescriptor::new("read_back", "mcp:Echo", "mcp")
    };
    Tool::new(descriptor, Back)
}

struct Back;

impl Executor for Back {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let session = call.caller.session.as_deref().unwrap_or("none");
        let arguments = Value::from((*call.arguments).clone());
        Ok(ToolOutput::text(format!("{} in {session}, {}: {arguments}", call.caller.name, call.call_id)))
    }
}

async fn outcome(dispatcher: &Dispatcher, caller: &Caller, arguments: Value) -> String {
    let call = InnerCall {
        idempotency_key: None,
        origin: InnerOrigin::Tool,
        caller: Arc::new(caller.clone()),
        call_id: "call-1".into(),
        server: None,
        tool: "mcp_invoke_tool".to_owned(),
        arguments: Some(arguments.to_string()),
        deadline: Some(Instant::now() + Duration::from_secs(60)),
        cancelled: CancellationToken::new(),
        trace: None,
        around: None,
        progress: None,
    };
    match dispatcher.invoke(call).await {
        Ok(output) => output.content.unwrap_or_default(),
        Err(failure) => format!("{:?}: {}", failure.cause, failure.message),
    }
}

#[tokio::test]
async fn the_inner_call_uses_the_only_slot_and_passes_every_gate_as_the_caller() {
    let world = Fixture::without_registration();
    let dispatcher = dispatcher(&world.access);
    let caller = Caller { session: Some("s1".into()), ..agent("ana") };
    let call = |server: &str, tool: &str, arguments: Value| {
        let arguments = json!({"server_name": server, "tool_name": tool, "args": arguments});
        let (dispatcher, caller) = (dispatcher.clone(), caller.clone());
        async move { outcome(&dispatcher, &caller, arguments).await }
    };
    let outcomes = [
        call("ECHO", "read_back", json!({"n": 1})).await,
        call("echo", "read_back", json!(r#"{"n": 2}"#)).await,
        call("echo", "read_back", json!("{nonsense")).await,
        call("echo", "read_back", json!({"n": "secret"})).await,
        call("echo", "other", json!({"n": 1})).await,
        call("files", "write_file", json!({"n": 1})).await,
        call("mail", "send_mail", json!({"n": 1})).await,
        call("none", "send_mail", json!({"n": 1})).await,
        call("mcp", "mcp_invoke_tool", json!({"server_name": "echo", "tool_name": "read_back"})).await,
        call("files", "read_file", json!({"root": "/"})).await,
    ];
    insta::assert_snapshot!(outcomes.join("\n"), @r#"
    ana in s1, call-1: {"n":1}
    ana in s1, call-1: {"n":2}
    InvalidArguments: The arguments are not usable: key must be a string at line 1 column 2.
    InvalidArguments: The arguments do not fit the tool's parameters: /n: value is not of type "integer"
    UnknownTool: Unknown tool 'other' on server 'echo'. Available tools: [read_back]. Re-invoke with one of those names, or call mcp_get_service_details(server_name: "echo") for their schemas.
    UnknownTool: Unknown tool 'write_file' on server 'files'. Available tools: [read_all, read_file]. Re-invoke with one of those names, or call mcp_get_service_details(server_name: "files") for their schemas.
    UnknownServer: Unknown MCP server 'mail'. Registered servers: [Echo, Files].
    UnknownServer: Unknown MCP server 'none'. Registered servers: [Echo, Files].
    UnknownServer: Unknown MCP server 'mcp'. Registered servers: [Echo, Files].
    InvalidArguments: The argument `root` is set by the operator. Leave it out.
    "#);
}
