//! Requests that the broker delivers again.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::json;
use toolbus_core::bus::{Delivery, Settle, Target};
use toolbus_testing::recording_bus::Route;

use crate::fixture::{Message, Settled, Settlement, World, call, delivery, request};
use tokio_util::task::TaskTracker;

/// Acknowledges so that it cannot be lost.
struct Sure(Box<dyn Settle>);

impl Settle for Sure {
    fn acknowledge(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.0.acknowledge()
    }

    fn requeue(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.0.requeue()
    }

    fn is_sure(&self) -> bool {
        true
    }
}

fn surely(message: Message) -> (Delivery, Settlement) {
    let (delivery, settlement) = delivery(message);
    (Delivery { settle: Box::new(Sure(delivery.settle)), ..delivery }, settlement)
}

#[tokio::test]
async fn a_redelivered_request_that_was_answered_is_not_run_again() {
    let world = World::new();
    let first = world.reply(call("pay", json!({}))).await;
    let again = world.reply(call("pay", json!({})).redelivered()).await;
    assert_eq!((world.runs(), world.recorder.published()), (1, 2), "each publish has its span");
    assert_eq!((first.body, first.properties), (again.body, again.properties), "identical, message id included");
}

#[tokio::test]
async fn a_reply_is_not_kept_where_its_acknowledgement_cannot_be_lost() {
    let world = World::new();
    let (first, settlement) = surely(call("pay", json!({})));
    world.dispatcher.handle(first).await;
    assert_eq!(settlement.get(), Some(Settled::Acknowledged));
    world.dispatcher.handle(surely(call("pay", json!({})).redelivered()).0).await;
    assert_eq!(world.runs(), 2, "it cannot be the same request");
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_reply_is_kept_when_its_request_is_requeued() {
    let world = World::new();
    let address = Target::Topic("tool.result.ana".into());
    world.bus.route(address.clone(), Route::Unavailable);
    let (first, settlement) = surely(call("pay", json!({})));
    let dispatcher = world.dispatcher.clone();
    let handling = TaskTracker::new().spawn(async move { dispatcher.handle(first).await });
    tokio::time::sleep(Duration::from_secs(600)).await;
    world.dispatcher.shut_down();
    handling.await.unwrap();
    assert_eq!(settlement.get(), Some(Settled::Requeued));
    world.bus.route(address, Route::Routed);
    let again = world.reply(call("pay", json!({})).redelivered()).await;
    assert_eq!((world.runs(), &again.body["content"]), (1, &json!("paid")));
}

#[tokio::test(start_paused = true)]
async fn a_reply_is_not_lost_if_its_address_is_refused_later() {
    let world = World::new();
    world.reply(call("pay", json!({}))).await;
    world.route_both("tool.result.ana", &Route::Refused);
    let again = world.reply(call("pay", json!({})).redelivered()).await;
    assert_eq!((again.properties.header("rb-dead-reason"), world.runs()), (Some("undeliverable_answer"), 1));
    assert_eq!(again.body["content"], "paid");
    let once_more = world.reply(call("pay", json!({})).redelivered()).await;
    assert_eq!(once_more.body["content"], "paid", "also while nothing is known of the address");
}

#[tokio::test]
async fn two_requests_that_look_alike_are_two_calls() {
    let world = World::new();
    let (first, mut second) = (call("pay", json!({})), call("pay", json!({})));
    second.properties.message_id = Some("another".to_owned());
    world.reply(first).await;
    world.reply(second.redelivered()).await;
    assert_eq!(world.runs(), 2);
}

#[tokio::test]
async fn a_redelivered_request_that_was_never_begun_is_run() {
    let world = World::new();
    assert_eq!(world.reply(call("pay", json!({})).redelivered()).await.body["content"], "paid");
}

#[tokio::test]
async fn a_redelivered_request_that_is_running_is_answered_once_and_both_are_settled() {
    let world = World::new();
    let (running, first) = world.begin_running(call("wait", json!({}))).await;
    let second = world.deliver(call("wait", json!({})).redelivered()).await;
    assert_eq!(second.get(), None, "held by the running call");
    world.finish(running).await;
    assert_eq!((world.runs(), world.sent().len()), (1, 1));
    assert_eq!((first.get(), second.get()), (Some(Settled::Acknowledged), Some(Settled::Acknowledged)));
}

#[tokio::test]
async fn the_same_ids_with_another_body_are_another_request() {
    let world = World::new();
    world.reply(call("pay", json!({}))).await;
    let other = call("echo", json!({"text": "mine"})).redelivered();
    assert_eq!(world.reply(other).await.body["content"], "mine");
}

#[tokio::test]
async fn a_request_without_any_id_is_never_taken_for_another() {
    let world = World::new();
    let mut anonymous = request(&json!({"toolName": "pay"}));
    anonymous.properties.message_id = None;
    anonymous.properties.correlation_id = None;
    world.reply(anonymous.clone()).await;
    world.reply(anonymous.redelivered()).await;
    assert_eq!(world.runs(), 2);
}

#[tokio::test]
async fn the_fifth_delivery_is_answered_and_not_run() {
    let world = World::new();
    let mut message = call("pay", json!({})).redelivered();
    message.earlier_deliveries = 3;
    assert_eq!(world.reply(message.clone()).await.body["content"], "paid");
    let world = World::new();
    message.earlier_deliveries = 4;
    let sent = world.reply(message).await;
    assert_eq!((&sent.body["code"], &sent.body["outcome"]), (&json!("execution_failed"), &json!("unknown")));
    assert_eq!((world.runs(), world.recorder.published()), (0, 1));
}

#[tokio::test]
async fn an_implausible_count_of_deliveries_does_not_run_the_call_again() {
    let world = World::new();
    let mut message = call("pay", json!({})).redelivered();
    message.earlier_deliveries = u32::MAX;
    assert_eq!(world.reply(message).await.body["code"], "execution_failed");
    assert_eq!(world.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_replayed_reply_is_published_by_one_delivery_at_a_time() {
    let world = World::new();
    world.reply(call("pay", json!({}))).await;
    let address = Target::Topic("tool.result.ana".to_owned());
    world.bus.route(address.clone(), Route::Unavailable);
    let (repeating, first) = world.begin(call("pay", json!({})).redelivered());
    tokio::time::sleep(Duration::from_secs(300)).await;
    let second = world.deliver(call("pay", json!({})).redelivered()).await;
    assert_eq!((first.get(), second.get()), (Some(Settled::Acknowledged), None), "the later one is held");
    world.bus.route(address, Route::Routed);
    repeating.await.unwrap();
    assert_eq!(second.get(), Some(Settled::Acknowledged));
    assert_eq!((world.sent().len(), world.runs()), (2, 1));
}
