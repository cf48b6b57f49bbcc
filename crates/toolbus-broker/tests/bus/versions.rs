//! Behaviour that versions of RabbitMQ do not share, or that an operator may set otherwise.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use toolbus_broker::rabbitmq::{QueueType, RabbitMq};
use toolbus_bus::{Bus as _, Outgoing, PublishError};
use toolbus_testing::rabbit::RabbitNode;

use crate::fixture::{
    client, consume, consume_existing, deliver, node, rabbitmq, receive, settings, take, to_queue, to_topic, unique,
};

#[tokio::test]
async fn a_requeued_message_counts_as_delivered_before_4_3() {
    let bus = rabbitmq().await;
    let mut deliveries = consume(&bus, &unique("requeued"), &["t"]).await;
    deliver(&bus, &to_topic("t", "again")).await;
    receive(&mut deliveries).await.settle.requeue().await;
    let again = receive(&mut deliveries).await;
    let counts = node().await.version().await < (4, 3);
    assert_eq!((again.redelivered, again.earlier_deliveries), (true, u32::from(counts)));
    again.settle.acknowledge().await;
    bus.close().await;
}

#[tokio::test]
async fn in_a_virtual_host_of_quorum_queues_by_default_each_queue_is_of_the_type_that_was_chosen() {
    let vhost = unique("quorum-by-default");
    node().await.ctl(&["add_vhost", &vhost, "--default-queue-type", "quorum"]).await;
    node().await.ctl(&["set_permissions", "--vhost", &vhost, "guest", ".*", ".*", ".*"]).await;
    let url = node().await.url_on(&vhost, "guest", "guest");
    for (queue_type, name) in [(QueueType::Classic, "classic"), (QueueType::Quorum, "quorum")] {
        let mut chosen = settings(&url);
        chosen.queue_type = queue_type;
        let bus = RabbitMq::start(chosen).unwrap();
        let (queue, topic) = (unique(name), unique("topic"));
        let mut deliveries = consume(&bus, &queue, &[&topic]).await;
        deliver(&bus, &to_topic(&topic, name)).await;
        assert_eq!(take(&mut deliveries).await, name);
        let listed = node().await.ctl(&["list_queues", "--vhost", &vhost, "name", "type"]).await;
        // Those of dead letters are classic, whatever is chosen.
        for expected in [format!("{queue}\t{name}"), format!("{queue}.dlq\tclassic")] {
            assert!(listed.lines().any(|line| line == expected), "{listed}");
        }
        bus.close().await;
    }
    node().await.ctl(&["delete_vhost", &vhost]).await;
}

#[tokio::test]
async fn a_message_over_the_brokers_limit_is_refused_and_the_next_is_published() {
    let node = RabbitNode::start_with("max_message_size = 65536\n").await;
    let bus = RabbitMq::start(settings(&node.url())).unwrap();
    let queue = unique("small");
    let mut deliveries = consume(&bus, &queue, &["t"]).await;
    let mut large = Outgoing { proven: false, ..to_queue(&queue, "") };
    large.body = Bytes::from(vec![b'x'; 65_537]);
    let refused = bus.publish(&large).await.unwrap_err();
    assert!(matches!(&refused, PublishError::Refused(text) if text.contains("size")), "{refused:?}");
    deliver(&bus, &to_queue(&queue, "small")).await;
    assert_eq!(take(&mut deliveries).await, "small");
    bus.close().await;
}

#[tokio::test]
async fn a_foreign_priority_queue_is_consumed_by_priority() {
    let (bus, queue) = (rabbitmq().await, unique("priorities"));
    let (_client, channel) = client().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-priority".into(), AMQPValue::ShortShortUInt(9));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.as_str().into(), durable, arguments).await.unwrap();
    for priority in [1, 9, 5] {
        let (properties, body) = (BasicProperties::default().with_priority(priority), priority.to_string());
        let options = BasicPublishOptions::default();
        let published = channel.basic_publish("".into(), queue.as_str().into(), options, body.as_bytes(), properties);
        published.await.unwrap();
    }
    let mut deliveries = consume_existing(&bus, &queue).await;
    let mut order = Vec::new();
    for _ in 0..3 {
        order.push(take(&mut deliveries).await);
    }
    assert_eq!(order, ["9", "5", "1"]);
    bus.close().await;
}
