//! `toolbus mcp` against a daemon with servers that others wrote.

use serde_json::{Value, json};
use toolbus_e2e::mcp::{Workplace, ready, status};
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

/// The columns of a table that do not differ from run to run.
fn columns(table: &str, count: usize) -> String {
    let line = |line: &str| line.split_whitespace().take(count).collect::<Vec<_>>().join(" ");
    table.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn an_operator_lists_shows_and_restarts_servers() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let mut servers = work.servers(&["sqlite", "time"]);
    servers["broken"] = json!({"command": "/nonexistent/server"});
    servers["off"] = json!({"command": "/nonexistent/server", "disabled": true});
    let daemon = work.daemon(&site, &servers, "").await;
    for server in ["sqlite", "time"] {
        ready(&daemon, server).await;
    }
    eventually("the broken one to have failed", async || {
        status(&daemon, "broken").await["lastError"].as_str().map(drop)
    })
    .await;
    let list = daemon.operate(&["mcp", "list"]).await;
    assert_eq!(list.code, 0, "{list:?}");
    let shown = columns(&list.out, 5).replace("connecting", "waiting");
    insta::assert_snapshot!(shown, @"
    NAME TRANSPORT PHASE TOOLS RESTARTS
    broken stdio waiting 0 0
    off stdio disabled 0 0
    sqlite stdio ready 6 0
    time stdio ready 2, 1
    ");
    let json = daemon.operate(&["mcp", "list", "--output", "json"]).await.json();
    assert_eq!(json["servers"].as_array().map(Vec::len), Some(4));

    let show = daemon.operate(&["mcp", "show", "TIME"]).await;
    assert_eq!(show.code, 0, "{show:?}");
    for part in ["time: ready", "2026-07-28", "mcp-time 2026.10.19", "get_current_time"] {
        assert!(show.out.contains(part), "{part} is missing in {}", show.out);
    }
    let broken = daemon.operate(&["mcp", "show", "broken"]).await;
    assert!(broken.out.contains("last error") && broken.out.contains("/nonexistent/server"), "{broken:?}");

    let before = ready(&daemon, "sqlite").await["pid"].clone();
    let restart = daemon.operate(&["mcp", "restart", "SQLite"]).await;
    assert_eq!(restart.code, 0, "{restart:?}");
    eventually("another process", async || {
        let now = ready(&daemon, "sqlite").await;
        (now["pid"] != before).then_some(now)
    })
    .await;
    let unknown = daemon.operate(&["mcp", "restart", "sqlight"]).await;
    assert_ne!(unknown.code, 0);
    assert!(unknown.err.contains("sqlight"), "{unknown:?}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_server_is_tried_beside_the_running_one() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let mut servers = work.servers(&["git", "memory"]);
    servers["git-elsewhere"] = work.server("git");
    servers["git-elsewhere"]["args"][1] = json!(work.text("files"));
    let daemon = work.daemon(&site, &servers, "").await;
    let before = ready(&daemon, "git").await["pid"].clone();

    let tried = daemon.operate(&["mcp", "test", "git", "--config", "more.toml"]).await;
    assert_eq!(tried.code, 0, "{tried:?}");
    assert!(tried.out.trim_end().ends_with("works"), "{tried:?}");
    let report = daemon.operate(&["mcp", "test", "memory", "--config", "more.toml", "--output", "json"]).await.json();
    let steps: Vec<_> = report["steps"].as_array().unwrap().iter().map(|step| step["name"].as_str()).collect();
    assert_eq!(steps, ["connect", "list", "ping"].map(Some));
    assert_eq!(report["status"]["tools"].as_array().map(Vec::len), Some(9));

    let failed = daemon.operate(&["mcp", "test", "git-elsewhere", "--config", "more.toml"]).await;
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(
        failed.out.contains("failed at connect") && failed.out.contains("not a valid Git repository"),
        "{failed:?}"
    );
    assert_eq!(ready(&daemon, "git").await["pid"], before, "the running one goes on");
    assert_eq!(status(&daemon, "git").await["restarts"], Value::from(0));
    daemon.stop(&site).await;
}
