//! Answers of a broker to an operator.

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use toolbus_broker::rabbitmq::{Answer, ConnectError, Inspection, RabbitMq, RabbitMqSettings, inspect};
use toolbus_bus::{Bus as _, Ownership, Subscription};

use crate::fixture::{client, consume, node, settings, settings_with_ca, subscription, unique};

/// A connection on which the first node of these settings is asked.
async fn asking(settings: &RabbitMqSettings) -> Inspection {
    let [node] = <[_; 1]>::try_from(inspect(settings.clone()).await.unwrap()).unwrap_or_else(|_| panic!("one node"));
    node.opened.unwrap_or_else(|error| panic!("{error}"))
}

fn own(topics: &[&str]) -> Subscription {
    Subscription { ownership: Ownership::Replica, ..subscription(&unique("own"), topics) }
}

#[tokio::test]
async fn a_node_says_what_it_is_also_to_those_who_may_not_log_in() {
    let node = node().await;
    for url in [node.url(), node.url_of("guest", "wrong")] {
        let nodes = inspect(settings(&url)).await.unwrap();
        let product = nodes[0].product.as_ref().unwrap();
        assert_eq!(product.name, "RabbitMQ");
        assert!(product.version.starts_with(|c: char| c.is_ascii_digit()), "{product:?}");
    }
    let tls = inspect(settings_with_ca(&node.tls_url(), node.authority())).await.unwrap();
    assert!(tls[0].product.is_some() && tls[0].opened.is_ok());
    let refused = async |url: String| inspect(settings(&url)).await.unwrap().remove(0).opened.err().unwrap();
    assert!(matches!(refused(node.url_of("guest", "wrong")).await, ConnectError::Login(_)));
    assert!(matches!(refused(node.url().replace("%2f", "nowhere")).await, ConnectError::VirtualHost(_)));
    assert!(matches!(refused("amqp://127.0.0.1:1".to_owned()).await, ConnectError::Unreachable(_)));
}

#[tokio::test]
async fn what_is_missing_is_told_and_not_declared() {
    let settings = settings(&node().await.url());
    let (inspection, shared) = (asking(&settings).await, subscription(&unique("missing"), &["t"]));
    // Twice: what a question had declared would be there.
    for _ in 0..2 {
        let names = [settings.exchange.clone(), settings.dead_letter_exchange.clone()];
        let missing = names.map(|name| (name, Answer::Missing));
        assert_eq!(inspection.exchanges().await, missing);
        let names = [shared.queue.clone(), format!("{}.dlq", shared.queue)];
        assert_eq!(inspection.queues(&shared).await, names.map(|name| (name, Answer::Missing)));
        assert_eq!(inspection.may_publish("t").await, Answer::Missing);
    }
    inspection.close().await;
}

#[tokio::test]
async fn what_the_daemon_has_declared_is_as_it_should_be() {
    let settings = settings(&node().await.url());
    let (bus, queue) = (RabbitMq::start(settings.clone()).unwrap(), unique("declared"));
    drop(consume(&bus, &queue, &["t"]).await);
    let inspection = asking(&settings).await;
    let is_there = |answers: Vec<(String, Answer)>| answers.iter().all(|(_, answer)| *answer == Answer::Yes);
    assert!(is_there(inspection.exchanges().await));
    assert!(is_there(inspection.queues(&subscription(&queue, &[])).await));
    assert_eq!(inspection.may_publish("t").await, Answer::Yes);
    assert_eq!(inspection.may_dead_letter(&queue).await, Answer::Yes);
    let own = inspection.own_queue(&own(&["t"])).await;
    assert_eq!((own.declare, own.publish, own.consume), (Answer::Yes, Answer::Yes, Answer::Yes));
    assert_eq!(own.bind, [("t".to_owned(), Answer::Yes)]);
    assert_eq!((own.is_blocked, own.broker_time), (false, None));
    inspection.close().await;
    bus.close().await;
}

#[tokio::test]
async fn what_is_there_in_another_way_is_told_with_the_key_that_decides_it() {
    let (settings, queue) = (settings(&node().await.url()), unique("other"));
    let (_client, channel) = client().await;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.as_str().into(), durable, FieldTable::default()).await.unwrap();
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let name = settings.exchange.as_str().into();
    channel.exchange_declare(name, ExchangeKind::Fanout, options, FieldTable::default()).await.unwrap();
    let inspection = asking(&settings).await;
    let [(_, exchange), _] = &inspection.exchanges().await[..] else { panic!("two exchanges") };
    assert!(matches!(exchange, Answer::Differs { key: None, .. }), "{exchange:?}");
    let [(_, found), (_, dead_letters)] = &inspection.queues(&subscription(&queue, &[])).await[..] else {
        panic!("two")
    };
    assert!(matches!(found, Answer::Differs { key: Some("bus.dead_letter_exchange"), .. }), "{found:?}");
    assert_eq!(*dead_letters, Answer::Missing);
    inspection.close().await;
}

#[tokio::test]
async fn each_right_that_a_user_lacks_is_told() {
    let (node, name, settings) = (node().await, unique("user"), settings(&node().await.url()));
    let bus = RabbitMq::start(settings.clone()).unwrap();
    drop(consume(&bus, &unique("declared"), &[]).await);
    node.ctl(&["add_user", &name, "s3cret"]).await;
    let limited = RabbitMqSettings { urls: vec![node.url_of(&name, "s3cret")], ..settings };
    let is_refused = |answer: &Answer| matches!(answer, Answer::Refused(words) if words.contains("ACCESS_REFUSED"));

    node.ctl(&["set_permissions", &name, "^$", "^$", "^$"]).await;
    let inspection = asking(&limited).await;
    // Before 4.3, anyone may ask for an exchange.
    let is_open = node.version().await < (4, 3);
    let exchanges = inspection.exchanges().await;
    let is_expected = |answer: &Answer| if is_open { *answer == Answer::Yes } else { is_refused(answer) };
    assert!(exchanges.iter().all(|(_, answer)| is_expected(answer)), "{exchanges:?}");
    let missing = inspection.queues(&subscription(&unique("missing"), &[])).await;
    assert!(missing.iter().all(|(_, answer)| is_refused(answer)), "{missing:?}");
    let published = [inspection.may_publish("t").await, inspection.may_dead_letter("q").await];
    assert!(published.iter().all(is_refused), "{published:?}");
    assert!(is_refused(&inspection.own_queue(&own(&["t"])).await.declare));
    inspection.close().await;

    node.ctl(&["set_permissions", &name, ".*", "^own.*", "^$"]).await;
    let inspection = asking(&limited).await;
    let own = inspection.own_queue(&own(&["t"])).await;
    assert_eq!(own.declare, Answer::Yes);
    assert!(own.bind.iter().all(|(_, answer)| is_refused(answer)), "{own:?}");
    assert!(is_refused(&own.publish) && is_refused(&own.consume), "{own:?}");
    inspection.close().await;
    bus.close().await;
}
