use serde_json::{Value, json};
use toolbus_core::caller::Caller;

use super::fixture::{Fixture, agent};

#[tokio::test]
async fn a_caller_is_listed_servers_with_usable_tools_and_unstarted_ones() {
    let world = Fixture::new();
    insta::assert_snapshot!(world.outcome(&agent("ana"), "mcp_list_services", json!({})).await, @r#"[{"serverName":"Files","displayName":null,"summary":"Provides 2 tool(s): read_all, read_file.","toolCount":2,"toolNames":["read_all","read_file"]},{"serverName":"Lazy","displayName":null,"summary":"Starts on first use: its tools are not known yet. mcp_get_service_details starts it.","toolCount":0,"toolNames":[]}]"#);
    insta::assert_snapshot!(world.outcome(&agent("bob"), "mcp_list_services", json!({})).await, @r#"[{"serverName":"Files","displayName":null,"summary":"Provides 3 tool(s): read_all, read_file, write_file.","toolCount":3,"toolNames":["read_all","read_file","write_file"]},{"serverName":"Lazy","displayName":null,"summary":"Starts on first use: its tools are not known yet. mcp_get_service_details starts it.","toolCount":0,"toolNames":[]},{"serverName":"mail","displayName":null,"summary":"Provides 1 tool(s): send_mail.","toolCount":1,"toolNames":["send_mail"]}]"#);
}

#[tokio::test]
async fn details_have_usable_tools_without_arguments_that_the_operator_sets() {
    let world = Fixture::new();
    let details = |caller: Caller, arguments: Value| {
        let world = &world;
        async move { world.outcome(&caller, "mcp_get_service_details", arguments).await }
    };
    insta::assert_snapshot!(details(agent("ana"), json!({"server_name": "FILES"})).await, @r#"[{"name":"read_all","description":"Reads all files.","parametersSchema":null},{"name":"read_file","description":"Reads a file.","parametersSchema":"{\"properties\":{\"path\":{\"type\":\"string\"}},\"required\":[\"path\"],\"type\":\"object\"}"}]"#);
    insta::assert_snapshot!(details(agent("bob"), json!({"name": "files", "tool_name": "write_file"})).await, @r#"[{"name":"write_file","description":"Writes a file.","parametersSchema":null}]"#);
}

#[tokio::test]
async fn a_hidden_server_or_tool_looks_like_an_absent_one() {
    let world = Fixture::new();
    let details = |arguments: Value| {
        let world = &world;
        async move { world.outcome(&agent("ana"), "mcp_get_service_details", arguments).await }
    };
    let hidden = details(json!({"server_name": "mail"})).await;
    assert_eq!(hidden, details(json!({"server_name": "none"})).await.replace("none", "mail"));
    insta::assert_snapshot!(hidden, @"error: Unknown MCP server 'mail'. Registered servers: [Files].");
    let hidden = details(json!({"server_name": "files", "tool_name": "write_file"})).await;
    assert_eq!(
        hidden,
        details(json!({"server_name": "files", "tool_name": "none"})).await.replace("none", "write_file")
    );
    insta::assert_snapshot!(hidden, @"error: No tool named 'write_file' found on server 'Files'");
    // Nothing is started for a caller that may not use it.
    assert!(world.servers.wakes.lock().is_empty());
}

#[tokio::test]
async fn details_start_a_server_with_unknown_tools() {
    let world = Fixture::new();
    for _ in 0..2 {
        let outcome = world.outcome(&agent("ana"), "mcp_get_service_details", json!({"server_name": "lazy"})).await;
        insta::allow_duplicates! { insta::assert_snapshot!(outcome, @r#"[{"name":"late","description":"Comes late.","parametersSchema":null}]"#); }
    }
    assert_eq!(*world.servers.wakes.lock(), ["lazy"]);
}

#[tokio::test]
async fn nothing_is_started_for_a_caller_that_may_use_nothing() {
    let world = Fixture::new();
    let caller = Caller { binding: Some("mail:nobody".into()), ..agent("bob") };
    let outcome = world.outcome(&caller, "mcp_get_service_details", json!({"server_name": "lazy"})).await;
    insta::assert_snapshot!(outcome, @"error: Unknown MCP server 'lazy'. Registered servers: [].");
    assert!(world.servers.wakes.lock().is_empty());
}

#[tokio::test]
async fn invalid_names_get_a_short_error_and_start_nothing() {
    let world = Fixture::new();
    let long = "x".repeat(10_000);
    for name in ["management", "a\nb", "  ", &long] {
        let outcome = world.outcome(&agent("ana"), "mcp_get_service_details", json!({"server_name": name})).await;
        assert!(
            outcome.starts_with("error: Unknown MCP server '") && outcome.len() < 200 && !outcome.contains('\n'),
            "{outcome}"
        );
    }
    assert!(world.servers.wakes.lock().is_empty());
    let outcome = world.outcome(&agent("ana"), "mcp_get_service_details", json!({})).await;
    insta::assert_snapshot!(outcome, @"InvalidArguments: Missing required parameter: server_name");
}
