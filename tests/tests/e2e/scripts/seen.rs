//! View that an operator and a collector have of scripts.

use serde_json::json;
use toolbus_e2e::client::Client;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::otlp::Receiver;

use super::setup::{SCRIPT, call, running, start, status};
use toolbus_e2e::metrics::{count, sum};

#[tokio::test]
async fn status_and_metrics_show_scripts() {
    let (site, receiver) = (BrokerNamespace::shared().await, Receiver::start().await.unwrap());
    let more = format!("{SCRIPT}[telemetry]\notlp_endpoint = \"{}\"\n", receiver.grpc_endpoint());
    let daemon = start(&site, &more).await;
    let client = Client::connect(&site).await;
    let long = call(&client, "import time\ntime.sleep(4)", &json!({}));
    client.send(&long).await;
    running(&daemon).await;
    let shown = status(&daemon).await;
    assert_eq!(
        (&shown["runner"], &shown["running"], &shown["waiting"]),
        (&json!("sandbox"), &json!(1), &json!(0)),
        "{shown}"
    );
    assert!(["full", "no-namespaces"].contains(&shown["level"].as_str().unwrap()), "{shown}");
    assert!(shown["python"].as_str().unwrap().starts_with("3."), "{shown}");
    client.reply(&long).await;
    for (script, more) in [
        ("pass", json!({})),
        ("import sys\nsys.exit(2)", json!({})),
        ("import time\ntime.sleep(60)", json!({"timeout_seconds": 1})),
    ] {
        client.exchange(&call(&client, script, &more)).await;
    }
    assert_eq!(status(&daemon).await["running"], 0);
    // The end exports what there is.
    daemon.stop(&site).await;

    let runs = ["ok", "failed", "time", "signal"]
        .map(|outcome| sum(&receiver, "toolbus.script.runs", &[("outcome", outcome)]));
    assert_eq!(runs, [2, 1, 1, 0]);
    assert_eq!(sum(&receiver, "toolbus.script.runs", &[("start", "cold")]), 4);
    for name in ["duration", "queue.duration", "cpu.time", "memory.peak"] {
        assert_eq!(count(&receiver, &format!("toolbus.script.{name}"), &[]), 4, "{name}");
    }
    for name in ["running", "waiting", "warm"] {
        assert_eq!(sum(&receiver, &format!("toolbus.script.{name}"), &[]), 0, "{name}");
    }
}
