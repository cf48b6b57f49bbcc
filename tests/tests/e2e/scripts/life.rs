//! End of scripts with their calls, and with the daemon.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use serde_json::json;
use toolbus_e2e::client::Client;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::{at_most, eventually};

use super::setup::{
    SCRIPT, WITHOUT_NAMESPACES, call, descendants, lives, running, script_request, start_by, with_client,
};

/// Runs until it is ended.
const FOREVER: &str = "import time\nwhile True: time.sleep(0.05)";

#[tokio::test]
async fn a_script_that_is_cancelled_leaves_no_process_within_a_second() {
    let (site, daemon, client) = with_client(SCRIPT).await;
    let request = script_request(&client, FOREVER, &json!({"toolCallId": "long", "timeoutSeconds": 60}));
    client.send(&request).await;
    running(&daemon).await;

    let mut cancel = client.raw(json!({"toolCallId": "long"}).to_string());
    cancel.routing_key = "tool.cancel".to_owned();
    let begun = Instant::now();
    assert_eq!(client.exchange(&cancel).await.body(), json!({"toolCallId": "long", "cancelled": true}));
    eventually("the end of its processes", async || descendants(daemon.pid()).is_empty().then_some(())).await;
    assert!(begun.elapsed() < at_most(Duration::from_secs(1)), "{:?}", begun.elapsed());
    let reply = client.reply(&request).await.body();
    assert_eq!((&reply["exitCode"], &reply["toolCallId"]), (&json!(-1), &json!("long")), "{reply}");
    assert!(reply["stderr"].as_str().unwrap().contains("cancelled"), "{reply}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_script_may_finish_while_the_daemon_drains() {
    let (_site, mut daemon, client) = with_client(SCRIPT).await;
    let request = call(&client, "import time\ntime.sleep(1)\nprint('finished')", &json!({}));
    client.send(&request).await;
    running(&daemon).await;
    daemon.signal("TERM").await;
    assert_eq!(daemon.ended().await.code(), Some(0), "{}", daemon.text());
    assert_eq!(client.reply(&request).await.content(), "finished\n");
}

#[tokio::test]
async fn a_script_that_outlasts_the_drain_is_ended_and_reported_as_cancelled() {
    let (site, mut daemon, client) = with_client(&format!("{SCRIPT}[invoke]\ndrain_timeout = \"200ms\"\n")).await;
    let request = call(&client, FOREVER, &json!({}));
    client.send(&request).await;
    let processes = running(&daemon).await;
    daemon.signal("TERM").await;
    assert_eq!(daemon.ended().await.code(), Some(0), "{}", daemon.text());
    let reply = client.reply(&request).await;
    assert_eq!((reply.code().as_str(), &reply.body()["outcome"]), ("cancelled", &json!("unknown")));
    eventually("the end of its processes", async || (!processes.iter().any(|pid| lives(*pid))).then_some(())).await;
    assert_eq!(site.ready(&site.queue()).await, 0, "it is not run again");
}

#[tokio::test]
async fn of_a_daemon_that_is_killed_no_script_and_no_folder_is_left() {
    for launcher in [&[][..], &WITHOUT_NAMESPACES] {
        let (site, temporary) = (BrokerNamespace::shared().await, tempfile::tempdir().unwrap());
        std::fs::set_permissions(temporary.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let variables = [("TMPDIR", temporary.path().to_str().unwrap())];
        let mut daemon = start_by(launcher, &site, SCRIPT, &variables).await;
        let client = Client::connect(&site).await;
        client.send(&call(&client, FOREVER, &json!({}))).await;
        let processes = running(&daemon).await;
        daemon.signal("KILL").await;
        daemon.ended().await;
        eventually("the end of its processes", async || (!processes.iter().any(|pid| lives(*pid))).then_some(())).await;
        // The one that held the folders of runs is for the next daemon to remove.
        let folders = || std::fs::read_dir(temporary.path()).unwrap().flatten().map(|entry| entry.path());
        let runs = || folders().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten()).count();
        eventually("the removal of every run", async || (runs() == 0).then_some(())).await;
        site.purge(&site.queue()).await;
        start_by(launcher, &site, SCRIPT, &variables).await.stop(&site).await;
        eventually("the removal of what held them", async || (folders().count() == 0).then_some(())).await;
    }
}
