//! `toolbus call` at a daemon with servers that others wrote.

use serde_json::{Value, json};
use toolbus_e2e::mcp::{Workplace, ready};
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::{Run, toolbus, toolbus_at};

const LONG: &str = "trigger-long-running-operation";
/// First bytes of every PNG file.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
/// A tool set with a server for each session.
const DESK: &str = "[identity]\ntrust_headers = true\n[agents.ana]\ntoolsets = [\"desk\"]\n\
                    [toolsets.desk]\nkind = \"mcp\"\nserver = \"everything\"\nscope = \"session\"\n";

/// Runs `toolbus call` with the names of this site.
async fn call(site: &BrokerNamespace, arguments: &[&str]) -> Run {
    toolbus_at(site, &[&["call"], arguments].concat()).await
}

/// A server whose tool `get-env` returns this.
fn knowing(work: &Workplace, which: &str) -> Value {
    let mut server = work.server("everything");
    server["env"]["WHICH"] = json!(which);
    server
}

/// Returns the output of the tool `get-env`.
fn which(run: &Run) -> Value {
    assert_eq!(run.code, 0, "{run:?}");
    run.json()["WHICH"].clone()
}

#[tokio::test]
async fn call_reaches_the_tool_of_the_server_that_it_names_and_no_other() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let servers = json!({"first": knowing(&work, "the first"), "second": knowing(&work, "the second")});
    let daemon = work.daemon(&site, &servers, "").await;
    for (server, value) in [("first", "the first"), ("second", "the second")] {
        ready(&daemon, server).await;
        assert_eq!(which(&call(&site, &["get-env", "--server", server]).await), value);
    }
    let unknown = call(&site, &["get-env", "--server", "third"]).await;
    assert_eq!((unknown.code, unknown.out.as_str()), (3, ""), "{unknown:?}");
    assert!(unknown.err.contains("third"), "{unknown:?}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn calls_of_one_session_reach_one_server() {
    let (site, work) = (BrokerNamespace::shared().await, Workplace::new().await);
    let daemon = work.daemon(&site, &json!({"everything": knowing(&work, "{session} of {agent}")}), DESK).await;
    let in_session =
        async |session: &str| which(&call(&site, &["desk.get-env", "--as", "ana", "--session", session]).await);
    for session in ["one", "two", "one"] {
        assert_eq!(in_session(session).await, format!("{session} of ana"));
    }
    let shown = daemon.operate(&["mcp", "show", "everything", "--output", "json"]).await.json();
    assert_eq!(shown["sessions"], 2, "{shown}");
    let without = call(&site, &["desk.get-env", "--as", "ana"]).await;
    assert_eq!(without.code, 3, "{without:?}");
    assert!(without.err.contains("works within a session"), "{without:?}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn call_shows_progress_on_standard_error_on_request() {
    let (site, _work, daemon, _client) = Workplace::serving(&["everything"], "").await;
    let long = [LONG, "duration=0.6", "steps=3"];
    let shown = call(&site, &[&long[..], &["--progress"]].concat()).await;
    assert_eq!(shown.code, 0, "{shown:?}");
    assert_eq!(shown.err, "progress 1 of 3\nprogress 2 of 3\nprogress 3 of 3\n");
    assert_eq!(shown.out, "Long running operation completed. Duration: 0.6 seconds, Steps: 3.");
    let silent = call(&site, &long).await;
    assert_eq!((silent.out, silent.err.as_str()), (shown.out, ""));
    daemon.stop(&site).await;
}

#[tokio::test]
async fn call_saves_images_beside_existing_ones_and_reports_when_it_saves_none() {
    let (site, work, daemon, _client) = Workplace::serving(&["everything"], "").await;
    let folder = work.text("pictures");
    let text = "Here's the image you requested:\nThe image above is the MCP logo.";
    let mut saved = Vec::new();
    for number in 1..=2 {
        let run = call(&site, &["get-tiny-image", "--save", &folder]).await;
        assert_eq!((run.code, run.out.as_str()), (0, text), "{run:?}");
        let path = work.path(&format!("pictures/get-tiny-image-{number}.png"));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(run.err, format!("saved {} (image/png, {} bytes)\n", path.display(), bytes.len()));
        assert!(bytes.starts_with(PNG) && bytes.len() > 3_000, "{} bytes", bytes.len());
        saved.push(bytes);
    }
    assert_eq!(saved[0], saved[1]);
    let unsaved = call(&site, &["get-tiny-image"]).await;
    assert_eq!((unsaved.code, unsaved.out.as_str()), (0, text), "{unsaved:?}");
    assert_eq!(unsaved.err, "not shown: 1 files (image/png); --save DIR keeps them\n");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn call_names_the_server_that_was_left_out_when_its_tool_is_missing() {
    let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    let far = json!({"type": "http", "url": "http://127.0.0.1:9", "headers": {"Authorization": "${TOOLBUS_NO_SUCH}"}});
    std::fs::write(file.path(), json!({"mcpServers": {"far": far}}).to_string()).unwrap();
    let file = format!("mcp.servers_file={}", file.path().display());
    let run = toolbus(&["call", "--set", &file, "far_tool"]).await;
    assert_eq!((run.code, run.out.as_str()), (3, ""), "{run:?}");
    assert!(run.err.contains("`far` is left out") && run.err.contains("TOOLBUS_NO_SUCH"), "{run:?}");
}
