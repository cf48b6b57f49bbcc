//! Servers that others wrote, all of them on one daemon: what they offer, and every way to call it.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::mcp::{ALL, Workplace, at, ready, status};
use toolbus_e2e::namespace::BrokerNamespace;

#[tokio::test]
async fn the_servers_of_one_file_become_ready_and_list_their_tools() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let daemon = work.daemon(&site, &work.servers(&ALL), "").await;
    let mut lines = Vec::new();
    for name in ALL {
        let status = ready(&daemon, name).await;
        let text = |field: &str| status[field].as_str().unwrap_or("-").to_owned();
        let tools: Vec<&str> = status["tools"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(status["hidden"], json!([]), "{name}");
        let facts = [text("transport"), text("protocolVersion"), text("implementation")];
        lines.push(format!("{name}: {}\n    {}", facts.join(" | "), tools.join(" ")));
    }
    insta::assert_snapshot!(lines.join("\n"), @"
    everything: stdio | 2025-11-25 | mcp-servers/everything 2.0.0
        echo get-annotated-message get-env get-resource-links get-resource-reference get-structured-content get-sum get-tiny-image gzip-file-as-resource simulate-research-query toggle-simulated-logging toggle-subscriber-updates trigger-long-running-operation
    filesystem: stdio | 2025-11-25 | secure-filesystem-server 0.2.0
        create_directory directory_tree edit_file get_file_info list_allowed_directories list_directory list_directory_with_sizes move_file read_file read_media_file read_multiple_files read_text_file search_files write_file
    git: stdio | 2026-07-28 | mcp-git 2026.10.19
        git_add git_branch git_checkout git_commit git_create_branch git_diff git_diff_staged git_diff_unstaged git_log git_reset git_show git_status
    memory: stdio | 2025-11-25 | memory-server 0.6.3
        add_observations create_entities create_relations delete_entities delete_observations delete_relations open_nodes read_graph search_nodes
    sqlite: stdio | 2025-11-25 | sqlite 0.1.0
        append_insight create_table describe_table list_tables read_query write_query
    time: stdio | 2026-07-28 | mcp-time 2026.10.19
        convert_time get_current_time
    ");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_tool_is_called_by_its_name_or_with_its_server_in_any_case_or_without() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let daemon = work.daemon(&site, &work.servers(&ALL), "").await;
    let client = Client::connect(&site).await;
    let calls = [
        ("everything", "get-sum", json!({"a": 2, "b": 3}), "The sum of 2 and 3 is 5."),
        ("filesystem", "read_text_file", json!({"path": work.text("files/hello.txt")}), "hello\nworld\n"),
        ("git", "git_log", json!({"repo_path": work.text("repository")}), "Begin"),
        ("memory", "read_graph", json!({}), "\"entities\": []"),
        ("sqlite", "list_tables", json!({}), "[]"),
        ("time", "get_current_time", json!({"timezone": "Asia/Tokyo"}), "+09:00"),
    ];
    // The test does not wait for the servers: a call that names its server does, until its deadline. One that names none
    // waits only as long as servers usually take.
    for (server, tool, arguments, expected) in calls {
        let ways = [
            at(&client, server, tool, &arguments),
            at(&client, &server.to_uppercase(), tool, &arguments),
            client.request(tool, &arguments),
            client.request(tool, &arguments).on("tool.invoke.mcp"),
        ];
        for request in ways {
            let reply = client.exchange(&request).await;
            assert!(reply.content().contains(expected), "{tool}: {:?}", reply.body());
            assert_eq!(reply.body()["isError"], false);
            assert_eq!(reply.header("rb-rb-tool-provider"), "mcp");
        }
        let elsewhere = if server == "time" { "git" } else { "time" };
        assert_eq!(client.exchange(&at(&client, elsewhere, tool, &arguments)).await.code(), "tool_not_found");
    }
    assert_eq!(client.exchange(&at(&client, "nowhere", "get-sum", &json!({}))).await.code(), "tool_not_found");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_tool_named_like_a_built_in_one_is_reached_at_its_server_and_logged_once() {
    let (site, _work, daemon, client) = Workplace::serving(&["time"], "").await;
    let arguments = json!({"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Kathmandu"});
    let for_own = json!({"datetime": "2026-01-02T12:00:00", "from_timezone": "UTC", "to_timezone": "Asia/Kathmandu"});
    let own = client.call("convert_time", &for_own).await;
    assert_eq!(own.header("rb-rb-tool-provider"), "local", "{:?}", own.body());
    let of_server = client.exchange(&at(&client, "time", "convert_time", &arguments)).await;
    assert_eq!(of_server.header("rb-rb-tool-provider"), "mcp");
    assert!(of_server.content().contains("\"+5.75h\""), "{:?}", of_server.body());
    let clashes = daemon.logged("two sources have a tool of one name; the shadowed one is reached by its server alone");
    assert_eq!(clashes.len(), 1, "{clashes:?}");
    assert_eq!((&clashes[0]["tool"], &clashes[0]["shadowed"]), (&json!("convert_time"), &json!("mcp:time")));
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_server_keeps_its_data_and_finds_its_file_again() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let daemon = work.daemon(&site, &work.servers(&["memory"]), "").await;
    let client = Client::connect(&site).await;
    let entity = json!({"name": "Toolbus", "entityType": "daemon", "observations": ["written in Rust"]});
    let created = client.call("create_entities", &json!({"entities": [entity]})).await;
    assert_eq!(created.body()["isError"], false, "{:?}", created.body());
    let found = client.call("search_nodes", &json!({"query": "Rust"})).await;
    let graph: Value = serde_json::from_str(&found.content()).unwrap();
    assert_eq!(graph, json!({"entities": [entity], "relations": []}));

    let daemon = daemon.restarted().await;
    ready(&daemon, "memory").await;
    assert_eq!(client.call("search_nodes", &json!({"query": "Rust"})).await.content(), found.content());
    assert_eq!(status(&daemon, "memory").await["restarts"], 0);
    daemon.stop(&site).await;
}
