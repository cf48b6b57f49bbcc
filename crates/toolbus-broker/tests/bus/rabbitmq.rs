//! The contract, for RabbitMQ with quorum queues.

use crate::contract;
use crate::fixture::rabbitmq;

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
