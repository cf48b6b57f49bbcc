//! Tools that may be called of a server that others wrote, and with which arguments.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::mcp::{Workplace, at, ready};
use toolbus_e2e::namespace::BrokerNamespace;

#[tokio::test]
async fn arguments_are_checked_against_the_servers_own_schema_as_strictly_as_it_is_configured() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let mut servers = work.servers(&["everything"]);
    for validation in ["off", "warn"] {
        servers[validation] = work.server("everything");
        servers[validation]["validate"] = json!(validation);
    }
    let daemon = work.daemon(&site, &servers, "").await;
    let client = Client::connect(&site).await;
    let wrong = json!({"messageType": "loud", "includeImage": "no"});
    let refused = client.exchange(&at(&client, "everything", "get-annotated-message", &wrong)).await;
    assert_eq!(refused.code(), "invalid_arguments");
    insta::assert_snapshot!(refused.error(), @r#"The arguments do not fit the tool's parameters: /includeImage: value is not of type "boolean"; /messageType: value is not one of "error", "success" or "debug""#);
    // What the daemon does not check the server does, with an error result of its own.
    for validation in ["off", "warn"] {
        let reply = client.exchange(&at(&client, validation, "get-annotated-message", &wrong)).await;
        assert_eq!((reply.body()["isError"].clone(), reply.code()), (json!(true), String::new()), "{validation}");
        assert!(reply.content().contains("Invalid arguments for tool get-annotated-message"), "{:?}", reply.body());
    }
    let text = daemon.text();
    let warned: Vec<&str> = text.lines().filter(|line| line.contains("WARN") && line.contains("arguments")).collect();
    assert_eq!(warned.len(), 1, "{warned:?}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_tool_that_the_file_denies_or_does_not_allow_is_on_no_route() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let mut servers = work.servers(&["filesystem", "memory"]);
    servers["filesystem"]["deniedTools"] = json!(["WRITE_FILE", "read_file"]);
    servers["memory"]["allowedTools"] = json!(["Read_Graph", "search_nodes"]);
    servers["memory"]["deniedTools"] = json!(["search_nodes"]);
    let daemon = work.daemon(&site, &servers, "").await;
    let memory = ready(&daemon, "memory").await;
    assert_eq!(memory["tools"], json!(["read_graph"]));
    assert!(!ready(&daemon, "filesystem").await["tools"].as_array().unwrap().contains(&json!("write_file")));
    let client = Client::connect(&site).await;
    let write = json!({"path": work.text("files/new.txt"), "content": "new"});
    let denied = [("filesystem", "write_file", write), ("memory", "search_nodes", json!({"query": "x"}))];
    for (server, tool, arguments) in denied {
        let inner = json!({"server_name": server, "tool_name": tool, "arguments": arguments});
        let ways = [
            client.request(tool, &arguments),
            client.request(tool, &arguments).on("tool.invoke.mcp"),
            at(&client, server, tool, &arguments),
            client.request("mcp_invoke_tool", &inner),
        ];
        for request in ways {
            let reply = client.exchange(&request).await;
            let is_refused = reply.code() == "tool_not_found" || reply.body()["isError"] == true;
            assert!(is_refused, "{tool}: {:?}", reply.body());
        }
        let details = client.call("mcp_get_service_details", &json!({"server_name": server})).await;
        assert!(!details.content().contains(&format!("\"{tool}\"")), "{:?}", details.body());
    }
    assert!(!work.path("files/new.txt").exists());
    let graph = client.exchange(&at(&client, "MEMORY", "read_graph", &json!({}))).await;
    assert_eq!(graph.body()["isError"], false);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_denied_tool_is_refused_on_every_route_to_its_agent_alone() {
    let rules = "[identity]\ntrust_headers = true\n[agents.ana]\ndenied_tools = [\"git_log\"]\n[agents.ben]\n";
    let (site, work, daemon, client) = Workplace::serving(&["git"], rules).await;
    let arguments = json!({"repo_path": work.text("repository")});
    let inner = json!({"server_name": "git", "tool_name": "git_log", "arguments": arguments});
    for (agent, is_admitted) in [("ana", false), ("ben", true)] {
        let ways = [
            client.request("git_log", &arguments),
            client.request("git_log", &arguments).on("tool.invoke.mcp"),
            at(&client, "git", "git_log", &arguments),
            client.request("mcp_invoke_tool", &inner),
        ];
        for request in ways {
            let reply = client.exchange(&request.by(agent)).await;
            assert_eq!(reply.content().contains("Begin"), is_admitted, "{agent}: {:?}", reply.body());
        }
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn annotations_become_effects() {
    let (site, _work, daemon, client) = Workplace::serving(&["filesystem", "sqlite", "time"], "").await;
    let names = ["read_text_file", "write_file", "move_file", "create_directory", "write_query", "get_current_time"];
    let listed = client.exchange(&client.raw(json!({"names": names}).to_string()).on("tool.list")).await.body();
    let shown = listed["tools"].as_array().unwrap().iter().map(|tool| {
        let hints: Vec<&str> =
            ["readOnly", "idempotent", "destructive"].into_iter().filter(|hint| tool[*hint] == true).collect();
        let text = |field: &str| tool.get(field).and_then(Value::as_str).unwrap_or("-").to_owned();
        format!("{} of {}: {}", text("name"), text("source"), hints.join(" "))
    });
    insta::assert_snapshot!(shown.collect::<Vec<_>>().join("\n"), @"
    create_directory of mcp:filesystem: idempotent
    get_current_time of mcp:time: readOnly idempotent
    move_file of mcp:filesystem: destructive
    read_text_file of mcp:filesystem: readOnly idempotent
    write_file of mcp:filesystem: idempotent
    write_query of mcp:sqlite:
    ");
    daemon.stop(&site).await;
}
