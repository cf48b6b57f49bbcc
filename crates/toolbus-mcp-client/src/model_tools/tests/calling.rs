use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::progress::ProgressSink;
use toolbus_core::tool::ToolOutput;

use super::fixture::{Fixture, agent, call};

#[tokio::test]
async fn the_inner_call_is_the_callers_own_in_every_respect() {
    let world = Fixture::new();
    let arguments = json!({"server_name": "FILES", "tool_name": "read_file", "arguments": {"path": "a", "n": 1}});
    let mut caller = agent("ana");
    caller.session = Some("s1".into());
    let (progress, _reports) = ProgressSink::new();
    let call = toolbus_core::tool::ToolCall { progress: Some(progress), ..call(&caller, "mcp_invoke_tool", arguments) };
    assert_eq!(world.run("mcp_invoke_tool", call.clone()).await, Ok(ToolOutput::text("done")));
    let inner = world.invoker.calls.lock().pop().unwrap();
    assert!(Arc::ptr_eq(&inner.caller, &call.caller));
    assert_eq!((inner.call_id, inner.deadline), (call.call_id.clone(), Some(call.deadline)));
    assert_eq!((inner.server.as_deref(), &*inner.tool), (Some("FILES"), "read_file"));
    assert_eq!(inner.arguments.as_deref(), Some(r#"{"n":1,"path":"a"}"#));
    assert!(inner.progress.is_some() && !inner.cancelled.is_cancelled());
    call.cancelled.cancel();
    assert!(inner.cancelled.is_cancelled());
}

#[tokio::test]
async fn inner_arguments_come_under_three_names_as_an_object_or_as_text() {
    let world = Fixture::new();
    let given = [
        json!({"arguments": {"path": "a"}}),
        json!({"params": {"path": "a"}}),
        json!({"args": r#"{"path":"a"}"#}),
        json!({"arguments": null, "args": {"path": "a"}}),
    ];
    for mut arguments in given {
        arguments["server_name"] = json!("files");
        arguments["tool_name"] = json!("read_file");
        assert_eq!(world.outcome(&agent("ana"), "mcp_invoke_tool", arguments).await, "done");
        let inner = world.invoker.calls.lock().pop().unwrap();
        assert_eq!(inner.arguments.as_deref(), Some(r#"{"path":"a"}"#));
    }
}

#[tokio::test]
async fn a_tool_that_needs_no_arguments_is_called_without() {
    let world = Fixture::new();
    for given in [json!({}), json!({"arguments": {}}), json!({"args": ""})] {
        let mut arguments = given;
        arguments["name"] = json!("files");
        arguments["tool_name"] = json!("read_all");
        assert_eq!(world.outcome(&agent("ana"), "mcp_invoke_tool", arguments).await, "done");
        assert_eq!(world.invoker.calls.lock().pop().unwrap().arguments, None);
    }
}

#[tokio::test]
async fn an_incomplete_call_is_refused_with_advice_and_calls_nothing() {
    let world = Fixture::new();
    let with = |tool: &str, more: serde_json::Value| {
        let mut arguments = json!({"server_name": "files", "tool_name": tool});
        arguments.as_object_mut().unwrap().append(more.as_object().cloned().as_mut().unwrap());
        arguments
    };
    let cases = [
        json!({}),
        json!({"server_name": "files"}),
        with("read_file", json!({})),
        with("read_file", json!({"arguments": "  "})),
        with("read_file", json!({"path": "a"})),
        with("read_file", json!({"arguments": ["a"]})),
        with("read_file", json!({"arguments": {"path": "a"}, "args": {"path": "b"}})),
    ];
    let mut outcomes = Vec::new();
    for arguments in cases {
        outcomes.push(world.outcome(&agent("ana"), "mcp_invoke_tool", arguments).await);
    }
    assert!(world.invoker.calls.lock().is_empty());
    insta::assert_snapshot!(outcomes.join("\n"), @r#"
    InvalidArguments: Missing required parameter: server_name
    InvalidArguments: Missing required parameter: tool_name
    InvalidArguments: Call to 'files/read_file' carried no inner arguments. This tool requires: path. Pass the inner-tool parameters nested inside the 'arguments' field of mcp_invoke_tool. Retry with shape: {"arguments":{"path":"<string>"},"server_name":"files","tool_name":"read_file"}
    InvalidArguments: Call to 'files/read_file' carried no inner arguments. This tool requires: path. Pass the inner-tool parameters nested inside the 'arguments' field of mcp_invoke_tool. Retry with shape: {"arguments":{"path":"<string>"},"server_name":"files","tool_name":"read_file"}
    InvalidArguments: Parameter 'path' is none of this tool's. Pass what the inner tool takes nested inside 'arguments'.
    InvalidArguments: Parameter 'arguments' must be an object, or a string that holds one as JSON.
    InvalidArguments: Parameters 'arguments' and 'args' mean the same here. Give one of them.
    "#);
}

#[tokio::test]
async fn the_inner_failure_is_passed_on_as_it_is() {
    let world = Fixture::new();
    let failure =
        ToolFailure::new(Cause::RateLimited, "Later.").with_retry_after(Duration::from_secs(3)).with_detail("x");
    let arguments = json!({"server_name": "files", "tool_name": "read_all"});
    for result in [Err(failure), Ok(ToolOutput::error("no such file"))] {
        *world.invoker.result.lock() = result.clone();
        assert_eq!(world.call(&agent("ana"), "mcp_invoke_tool", arguments.clone()).await, result);
    }
}

#[tokio::test]
async fn a_hidden_tool_is_left_to_the_inner_call() {
    let world = Fixture::new();
    for (server, tool) in [("files", "write_file"), ("mail", "send_mail"), ("mcp", "mcp_invoke_tool"), ("lazy", "late")]
    {
        let arguments = json!({"server_name": server, "tool_name": tool});
        assert_eq!(world.outcome(&agent("ana"), "mcp_invoke_tool", arguments).await, "done");
        let inner = world.invoker.calls.lock().pop().unwrap();
        assert_eq!(
            (inner.server.as_deref(), &*inner.tool),
            (Some(server), tool),
            "by its server, and never by name alone"
        );
    }
}
