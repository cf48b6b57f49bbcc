//! Requests of agents about servers.

use std::time::{Duration, Instant};

use serde_json::Value;
use toolbus_core::policy::Policy;
use toolbus_protocol::topic;

use super::fixture::{Fixture, Request};

/// A daemon with two known servers.
fn world() -> Fixture {
    let world = Fixture::new();
    world.publish("Files", &["read_file", "write_file"]);
    world.publish("mail", &["send"]);
    world.access.refresh();
    world
}

async fn details(world: &Fixture, agent: &str, server: &str) -> Value {
    world.exchange(agent, "GetServiceDetailsRequest", &format!(r#"{{"serverName":"{server}"}}"#)).await.body
}

#[tokio::test]
async fn a_reply_has_the_envelope_that_peers_expect() {
    let world = world();
    let got = world.exchange("ana", "GetServiceDetailsRequest", r#"{"serverName":"files"}"#).await;
    insta::assert_snapshot!(got.body, @r#"{"description":"A file system.","error":null,"serverName":"Files","tools":[{"description":"Does read_file.","name":"read_file","parametersSchema":"{\"type\":\"object\"}"},{"description":"Does write_file.","name":"write_file","parametersSchema":"{\"type\":\"object\"}"}]}"#);
    let header = |name| got.properties.header(name);
    assert_eq!(got.envelope.message_type, "RockBot.Tools.Mcp.McpGetServiceDetailsResponse");
    assert_eq!((header("rb-rb-content-trust"), header("rb-rb-tool-provider")), (Some("tool-output"), Some("mcp")));
    assert_eq!((header("rb-source"), header("rb-destination")), (Some("toolbus"), Some("ana")));
    assert_eq!(got.envelope.correlation_id, "corr-1");
    world.end().await;
}

#[tokio::test]
async fn details_have_usable_tools_and_hidden_servers_look_unknown() {
    let world = world();
    insta::assert_snapshot!(details(&world, "bob", "FILES").await, @r#"{"description":"A file system.","error":null,"serverName":"Files","tools":[{"description":"Does read_file.","name":"read_file","parametersSchema":"{\"type\":\"object\"}"}]}"#);
    insta::assert_snapshot!(details(&world, "bob", "mail").await, @r#"{"error":"Server 'mail' is not connected","serverName":"mail","tools":[]}"#);
    insta::assert_snapshot!(details(&world, "bob", "x").await, @r#"{"error":"Server 'x' is not connected","serverName":"x","tools":[]}"#);
    insta::assert_snapshot!(details(&world, "eve", "files").await, @r#"{"error":"Server 'files' is not connected","serverName":"files","tools":[]}"#);
    world.end().await;
}

#[tokio::test]
async fn a_lazy_server_is_woken_and_one_that_is_hidden_is_not() {
    let world = world();
    let body = details(&world, "ana", "Lazy").await;
    assert_eq!(body["tools"][0]["name"], "dream", "{body}");
    for (agent, server) in [("eve", "mail"), ("eve", "stuck"), ("ana", "none")] {
        assert_eq!(details(&world, agent, server).await["error"], format!("Server '{server}' is not connected"));
    }
    assert_eq!(*world.fleet.woken.lock(), ["Lazy"]);
    world.end().await;
}

#[tokio::test]
async fn a_hanging_server_delays_no_other_request() {
    let world = world();
    let mut replies = world.listen(&topic::mcp_manage_response("ana"));
    let reply_to = topic::mcp_manage_response("ana");
    let request = Request {
        agent: "ana",
        topic: topic::MCP_MANAGE,
        message_type: "RockBot.Tools.Mcp.McpGetServiceDetailsRequest",
        reply_to: Some(&reply_to),
        body: r#"{"serverName":"stuck"}"#,
    };
    // As many as the daemon takes at a time: four wait, and the others get a reply at once.
    for _ in 0..64 {
        world.request(request).await;
    }
    for _ in 0..60 {
        assert_eq!(replies.next().await.body["error"], "Server 'stuck' is not connected");
    }
    assert_eq!(*world.fleet.woken.lock(), ["stuck"; 4]);
    let others = details(&world, "bob", "files").await;
    assert_eq!(others["tools"][0]["name"], "read_file");
    assert!(replies.is_empty(), "four wait still");
    world.end().await;

    let world = Fixture::new();
    let begun = Instant::now();
    world.request_within(request, Duration::from_millis(500)).await;
    let mut replies = world.listen(&reply_to);
    assert_eq!(replies.next().await.body["error"], "Server 'stuck' is not connected");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    world.end().await;
}

#[tokio::test]
async fn a_request_to_add_a_server_reaches_no_tool_that_merely_has_the_name() {
    let world = world();
    world.publish("aaa", &["mcp_register_server", "mcp_unregister_server"]);
    world.access.refresh();
    let mut replies = Vec::new();
    for message_type in ["RegisterServerRequest", "UnregisterServerRequest"] {
        replies.push(
            world.exchange("ana", message_type, r#"{"serverName":"n","env":{"K":"secret"}}"#).await.body.to_string(),
        );
    }
    insta::assert_snapshot!(replies.join("\n"), @r#"
{"error":"Tool 'mcp_register_server' is not registered: registration is off.","serverName":"n","success":false,"summary":null}
{"error":"Tool 'mcp_unregister_server' is not registered: registration is off.","serverName":"n","success":false}
"#);
    world.end().await;
}

#[tokio::test]
async fn details_too_large_for_a_message_get_an_error_with_advice() {
    let world = world();
    world.publish_described("huge", "a", "x".repeat(20 * 1024 * 1024));
    let body = details(&world, "ana", "huge").await;
    insta::assert_snapshot!(body, @r#"{"error":"The server's tools are too many for one message. Ask for one with mcp_get_service_details and its tool_name.","serverName":"huge","tools":[]}"#);
    world.end().await;
}

#[tokio::test]
async fn a_server_is_added_and_removed_through_the_tools_of_the_caller() {
    let world = world();
    let register =
        r#"{"serverName":"n","type":"sse","url":"https://h/sse","command":null,"args":["a"],"env":{"K":"V"}}"#;
    let refused = world.exchange("ana", "RegisterServerRequest", register).await.body;
    insta::assert_snapshot!(refused, @r#"{"error":"Tool 'mcp_register_server' is not registered: registration is off.","serverName":"n","success":false,"summary":null}"#);
    for tool in ["mcp_register_server", "mcp_unregister_server"] {
        world.register(tool);
    }
    let got = world.exchange("ana", "RegisterServerRequest", register).await;
    assert_eq!(got.envelope.message_type, "RockBot.Tools.Mcp.McpRegisterServerResponse");
    insta::assert_snapshot!(got.body, @r#"{"error":null,"serverName":"n","success":true,"summary":"ana {\"arguments\":[\"a\"],\"env\":{\"K\":\"V\"},\"server_name\":\"n\",\"type\":\"sse\",\"url\":\"https://h/sse\"}"}"#);
    let added = world.exchange("ana", "RegisterServerRequest", r#"{"serverName":"added"}"#).await.body;
    insta::assert_snapshot!(added, @r#"{"error":null,"serverName":"added","success":true,"summary":"2 tool(s) available."}"#);
    let refused = world.exchange("ana", "RegisterServerRequest", r#"{"serverName":"refused"}"#).await.body;
    insta::assert_snapshot!(refused, @r#"{"error":"the host is not allowed.","serverName":"refused","success":false,"summary":null}"#);
    let got = world.exchange("ana", "UnregisterServerRequest", r#"{"serverName":"n"}"#).await;
    assert_eq!(got.envelope.message_type, "RockBot.Tools.Mcp.McpUnregisterServerResponse");
    insta::assert_snapshot!(got.body, @r#"{"error":null,"serverName":"n","success":true}"#);
    let kept = world.exchange("ana", "UnregisterServerRequest", r#"{"serverName":"kept"}"#).await.body;
    insta::assert_snapshot!(kept, @r#"{"error":"it was configured by an operator.","serverName":"kept","success":false}"#);
    let hidden = world.exchange("bob", "UnregisterServerRequest", r#"{"serverName":"n"}"#).await.body;
    insta::assert_snapshot!(hidden, @r#"{"error":"Tool 'mcp_unregister_server' is not registered.","serverName":"n","success":false}"#);
    world.end().await;
}

#[tokio::test]
async fn unsupported_requests_get_an_error_reply() {
    let world = world();
    let all = [
        ("GetPromptRequest", r#"{"serverName":"files","promptName":"p"}"#),
        ("ListResourcesRequest", r#"{"serverName":"files"}"#),
        ("ReadResourceRequest", r#"{"serverName":"files","uri":"file:///a"}"#),
        ("AnswerQuestionRequest", r#"{"questionId":"q","answers":"{}","decline":false}"#),
        ("NewRequest", r#"{"serverName":"files"}"#),
        ("NewRequest", "nonsense"),
        ("New", "{}"),
    ];
    let mut replies = Vec::new();
    for (message_type, body) in all {
        let got = world.exchange("ana", message_type, body).await;
        let mut body = got.body;
        if let Some(id) = body.get_mut("toolCallId") {
            *id = "…".into();
        }
        replies.push(format!("{} {body}", got.envelope.message_type.trim_start_matches("RockBot.Tools.")));
    }
    insta::assert_snapshot!(replies.join("\n"), @r#"
Mcp.McpGetPromptResponse {"description":null,"error":"This bridge serves the tools of MCP servers, and not their prompts.","messages":[],"promptName":"p","serverName":"files"}
Mcp.McpListResourcesResponse {"error":"This bridge serves the tools of MCP servers, and not their resources.","resources":[],"serverName":"files","templates":[]}
Mcp.McpReadResourceResponse {"contents":[],"error":"This bridge serves the tools of MCP servers, and not their resources.","serverName":"files","uri":"file:///a"}
Mcp.McpAnswerQuestionResponse {"error":"This bridge serves the tools of MCP servers, and not their questions.","questionId":"q","result":null,"serverName":null,"toolName":null}
Mcp.McpNewResponse {"error":"This bridge does not serve requests of the type RockBot.Tools.Mcp.McpNewRequest.","serverName":"files"}
Mcp.McpNewResponse {"error":"This bridge does not serve requests of the type RockBot.Tools.Mcp.McpNewRequest.","serverName":""}
ToolError {"code":"invalid_arguments","isRetryable":false,"message":"The request is not usable: its type RockBot.Tools.Mcp.McpNew does not belong on this topic.","toolCallId":"…","toolName":"mcp.manage"}
"#);
    world.end().await;
}

#[tokio::test]
async fn an_unreadable_body_gets_an_error_reply_of_the_expected_type() {
    let world = world();
    let mut replies = Vec::new();
    for message_type in ["GetServiceDetailsRequest", "RegisterServerRequest", "UnregisterServerRequest"] {
        for body in ["nonsense", "{}"] {
            let got = world.exchange("ana", message_type, body).await;
            replies.push(got.body.to_string());
        }
    }
    insta::assert_snapshot!(replies.join("\n"), @r#"
{"error":"The request cannot be read: expected ident at line 1 column 2.","serverName":"","tools":[]}
{"error":"The request cannot be read: missing member `serverName`.","serverName":"","tools":[]}
{"error":"The request cannot be read: expected ident at line 1 column 2.","serverName":"","success":false,"summary":null}
{"error":"The request cannot be read: missing member `serverName`.","serverName":"","success":false,"summary":null}
{"error":"The request cannot be read: expected ident at line 1 column 2.","serverName":"","success":false}
{"error":"The request cannot be read: missing member `serverName`.","serverName":"","success":false}
"#);
    world.end().await;
}

#[tokio::test]
async fn a_request_without_a_reply_address_is_dead_lettered_unless_it_needs_no_reply() {
    let world = world();
    let mut dead = world.dead_letters("bus7.mcp-manage");
    let request = |message_type, reply_to| Request {
        agent: "ana",
        topic: topic::MCP_MANAGE,
        message_type,
        reply_to,
        body: r#"{"serverName":"files","sessionId":"s"}"#,
    };
    let ours = "RockBot.Tools.Mcp.McpReleaseSessionQuestionsRequest";
    world.request(request(ours, None)).await;
    world.request(request("RockBot.Tools.Mcp.McpGetServiceDetailsResponse", None)).await;
    world.request(request("RockBot.Tools.Mcp.McpGetServiceDetailsRequest", None)).await;
    assert_eq!(dead.next_raw().await.header("rb-dead-reason"), Some("malformed_request"));
    world.request(request("RockBot.Tools.Mcp.McpGetServiceDetailsRequest", Some("mcp.manage"))).await;
    assert_eq!(dead.next_raw().await.header("rb-dead-reason"), Some("reply_to_refused"));
    assert!(dead.is_empty());
    world.end().await;
}

#[tokio::test]
async fn with_own_topics_an_agent_gets_replies_on_its_own_topic_alone() {
    let world = Fixture::with(Policy::default(), true);
    let mut dead = world.dead_letters("bus7.mcp-manage");
    let mut others = world.listen(&topic::mcp_manage_response("bob"));
    let reply_to = topic::mcp_manage_response("bob");
    let request = Request {
        agent: "ana",
        topic: topic::MCP_MANAGE,
        message_type: "RockBot.Tools.Mcp.McpGetServiceDetailsRequest",
        reply_to: Some(&reply_to),
        body: r#"{"serverName":"files"}"#,
    };
    world.request(request).await;
    assert_eq!(dead.next_raw().await.header("rb-dead-reason"), Some("reply_to_refused"));
    assert!(others.is_empty());
    assert_eq!(details(&world, "ana", "files").await["error"], "Server 'files' is not connected");
    world.end().await;
}
