//! Channels that end by an error: they are used again, and no connection ends with them.

use std::pin::pin;

use futures_util::FutureExt;
use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Error, ErrorKind};
use toolbus_broker::rabbitmq::RabbitMq;
use toolbus_bus::{Bus, Clock, Routing};
use toolbus_testing::patience::eventually;

use crate::fixture::{consume, node, rabbitmq, ready, settings, subscription, take, to_queue, to_topic, unique};

/// A connection with few channels.
async fn connection() -> Connection {
    let url = format!("{}?channel_max=4", node().await.url());
    Connection::connect(&url, ConnectionProperties::default()).await.unwrap()
}

/// Looks for a queue that is not there; the broker closes the channel.
async fn look(channel: Channel) -> Result<(), Error> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(unique("missing").into(), passive, FieldTable::default()).await.map(drop)
}

fn is_of_broker(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(_))
}

#[tokio::test]
async fn the_number_of_a_channel_that_ended_by_an_error_is_used_again() {
    let connection = connection().await;
    for _ in 0..40 {
        let channel = connection.create_channel().await.unwrap();
        assert!(is_of_broker(&look(channel).await.unwrap_err()));
    }
    connection.create_channel().await.unwrap().close(200, "done".into()).await.unwrap();
}

#[tokio::test]
async fn a_channel_that_both_sides_close_at_once_costs_no_connection() {
    let connection = connection().await;
    for _ in 0..40 {
        let channel = connection.create_channel().await.unwrap();
        let mut look = pin!(look(channel.clone()));
        assert!((&mut look).now_or_never().is_none(), "it is only sent");
        let _ = channel.close(200, "done".into()).await;
        assert!(look.await.is_err());
    }
    connection.create_channel().await.unwrap().close(200, "done".into()).await.unwrap();
}

#[tokio::test]
async fn publishes_that_wait_behind_a_refused_one_cost_no_connection() {
    let connection = connection().await;
    let body = vec![0; 1024 * 1024];
    for _ in 0..8 {
        let channel = connection.create_channel().await.unwrap();
        let missing = unique("missing");
        let published = join_all((0..40).map(|_| {
            let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
            channel.basic_publish(missing.as_str().into(), "".into(), options, &body, properties)
        }));
        // How many are sent before the broker closes the channel is chance.
        drop(published.await);
    }
    connection.create_channel().await.unwrap().close(200, "done".into()).await.unwrap();
}

#[tokio::test]
async fn consumers_that_renew_their_bindings_at_once_open_few_channels() {
    const QUEUES: usize = 12;
    // A channel for each consumer, and two for each of four renewals: one ends a moment after it was closed.
    let settings = settings(&format!("{}?channel_max={}", node().await.url(), QUEUES + 8));
    let bus = RabbitMq::start(settings).unwrap();
    let queues: Vec<String> = (0..QUEUES).map(|_| unique("renewed")).collect();
    let _deliveries: Vec<_> = queues.iter().map(|queue| bus.consume(subscription(queue, &["t"]))).collect();
    ready(&bus).await;
    let mut state = bus.state();
    eventually("every queue to be renewed", async || {
        assert!(state.borrow_and_update().is_ready(), "{:?}", state.borrow());
        (state.borrow().depths.len() == QUEUES).then_some(())
    })
    .await;
    bus.close().await;
}

#[tokio::test]
async fn questions_that_cost_an_error_are_limited_and_harm_no_deliveries_or_publishes() {
    let bus = rabbitmq().await;
    let queue = unique("requests");
    let mut deliveries = consume(&bus, &queue, &["t"]).await;
    let missing = unique("missing");
    let (began, mut verdicts) = (Clock::SYSTEM.now(), 0);
    for _ in 0..2_000 {
        match bus.has_queue(&missing).await {
            Some(found) => {
                assert!(!found);
                verdicts += 1;
            }
            None => tokio::task::yield_now().await,
        }
    }
    let most = 32 + Clock::SYSTEM.since(began).as_millis() / 20 + 1;
    assert!(verdicts > 0 && verdicts <= most, "{verdicts} of at most {most}");

    assert_eq!(bus.publish(&to_topic("t", "after")).await, Ok(Routing::Routed));
    assert_eq!(take(&mut deliveries).await, "after");
    assert!(eventually("a verdict again", async || bus.has_queue(&queue).await).await);
    assert_eq!(bus.publish(&to_queue(&missing, "lost")).await, Ok(Routing::Unroutable));
    assert_eq!(bus.state().borrow().reconnects, 0);
    bus.close().await;
}
