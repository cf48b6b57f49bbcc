//! Inspection of a broker by an operator.

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use toolbus_broker::rabbitmq::{ConnectError, Inspected, Inspection, RabbitMq, RabbitMqSettings, inspect};
use toolbus_bus::{Bus as _, Ownership, Subscription};

use crate::fixture::{client, consume, node, settings, settings_with_ca, subscription, unique};

/// A connection on which the first node of these settings is inspected.
async fn asking(settings: &RabbitMqSettings) -> Inspection {
    let [node] = <[_; 1]>::try_from(inspect(settings.clone()).await.unwrap()).unwrap_or_else(|_| panic!("one node"));
    node.opened.unwrap_or_else(|error| panic!("{error}"))
}

fn own(topics: &[&str]) -> Subscription {
    Subscription { ownership: Ownership::Replica, ..subscription(&unique("own"), topics) }
}

#[tokio::test]
async fn a_node_reports_its_product_even_without_a_login() {
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
async fn missing_queues_and_exchanges_are_reported_and_not_declared() {
    let settings = settings(&node().await.url());
    let (inspection, shared) = (asking(&settings).await, subscription(&unique("missing"), &["t"]));
    // Twice: what a question had declared would be there.
    for _ in 0..2 {
        let names = [settings.exchange.clone(), settings.dead_letter_exchange.clone()];
        let missing = names.map(|name| (name, Inspected::Missing));
        assert_eq!(inspection.exchanges().await, missing);
        let names = [shared.queue.clone(), format!("{}.dlq", shared.queue)];
        assert_eq!(inspection.queues(&shared).await, names.map(|name| (name, Inspected::Missing)));
        assert_eq!(inspection.may_publish("t").await, Inspected::Missing);
    }
    inspection.close().await;
}

#[tokio::test]
async fn declared_queues_and_exchanges_pass_the_inspection() {
    let settings = settings(&node().await.url());
    let (bus, queue) = (RabbitMq::start(settings.clone()).unwrap(), unique("declared"));
    drop(consume(&bus, &queue, &["t"]).await);
    let inspection = asking(&settings).await;
    let is_there = |probes: Vec<(String, Inspected)>| probes.iter().all(|(_, probed)| *probed == Inspected::Yes);
    assert!(is_there(inspection.exchanges().await));
    assert!(is_there(inspection.queues(&subscription(&queue, &[])).await));
    assert_eq!(inspection.may_publish("t").await, Inspected::Yes);
    assert_eq!(inspection.may_dead_letter(&queue).await, Inspected::Yes);
    let own = inspection.own_queue(&own(&["t"])).await;
    assert_eq!((own.declare, own.publish, own.consume), (Inspected::Yes, Inspected::Yes, Inspected::Yes));
    assert_eq!(own.bind, [("t".to_owned(), Inspected::Yes)]);
    assert_eq!((own.is_blocked, own.broker_time), (false, None));
    inspection.close().await;
    bus.close().await;
}

#[tokio::test]
async fn a_differing_queue_or_exchange_is_reported_with_its_configuration_key() {
    let (settings, queue) = (settings(&node().await.url()), unique("other"));
    let (_client, channel) = client().await;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.as_str().into(), durable, FieldTable::default()).await.unwrap();
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let name = settings.exchange.as_str().into();
    channel.exchange_declare(name, ExchangeKind::Fanout, options, FieldTable::default()).await.unwrap();
    let inspection = asking(&settings).await;
    let [(_, exchange), _] = &inspection.exchanges().await[..] else { panic!("two exchanges") };
    assert!(matches!(exchange, Inspected::Differs { key: None, .. }), "{exchange:?}");
    let [(_, found), (_, dead_letters)] = &inspection.queues(&subscription(&queue, &[])).await[..] else {
        panic!("two")
    };
    assert!(matches!(found, Inspected::Differs { key: Some("bus.dead_letter_exchange"), .. }), "{found:?}");
    assert_eq!(*dead_letters, Inspected::Missing);
    inspection.close().await;
}

#[tokio::test]
async fn each_missing_permission_is_reported() {
    let (node, name, settings) = (node().await, unique("user"), settings(&node().await.url()));
    let bus = RabbitMq::start(settings.clone()).unwrap();
    drop(consume(&bus, &unique("declared"), &[]).await);
    node.ctl(&["add_user", &name, "s3cret"]).await;
    let limited = RabbitMqSettings { urls: vec![node.url_of(&name, "s3cret")], ..settings };
    let is_refused =
        |probed: &Inspected| matches!(probed, Inspected::Refused(words) if words.contains("ACCESS_REFUSED"));

    node.ctl(&["set_permissions", &name, "^$", "^$", "^$"]).await;
    let inspection = asking(&limited).await;
    // Before 4.3, any user may look up an exchange.
    let is_open = node.version().await < (4, 3);
    let exchanges = inspection.exchanges().await;
    let is_expected = |probed: &Inspected| if is_open { *probed == Inspected::Yes } else { is_refused(probed) };
    assert!(exchanges.iter().all(|(_, probed)| is_expected(probed)), "{exchanges:?}");
    let missing = inspection.queues(&subscription(&unique("missing"), &[])).await;
    assert!(missing.iter().all(|(_, probed)| is_refused(probed)), "{missing:?}");
    let published = [inspection.may_publish("t").await, inspection.may_dead_letter("q").await];
    assert!(published.iter().all(is_refused), "{published:?}");
    assert!(is_refused(&inspection.own_queue(&own(&["t"])).await.declare));
    inspection.close().await;

    node.ctl(&["set_permissions", &name, ".*", "^own.*", "^$"]).await;
    let inspection = asking(&limited).await;
    let own = inspection.own_queue(&own(&["t"])).await;
    assert_eq!(own.declare, Inspected::Yes);
    assert!(own.bind.iter().all(|(_, probed)| is_refused(probed)), "{own:?}");
    assert!(is_refused(&own.publish) && is_refused(&own.consume), "{own:?}");
    inspection.close().await;
    bus.close().await;
}
