//! Every kind of loss ends in working again.

use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, OnceCell};
use toolbus_broker::rabbitmq::{RabbitMq, RabbitMqSettings};
use toolbus_bus::{Bus, BusState, Outgoing, Ownership, Routing, Subscription, Target};
use toolbus_testing::patience::{PATIENCE, eventually};
use toolbus_testing::proxy::Proxy;
use toolbus_testing::rabbit::RabbitNode;

use crate::fixture::{
    consume, deliver, failed, logged, message, node, prepare, rabbitmq, ready, receive, settings, subscription, take,
    text, to_topic, unique, until,
};

/// A node that is broken on purpose, by one test at a time.
async fn fragile() -> MutexGuard<'static, RabbitNode> {
    static NODE: OnceCell<Mutex<RabbitNode>> = OnceCell::const_new();
    NODE.get_or_init(async || Mutex::new(RabbitNode::start().await)).await.lock().await
}

async fn start(url: String) -> RabbitMq {
    RabbitMq::start(settings(&url)).unwrap()
}

/// A line to the shared node that can be broken, and its URL.
async fn line() -> (Proxy, String) {
    let node = node().await;
    let proxy = Proxy::start(node.address()).await.unwrap();
    let url = node.url().replace(&node.address().to_string(), &proxy.address().to_string());
    (proxy, url)
}

/// A bus whose line to the shared node can be broken.
async fn behind_a_proxy() -> (Proxy, RabbitMq) {
    let (proxy, url) = line().await;
    (proxy, start(url + "?heartbeat=1").await)
}

/// A line that can be broken, and settings of which the first node is behind it and the second is the shared one.
async fn beside_a_proxy() -> (Proxy, RabbitMqSettings) {
    let (proxy, url) = line().await;
    let mut settings = settings(&node().await.url());
    settings.urls.insert(0, url);
    (proxy, settings)
}

async fn still_works(bus: &dyn Bus, deliveries: &mut tokio::sync::mpsc::Receiver<toolbus_bus::Delivery>) {
    ready(bus).await;
    let body = unique("message");
    deliver(bus, &to_topic("t", &body)).await;
    // An earlier message, published in doubt, may come first.
    while take(deliveries).await != body {}
}

/// Publishes until a queue takes it.
async fn deliver_when_bound(bus: &dyn Bus, message: &Outgoing) {
    eventually("a queue to take it", async || (bus.publish(message).await == Ok(Routing::Routed)).then_some(())).await;
}

#[tokio::test]
async fn a_killed_broker_redelivers_unacknowledged_messages_after_restart() {
    let node = fragile().await;
    let bus = start(node.url()).await;
    let mut deliveries = consume(&bus, &unique("killed"), &["t"]).await;
    node.flush().await;
    deliver(&bus, &to_topic("t", "in hand")).await;
    let in_hand = receive(&mut deliveries).await;
    node.kill();
    let lost = until(&bus, "the loss", |state| !state.connected && state.consumers.iter().all(|it| !it.1)).await;
    assert!(lost.last_error.is_some() && !lost.is_ready());
    // No process receives it any more, and it must not harm.
    in_hand.settle.acknowledge().await;
    let late = to_topic("t", "late");
    let publishing = deliver(&bus, &late);
    let (_, ()) = tokio::join!(publishing, node.restart());
    let again = receive(&mut deliveries).await;
    assert_eq!((text(&again).as_str(), again.redelivered), ("in hand", true));
    again.settle.acknowledge().await;
    assert_eq!(take(&mut deliveries).await, "late");
    still_works(&bus, &mut deliveries).await;
    assert!(bus.state().borrow().reconnects >= 2);
    bus.close().await;
}

#[tokio::test]
async fn while_the_broker_is_blocked_publishing_waits_and_acknowledging_goes_on() {
    let node = fragile().await;
    let bus = start(node.url()).await;
    let queue = unique("blocked");
    let mut deliveries = bus.consume(Subscription { prefetch: 1, ..subscription(&queue, &["t"]) });
    ready(&bus).await;
    for body in ["1", "2"] {
        deliver(&bus, &to_topic("t", body)).await;
    }
    node.ctl(&["set_vm_memory_high_watermark", "0"]).await;
    let waiting = to_topic("t", "waiting");
    let publishing = bus.publish(&waiting);
    tokio::pin!(publishing);
    tokio::select! {
        outcome = &mut publishing => panic!("published while blocked: {outcome:?}"),
        state = until(&bus, "the block", |state| state.blocked.is_some()) => assert!(!state.is_ready()),
    }
    // Acknowledging the first is what lets the second arrive.
    assert_eq!(take(&mut deliveries).await, "1");
    assert_eq!(take(&mut deliveries).await, "2");
    let second = to_topic("t", "second");
    assert!(tokio::time::timeout(Duration::from_millis(200), bus.publish(&second)).await.is_err());

    node.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    tokio::time::timeout(PATIENCE, publishing).await.expect("not published").unwrap();
    assert_eq!(take(&mut deliveries).await, "waiting");
    still_works(&bus, &mut deliveries).await;
    bus.close().await;
}

#[tokio::test]
async fn an_alarm_of_the_broker_is_noticed_without_a_message_of_ours() {
    let node = fragile().await;
    let bus = start(node.url()).await;
    let _deliveries = consume(&bus, &unique("alarm"), &["t"]).await;
    node.ctl(&["set_vm_memory_high_watermark", "0"]).await;
    until(&bus, "the alarm", |state| state.blocked.is_some() && !state.is_ready()).await;
    node.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    ready(&bus).await;
    bus.close().await;
}

#[tokio::test]
async fn a_broker_that_confirms_nothing_more_is_not_ready_until_it_does() {
    let (proxy, url) = line().await;
    // Long enough that missing confirms are noticed before missing heartbeats.
    let bus = start(url + "?heartbeat=600").await;
    let mut deliveries = consume(&bus, &unique("unconfirmed"), &["t"]).await;
    proxy.freeze();
    let state = until(&bus, "missing confirms", |state| state.blocked.is_some()).await;
    assert!(state.blocked.as_ref().unwrap().contains("not confirmed") && !state.is_ready(), "{state:?}");
    proxy.restore();
    still_works(&bus, &mut deliveries).await;
    assert_eq!(bus.state().borrow().reconnects, 0);
    bus.close().await;
}

#[tokio::test]
async fn an_exchange_that_was_deleted_is_declared_again_and_leads_to_its_queues() {
    let settings = settings(&node().await.url());
    let exchanges = [settings.exchange.clone(), settings.dead_letter_exchange.clone()];
    let bus = RabbitMq::start(settings).unwrap();
    let queue = unique("renewed");
    let mut deliveries = consume(&bus, &queue, &["t"]).await;
    for exchange in exchanges {
        let delete = format!(
            "rabbit_exchange:delete(rabbit_misc:r(<<\"/\">>, exchange, <<\"{exchange}\">>), false, <<\"test\">>)."
        );
        node().await.ctl(&["eval", &delete]).await;
    }
    for target in [Target::Topic("t".to_owned()), Target::DeadLetter(queue.clone())] {
        deliver_when_bound(&bus, &message(target, "hello")).await;
    }
    assert_eq!(take(&mut deliveries).await, "hello");
    still_works(&bus, &mut deliveries).await;
    bus.close().await;
}

#[tokio::test]
async fn an_unresponsive_queue_is_named_and_retried_while_others_are_served() {
    let node = fragile().await;
    let settings = settings(&node.url());
    let (silent, other) = (unique("silent"), unique("other"));
    prepare(&settings, &silent, &["silent"]).await;
    node.ctl(&["eval", &format!("sys:suspend('%2F_{silent}').")]).await;

    let bus = RabbitMq::start(settings).unwrap();
    let mut silent_deliveries = bus.consume(subscription(&silent, &["silent"]));
    let mut deliveries = bus.consume(subscription(&other, &["t"]));
    deliver_when_bound(&bus, &to_topic("t", "served")).await;
    assert_eq!(take(&mut deliveries).await, "served");
    let (text, state) = failed(&bus).await;
    for part in [silent.as_str(), "did not answer", "tried again", "rabbitmqctl"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!state.is_ready() && state.fatal.is_none());

    node.ctl(&["eval", &format!("sys:resume('%2F_{silent}').")]).await;
    ready(&bus).await;
    deliver(&bus, &to_topic("silent", "at last")).await;
    assert_eq!(take(&mut silent_deliveries).await, "at last");
    bus.close().await;
}

#[tokio::test]
async fn connections_that_carried_messages_and_live_short_are_opened_again_at_once() {
    /// Losses after which each wait of a back-off that grows each time is 500 ms or more.
    const LOSSES: u32 = 6;
    let (log, _logging) = logged();
    let (proxy, bus) = behind_a_proxy().await;
    let mut deliveries = consume(&bus, &unique("short"), &["t"]).await;
    let mut before = 0;
    for _ in 0..LOSSES {
        still_works(&bus, &mut deliveries).await;
        before = log.text().len();
        proxy.cut();
        until(&bus, "the loss", |state| !state.connected).await;
        proxy.restore();
    }
    still_works(&bus, &mut deliveries).await;
    let log = log.text();
    let waits = log[before..].split("next_attempt_ms=").skip(1);
    let shortest = waits.map(|rest| rest.split_whitespace().next().unwrap().parse::<u32>().unwrap()).min();
    assert!(shortest.unwrap() <= 200, "{}", &log[before..]);
    bus.close().await;
}

#[tokio::test]
async fn connections_closed_by_the_operator_are_opened_again() {
    let node = fragile().await;
    let bus = start(node.url()).await;
    let mut deliveries = consume(&bus, &unique("closed"), &["t"]).await;
    node.ctl(&["close_all_connections", "maintenance"]).await;
    let state = until(&bus, "two losses", |state| state.reconnects == 2).await;
    assert!(state.connected || state.last_error.unwrap().contains("maintenance"));
    still_works(&bus, &mut deliveries).await;
    bus.close().await;
}

#[tokio::test]
async fn a_channel_closed_by_the_broker_is_opened_again() {
    let node = fragile().await;
    let limits = |timeout: &str, tick: &str| {
        format!(
            "application:set_env(rabbit, consumer_timeout, {timeout}), application:set_env(rabbit, channel_tick_interval, {tick})."
        )
    };
    // The broker closes the channel of a consumer that does not acknowledge in time.
    node.ctl(&["eval", &limits("2000", "200")]).await;
    let bus = start(node.url()).await;
    let mut deliveries = consume(&bus, &unique("late"), &["t"]).await;
    deliver(&bus, &to_topic("t", "late")).await;
    let late = receive(&mut deliveries).await;
    let again = receive(&mut deliveries).await;
    assert_eq!((text(&again).as_str(), again.redelivered), ("late", true));
    again.settle.acknowledge().await;
    late.settle.acknowledge().await;
    node.ctl(&["eval", &limits("1800000", "60000")]).await;
    still_works(&bus, &mut deliveries).await;
    assert_eq!(bus.state().borrow().reconnects, 0);
    bus.close().await;
}

#[tokio::test]
async fn a_queue_deleted_while_consumed_is_declared_again() {
    let bus = rabbitmq().await;
    let queue = unique("deleted");
    let mut deliveries = consume(&bus, &queue, &["t"]).await;
    node().await.ctl(&["delete_queue", &queue]).await;
    deliver_when_bound(&bus, &to_topic("t", "hello")).await;
    assert_eq!(take(&mut deliveries).await, "hello");
    still_works(&bus, &mut deliveries).await;
    bus.close().await;
}

#[tokio::test]
async fn a_broker_that_is_away_at_start_is_waited_for() {
    let (proxy, url) = line().await;
    proxy.cut();
    let bus = start(url).await;
    let mut deliveries = bus.consume(subscription(&unique("early"), &["t"]));
    failed(&bus).await;
    assert!(!bus.state().borrow().is_ready());
    proxy.restore();
    still_works(&bus, &mut deliveries).await;
    bus.close().await;
}

#[tokio::test]
async fn a_line_that_is_cut_and_restored_is_used_again() {
    let (proxy, bus) = behind_a_proxy().await;
    let mut deliveries = consume(&bus, &unique("cut"), &["t"]).await;
    proxy.cut();
    until(&bus, "the loss", |state| !state.connected).await;
    proxy.restore();
    still_works(&bus, &mut deliveries).await;
    bus.close().await;
}

#[tokio::test]
async fn a_silent_connection_is_noticed_and_replaced() {
    let (proxy, bus) = behind_a_proxy().await;
    let queue = unique("frozen");
    let replica = Subscription { ownership: Ownership::Replica, ..subscription(&queue, &["t"]) };
    let mut deliveries = bus.consume(replica);
    ready(&bus).await;
    proxy.freeze();
    until(&bus, "the loss", |state| state.reconnects == 2).await;
    proxy.restore();
    // The broker frees the exclusive queue of the old connection when it notices too.
    still_works(&bus, &mut deliveries).await;
    bus.close().await;
}

#[tokio::test]
async fn another_node_of_the_cluster_is_tried() {
    let (proxy, own) = beside_a_proxy().await;
    proxy.cut();
    let bus = RabbitMq::start(own).unwrap();
    let mut deliveries = consume(&bus, &unique("cluster"), &["t"]).await;
    still_works(&bus, &mut deliveries).await;
    bus.close().await;
}

#[tokio::test]
async fn after_a_connection_that_carried_nothing_the_next_node_is_tried_first() {
    let (proxy, own) = beside_a_proxy().await;
    let bus = RabbitMq::start(own).unwrap();
    let mut deliveries = consume(&bus, &unique("next"), &["t"]).await;
    let before = proxy.accepted();
    proxy.cut();
    until(&bus, "the loss", |state| state.reconnects == 2).await;
    still_works(&bus, &mut deliveries).await;
    assert_eq!(proxy.accepted(), before, "the one that is cut is not tried");
    bus.close().await;
}

#[tokio::test]
async fn closing_while_the_broker_is_away_ends_at_once() {
    let (proxy, url) = line().await;
    proxy.cut();
    let bus = start(url).await;
    let mut deliveries = bus.consume(subscription(&unique("never"), &["t"]));
    let message = to_topic("t", "never");
    let (published, ()) = tokio::join!(bus.publish(&message), bus.close());
    assert_eq!(published, Err(toolbus_bus::PublishError::Closed));
    assert!(deliveries.recv().await.is_none());
    assert_eq!(bus.state().borrow().consumers.iter().filter(|it| it.1).count(), 0, "{:?}", BusState::default());
}

#[tokio::test]
async fn heartbeats_are_sent_while_the_threads_of_calls_are_busy() {
    /// More than two heartbeats, after which the broker closes a connection.
    const BUSY: Duration = Duration::from_secs(5);
    let bus = start(node().await.url() + "?heartbeat=1").await;
    let mut deliveries = consume(&bus, &unique("busy"), &["t"]).await;
    // The one thread that this runtime has.
    let (_held, never) = std::sync::mpsc::channel::<()>();
    assert!(never.recv_timeout(BUSY).is_err());
    still_works(&bus, &mut deliveries).await;
    assert_eq!(bus.state().borrow().reconnects, 0);
    bus.close().await;
}
