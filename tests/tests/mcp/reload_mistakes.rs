//! A mistake in one server of the file, made while the daemon runs: that server stays as it was, whatever reads the file.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::mcp::{Workplace, ready, status};
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

use crate::small::{Small, known};

/// Log message for every mistake, once.
const MISTAKE: &str = "MCP servers cannot be used as they are configured";

/// Waits until the last error of `time` names its configuration, or does not; gives the server's status.
async fn status_when(daemon: &Daemon, is_outdated: bool) -> Value {
    eventually("the last error of the server", async || {
        let status = status(daemon, "time").await;
        (status["lastError"].to_string().contains("goes on as it was configured before") == is_outdated)
            .then_some(status)
    })
    .await
}

#[tokio::test]
async fn a_server_with_a_mistake_goes_on_as_it_was_and_the_mistake_is_reported() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let good = work.servers(&["git", "time"]);
    let daemon = work.daemon(&site, &good, "").await;
    let client = Client::connect(&site).await;
    let [git, time] = [ready(&daemon, "git").await["pid"].clone(), ready(&daemon, "time").await["pid"].clone()];
    let works = async || {
        let reply = client.call("get_current_time", &json!({"timezone": "Asia/Tokyo"})).await;
        assert!(reply.content().contains("+09:00"), "{reply:?}");
    };
    works().await;

    for (field, value) in [("toolTimeoutMs", json!("30s")), ("cwd", json!("${NOT_SET_HERE}"))] {
        let mut wrong = good.clone();
        wrong["time"][field] = value;
        work.write(&wrong);
        let line = eventually("the mistake in the log", async || {
            daemon.logged(MISTAKE).into_iter().find(|line| line["problem"].to_string().contains(field))
        })
        .await;
        assert!(line["problem"].as_str().unwrap().contains("`time` goes on as it was"), "{line}");
        let status = status_when(&daemon, true).await;
        assert!(status["lastError"].as_str().unwrap().contains(field), "{status}");
        assert_eq!((&status["pid"], &status["phase"]), (&time, &json!("ready")));
        // `/status` is public, and shows neither paths nor variables.
        let public = daemon.get("/status").await.unwrap().1.to_string();
        assert!(!public.contains("mcp.json") && !public.contains("NOT_SET_HERE"), "{public}");
        assert!(public.contains("goes on as it was configured before: `toolbus status` says why"), "{public}");
        works().await;
    }

    // A signal reads the file, too, and reports nothing that is known.
    let signalled = format!(
        "[http]\nadmin_token = \"a-token-of-the-tests\"\n[mcp]\nservers_file = {:?}\n[tools.limits.get_current_time]\n\
         max_in_flight = 1\n",
        work.text("mcp.json")
    );
    assert_eq!(daemon.reload(&signalled).await["message"], "reload: done");
    assert_eq!(status_when(&daemon, true).await["pid"], time);
    works().await;
    daemon.logged_times(MISTAKE, 2).await;

    // `toolbus check` reports the mistake, too.
    let check = daemon.operate(&["check", "--config", "site.toml", "--config", "more.toml"]).await;
    assert_eq!(check.code, 2, "{check:?}");

    work.write(&good);
    assert_eq!(status_when(&daemon, false).await["pid"], time, "nothing differs from what runs");
    assert_eq!(ready(&daemon, "git").await["pid"], git);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_required_server_blocks_until_its_file_is_there_and_right() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    let more = format!("{}required = ['files']\n", small.file());
    let daemon = Daemon::launch(&site, &more, &[]).await;
    assert_eq!(daemon.blocked_by("mcp_server_missing").await["server"], "files");
    let unread = "mcp.json: the file cannot be read: No such file or directory";
    let listed = daemon.operate(&["mcp", "list"]).await;
    assert!(listed.out.contains(unread), "{listed:?}");
    let status = daemon.operate(&["status"]).await;
    assert!(status.out.contains(unread), "{status:?}");
    let public = daemon.get("/status").await.unwrap().1;
    let what = "an MCP server cannot be used as it is configured: `toolbus status` says which, and why";
    assert_eq!(public["mcpProblems"], json!([what]));

    small.write(&[("files", json!({"command": "x", "includeTools": "read"}))]);
    eventually("the mistake in the list", async || {
        let listed = daemon.operate(&["mcp", "list"]).await;
        listed.out.contains("`files` is left out: `includeTools`: expected a list of texts").then_some(())
    })
    .await;
    let shown = daemon.operate(&["mcp", "show", "files"]).await;
    assert!(shown.err.contains("`files` is left out: `includeTools`"), "{shown:?}");
    assert_eq!(daemon.blocked_by("mcp_server_missing").await["server"], "files");

    small.write(&[("files", json!({"command": "/nonexistent/program"}))]);
    let blocker = daemon.blocked_by("mcp_server_not_ready").await;
    assert_eq!(blocker["server"], "files");

    let mut entry = small.entry("files", &["read", "write"]);
    entry["includeTools"] = json!(["read"]);
    small.write(&[("files", entry)]);
    daemon.wait_until_ready().await;
    let listed = known(&daemon, &["files"]).await;
    assert_eq!(listed["servers"][0]["tools"], json!(["read"]), "{listed}");
    assert_eq!(listed.get("problems"), None, "{listed}");
    daemon.stop(&site).await;
}
