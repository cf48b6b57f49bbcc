//! Declaration of queues on RabbitMQ, and what happens when they exist already.

use toolbus_broker::rabbitmq::{QueueType, RabbitMq, RabbitMqSettings};
use toolbus_bus::{Bus, Ownership, Subscription};
use toolbus_testing::patience::eventually;

use crate::fixture::{
    consume, consume_existing, deliver, failed, node, prepare, quiet, rabbitmq, ready, receive, settings, subscription,
    take, text, to_queue, to_topic, unique, until,
};

/// The line of a listing that begins with this name.
async fn listed(listing: &[&str], name: &str) -> String {
    let lines = node().await.ctl(listing).await;
    let found = lines.lines().find(|line| line.split('\t').next() == Some(name));
    found.unwrap_or_else(|| panic!("{name} is not in\n{lines}")).to_owned()
}

const QUEUES: [&str; 7] = ["list_queues", "name", "type", "durable", "auto_delete", "exclusive", "arguments"];

#[tokio::test]
async fn quorum_queues_have_their_arguments_and_a_dead_letter_queue() {
    let settings = settings(&node().await.url());
    let dead_letters = settings.dead_letter_exchange.clone();
    let bus = RabbitMq::start(settings).unwrap();
    let queue = unique("quorum");
    let _deliveries = consume(&bus, &queue, &["t"]).await;

    let line = listed(&QUEUES, &queue).await;
    for part in [
        "\tquorum\ttrue\tfalse\t",
        &format!(r#"{{"x-dead-letter-exchange","{dead_letters}"}}"#),
        &format!(r#"{{"x-dead-letter-routing-key","{queue}"}}"#),
        r#"{"x-delivery-limit",20}"#,
        r#"{"x-queue-type","quorum"}"#,
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    let line = listed(&QUEUES, &format!("{queue}.dlq")).await;
    for part in [
        "\tclassic\ttrue\tfalse\tfalse\t",
        r#"{"x-message-ttl",259200000}"#,
        r#"{"x-max-length",10000}"#,
        r#"{"x-max-length-bytes",268435456}"#,
        r#"{"x-overflow","drop-head"}"#,
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    let bindings = node().await.ctl(&["list_bindings", "source_name", "destination_name", "routing_key"]).await;
    assert!(bindings.contains(&format!("{dead_letters}\t{queue}.dlq\t{queue}")), "{bindings}");
    bus.close().await;
}

#[tokio::test]
async fn how_many_messages_wait_and_are_dead_is_known_of_each_queue_that_outlives_the_process() {
    let bus = rabbitmq().await;
    let (queue, own) = (unique("depth"), unique("own"));
    let _deliveries = bus.consume(Subscription { prefetch: 1, ..subscription(&queue, &["t"]) });
    let replica = Subscription { ownership: Ownership::Replica, ..subscription(&own, &["u"]) };
    let _own = bus.consume(replica);
    ready(&bus).await;
    for _ in 0..4 {
        deliver(&bus, &to_queue(&queue, "x")).await;
    }
    for _ in 0..2 {
        deliver(&bus, &to_queue(&format!("{queue}.dlq"), "x")).await;
    }
    let (waiting, dead) = ([(queue.clone(), 3)].into(), [(queue.clone(), 2)].into());
    eventually("three messages to wait beside two dead letters", async || {
        let state = bus.state().borrow().clone();
        (state.depths == waiting && state.dead_letters == dead).then_some(())
    })
    .await;
    bus.close().await;
}

#[tokio::test]
async fn classic_queues_are_durable_and_have_no_delivery_limit() {
    let settings = settings(&node().await.url());
    let bus = RabbitMq::start(RabbitMqSettings { queue_type: QueueType::Classic, ..settings }).unwrap();
    let queue = unique("classic");
    let mut deliveries = consume(&bus, &queue, &["t"]).await;
    let line = listed(&QUEUES, &queue).await;
    assert!(line.contains("\tclassic\ttrue\tfalse\tfalse\t") && !line.contains("x-delivery-limit"), "{line}");
    deliver(&bus, &to_topic("t", "again")).await;
    receive(&mut deliveries).await.settle.requeue().await;
    let again = receive(&mut deliveries).await;
    assert_eq!((again.redelivered, again.earlier_deliveries), (true, 0));
    again.settle.acknowledge().await;
    bus.close().await;
}

/// A broker counts a cancelled consumer for as long as a delivery of it is unsettled.
#[tokio::test]
async fn a_queue_is_removed_once_its_last_delivery_is_settled() {
    let bus = rabbitmq().await;
    let queue = unique("removed");
    let mut deliveries = consume(&bus, &queue, &[&queue]).await;
    deliver(&bus, &to_topic(&queue, "last")).await;
    let last = receive(&mut deliveries).await;
    bus.stop_consuming().await;
    let queues = [queue.clone(), format!("{queue}.dlq")];
    tokio::join!(bus.remove(&queues[..1]), last.settle.acknowledge());
    for name in &queues {
        eventually("the queue to be gone", async || (bus.has_queue(name).await == Some(false)).then_some(())).await;
    }
    bus.close().await;
}

#[tokio::test]
async fn a_queue_that_others_declared_is_never_removed() {
    let (owner, bus) = (rabbitmq().await, rabbitmq().await);
    let (theirs, own) = (unique("theirs"), unique("own"));
    drop(consume(&owner, &theirs, &[&theirs]).await);
    owner.close().await;

    drop((consume_existing(&bus, &theirs).await, consume(&bus, &own, &[&own]).await));
    bus.stop_consuming().await;
    deliver(&bus, &to_queue(&theirs, "waits")).await;
    bus.remove(&[theirs.clone(), own.clone()]).await;
    assert_eq!(bus.has_queue(&own).await, Some(false));
    for name in [theirs.clone(), format!("{theirs}.dlq")] {
        assert_eq!(bus.has_queue(&name).await, Some(true), "{name}");
    }
    bus.close().await;

    let later = rabbitmq().await;
    assert_eq!(take(&mut consume_existing(&later, &theirs).await).await, "waits");
    later.close().await;
}

#[tokio::test]
async fn a_queue_for_short_lived_messages_is_classic_and_is_used_as_it_is_where_it_is_not() {
    let settings = settings(&node().await.url());
    let (fresh, older) = (unique("fresh"), unique("older"));
    prepare(&settings, &older, &["older"]).await;
    let bus = RabbitMq::start(settings).unwrap();
    for (queue, kind) in [(&fresh, "classic"), (&older, "quorum")] {
        let short_lived = Subscription { ownership: Ownership::ShortLived, ..subscription(queue, &[queue]) };
        let mut deliveries = bus.consume(short_lived);
        ready(&bus).await;
        deliver(&bus, &to_topic(queue, "hello")).await;
        assert_eq!(take(&mut deliveries).await, "hello");
        let line = listed(&QUEUES, queue).await;
        assert!(line.contains(&format!("\t{kind}\ttrue\tfalse")), "{line}");
    }
    assert_eq!(bus.state().borrow().fatal, None);
    bus.close().await;
}

#[tokio::test]
async fn the_queue_of_a_replica_is_exclusive_and_ends_with_its_connection() {
    let bus = rabbitmq().await;
    let queue = unique("replica");
    let replica = Subscription { ownership: Ownership::Replica, ..subscription(&queue, &["t"]) };
    let mut deliveries = bus.consume(replica);
    ready(&bus).await;
    deliver(&bus, &to_topic("t", "hello")).await;
    assert_eq!(take(&mut deliveries).await, "hello");
    let line = listed(&QUEUES, &queue).await;
    assert!(line.contains("\tclassic\tfalse\tfalse\ttrue\t"), "{line}");
    bus.close().await;
    let left = node().await.ctl(&["list_queues", "name"]).await;
    assert!(!left.contains(&queue), "{left}");
}

#[tokio::test]
async fn a_queue_of_another_type_is_fatal_with_a_remedy() {
    let mut settings = settings(&node().await.url());
    let queue = unique("typed");
    let first = RabbitMq::start(settings.clone()).unwrap();
    let _deliveries = consume(&first, &queue, &["t"]).await;
    settings.queue_type = QueueType::Classic;
    let second = RabbitMq::start(settings).unwrap();
    let _nothing = second.consume(subscription(&queue, &["t"]));
    let state = until(&second, "a fatal mistake", |state| state.fatal.is_some()).await;
    let text = state.fatal.clone().unwrap();
    for part in
        [queue.as_str(), "x-queue-type", "delete the queue", "bus.queue_prefix", "set bus.queue_type to what it has"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!state.is_ready());
}

#[tokio::test]
async fn an_exchange_with_other_arguments_stops_too() {
    let settings = settings(&node().await.url());
    let declare = format!(
        "rabbit_exchange:declare(rabbit_misc:r(<<\"/\">>, exchange, <<\"{}\">>), fanout, true, false, false, [], <<\"test\">>).",
        settings.exchange
    );
    node().await.ctl(&["eval", &declare]).await;
    let exchange = settings.exchange.clone();
    let bus = RabbitMq::start(settings).unwrap();
    let state = until(&bus, "a fatal mistake", |state| state.fatal.is_some()).await;
    let text = state.fatal.unwrap();
    assert!(text.contains(&exchange) && text.contains("'type'"), "{text}");
}

#[tokio::test]
async fn a_message_redelivered_too_often_is_dead_lettered() {
    let queue = unique("limited");
    let settings = settings(&node().await.url());
    for earlier in 0..=20 {
        let bus = RabbitMq::start(settings.clone()).unwrap();
        let mut deliveries = consume(&bus, &queue, &["t"]).await;
        if earlier == 0 {
            deliver(&bus, &to_topic("t", "poison")).await;
        }
        let delivery = receive(&mut deliveries).await;
        assert_eq!((delivery.earlier_deliveries, delivery.redelivered), (earlier, earlier > 0));
        // Dropped with its connections, unsettled.
        std::mem::forget(delivery.settle);
        bus.close().await;
    }
    let bus = RabbitMq::start(settings).unwrap();
    let mut letters = consume_existing(&bus, &format!("{queue}.dlq")).await;
    let letter = receive(&mut letters).await;
    assert_eq!((text(&letter).as_str(), &*letter.routing_key), ("poison", queue.as_str()));
    letter.settle.acknowledge().await;
    bus.close().await;
}

#[tokio::test]
async fn a_missing_foreign_queue_is_named_in_the_last_error() {
    let bus = rabbitmq().await;
    let queue = unique("absent");
    let _nothing = bus.consume(Subscription { ownership: Ownership::Existing, ..subscription(&queue, &[]) });
    let (text, state) = failed(&bus).await;
    assert!(text.contains(&queue) && text.contains("does not exist"), "{text}");
    assert_eq!(state.fatal, None);
}

#[tokio::test]
async fn connections_are_named_after_the_instance() {
    let settings = settings(&node().await.url());
    let name = settings.name.clone();
    let bus = RabbitMq::start(settings).unwrap();
    let _deliveries = consume(&bus, &unique("named"), &["t"]).await;
    let connections = node().await.ctl(&["list_connections", "client_properties"]).await;
    for role in ["consume", "publish"] {
        assert!(connections.contains(&format!("\"{name} {role}\"")), "{connections}");
    }
    bus.close().await;
}

#[tokio::test]
async fn replies_are_acknowledged_on_arrival_and_at_most_the_prefetch_is_taken_unread() {
    const COUNT: usize = 100;
    const PREFETCH: u16 = 8;
    let (bus, queue) = (rabbitmq().await, unique("replies"));
    let replies = Subscription { ownership: Ownership::Replies, prefetch: PREFETCH, ..subscription(&queue, &[]) };
    let mut deliveries = bus.consume(replies);
    ready(&bus).await;
    for number in 0..COUNT {
        bus.publish(&to_queue(&queue, &number.to_string())).await.unwrap();
    }
    let counts = async || {
        let line = listed(&["list_queues", "name", "messages_ready", "messages_unacknowledged"], &queue).await;
        line.split('\t').skip(1).map(|number| number.parse::<usize>().unwrap()).collect::<Vec<_>>()
    };
    // As many as the channel to the receiver has room for, and one more.
    let taken = usize::from(PREFETCH / 2) + 1;
    eventually("the channel to be filled", async || (counts().await[0] <= COUNT - taken).then_some(())).await;
    assert!(counts().await[0] >= COUNT - usize::from(PREFETCH), "{:?}", counts().await);
    for number in 0..COUNT {
        // Dropped unsettled, and gone all the same.
        let delivery = receive(&mut deliveries).await;
        assert_eq!((text(&delivery), delivery.redelivered), (number.to_string(), false));
    }
    eventually("everything to be acknowledged", async || (counts().await == [0, 0]).then_some(())).await;
    quiet(&mut deliveries).await;
}
