//! Behaviour of every bus. Each behaviour is tested by name for each bus, in `embedded.rs` and `rabbitmq.rs`.

use std::sync::Arc;
use std::time::Duration;

use toolbus_bus::{Bus, Ownership, PublishError, Routing, Subscription, Target};
use toolbus_protocol::Properties;

use crate::fixture::{
    consume, consume_existing, message, quiet, ready, receive, subscription, take, text, to_queue, to_topic, unique,
    until,
};

/// One test for each behaviour, by its name, of a new bus that the expression makes.
macro_rules! tests_of {
    ($bus:expr) => {
        crate::contract::tests_of! {
            $bus =>
            topics_with_wildcards_reach_the_queues_bound_to_them
            a_queue_bound_twice_gets_a_message_once
            competing_consumers_share_a_queue
            an_acknowledged_message_is_not_redelivered
            a_requeued_message_is_redelivered_marked
            an_unsettled_delivery_that_is_dropped_is_redelivered
            a_dead_letter_lands_beside_its_own_queue_only
            a_mandatory_message_that_no_queue_takes_is_unroutable
            the_default_exchange_reaches_a_queue_by_its_name
            no_more_than_the_prefetch_is_unsettled
            deliveries_can_be_settled_after_consuming_is_stopped
            an_inbox_receives_until_the_bus_is_closed
            properties_and_headers_arrive_as_they_were_sent
            a_missing_foreign_queue_is_waited_for
            a_closed_bus_publishes_nothing_and_delivers_nothing
        }
    };
    ($bus:expr => $($behaviour:ident)+) => {
        $(
            #[tokio::test]
            async fn $behaviour() {
                crate::contract::$behaviour(&$bus).await;
            }
        )+
    };
}

pub(crate) use tests_of;

pub(crate) async fn topics_with_wildcards_reach_the_queues_bound_to_them(bus: &dyn Bus) {
    let mut star = consume(bus, &unique("star"), &["a.*.c"]).await;
    let mut hash = consume(bus, &unique("hash"), &["a.#"]).await;
    for topic in ["a.b.c", "a", "a.b.b.c"] {
        assert_eq!(bus.publish(&to_topic(topic, topic)).await, Ok(Routing::Routed));
    }
    assert_eq!(take(&mut star).await, "a.b.c");
    quiet(&mut star).await;
    for topic in ["a.b.c", "a", "a.b.b.c"] {
        let delivery = receive(&mut hash).await;
        assert_eq!((text(&delivery).as_str(), &*delivery.routing_key), (topic, topic));
        delivery.settle.acknowledge().await;
    }
}

pub(crate) async fn a_queue_bound_twice_gets_a_message_once(bus: &dyn Bus) {
    let mut deliveries = consume(bus, &unique("twice"), &["a.*", "*.b"]).await;
    bus.publish(&to_topic("a.b", "once")).await.unwrap();
    assert_eq!(take(&mut deliveries).await, "once");
    quiet(&mut deliveries).await;
}

pub(crate) async fn competing_consumers_share_a_queue(bus: &dyn Bus) {
    let queue = unique("shared");
    let one_at_a_time = || Subscription { prefetch: 1, ..subscription(&queue, &["t"]) };
    let (mut first, mut second) = (bus.consume(one_at_a_time()), bus.consume(one_at_a_time()));
    ready(bus).await;
    for body in ["1", "2"] {
        bus.publish(&to_topic("t", body)).await.unwrap();
    }
    let (one, other) = (receive(&mut first).await, receive(&mut second).await);
    let mut bodies = [text(&one), text(&other)];
    bodies.sort();
    assert_eq!(bodies, ["1", "2"]);
    one.settle.acknowledge().await;
    other.settle.acknowledge().await;
}

pub(crate) async fn an_acknowledged_message_is_not_redelivered(bus: &dyn Bus) {
    let queue = unique("acknowledged");
    let mut deliveries = consume(bus, &queue, &["t"]).await;
    bus.publish(&to_topic("t", "done")).await.unwrap();
    assert_eq!(take(&mut deliveries).await, "done");
    drop(deliveries);
    let mut again = consume(bus, &queue, &["t"]).await;
    quiet(&mut again).await;
}

pub(crate) async fn a_requeued_message_is_redelivered_marked(bus: &dyn Bus) {
    let mut deliveries = consume(bus, &unique("requeued"), &["t"]).await;
    bus.publish(&to_topic("t", "again")).await.unwrap();
    let first = receive(&mut deliveries).await;
    assert_eq!((first.redelivered, first.earlier_deliveries), (false, 0));
    first.settle.requeue().await;
    let second = receive(&mut deliveries).await;
    assert_eq!((text(&second).as_str(), second.redelivered), ("again", true));
    second.settle.acknowledge().await;
}

pub(crate) async fn an_unsettled_delivery_that_is_dropped_is_redelivered(bus: &dyn Bus) {
    let mut deliveries = consume(bus, &unique("dropped"), &["t"]).await;
    bus.publish(&to_topic("t", "again")).await.unwrap();
    drop(receive(&mut deliveries).await);
    let second = receive(&mut deliveries).await;
    assert_eq!((text(&second).as_str(), second.redelivered), ("again", true));
    second.settle.acknowledge().await;
}

pub(crate) async fn a_dead_letter_lands_beside_its_own_queue_only(bus: &dyn Bus) {
    let (queue, other) = (unique("poisoned"), unique("other"));
    let _deliveries = consume(bus, &queue, &["t"]).await;
    let _others = consume(bus, &other, &["t"]).await;
    let mut letters = consume_existing(bus, &format!("{queue}.dlq")).await;
    let mut other_letters = consume_existing(bus, &format!("{other}.dlq")).await;
    let mut letter = message(Target::DeadLetter(queue.clone()), "poison");
    Arc::make_mut(&mut letter.properties).headers = vec![("rb-dead-reason".into(), "unreadable".into())];
    assert_eq!(bus.publish(&letter).await, Ok(Routing::Routed));
    let arrived = receive(&mut letters).await;
    assert_eq!(arrived.properties.header("rb-dead-reason"), Some("unreadable"));
    assert_eq!((text(&arrived).as_str(), &*arrived.routing_key), ("poison", queue.as_str()));
    arrived.settle.acknowledge().await;
    quiet(&mut other_letters).await;
}

pub(crate) async fn a_mandatory_message_that_no_queue_takes_is_unroutable(bus: &dyn Bus) {
    let _deliveries = consume(bus, &unique("somewhere"), &["somewhere"]).await;
    for target in [Target::Topic("nowhere".into()), Target::Queue("absent".into()), Target::DeadLetter("none".into())] {
        let mut lost = message(target, "lost");
        for proven in [true, false] {
            lost.proven = proven;
            lost.mandatory = true;
            assert_eq!(bus.publish(&lost).await, Ok(Routing::Unroutable), "{:?}", lost.target);
            lost.mandatory = false;
            assert_eq!(bus.publish(&lost).await, Ok(Routing::Routed), "{:?}", lost.target);
        }
    }
}

pub(crate) async fn the_default_exchange_reaches_a_queue_by_its_name(bus: &dyn Bus) {
    let queue = unique("replies");
    let replica = Subscription { ownership: Ownership::Replica, ..subscription(&queue, &[]) };
    let mut deliveries = bus.consume(replica);
    ready(bus).await;
    assert_eq!(bus.publish(&to_queue(&queue, "reply")).await, Ok(Routing::Routed));
    assert_eq!(take(&mut deliveries).await, "reply");
}

pub(crate) async fn no_more_than_the_prefetch_is_unsettled(bus: &dyn Bus) {
    let mut deliveries = bus.consume(Subscription { prefetch: 2, ..subscription(&unique("slow"), &["t"]) });
    ready(bus).await;
    for body in ["1", "2", "3"] {
        bus.publish(&to_topic("t", body)).await.unwrap();
    }
    let (first, second) = (receive(&mut deliveries).await, receive(&mut deliveries).await);
    quiet(&mut deliveries).await;
    first.settle.acknowledge().await;
    assert_eq!(take(&mut deliveries).await, "3");
    second.settle.acknowledge().await;
}

pub(crate) async fn deliveries_can_be_settled_after_consuming_is_stopped(bus: &dyn Bus) {
    let queue = unique("drained");
    let mut deliveries = consume(bus, &queue, &["t"]).await;
    bus.publish(&to_topic("t", "in hand")).await.unwrap();
    let in_hand = receive(&mut deliveries).await;
    bus.stop_consuming().await;
    assert!(!bus.state().borrow().is_ready());
    assert_eq!(bus.publish(&to_topic("t", "later")).await, Ok(Routing::Routed));
    let end = tokio::time::timeout(Duration::from_secs(60), deliveries.recv()).await;
    assert!(end.expect("the receiver does not end").is_none(), "something arrived after the stop");
    in_hand.settle.acknowledge().await;
}

pub(crate) async fn an_inbox_receives_until_the_bus_is_closed(bus: &dyn Bus) {
    let inbox = unique("inbox");
    let mut requests = bus.consume(subscription(&unique("requests"), &["t"]));
    let own = Subscription { is_inbox: true, ownership: Ownership::Replica, ..subscription(&inbox, &[]) };
    let mut replies = bus.consume(own);
    ready(bus).await;
    bus.stop_consuming().await;
    assert_eq!(requests.recv().await.map(|delivery| delivery.body), None);
    assert_eq!(bus.publish(&to_queue(&inbox, "reply")).await, Ok(Routing::Routed));
    assert_eq!(take(&mut replies).await, "reply");
    bus.close().await;
    assert_eq!(replies.recv().await.map(|delivery| delivery.body), None);
}

pub(crate) async fn properties_and_headers_arrive_as_they_were_sent(bus: &dyn Bus) {
    let mut deliveries = consume(bus, &unique("properties"), &["t"]).await;
    let properties = Arc::new(Properties {
        content_type: Some("application/json".into()),
        message_id: Some("0123456789abcdef0123456789abcdef".into()),
        message_type: Some("RockBot.Tools.ToolInvokeRequest".into()),
        correlation_id: Some(String::new()),
        reply_to: Some("tool.result.ana".into()),
        timestamp: Some(1_700_000_000),
        user_id: None,
        expiration: Some(60_000),
        persistent: true,
        headers: vec![("rb-rb-timeout-ms".into(), "500".into()), ("rb-source".into(), "añá".into())],
    });
    let mut sent = to_topic("t", "{}");
    sent.properties = properties.clone();
    bus.publish(&sent).await.unwrap();
    let arrived = receive(&mut deliveries).await;
    assert_eq!(arrived.properties, properties);
    arrived.settle.acknowledge().await;

    sent.properties = Arc::default();
    bus.publish(&sent).await.unwrap();
    let bare = receive(&mut deliveries).await;
    assert_eq!(*bare.properties, Properties::default());
    bare.settle.acknowledge().await;
}

pub(crate) async fn a_missing_foreign_queue_is_waited_for(bus: &dyn Bus) {
    let queue = unique("awaited");
    let mut deliveries = bus.consume(Subscription { ownership: Ownership::Existing, ..subscription(&queue, &[]) });
    until(bus, "a connection", |state| state.connected).await;
    assert_eq!(bus.publish(&to_queue(&queue, "early")).await, Ok(Routing::Unroutable));
    assert!(!bus.state().borrow().is_ready());
    let _owner = bus.consume(Subscription { prefetch: 1, ..subscription(&queue, &[]) });
    ready(bus).await;
    for body in ["1", "2"] {
        bus.publish(&to_queue(&queue, body)).await.unwrap();
    }
    take(&mut deliveries).await;
}

pub(crate) async fn a_closed_bus_publishes_nothing_and_delivers_nothing(bus: &dyn Bus) {
    let mut deliveries = consume(bus, &unique("closed"), &["t"]).await;
    bus.close().await;
    assert_eq!(bus.publish(&to_topic("t", "late")).await, Err(PublishError::Closed));
    assert!(deliveries.recv().await.is_none());
    assert!(!bus.state().borrow().connected);
}
