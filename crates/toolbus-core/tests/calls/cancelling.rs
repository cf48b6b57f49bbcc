//! Calls that are ended from outside: by their caller, or by shutdown.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use toolbus_core::bus::{Bus, Target};
use toolbus_core::toolsets::SessionSets;
use toolbus_core::{About, ControlService, Drained, Service};

use crate::fixture::{Message, Route, Settled, Settlement, World, agent, call, delivery, request, settings};
use toolbus_core::Clock;

#[tokio::test]
async fn a_caller_cancels_its_running_call() {
    let world = World::new();
    let (running, settled) = world.begin(call("wait_effectful", json!({})));
    world.until_running(1).await;
    assert!(!world.dispatcher.cancel(&agent("bob"), "call_1"), "not bob's call");
    assert!(world.dispatcher.cancel(&agent("ana"), "call_1"));
    running.await.unwrap();
    let body = world.bus.sent().pop().unwrap().body;
    assert_eq!(
        (&body["code"], &body["outcome"], &body["isRetryable"]),
        (&json!("cancelled"), &json!("unknown"), &json!(false))
    );
    assert_eq!(settled.get(), Some(Settled::Acknowledged));
    assert!(!world.dispatcher.cancel(&agent("ana"), "call_1"), "gone");
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
    assert!(world.dispatcher.cancel(&agent("ana"), "call_1"), "both have this id");
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

/// A request of `ana` to cancel her call, to be answered on `tool.result.ana`.
pub(crate) fn cancellation() -> Message {
    request(&json!({"toolCallId": "call_1"})).typed(Some("Toolbus.ToolCancelRequest"))
}

/// Has a service obey these requests, one after the other, and waits until the last was taken.
pub(crate) async fn obey(
    world: &World,
    service: &Service,
    messages: impl IntoIterator<Item = Message>,
) -> Vec<Settlement> {
    let (sender, receiver) = mpsc::channel(8);
    let mut settlements = Vec::new();
    for message in messages {
        let (mut delivery, settlement) = delivery(message);
        delivery.routing_key = "tool.cancel".into();
        sender.send(delivery).await.unwrap();
        settlements.push(settlement);
    }
    drop(sender);
    let bus = Arc::clone(&world.bus) as Arc<dyn Bus>;
    let about = About {
        name: "toolbus".to_owned(),
        version: "1".to_owned(),
        config_digest: tokio::sync::watch::Sender::new("0".to_owned()).subscribe(),
        roles: Vec::new(),
        started: Clock::SYSTEM.now(),
    };
    let control = ControlService::new(about, bus, settings().replies, world.dispatcher.clone(), SessionSets::default());
    service.serve_requests(&control, receiver).await;
    settlements
}

#[tokio::test]
async fn a_request_to_cancel_is_answered_with_the_envelope_of_every_answer() {
    let world = World::new();
    let service = Service::new(world.dispatcher.clone());
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut message = cancellation().header("traceparent", trace);
    message.properties.headers.retain(|(name, _)| name != "rb-source");
    let message = message.header("rb-source", &"ü".repeat(1_000));
    let settled = obey(&world, &service, [message]).await;
    assert_eq!(service.drain(Duration::from_secs(30)).await, Drained::Finished);
    let sent = world.bus.sent().pop().unwrap();
    assert_eq!(sent.body, json!({"toolCallId": "call_1", "cancelled": false}));
    assert_eq!(sent.properties.header("rb-rb-content-trust"), Some("tool-output"));
    assert_eq!(sent.properties.header("traceparent"), Some(trace));
    assert!(sent.properties.header("rb-destination").unwrap().len() <= 255);
    assert_eq!(settled[0].get(), Some(Settled::Acknowledged));
}

#[tokio::test(start_paused = true)]
async fn one_answer_that_does_not_leave_holds_up_no_other_cancellation_and_the_end_only_a_little() {
    let world = World::new();
    world.bus.route(Target::Topic("tool.result.ana".to_owned()), Route::Unavailable);
    let (running, _) = world.begin(call("wait_effectful", json!({})).reply_to(None));
    world.until_running(1).await;
    let service = Service::new(world.dispatcher.clone());
    let begun = Clock::SYSTEM.now();
    let nobodys = request(&json!({"toolCallId": "other"})).typed(Some("Toolbus.ToolCancelRequest"));
    let settled = obey(&world, &service, [nobodys, cancellation()]).await;
    running.await.unwrap();
    assert_eq!(Clock::SYSTEM.since(begun), Duration::ZERO);
    assert_eq!(world.bus.sent().pop().unwrap().body["code"], "cancelled");
    assert_eq!(service.drain(Duration::from_secs(30)).await, Drained::Finished);
    assert!(Clock::SYSTEM.since(begun) <= Duration::from_secs(5));
    assert!(settled.iter().all(|settled| settled.get() == Some(Settled::Acknowledged)));
}

#[tokio::test]
async fn a_request_to_cancel_that_is_no_such_request_is_settled_and_not_answered() {
    let world = World::new();
    let service = Service::new(world.dispatcher.clone());
    let too_large = request(&json!({"toolCallId": "x".repeat(70_000)})).typed(None);
    let messages = [
        too_large,
        cancellation().typed(Some("RockBot.Tools.ToolError")),
        cancellation().reply_to(Some("tool.invoke")),
        request(&json!([])).typed(None),
    ];
    let settled = obey(&world, &service, messages).await;
    assert_eq!(service.drain(Duration::from_secs(30)).await, Drained::Finished);
    assert!(settled.iter().all(|settled| settled.get() == Some(Settled::Acknowledged)));
    assert!(world.bus.attempts().is_empty());
}
