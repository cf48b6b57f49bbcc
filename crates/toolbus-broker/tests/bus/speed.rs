//! Loss from small packets that are held back, which is seen at one message in flight.

use std::time::Duration;

use toolbus_broker::rabbitmq::{QueueType, RabbitMq, RabbitMqSettings};
use toolbus_bus::Bus;
use toolbus_bus::Clock;

use crate::fixture::{consume, node, settings, take, to_topic, unique};

#[tokio::test]
async fn one_message_at_a_time_is_not_held_back_by_the_network_stack() {
    let settings = settings(&node().await.url());
    let bus = RabbitMq::start(RabbitMqSettings { queue_type: QueueType::Classic, ..settings }).unwrap();
    let mut deliveries = consume(&bus, &unique("speed"), &["t"]).await;
    let mut times = Vec::new();
    for _ in 0..101 {
        let started = Clock::SYSTEM.now();
        bus.publish(&to_topic("t", "ping")).await.unwrap();
        take(&mut deliveries).await;
        times.push(Clock::SYSTEM.since(started));
    }
    // The first packets of a connection are acknowledged at once.
    times.drain(..20);
    times.sort();
    // Nagle's algorithm together with delayed acknowledgements costs each of them 40 ms; a busy machine delays some.
    let tenth = times[times.len() / 10];
    assert!(tenth < Duration::from_millis(20), "a tenth of the messages took less than {tenth:?}");
    bus.close().await;
}
