//! The contract, for RabbitMQ with quorum queues.

use toolbus_bus::{Bus, Subscription};

use crate::contract;
use crate::fixture::{consume_existing, deliver, rabbitmq, ready, receive, subscription, take, to_queue, unique};

#[tokio::test]
async fn topics_with_wildcards_reach_the_queues_bound_to_them() {
    contract::topics_with_wildcards_reach_the_queues_bound_to_them(&rabbitmq().await).await;
}

#[tokio::test]
async fn a_queue_bound_twice_gets_a_message_once() {
    contract::a_queue_bound_twice_gets_a_message_once(&rabbitmq().await).await;
}

#[tokio::test]
async fn competing_consumers_share_a_queue() {
    contract::competing_consumers_share_a_queue(&rabbitmq().await).await;
}

#[tokio::test]
async fn what_is_acknowledged_does_not_come_back() {
    contract::what_is_acknowledged_does_not_come_back(&rabbitmq().await).await;
}

#[tokio::test]
async fn what_is_requeued_comes_back_marked_and_counted() {
    contract::what_is_requeued_comes_back_marked_and_counted(&rabbitmq().await).await;
}

#[tokio::test]
async fn what_is_dropped_unsettled_comes_back() {
    contract::what_is_dropped_unsettled_comes_back(&rabbitmq().await).await;
}

#[tokio::test]
async fn a_dead_letter_lands_beside_its_own_queue_only() {
    contract::a_dead_letter_lands_beside_its_own_queue_only(&rabbitmq().await).await;
}

#[tokio::test]
async fn a_mandatory_message_that_no_queue_takes_is_unroutable() {
    contract::a_mandatory_message_that_no_queue_takes_is_unroutable(&rabbitmq().await).await;
}

#[tokio::test]
async fn the_default_exchange_reaches_a_queue_by_its_name() {
    contract::the_default_exchange_reaches_a_queue_by_its_name(&rabbitmq().await).await;
}

#[tokio::test]
async fn no_more_than_the_prefetch_is_unsettled() {
    contract::no_more_than_the_prefetch_is_unsettled(&rabbitmq().await).await;
}

#[tokio::test]
async fn after_consuming_is_stopped_what_is_in_hand_can_be_settled() {
    contract::after_consuming_is_stopped_what_is_in_hand_can_be_settled(&rabbitmq().await).await;
}

#[tokio::test]
async fn an_inbox_receives_until_the_bus_is_closed() {
    contract::an_inbox_receives_until_the_bus_is_closed(&rabbitmq().await).await;
}

#[tokio::test]
async fn properties_and_headers_arrive_as_they_were_sent() {
    contract::properties_and_headers_arrive_as_they_were_sent(&rabbitmq().await).await;
}

#[tokio::test]
async fn a_queue_of_somebody_else_is_waited_for() {
    contract::a_queue_of_somebody_else_is_waited_for(&rabbitmq().await).await;
}

#[tokio::test]
async fn a_closed_bus_publishes_nothing_and_delivers_nothing() {
    contract::a_closed_bus_publishes_nothing_and_delivers_nothing(&rabbitmq().await).await;
}

#[tokio::test]
async fn of_a_body_larger_than_wanted_the_beginning_arrives_and_the_queue_keeps_all() {
    let (bus, queue) = (rabbitmq().await, unique("large"));
    // Of several frames.
    let body = "x".repeat(300_000);
    let mut wanted = bus.consume(Subscription { max_body: 1_000, ..subscription(&queue, &[]) });
    ready(&bus).await;
    for body in [&body, "small"] {
        deliver(&bus, &to_queue(&queue, body)).await;
    }
    let large = receive(&mut wanted).await;
    assert_eq!((large.body.len(), large.size), (1_000, 300_000));
    assert_eq!(take(&mut wanted).await, "small");
    large.settle.requeue().await;
    let again = receive(&mut wanted).await;
    assert_eq!((again.body.len(), again.size, again.redelivered), (1_000, 300_000, true));
    again.settle.requeue().await;
    bus.close().await;

    let other = rabbitmq().await;
    let mut all = consume_existing(&other, &queue).await;
    assert_eq!(take(&mut all).await.len(), body.len());
    other.close().await;
}
