//! Users that may do less than everything.

use toolbus_broker::rabbitmq::{RabbitMq, RabbitMqSettings};
use toolbus_bus::{Bus, PublishError, Routing, Target};
use toolbus_testing::log::LogCapture;
use toolbus_testing::patience::eventually;

use crate::fixture::{
    consume, deliver, failed, logged, message, node, prepare, ready, settings, subscription, take, to_queue, to_topic,
    unique,
};

/// A user with these rights (configure, write, read), and where it connects to.
async fn user(configure: &str, write: &str, read: &str) -> (String, String) {
    let (node, name) = (&node().await, unique("user"));
    node.ctl(&["add_user", &name, "s3cret"]).await;
    node.ctl(&["set_permissions", &name, configure, write, read]).await;
    let url = node.url_of(&name, "s3cret");
    (name, url)
}

#[tokio::test]
async fn a_user_without_the_right_to_declare_uses_existing_queues() {
    let owner = settings(&node().await.url());
    let queue = unique("prepared");
    prepare(&owner, &queue, &["t"]).await;
    let (_, url) = user("^$", ".*", ".*").await;
    let bus = RabbitMq::start(RabbitMqSettings { urls: vec![url], ..owner }).unwrap();
    let mut deliveries = consume(&bus, &queue, &["t"]).await;
    deliver(&bus, &to_topic("t", "hello")).await;
    assert_eq!(take(&mut deliveries).await, "hello");

    let missing = unique("missing");
    let _nothing = bus.consume(subscription(&missing, &[]));
    let (text, _) = failed(&bus).await;
    assert!(text.contains(&missing) && text.contains("may not declare"), "{text}");
    bus.close().await;
}

#[tokio::test]
async fn an_address_that_the_user_may_not_write_to_is_refused_and_harms_no_other() {
    let owner = settings(&node().await.url());
    let forbidden = format!("{}.dlx", owner.exchange);
    let (name, url) = user(".*", ".*", ".*").await;
    let bus = RabbitMq::start(RabbitMqSettings { urls: vec![url], ..owner }).unwrap();
    let queue = unique("harmless");
    let mut deliveries = consume(&bus, &queue, &["t"]).await;
    deliver(&bus, &to_topic("t", "before")).await;
    node().await.ctl(&["set_permissions", &name, ".*", "^(?!.*[.]dlx$).*$", ".*"]).await;

    let mut refused = message(Target::DeadLetter(queue.clone()), "refused");
    refused.proven = false;
    let mut unproven = to_queue(&queue, "unproven");
    unproven.proven = false;
    let proven = to_topic("t", "proven");
    let (one, two, three, four) =
        tokio::join!(bus.publish(&proven), bus.publish(&refused), bus.publish(&unproven), bus.publish(&refused));
    assert_eq!((one, three), (Ok(Routing::Routed), Ok(Routing::Routed)));
    for outcome in [two, four] {
        assert!(matches!(&outcome, Err(PublishError::Refused(text)) if text.contains(&forbidden)), "{outcome:?}");
    }

    // An address that took messages before shares its channel: what was pending there is repeated, each alone.
    refused.proven = true;
    let outcome = bus.publish(&refused).await;
    assert!(matches!(outcome, Err(PublishError::Unavailable(_))), "{outcome:?}");
    refused.proven = false;
    let (outcome, proven) = tokio::join!(bus.publish(&refused), bus.publish(&proven));
    assert!(matches!(outcome, Err(PublishError::Refused(_))), "{outcome:?}");
    assert_eq!(proven, Ok(Routing::Routed));
    assert_eq!(bus.publish(&to_topic("t", "after")).await, Ok(Routing::Routed));
    let mut bodies = Vec::new();
    for _ in 0..5 {
        bodies.push(take(&mut deliveries).await);
    }
    bodies.sort();
    assert_eq!(bodies, ["after", "before", "proven", "proven", "unproven"]);
    assert_eq!(bus.state().borrow().reconnects, 0);
    bus.close().await;
}

#[tokio::test]
async fn a_permission_that_the_broker_confirmed_and_took_away_costs_one_message_and_no_other() {
    let owner = settings(&node().await.url());
    let (name, url) = user(".*", ".*", ".*").await;
    let bus = RabbitMq::start(RabbitMqSettings { urls: vec![url], ..owner }).unwrap();
    let mut deliveries = consume(&bus, &unique("harmless"), &["t"]).await;
    let mut refused = to_queue(&unique("reply"), "refused");
    refused.proven = false;
    assert_eq!(bus.refusal(&refused.target).await, None);
    node().await.ctl(&["set_permissions", &name, ".*", "^(?!amq.default).*$", ".*"]).await;
    assert_eq!(bus.refusal(&Target::Queue(unique("another"))).await, None, "what holds for one queue holds for all");

    let proven = to_topic("t", "proven");
    let refused = async || {
        loop {
            match bus.publish(&refused).await {
                Err(PublishError::Refused(words)) => return words,
                outcome => assert!(!outcome.is_err_and(|error| error.is_certain())),
            }
        }
    };
    let (words, ()) = tokio::join!(refused(), deliver(&bus, &proven));
    assert!(words.contains("amq.default"), "{words}");
    assert_eq!(take(&mut deliveries).await, "proven");
    assert_eq!(bus.refusal(&Target::Queue(unique("another"))).await, Some(words));
    assert_eq!(bus.state().borrow().reconnects, 0);
    bus.close().await;
}

#[tokio::test]
async fn wrong_credentials_are_tried_again_and_named_without_being_shown() {
    let (node, name) = (&node().await, unique("user"));
    let bus = RabbitMq::start(settings(&node.url_of(&name, "s3cret"))).unwrap();
    let _deliveries = bus.consume(subscription(&unique("q"), &["t"]));
    let (text, state) = failed(&bus).await;
    assert!(text.contains("check user and password") && !text.contains("s3cret"), "{text}");
    assert_eq!(state.fatal, None);
    node.ctl(&["add_user", &name, "s3cret"]).await;
    node.ctl(&["set_permissions", &name, ".*", ".*", ".*"]).await;
    ready(&bus).await;
    assert_eq!(bus.state().borrow().last_error, None);
    bus.close().await;
}

/// Waits until an attempt has failed this often without a warning, and counts the warnings.
async fn warnings_beside(log: &LogCapture, repeated: &str, times: usize) -> usize {
    let repetitions = async || (log.text().matches(repeated).count() >= times).then_some(());
    eventually("failed attempts", repetitions).await;
    log.text().lines().filter(|line| line.contains(" WARN ")).count()
}

#[tokio::test]
async fn a_repeatedly_refused_queue_is_logged_once() {
    let owner = settings(&node().await.url());
    prepare(&owner, &unique("prepared"), &[]).await;
    let (log, _logging) = logged();
    let (_, url) = user("^$", ".*", ".*").await;
    let bus = RabbitMq::start(RabbitMqSettings { urls: vec![url], ..owner }).unwrap();
    let _nothing = bus.consume(subscription(&unique("missing"), &[]));
    assert_eq!(warnings_beside(&log, "still not consuming", 2).await, 1, "{}", log.text());
    bus.close().await;
}

#[tokio::test]
async fn repeatedly_refused_credentials_are_logged_once_per_connection() {
    let settings = settings(&node().await.url_of(&unique("user"), "s3cret"));
    let (log, _logging) = logged();
    let bus = RabbitMq::start(settings).unwrap();
    assert_eq!(warnings_beside(&log, "still no connection", 4).await, 2, "{}", log.text());
    bus.close().await;
}

#[tokio::test]
async fn a_virtual_host_that_does_not_exist_is_named() {
    let url = node().await.url().replace("%2f", "elsewhere");
    let bus = RabbitMq::start(settings(&url)).unwrap();
    let (text, _) = failed(&bus).await;
    assert!(text.contains("virtual host"), "{text}");
}
