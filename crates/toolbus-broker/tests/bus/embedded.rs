//! The contract, for the bus in memory.

use toolbus_broker::embedded::Embedded;
use toolbus_bus::{Bus, Ownership, Routing, Subscription};

use crate::contract;
use crate::fixture::{subscription, to_queue, to_topic, unique};

#[tokio::test]
async fn topics_with_wildcards_reach_the_queues_bound_to_them() {
    contract::topics_with_wildcards_reach_the_queues_bound_to_them(&Embedded::new()).await;
}

#[tokio::test]
async fn a_queue_bound_twice_gets_a_message_once() {
    contract::a_queue_bound_twice_gets_a_message_once(&Embedded::new()).await;
}

#[tokio::test]
async fn competing_consumers_share_a_queue() {
    contract::competing_consumers_share_a_queue(&Embedded::new()).await;
}

#[tokio::test]
async fn what_is_acknowledged_does_not_come_back() {
    contract::what_is_acknowledged_does_not_come_back(&Embedded::new()).await;
}

#[tokio::test]
async fn what_is_requeued_comes_back_marked_and_counted() {
    contract::what_is_requeued_comes_back_marked_and_counted(&Embedded::new()).await;
}

#[tokio::test]
async fn what_is_dropped_unsettled_comes_back() {
    contract::what_is_dropped_unsettled_comes_back(&Embedded::new()).await;
}

#[tokio::test]
async fn a_dead_letter_lands_beside_its_own_queue_only() {
    contract::a_dead_letter_lands_beside_its_own_queue_only(&Embedded::new()).await;
}

#[tokio::test]
async fn a_mandatory_message_that_no_queue_takes_is_unroutable() {
    contract::a_mandatory_message_that_no_queue_takes_is_unroutable(&Embedded::new()).await;
}

#[tokio::test]
async fn the_default_exchange_reaches_a_queue_by_its_name() {
    contract::the_default_exchange_reaches_a_queue_by_its_name(&Embedded::new()).await;
}

#[tokio::test]
async fn no_more_than_the_prefetch_is_unsettled() {
    contract::no_more_than_the_prefetch_is_unsettled(&Embedded::new()).await;
}

#[tokio::test]
async fn after_consuming_is_stopped_what_is_in_hand_can_be_settled() {
    contract::after_consuming_is_stopped_what_is_in_hand_can_be_settled(&Embedded::new()).await;
}

#[tokio::test]
async fn an_inbox_receives_until_the_bus_is_closed() {
    contract::an_inbox_receives_until_the_bus_is_closed(&Embedded::new()).await;
}

#[tokio::test]
async fn properties_and_headers_arrive_as_they_were_sent() {
    contract::properties_and_headers_arrive_as_they_were_sent(&Embedded::new()).await;
}

#[tokio::test]
async fn a_queue_of_somebody_else_is_waited_for() {
    contract::a_queue_of_somebody_else_is_waited_for(&Embedded::new()).await;
}

#[tokio::test]
async fn a_closed_bus_publishes_nothing_and_delivers_nothing() {
    contract::a_closed_bus_publishes_nothing_and_delivers_nothing(&Embedded::new()).await;
}

#[tokio::test]
async fn a_queue_of_a_client_alone_is_gone_with_the_client() {
    let bus = Embedded::new();
    let client = bus.connect();
    let queue = unique("mine");
    let _replies = client.consume(Subscription { ownership: Ownership::Replica, ..subscription(&queue, &["t"]) });
    assert_eq!(bus.publish(&to_queue(&queue, "one")).await, Ok(Routing::Routed));
    client.close().await;
    assert_eq!(bus.publish(&to_queue(&queue, "two")).await, Ok(Routing::Unroutable));
    assert_eq!(bus.publish(&to_topic("t", "three")).await, Ok(Routing::Unroutable));
}
