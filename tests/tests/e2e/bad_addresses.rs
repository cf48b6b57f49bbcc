//! Reply addresses that are refused, forbidden, or that nobody listens to.

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
async fn an_address_that_is_a_request_topic_or_a_queue_of_ours_is_dead_lettered_and_nothing_is_run() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let daemon = Daemon::start(&site, &backend.tool("work", "/work?id={id}", "")).await;
    let client = Client::connect(&site).await;
    let addresses = ["tool.invoke", "tool.invoke.mcp", "mcp.manage", &site.queue(), "rockbot.agent", "toolbus.invoke"];
    for address in addresses {
        let body = json!({"toolCallId": "1", "toolName": "work", "arguments": {"id": "refused"}}).to_string();
        for kind in ["RockBot.Tools.ToolInvokeRequest", "plain"] {
            let request = client.raw(body.as_str()).reply_to(address).with(|it| it.with_type(kind.into()));
            client.send(&request).await;
            let dead = site.take_dead_letter().await;
            assert_eq!(dead.header("rb-dead-reason"), "reply_to_refused", "{address}");
            assert_eq!(dead.header("rb-dead-reply-to"), address);
            assert_eq!((dead.correlation_id(), dead.data.as_slice()), (request.correlation.as_str(), body.as_bytes()));
        }
    }
    assert_eq!(backend.count("refused"), 0);
    let reply = client.call("work", &json!({"id": "other"})).await;
    assert_eq!(reply.content(), "worked for other", "other callers are unharmed");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn an_answer_that_nobody_listens_for_is_dead_lettered_with_one_warning_and_counted() {
    let (site, receiver) = (BrokerNamespace::shared().await, Receiver::start().await.unwrap());
    let endpoint = receiver.grpc_endpoint();
    let daemon =
        Daemon::start(&site, &format!("[tools]\necho = true\n[telemetry]\notlp_endpoint = \"{endpoint}\"\n")).await;
    let client = Client::connect(&site).await;
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
async fn requests_whose_queues_for_answers_are_full_hold_up_no_other_caller() {
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
async fn what_the_broker_refuses_or_does_not_have_is_found_out_before_the_tool_runs() {
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
    // Whether a queue is there is asked once a reply to it had nowhere to go.
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
    // A probe is delivered to nobody.
    assert_eq!(client.caught_up().await.len(), 2);
    let (_, status) = daemon.get("/status").await.unwrap();
    assert_eq!(status["broker"]["reconnects"], 0);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn an_address_that_the_broker_does_not_permit_is_refused_before_the_tool_runs_and_harms_no_other_caller() {
    let (mut site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let (all, user) = (site.url.clone(), site.prefix.clone());
    let node = RabbitNode::shared().await;
    node.ctl(&["add_user", &user, "secret"]).await;
    // It may write to its exchanges and queues, and not to the default exchange: to no queue of anybody else.
    let (exchange, prefix) = (site.exchange.replace('.', "\\."), &site.prefix);
    let own = format!("^({exchange}.*|{prefix}.*)$");
    node.ctl(&["set_permissions", "-p", "/", &user, &own, &own, &own]).await;
    site.url = node.url_of(&user, "secret");
    let daemon = Daemon::start(&site, &backend.tool("hold", "/gate?id={id}", "")).await;
    let client = Client::connect_as(&site, &all).await;
    let full = BrokerNamespace { url: all, ..site.clone() };
    client.bind("tool.result.ana").await;

    let call = |id: &str, address: &str| client.request("hold", &json!({"id": id})).reply_to(address);
    let permitted: Vec<_> = (0..20).map(|n| call(&format!("good-{n}"), "tool.result.ana")).collect();
    let forbidden: Vec<_> = (0..5).map(|n| call(&format!("bad-{n}"), client.queue())).collect();
    for request in permitted.iter().chain(&forbidden) {
        client.send(request).await;
    }
    backend.wait_for("good-19").await;
    backend.open();
    for request in &permitted {
        assert!(client.reply(request).await.content().starts_with("passed good"), "other callers are unharmed");
    }
    for _ in &forbidden {
        let dead = full.take_dead_letter().await;
        assert_eq!(
            (dead.header("rb-dead-reason"), dead.header("rb-dead-reply-to")),
            ("reply_to_refused", client.queue())
        );
        assert_eq!(dead.body()["toolName"], "hold", "the request itself");
    }
    assert_eq!((0..5).map(|n| backend.count(&format!("bad-{n}"))).sum::<usize>(), 0);
    let logged = daemon.logged("dead-lettered a request");
    let detail = logged[0]["detail"].as_str().unwrap();
    assert!(detail.starts_with("the broker does not let the daemon publish there: "), "{logged:?}");
    let (_, status) = daemon.get("/status").await.unwrap();
    assert_eq!(status["broker"]["reconnects"], 0);
    daemon.stop(&full).await;
}
