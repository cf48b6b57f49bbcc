//! Reply addresses that are refused, forbidden, or without a consumer.

use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::otlp::Receiver;
use toolbus_testing::patience::eventually;
use toolbus_testing::rabbit::RabbitNode;

use toolbus_e2e::metrics::sum;

#[tokio::test]
async fn an_unroutable_reply_is_dead_lettered_with_one_warning_and_counted() {
    let receiver = Receiver::start().await.unwrap();
    let endpoint = receiver.grpc_endpoint();
    let (site, daemon, client) =
        Daemon::with_client(&format!("[tools]\necho = true\n[telemetry]\notlp_endpoint = \"{endpoint}\"\n")).await;
    let request = client.request("echo", &json!({"text": "lost"})).reply_to("tool.result.nobody");
    client.send(&request).await;
    let dead = site.take_dead_letter().await;
    assert_eq!(dead.kind(), "RockBot.Tools.ToolInvokeResponse");
    assert_eq!((dead.content().as_str(), dead.correlation_id()), ("lost", request.correlation.as_str()));
    assert_eq!(dead.header("rb-dead-reason"), "undeliverable_answer");
    assert_eq!(dead.header("rb-dead-reply-to"), "tool.result.nobody");
    daemon.logged_times("dead-lettered a reply that cannot be delivered", 1).await;
    daemon.stop(&site).await;
    let labels = [("reason", "undeliverable_answer"), ("queue", &site.queue())];
    assert_eq!(sum(&receiver, "toolbus.dead_letters", &labels), 1);
}

#[tokio::test]
async fn requests_whose_reply_queues_are_full_delay_no_other_caller() {
    let site = BrokerNamespace::shared().await;
    // As many calls in hand as there are requests: were each kept, no other would be taken.
    let daemon = Daemon::start(&site, "[tools]\necho = true\n[invoke]\nmax_in_flight = 32\nmax_waiting = 32\n").await;
    let (hoarder, client) = (Client::connect(&site).await, Client::connect(&site).await);
    let full = hoarder.full_queue().await;
    for number in 0..64 {
        let request = hoarder.request("echo", &json!({"text": number.to_string()})).reply_to(&full);
        hoarder.send(&request).await;
    }
    assert_eq!(client.call("echo", &json!({"text": "other"})).await.content(), "other");
    site.wait_for_ready(&format!("{}.dlq", site.queue()), 64).await;
    for _ in 0..64 {
        let dead = site.take_dead_letter().await;
        assert_eq!(
            (dead.header("rb-dead-reason"), dead.header("rb-dead-reply-to")),
            ("undeliverable_answer", full.as_str())
        );
    }

    hoarder.send(&hoarder.raw("{}").on("tool.ping").reply_to(&full)).await;
    let dropped = eventually("a pong to be dropped", async || daemon.logged("a reply was not delivered").pop()).await;
    assert_eq!(dropped["reason"], "a queue for it is full or down", "and not only once its time is over");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_forbidden_reply_address_is_refused_before_the_tool_runs_and_a_missing_queue_after_one_lost_reply() {
    let (mut site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let (all, user) = (site.url.clone(), site.prefix.clone());
    let node = RabbitNode::shared().await;
    node.ctl(&["add_user", &user, "secret"]).await;
    node.ctl(&["set_permissions", "-p", "/", &user, ".*", ".*", ".*"]).await;
    node.ctl(&["set_topic_permissions", "-p", "/", &user, &site.exchange, r"^tool\.result\.ana$", ".*"]).await;
    site.url = node.url_of(&user, "secret");
    let daemon = Daemon::start(&site, &backend.tool("work", "/work?id={id}", "")).await;
    let client = Client::connect_as(&site, &all).await;
    for topic in ["tool.result.ana", "tool.result.bruno"] {
        client.bind(topic).await;
    }
    let call = |id: &str, address: &str| client.request("work", &json!({"id": id})).reply_to(address);
    for _ in 0..2 {
        client.send(&call("forbidden", "tool.result.bruno").of_type("RockBot.Tools.ToolInvokeRequest")).await;
        let dead = site.take_dead_letter().await;
        assert_eq!(dead.header("rb-dead-reason"), "reply_to_refused");
        assert_eq!(dead.header("rb-dead-reply-to"), "tool.result.bruno");
    }
    assert_eq!(backend.count("forbidden"), 0);
    // The daemon looks up a queue only after a reply to it was unroutable.
    for reason in ["undeliverable_answer", "reply_to_refused", "reply_to_refused"] {
        client.send(&call("lost", "answers.that-are-gone")).await;
        assert_eq!(site.take_dead_letter().await.header("rb-dead-reason"), reason);
    }
    assert_eq!(backend.count("lost"), 1);

    let by_topic = call("topic", "tool.result.ana");
    assert_eq!(client.exchange(&by_topic).await.content(), "worked for topic");
    assert_eq!(client.call("work", &json!({"id": "queue"})).await.content(), "worked for queue");
    let direct = Client::listening_on(&site, &all, "amq.rabbitmq.reply-to").await;
    assert_eq!(direct.call("work", &json!({"id": "direct"})).await.content(), "worked for direct");
    // A probe is not delivered.
    assert_eq!(client.caught_up().await.len(), 2);
    let (_, status) = daemon.get("/status").await.unwrap();
    assert_eq!(status["broker"]["reconnects"], 0);
    daemon.stop(&site).await;
}
