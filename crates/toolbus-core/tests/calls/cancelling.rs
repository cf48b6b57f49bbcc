//! Calls that are ended from outside: by their caller, or by shutdown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use toolbus_core::bus::{Delivery, Target};

use toolbus_core::{Drained, Service};
use toolbus_testing::recording_bus::Route;

use crate::fixture::{Message, Settled, Settlement, World, agent, call, control, delivery, request};
use crate::ledger::code;
use toolbus_core::Clock;
use toolbus_protocol::Random;

#[tokio::test]
async fn a_caller_cancels_its_running_call() {
    let world = World::new();
    let (running, settled) = world.begin_running(call("wait_effectful", json!({}))).await;
    assert!(!world.dispatcher.cancel(&agent("bob"), "call_1", None), "not bob's call");
    assert!(world.dispatcher.cancel(&agent("ana"), "call_1", None));
    running.await.unwrap();
    let sent = world.sent().pop().unwrap();
    assert_eq!(code(&sent), ("cancelled", "unknown", false));
    let effect = "Whether it had its effect is not known: find out before calling again.";
    assert_eq!(sent.body["message"], format!("The call was cancelled while the tool ran. {effect}"));
    assert_eq!(settled.get(), Some(Settled::Acknowledged));
    assert!(!world.dispatcher.cancel(&agent("ana"), "call_1", None), "gone");
}

#[tokio::test]
async fn a_waiting_call_that_is_cancelled_has_not_started() {
    let world = World::with(|settings| settings.max_in_flight = 1);
    let (first, _) = world.begin_running(call("wait", json!({}))).await;
    let (second, _) = world.begin(call("pay", json!({})).header("unused", "1"));
    world.until_waiting(1).await;
    assert!(world.dispatcher.cancel(&agent("ana"), "call_1", None), "both have this id");
    second.await.unwrap();
    first.await.unwrap();
    let outcomes: Vec<_> = world.sent().into_iter().map(|sent| sent.body["outcome"].clone()).collect();
    assert!(outcomes.contains(&json!("not_started")), "{outcomes:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn shutdown_requeues_calls_that_can_be_repeated_or_did_not_start() {
    let world = World::with(|settings| settings.max_in_flight = 1);
    let (running, repeatable) = world.begin_running(call("wait", json!({}))).await;
    let (waiting, not_started) = world.begin(call("pay", json!({})));
    world.until_waiting(1).await;
    world.dispatcher.shut_down();
    running.await.unwrap();
    waiting.await.unwrap();
    assert_eq!((repeatable.get(), not_started.get()), (Some(Settled::Requeued), Some(Settled::Requeued)));
    assert!(world.sent().is_empty());
}

#[tokio::test]
async fn shutdown_requeues_calls_that_wait_for_their_backend() {
    let world = World::new();
    world.register("pending");
    let (waiting, not_started) = world.begin_running(call("pending", json!({}))).await;
    world.dispatcher.shut_down();
    waiting.await.unwrap();
    assert_eq!(not_started.get(), Some(Settled::Requeued));
    assert!(world.sent().is_empty());
}

#[tokio::test]
async fn shutdown_replies_to_calls_that_may_have_had_their_effect() {
    for tool in ["wait_effectful", "wait_undeclared"] {
        let world = World::new();
        let (running, settled) = world.begin_running(call(tool, json!({}))).await;
        world.dispatcher.shut_down();
        running.await.unwrap();
        assert_eq!(code(&world.sent().pop().unwrap()), ("cancelled", "unknown", false));
        assert_eq!(settled.get(), Some(Settled::Acknowledged));
    }
}

#[tokio::test]
async fn a_request_that_its_cancellation_overtook_is_answered_and_not_run() {
    let world = World::new();
    let service = Service::new(world.dispatcher.clone());
    let mut cancel = cancellation();
    cancel.properties.timestamp = Some(1_700_000_000);
    obey(&world, &service, [cancel]).await;
    assert_eq!(service.drain(Duration::from_secs(30)).await, Drained::Finished);
    let sent_at = |seconds| {
        let mut call = call("pay", json!({}));
        call.properties.timestamp = Some(seconds);
        call.properties.message_id = Some(format!("sent-{seconds}"));
        call
    };
    let body = world.reply(sent_at(1_700_000_000)).await.body;
    assert_eq!((&body["code"], &body["outcome"]), (&json!("cancelled"), &json!("not_started")));
    assert_eq!(world.runs(), 0);
    let body = world.reply(sent_at(1_700_000_001)).await.body;
    assert_eq!(body["content"], "paid", "the model uses its id again");
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_at_any_moment_has_one_final_reply_with_its_outcome() {
    let random = Random::seeded(16);
    let below = |most: u64| random.below(Duration::from_millis(most));
    let mut codes = BTreeMap::<String, usize>::new();
    for round in 0..400 {
        let world = World::with(|settings| settings.max_in_flight = 1 + round % 2);
        let calls = 1 + round % 3;
        let tasks: Vec<_> = (0..calls)
            .map(|number| {
                let tool = if random.bits().is_multiple_of(2) { "wait_effectful" } else { "wait" };
                let body = json!({"toolCallId": format!("call_{number}"), "toolName": tool, "arguments": {}});
                let mut message = request(&body);
                message.properties.timestamp = Some(1_700_000_000);
                message.properties.message_id = Some(random.id());
                let (delivery, settlement) = delivery(message);
                let (dispatcher, arrives) = (world.dispatcher.clone(), below(20));
                let handling = TaskTracker::new().spawn(async move {
                    tokio::time::sleep(arrives).await;
                    dispatcher.handle(Delivery { arrived: Clock::SYSTEM.now(), ..delivery }).await;
                });
                (handling, settlement)
            })
            .collect();
        let meddling: Vec<_> = (0..calls)
            .map(|number| {
                let (released, cancelled) = (below(20), below(30));
                let (go_on, dispatcher) = (Arc::clone(&world.go_on), world.dispatcher.clone());
                TaskTracker::new().spawn(async move {
                    let release = async {
                        tokio::time::sleep(released).await;
                        go_on.notify_one();
                    };
                    let cancel = async {
                        tokio::time::sleep(cancelled).await;
                        let _ = dispatcher.cancel(&agent("ana"), &format!("call_{number}"), Some(1_700_000_000));
                    };
                    tokio::join!(release, cancel);
                })
            })
            .collect();
        for task in meddling {
            task.await.unwrap();
        }
        for (handling, settlement) in tasks {
            handling.await.unwrap();
            assert_eq!(settlement.get(), Some(Settled::Acknowledged));
        }
        let sent = world.sent();
        let ids: BTreeSet<_> = sent.iter().map(|sent| sent.properties.message_id.clone()).collect();
        assert_eq!((sent.len(), ids.len()), (calls, calls), "round {round}: one reply each");
        let not_started = sent.iter().filter(|sent| sent.body["outcome"] == "not_started").count();
        assert_eq!(world.runs(), calls - not_started, "round {round}: what was not run is reported so");
        for sent in sent {
            let code = sent.body["code"].as_str().unwrap_or("ok").to_owned();
            *codes.entry(code).or_default() += 1;
        }
        assert_eq!((world.load.in_flight(), world.load.waiting()), (0, 0), "round {round}");
    }
    assert_eq!(codes.keys().collect::<Vec<_>>(), ["cancelled", "ok"]);
    assert!(codes.values().all(|count| *count > 100), "both ends: {codes:?}");
}

/// A request of `ana` to cancel her call, with the reply on `tool.result.ana`.
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
    let control = control(&world.dispatcher, &world.bus);
    service.serve_requests(&control, receiver).await;
    settlements
}

#[tokio::test]
async fn the_reply_to_a_cancellation_has_the_envelope_of_every_reply() {
    let world = World::new();
    let service = Service::new(world.dispatcher.clone());
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut message = cancellation().header("traceparent", trace);
    message.properties.headers.retain(|(name, _)| name != "rb-source");
    let message = message.header("rb-source", &"ü".repeat(1_000));
    let settled = obey(&world, &service, [message]).await;
    assert_eq!(service.drain(Duration::from_secs(30)).await, Drained::Finished);
    let sent = world.sent().pop().unwrap();
    assert_eq!(sent.body, json!({"toolCallId": "call_1", "cancelled": false}));
    assert_eq!(sent.properties.message_type.as_deref(), Some("Toolbus.ToolCancelResponse"));
    assert_eq!(sent.properties.header("rb-rb-content-trust"), Some("tool-output"));
    assert_eq!(sent.properties.header("traceparent"), Some(trace));
    assert!(sent.properties.header("rb-destination").unwrap().len() <= 255);
    assert_eq!(settled[0].get(), Some(Settled::Acknowledged));
}

#[tokio::test(start_paused = true)]
async fn an_unsent_reply_delays_no_other_cancellation_and_the_drain_only_briefly() {
    let world = World::new();
    world.bus.route(Target::Topic("tool.result.ana".to_owned()), Route::Unavailable);
    let (running, _) = world.begin_running(call("wait_effectful", json!({})).reply_to(None)).await;
    let service = Service::new(world.dispatcher.clone());
    let begun = Clock::SYSTEM.now();
    let nobodys = request(&json!({"toolCallId": "other"})).typed(Some("Toolbus.ToolCancelRequest"));
    let settled = obey(&world, &service, [nobodys, cancellation()]).await;
    running.await.unwrap();
    assert_eq!(Clock::SYSTEM.since(begun), Duration::ZERO);
    assert_eq!(world.sent().pop().unwrap().body["code"], "cancelled");
    assert_eq!(service.drain(Duration::from_secs(30)).await, Drained::Finished);
    assert!(Clock::SYSTEM.since(begun) <= Duration::from_secs(5));
    assert!(settled.iter().all(|settled| settled.get() == Some(Settled::Acknowledged)));
}

#[tokio::test]
async fn an_unusable_cancellation_is_settled_without_a_reply() {
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
