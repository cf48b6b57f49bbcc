//! Publishing: which queue took the message, and what the broker reports of addresses.

#![expect(clippy::disallowed_methods, reason = "tasks of a test end with its runtime")]

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use lapin::BasicProperties;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions, QueuePurgeOptions};
use lapin::types::{AMQPValue, FieldTable};
use toolbus_bus::{Bus, PublishError, Routing};

use crate::fixture::{client, consume, message, rabbitmq, receive, take, text, to_queue, to_topic, unique};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_of_many_publishes_at_a_time_gets_its_own_verdict() {
    let bus = std::sync::Arc::new(rabbitmq().await);
    let mut deliveries = consume(&*bus, &unique("many"), &["somewhere"]).await;
    let tasks = (0..400).map(|number| {
        let bus = bus.clone();
        tokio::spawn(async move {
            let (topic, expected) =
                if number % 2 == 0 { ("somewhere", Routing::Routed) } else { ("nowhere", Routing::Unroutable) };
            assert_eq!(bus.publish(&to_topic(topic, &number.to_string())).await, Ok(expected), "{number}");
        })
    });
    let taken = async {
        for _ in 0..200 {
            take(&mut deliveries).await;
        }
    };
    let (published, ()) = tokio::join!(join_all(tasks), taken);
    published.into_iter().for_each(|it| it.unwrap());
    bus.close().await;
}

/// The broker adds a header at each redelivery, and sends all of them in one frame, however large that becomes.
#[tokio::test]
async fn headers_that_fill_a_frame_cost_no_connection() {
    const FILLS_A_FRAME: usize = 131_039;
    let bus = rabbitmq().await;
    let queue = unique("headers");
    let mut deliveries = consume(&bus, &queue, &["t"]).await;
    let (_client, channel) = client().await;
    let mut headers = FieldTable::default();
    headers.insert("x".into(), AMQPValue::LongString("a".repeat(FILLS_A_FRAME).into()));
    let properties = BasicProperties::default().with_headers(headers);
    let sent = channel.basic_publish("".into(), queue.into(), BasicPublishOptions::default(), b"{}", properties);
    sent.await.unwrap();

    let first = receive(&mut deliveries).await;
    assert_eq!(first.properties.header("x").map(str::len), Some(FILLS_A_FRAME));
    first.settle.requeue().await;
    let second = receive(&mut deliveries).await;
    assert!(second.redelivered);
    second.settle.acknowledge().await;
    assert_eq!(bus.state().borrow().reconnects, 0);
    bus.close().await;
}

#[tokio::test]
async fn a_reply_to_a_direct_reply_address_arrives() {
    let bus = rabbitmq().await;
    let queue = unique("requests");
    let mut requests = consume(&bus, &queue, &["t"]).await;
    let (_client, channel) = client().await;
    let direct = "amq.rabbitmq.reply-to";
    let no_ack = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let mut replies = channel.basic_consume(direct.into(), "".into(), no_ack, FieldTable::default()).await.unwrap();
    let properties = BasicProperties::default().with_reply_to(direct.into());
    let sent = channel.basic_publish("".into(), queue.into(), BasicPublishOptions::default(), b"{}", properties);
    sent.await.unwrap();

    let request = receive(&mut requests).await;
    let mut reply = to_queue(request.properties.reply_to.as_deref().unwrap(), "reply");
    reply.mandatory = false;
    reply.proven = false;
    assert_eq!(bus.publish(&reply).await, Ok(Routing::Routed));
    request.settle.acknowledge().await;
    let arrived = tokio::time::timeout(toolbus_testing::patience::PATIENCE, replies.next()).await.unwrap();
    assert_eq!(arrived.unwrap().unwrap().data, b"reply");
    bus.close().await;
}

#[tokio::test]
async fn a_full_queue_rejects_a_message_and_no_other_and_takes_it_once_there_is_room() {
    let bus = rabbitmq().await;
    let (harmless, full) = (unique("harmless"), unique("full"));
    let mut deliveries = consume(&bus, &harmless, &["t"]).await;
    let (_client, channel) = client().await;
    let mut bounds = FieldTable::default();
    bounds.insert("x-max-length".into(), AMQPValue::LongInt(1));
    bounds.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let own = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(full.as_str().into(), own, bounds).await.unwrap();
    assert_eq!(bus.publish(&to_queue(&full, "fills it")).await, Ok(Routing::Routed));

    let proven = to_queue(&full, "proven");
    let mut unproven = to_queue(&full, "unproven");
    unproven.proven = false;
    let other = to_topic("t", "other");
    let (one, two, three) = tokio::join!(bus.publish(&proven), bus.publish(&unproven), bus.publish(&other));
    for outcome in [one, two] {
        assert!(matches!(outcome, Err(PublishError::Rejected(_))), "{outcome:?}");
    }
    assert_eq!((three, take(&mut deliveries).await.as_str()), (Ok(Routing::Routed), "other"));

    channel.queue_purge(full.as_str().into(), QueuePurgeOptions::default()).await.unwrap();
    assert_eq!(bus.publish(&proven).await, Ok(Routing::Routed));
    assert_eq!(bus.state().borrow().reconnects, 0);
    bus.close().await;
}

#[tokio::test]
async fn an_address_too_long_for_the_wire_is_refused() {
    let bus = rabbitmq().await;
    let outcome = bus.publish(&to_queue(&"q".repeat(256), "x")).await;
    assert!(matches!(outcome, Err(PublishError::Refused(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_body_of_many_frames_arrives_whole() {
    let bus = rabbitmq().await;
    let queue = unique("large");
    let mut deliveries = consume(&bus, &queue, &["t"]).await;
    let mut large = message(toolbus_bus::Target::Queue(queue), "");
    large.body = Bytes::from("0123456789abcdef".repeat(64 * 1024));
    bus.publish(&large).await.unwrap();
    let arrived = receive(&mut deliveries).await;
    assert!(text(&arrived).as_bytes() == large.body, "the body was changed");
    arrived.settle.acknowledge().await;
    bus.close().await;
}
