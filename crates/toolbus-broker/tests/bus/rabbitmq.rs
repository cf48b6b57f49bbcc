//! The contract, for RabbitMQ with quorum queues.

use toolbus_bus::{Bus, Subscription};

use crate::fixture::{consume_existing, deliver, rabbitmq, ready, receive, subscription, take, to_queue, unique};

crate::contract::tests_of!(rabbitmq().await);

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
