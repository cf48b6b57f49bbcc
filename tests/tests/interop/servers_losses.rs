//! Third-party servers are killed: effects on callers, and time until they serve again.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::mcp::{Workplace, at, process, ready, signal, status};
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::{at_most, eventually};

/// Longest time between the end of a server and the failure of its calls. It takes milliseconds; the rest is for a machine
/// that has much to do.
const FAST: Duration = Duration::from_secs(1);
/// Time that the bridge may add to the time that a server takes to start.
const ADDED: Duration = Duration::from_secs(1);

/// A query that runs for minutes.
const FOREVER: &str = "WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) ";

/// Sends a call, and waits until it runs at the server.
async fn begin(daemon: &Daemon, client: &Client, server: &str, request: &Request) {
    client.send(request).await;
    eventually("the call to run", async || (status(daemon, server).await["inFlight"] == 1).then_some(())).await;
}

/// Kills the server; gives the reply to a call that runs there, and the time until it came.
async fn killed(daemon: &Daemon, client: &Client, server: &str, request: &Request) -> (Message, Duration) {
    signal(process(daemon, server).await, "KILL").await;
    let since = Instant::now();
    (client.reply(request).await, since.elapsed())
}

#[tokio::test]
async fn a_call_that_may_have_acted_fails_at_once_with_its_server_and_is_not_repeated() {
    let (site, _work, daemon, client) = Workplace::serving(&["sqlite"], "").await;
    client.call("create_table", &json!({"query": "CREATE TABLE numbers (i INTEGER)"})).await;
    let call =
        client.request("write_query", &json!({"query": format!("{FOREVER} INSERT INTO numbers SELECT i FROM n")}));
    begin(&daemon, &client, "sqlite", &call).await;
    let (reply, time) = killed(&daemon, &client, "sqlite", &call).await;
    println!("sqlite: the call in flight failed {time:?} after its server was killed");
    assert!(time < at_most(FAST), "{time:?}");
    let mut body = reply.body();
    body["toolCallId"] = json!("[the message's id]");
    insta::assert_json_snapshot!(body, @r#"
    {
      "code": "execution_failed",
      "isRetryable": true,
      "message": "The MCP server of tool 'write_query' went away before it answered. It may have had its effect: calling again may repeat that.",
      "outcome": "unknown",
      "toolCallId": "[the message's id]",
      "toolName": "write_query"
    }
    "#);

    let next = client.call("read_query", &json!({"query": "SELECT count(*) AS n FROM numbers"})).await;
    assert_eq!(next.content(), "[{'n': 0}]", "the next call is served, and the lost one was not run again");
    let status = ready(&daemon, "sqlite").await;
    assert_eq!(status["restarts"], 1);
    assert!(status["lastError"].as_str().unwrap().contains("signal 9"), "{status}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_read_only_call_outlives_its_server() {
    let (site, _work, daemon, client) = Workplace::serving(&["everything"], "").await;
    let call = at(&client, "everything", "trigger-long-running-operation", &json!({"duration": 4, "steps": 1}));
    begin(&daemon, &client, "everything", &call).await;
    let (reply, _) = killed(&daemon, &client, "everything", &call).await;
    assert_eq!(
        reply.content(),
        "Long running operation completed. Duration: 4 seconds, Steps: 1.",
        "{:?}",
        reply.body()
    );
    client.caught_up().await;
    assert_eq!(client.replies_to(&call.correlation).len(), 1, "one reply");
    assert_eq!(status(&daemon, "everything").await["restarts"], 1);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_killed_server_serves_again_as_soon_as_it_has_started() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let calls = [
        ("everything", "echo", json!({"message": "here"})),
        ("sqlite", "list_tables", json!({})),
        ("time", "get_current_time", json!({"timezone": "UTC"})),
    ];
    let names = calls.each_ref().map(|(server, ..)| *server);
    let daemon = work.daemon(&site, &work.servers(&names), "").await;
    let client = Client::connect(&site).await;
    for name in names {
        ready(&daemon, name).await;
    }
    for (server, tool, arguments) in calls {
        // How long this machine takes to start it, just now.
        let began = Instant::now();
        let tried = daemon.operate(&["mcp", "test", server, "--config", "more.toml", "--output", "json"]).await;
        assert_eq!(tried.code, 0, "{tried:?}");
        let start = began.elapsed();

        signal(process(&daemon, server).await, "KILL").await;
        let since = Instant::now();
        let reply = good(&client, &at(&client, server, tool, &arguments)).await;
        let whole = since.elapsed();
        println!("{server}: {whole:?} from SIGKILL to the next good answer; {start:?} to try it alone");
        assert!(whole < start + at_most(ADDED), "{server}: {whole:?}, {start:?}");
        assert_eq!(reply["isError"], false);
        let elsewhere = names.iter().filter(|name| **name != server);
        for name in elsewhere {
            assert_eq!(status(&daemon, name).await["phase"], "ready", "{name} is not touched");
        }
    }
    daemon.stop(&site).await;
}

/// The first good reply, of as many calls as it takes.
async fn good(client: &Client, request: &Request) -> Value {
    eventually("a good reply", async || {
        let again = Request { ..client.raw(request.body.clone()) };
        let again = Request { routing_key: request.routing_key.clone(), headers: request.headers.clone(), ..again };
        let body = client.exchange(&again).await.body();
        (body["isError"] == false).then_some(body)
    })
    .await
}

#[tokio::test]
async fn a_server_that_ends_with_its_daemon_leaves_no_process_behind() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let mut daemon = work.daemon(&site, &work.servers(&["git", "memory"]), "").await;
    let mut processes = Vec::new();
    for server in ["git", "memory"] {
        processes.push(process(&daemon, server).await);
    }
    daemon.signal("KILL").await;
    daemon.ended().await;
    eventually("no process of a server", async || {
        processes.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    })
    .await;
}
