//! RabbitMQ's `consumer_timeout`: a call that takes longer than the broker waits for its acknowledgement.

use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;
use toolbus_testing::rabbit::RabbitNode;

/// Number of times that the broker closes the channel while the call runs: more often than a request may be delivered.
const CLOSES: usize = 6;

#[tokio::test]
async fn a_call_that_outlasts_the_consumer_timeout_runs_once_and_gets_one_reply() {
    let node = RabbitNode::start().await;
    for (name, milliseconds) in [("consumer_timeout", 1_000), ("channel_tick_interval", 200)] {
        node.ctl(&["eval", &format!("application:set_env(rabbit, {name}, {milliseconds}).")]).await;
    }
    let (site, backend) = (BrokerNamespace::on(&node), Backend::start().await);
    let more = format!("[tools]\necho = true\n{}", backend.tool("hold", "/gate?id={id}", ""));
    let daemon = Daemon::start(&site, &more).await;
    let client = Client::connect(&site).await;
    let call = client.request("hold", &json!({"id": "held"}));
    client.send(&call).await;
    backend.wait_for("held").await;
    let closed = || daemon.logged("not consuming").into_iter();
    eventually("the broker to close the channel again and again", async || (closed().count() >= CLOSES).then_some(()))
        .await;
    assert!(closed().all(|line| line["reason"].as_str().unwrap().contains("timeout")), "{}", daemon.text());
    let other = client.call("echo", &json!({"text": "meanwhile"})).await;
    assert_eq!(other.content(), "meanwhile");
    backend.open();
    let reply = client.reply(&call).await;
    assert_eq!(reply.code(), "", "a result: {reply:?}");
    eventually("an empty queue", async || {
        (site.ready(&site.queue()).await == 0 && site.ready(&site.dead_letters()).await == 0).then_some(())
    })
    .await;
    assert_eq!(client.replies_to(&call.correlation).len(), 1);
    assert_eq!(backend.count("held"), 1, "the tool ran once");
    daemon.stop(&site).await;
}
