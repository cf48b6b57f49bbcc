//! Requests on `script.invoke`, where headers are believed.

use std::time::Duration;

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;
use toolbus_testing::proxy::Proxy;

use super::setup::{SCRIPT, script_request, start, with_client};

const AGENTS: &str = "[identity]\ntrust_headers = true\n[agents.ana]\nallowed_tools = [\"execute_python_script\"]\n\
                      [agents.bruno]\nallowed_tools = [\"current_time\"]\n";

#[tokio::test]
async fn the_reply_goes_to_reply_to_or_to_the_usual_topic_stream_by_stream() {
    let (site, daemon, client) = with_client(&format!("{SCRIPT}{AGENTS}")).await;
    client.bind("script.result").await;
    let run = async |agent: &str, script: &str, more: &Value| {
        let reply = client.exchange(&script_request(&client, script, more).by(agent)).await;
        assert_eq!(reply.kind(), "RockBot.Scripts.ScriptInvokeResponse");
        let mut body = reply.body();
        let elapsed = body["elapsedMs"].take().as_u64().unwrap();
        body.as_object_mut().unwrap().remove("toolCallId");
        body.as_object_mut().unwrap().remove("elapsedMs");
        (body, elapsed)
    };

    let script = "import os, sys\nprint(os.environ['ROCKBOT_INPUT'])\nprint('beside', file=sys.stderr)\nsys.exit(4)";
    let (body, elapsed) = run("ana", script, &json!({"inputData": "in"})).await;
    assert_eq!(body, json!({"output": "in\n", "stderr": "beside\n", "exitCode": 4, "isSuccess": false}));
    assert!(elapsed > 0);

    let (body, elapsed) = run("ana", "import time\ntime.sleep(60)", &json!({"timeoutSeconds": 1})).await;
    assert_eq!((&body["exitCode"], &body["output"]), (&json!(-1), &Value::Null), "{body}");
    assert!(body["stderr"].as_str().unwrap().contains("timed out"), "{body}");
    assert!((1_000..10_000).contains(&elapsed), "{elapsed}");

    let (body, elapsed) = run("bruno", "print(1)", &json!({})).await;
    let text = "Tool 'execute_python_script' is not registered.";
    assert_eq!(body, json!({"output": null, "stderr": text, "exitCode": -1, "isSuccess": false}));
    assert_eq!(elapsed, 0);

    let mut without = script_request(&client, "print('on the topic')", &json!({})).by("ana");
    without.properties = lapin::BasicProperties::default()
        .with_type("RockBot.Scripts.ScriptInvokeRequest".into())
        .with_message_id(without.correlation.as_str().into())
        .with_correlation_id(without.correlation.as_str().into());
    let reply = client.exchange(&without).await;
    assert_eq!((&*reply.exchange, &*reply.routing_key), (&*site.exchange, "script.result"));
    assert_eq!(reply.body()["output"], "on the topic\n");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_redelivered_request_is_not_run_again_while_it_runs_nor_after_its_reply() {
    let site = BrokerNamespace::shared().await;
    let client = Client::connect(&site).await;
    let folder = tempfile::tempdir().unwrap();
    let (ran, go) = (folder.path().join("ran"), folder.path().join("go"));
    // The connection of the daemon alone is lost.
    let (before, address) = site.url.split_once('@').unwrap();
    let (address, vhost) =
        address.split_once('/').map_or((address, String::new()), |(at, vhost)| (at, format!("/{vhost}")));
    let target = tokio::net::lookup_host(address).await.unwrap().next().unwrap();
    let proxy = Proxy::start(target).await.unwrap();
    let behind = BrokerNamespace { url: format!("{before}@{}{vhost}", proxy.address()), ..site.clone() };
    let more = "[script]\nrunner = \"local\"\nlocal = { i_understand = true }\n";
    let daemon = start(&behind, more).await;

    let script = format!(
        "import os, time\nopen({ran:?}, 'a').write('x')\nwhile not os.path.exists({go:?}): time.sleep(0.01)\nprint('once', time.time_ns())"
    );
    let request = script_request(&client, &script, &json!({}));
    client.send(&request).await;
    let count = || std::fs::read_to_string(&ran).unwrap_or_default().len();
    eventually("the script", async || (count() == 1).then_some(())).await;
    proxy.cut();
    daemon.blocked_by("disconnected").await;
    proxy.restore();
    daemon.wait_until_ready().await;
    let queue = format!("{}.script", site.prefix);
    site.wait_for_ready(&queue, 0).await;
    std::fs::write(&go, "").unwrap();
    let reply = client.reply(&request).await;
    assert!(reply.body()["output"].as_str().unwrap().starts_with("once "), "{}", reply.body());

    assert_eq!(count(), 1);
    assert_eq!(client.replies_to(&request.correlation).len(), 1);
    // Nothing comes late.
    tokio::time::timeout(Duration::from_secs(60), client.caught_up()).await.unwrap();
    assert_eq!((count(), client.replies_to(&request.correlation).len()), (1, 1));
    daemon.stop(&site).await;
    assert!(site.take(&queue).await.is_none());
}
