//! Calls that are ended from outside: by their caller, or by shutdown.

use std::time::Duration;

use serde_json::json;
use toolbus_core::{Drained, Service};

use crate::world::{Settled, World, call};

#[tokio::test]
async fn a_caller_cancels_its_running_call() {
    let world = World::new();
    let (running, settled) = world.begin(call("wait_effectful", json!({})));
    world.until_running(1).await;
    assert!(!world.dispatcher.cancel("bob", "call_1"), "not bob's call");
    assert!(world.dispatcher.cancel("ana", "call_1"));
    running.await.unwrap();
    let body = world.bus.sent().pop().unwrap().body;
    assert_eq!(
        (&body["code"], &body["outcome"], &body["isRetryable"]),
        (&json!("cancelled"), &json!("unknown"), &json!(false))
    );
    assert_eq!(settled.get(), Some(Settled::Acknowledged));
    assert!(!world.dispatcher.cancel("ana", "call_1"), "gone");
}

#[tokio::test]
async fn a_waiting_call_that_is_cancelled_has_not_started() {
    let world = World::with(|settings| settings.max_in_flight = 1);
    let (first, _) = world.begin(call("wait", json!({})));
    world.until_running(1).await;
    let (second, _) = world.begin(call("pay", json!({})).header("unused", "1"));
    while world.load.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(world.dispatcher.cancel("ana", "call_1"), "both have this id");
    second.await.unwrap();
    first.await.unwrap();
    let outcomes: Vec<_> = world.bus.sent().into_iter().map(|sent| sent.body["outcome"].clone()).collect();
    assert!(outcomes.contains(&json!("not_started")), "{outcomes:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn shutdown_puts_back_what_can_be_repeated_and_what_did_not_start() {
    let world = World::with(|settings| settings.max_in_flight = 1);
    let (running, repeatable) = world.begin(call("wait", json!({})));
    world.until_running(1).await;
    let (waiting, not_started) = world.begin(call("pay", json!({})));
    while world.load.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    world.dispatcher.shut_down();
    running.await.unwrap();
    waiting.await.unwrap();
    assert_eq!((repeatable.get(), not_started.get()), (Some(Settled::Requeued), Some(Settled::Requeued)));
    assert!(world.bus.sent().is_empty());
}

#[tokio::test]
async fn shutdown_answers_what_may_have_had_its_effect() {
    for tool in ["wait_effectful", "wait_undeclared"] {
        let world = World::new();
        let (running, settled) = world.begin(call(tool, json!({})));
        world.until_running(1).await;
        world.dispatcher.shut_down();
        running.await.unwrap();
        let body = world.bus.sent().pop().unwrap().body;
        assert_eq!(
            (&body["code"], &body["outcome"], &body["isRetryable"]),
            (&json!("cancelled"), &json!("unknown"), &json!(false))
        );
        assert_eq!(settled.get(), Some(Settled::Acknowledged));
    }
}

#[tokio::test]
async fn a_drain_without_calls_is_finished_at_once() {
    let service = Service::new(World::new().dispatcher);
    assert_eq!(service.drain(Duration::from_secs(30)).await, Drained::Finished);
}
