//! `toolbus mcp serve --stdio`: the tools of a daemon on the broker, for a client that starts its servers itself.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::mcp::Workplace;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::toolbus;
use toolbus_e2e::stdio::Stdio;
use toolbus_testing::patience::eventually;

const RULES: &str = "[tools]\necho = true\n[identity]\ntrust_headers = true\nunknown = \"default\"\n";

fn token(text: &str) -> Value {
    json!({"progressToken": text})
}

#[tokio::test]
async fn a_client_lists_and_calls_the_tools_of_its_agent() {
    let site = BrokerNamespace::shared().await;
    let rules = format!(
        "{RULES}[agents.ana]\nallowed_tools = [\"echo\", \"current_time\"]\n[agents.bruno]\nallowed_tools = [\"echo\"]\n"
    );
    let daemon = Daemon::start(&site, &rules).await;
    let mut ana = Stdio::start(&site, "ana");
    let hello = ana.begin().await;
    assert_eq!(hello["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(ana.names().await, json!(["current_time", "echo"]));
    let result = ana.call("echo", &json!({"text": "hello"})).await;
    assert_eq!(result["content"], json!([{"type": "text", "text": "hello"}]), "{result}");
    assert_eq!(result["_meta"]["toolbus/content-trust"], "tool-output");

    let mut bruno = Stdio::start(&site, "bruno");
    bruno.begin().await;
    assert_eq!(bruno.names().await, json!(["echo"]));
    let hidden = bruno.call("current_time", &json!({})).await;
    assert_eq!(hidden["error"]["code"], -32602, "{hidden}");
    let wrong = bruno.call("echo", &json!({"txt": 1})).await;
    assert_eq!(
        (&wrong["isError"], &wrong["_meta"]["toolbus/error"]["code"]),
        (&json!(true), &json!("invalid_arguments"))
    );

    for mut client in [ana, bruno] {
        client.close();
        assert_eq!(client.ended().await, (Some(0), Vec::new()));
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_client_is_notified_when_its_tools_change() {
    let site = BrokerNamespace::shared().await;
    let rules = |tools: &str| format!("{RULES}[agents.ana]\nallowed_tools = [{tools}]\n");
    let daemon = Daemon::start(&site, &rules("\"echo\"")).await;
    let mut client = Stdio::start(&site, "ana");
    client.begin().await;
    assert_eq!(client.names().await, json!(["echo"]));
    daemon.reload(&rules("\"echo\", \"current_time\"")).await;
    client.notification("notifications/tools/list_changed").await;
    assert_eq!(client.names().await, json!(["current_time", "echo"]));
    assert_eq!(client.rest(), [] as [Value; 0]);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_role_narrows_what_a_client_gets() {
    let site = BrokerNamespace::shared().await;
    let binding =
        "[[agents.ana.bindings]]\nchannel = \"chat\"\naccount = \"one\"\nallowed_tools = [\"current_time\"]\n";
    let daemon = Daemon::start(&site, &format!("{RULES}[agents.ana]\nallowed_tools = [\"*\"]\n{binding}")).await;
    for (role, expected) in [
        (["--binding", "chat:one"], json!(["current_time"])),
        (["--binding", "chat:none"], json!([])),
        (["--profile", "none"], json!([])),
    ] {
        let mut client = Stdio::start_with(&site, &[&["--agent", "ana"], &role[..]].concat());
        client.begin().await;
        assert_eq!(client.names().await, expected, "{role:?}");
        assert_eq!(client.call("echo", &json!({"text": "a"})).await["error"]["code"], -32602, "{role:?}");
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_call_is_cancelled_at_the_daemon_by_its_client_or_with_it() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let tools = backend.tool("hold", "/gate?id={id}", "");
    let daemon = Daemon::start(&site, &tools).await;
    let mut client = Stdio::start(&site, "ana");
    client.begin().await;
    let held = |id: &str| json!({"name": "hold", "arguments": {"id": id}});
    let in_flight = async || daemon.get("/status").await.unwrap().1["counts"]["inFlight"].as_u64().unwrap();
    for (id, ends) in [("first", false), ("second", true)] {
        let call = client.request("tools/call", &held(id)).await;
        backend.wait_for(id).await;
        assert_eq!(in_flight().await, 1);
        match ends {
            false => {
                let params = json!({"requestId": call});
                client.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})).await;
            }
            // A signal does not wait for what is under way.
            true => client.signal("TERM").await,
        }
        eventually("the end of the call", async || (in_flight().await == 0).then_some(())).await;
    }
    assert_eq!(client.ended().await, (Some(0), Vec::new()));
    daemon.stop(&site).await;
}

#[tokio::test]
async fn progress_and_structured_results_come_through() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let servers = json!({"everything": work.server("everything")});
    let daemon = work.daemon(&site, &servers, "").await;
    let mut client = Stdio::start(&site, "ana");
    client.begin().await;
    eventually("the server's tools", async || {
        let names = client.names().await;
        names.as_array()?.contains(&json!("get-structured-content")).then_some(())
    })
    .await;
    let listed = client.exchange("tools/list", &json!({})).await;
    let tool =
        listed["result"]["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "get-structured-content");
    assert_eq!(tool.unwrap()["outputSchema"]["type"], "object");
    let result = client.call("get-structured-content", &json!({"location": "Chicago"})).await;
    assert!(result["structuredContent"]["temperature"].is_number(), "{result}");

    let long = json!({"name": "trigger-long-running-operation", "arguments": {"duration": 0.6, "steps": 3}, "_meta": token("p")});
    let response = client.exchange("tools/call", &long).await;
    assert_eq!(response["result"]["isError"], false, "{response}");
    let reports: Vec<_> =
        client.rest().iter().filter(|message| message["method"] == "notifications/progress").collect();
    assert_eq!(reports.last().unwrap()["params"]["total"], 3.0);
    assert!(reports.iter().all(|report| report["params"]["progressToken"] == "p"), "{reports:?}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn what_cannot_be_served_is_reported_on_standard_error() {
    let broker = "--bus-url=amqp://127.0.0.1:1";
    let cases: [(&[&str], &str); 4] = [
        (&["mcp", "serve"], "--stdio"),
        (&["mcp", "serve", "--stdio", "--agent", "ana"], "--bus-url"),
        (&["mcp", "serve", "--stdio", broker], "--agent"),
        (&["mcp", "serve", "--stdio", broker, "--agent", "a b"], "--agent"),
    ];
    for (arguments, hint) in cases {
        let run = toolbus(arguments).await;
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{run:?}");
        assert!(run.err.contains(hint), "{run:?}");
    }
}

#[tokio::test]
async fn a_long_result_has_a_link_to_each_chunk_which_only_its_own_client_can_read() {
    let site = BrokerNamespace::shared().await;
    let rules = format!("{RULES}[agents.ana]\n[agents.bruno]\n[memory]\n[results]\nthreshold = 2000\n");
    let daemon = Daemon::start(&site, &rules).await;
    let (mut ana, mut bruno) = (Stdio::start(&site, "ana"), Stdio::start(&site, "bruno"));
    ana.begin().await;
    bruno.begin().await;
    let text: String =
        (0..4).map(|number| format!("# Section {number}\n\n{}\n", "Some words of it.\n".repeat(80))).collect();
    let result = ana.call("echo", &json!({"text": text})).await;
    let [table, links @ ..] = &result["content"].as_array().unwrap()[..] else { panic!("{result}") };
    assert!(table["text"].as_str().unwrap().starts_with("Tool result for 'echo' is large ("), "{table}");
    assert!(links.len() >= 3 && links.iter().all(|link| link["type"] == "resource_link"), "{result}");
    assert_eq!((&links[0]["title"], &links[0]["mimeType"]), (&json!("Section 0"), &json!("text/plain")));
    let mut whole = String::new();
    for link in links {
        let uri = json!({"uri": link["uri"]});
        let read = ana.exchange("resources/read", &uri).await;
        whole.push_str(read["result"]["contents"][0]["text"].as_str().unwrap());
        let refused = bruno.exchange("resources/read", &uri).await;
        assert_eq!(refused["error"]["code"], -32002, "{refused}");
    }
    assert_eq!(whole, text);
    daemon.stop(&site).await;
}
