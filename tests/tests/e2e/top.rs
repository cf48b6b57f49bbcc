//! The live view of calls, as a table and in a terminal.

use std::path::Path;

use serde_json::{Value, json};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::{binary, python};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/in_terminal.py");

#[tokio::test]
async fn without_a_terminal_one_table_of_the_last_calls_is_printed() {
    let (site, daemon, client) = Daemon::with_client("[tools]\necho = true\n").await;
    let calls = async {
        loop {
            assert_eq!(client.call("echo", &json!({"text": "a"})).await.content(), "a");
            assert_eq!(client.call("absent", &json!({})).await.code(), "tool_not_found");
        }
    };
    let shown: Value = tokio::select! {
        top = daemon.operate(&["top", "--interval", "1s", "--output", "json"]) => top.json(),
        () = calls => panic!("calls go on"),
    };
    let row = |name: &str| {
        let rows = shown["rows"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).cloned().unwrap_or_else(|| panic!("no {name}: {shown}"))
    };
    assert_eq!((&shown["ready"], &shown["by"]), (&json!(true), &json!("tool")));
    for (name, errors) in [("echo", 0.0), ("_unknown", 100.0)] {
        let row = row(name);
        assert!(row["callsPerSecond"].as_f64().unwrap() > 0.0 && row["p50Ms"].as_f64().unwrap() > 0.0, "{shown}");
        assert_eq!(row["errorsPercent"], json!(errors), "{shown}");
    }

    let text = daemon.operate(&["top", "--once", "--interval", "1s", "--by", "source"]).await;
    assert_eq!(text.code, 0, "{text:?}");
    assert!(text.out.contains("ready\n") && text.out.contains("\nNAME") && text.out.contains("\necho"), "{}", text.out);
    let short = daemon.operate(&["top", "--interval", "10ms"]).await;
    assert_eq!((short.code, short.err.as_str()), (2, "error: --interval is from 1s to 60s\n"));
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_daemon_without_metrics_shows_how_to_turn_them_on() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, "[http]\nmetrics = false\n").await;
    let top = daemon.operate(&["top", "--once"]).await;
    assert_eq!(top.code, 1, "{top:?}");
    assert!(top.err.contains("http.metrics"), "{}", top.err);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn the_terminal_is_restored_after_the_view() {
    let (site, daemon, client) = Daemon::with_client("[tools]\necho = true\n").await;
    client.call("echo", &json!({"text": "a"})).await;
    let (program, socket) =
        (binary().display().to_string(), daemon.folder().join("toolbus.sock").display().to_string());
    for steps in [&["CALLS/S", "?", "reverse", " ", "echo", "q"][..], &["echo", "SIGTERM"], &["echo", "\u{3}"]] {
        let words = [steps, &["--", &program, "top", "--socket", &socket]].concat();
        let ran = python(Path::new(SCRIPT), &words, &[("TERM", "xterm"), ("NO_COLOR", "1")]).await;
        let ran = ran.json();
        assert_eq!((&ran["code"], &ran["restored"]), (&json!(0), &json!(true)), "{steps:?}: {ran}");
        let out = ran["out"].as_str().unwrap();
        assert!(out.contains("\u{1b}[?1049h") && out.contains("\u{1b}[?1049l") && out.contains("\u{1b}[?25h"), "{out}");
    }
    daemon.stop(&site).await;
}
