//! Calls that must not run twice, whatever happens to messages and daemons.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use toolbus_core::Clock;
use toolbus_core::bus::Target;
use toolbus_core::ledger::{Ledger, LedgerLimits, LedgerSettings, LedgerUsage};
use toolbus_core::telemetry::LedgerEvent;
use toolbus_core::tool::{Effect, ToolDescriptor};
use toolbus_store::MemoryLedger;
use toolbus_testing::faulty_ledger::{FaultyLedger, LedgerOperation};
use toolbus_testing::faulty_store::StoreFault;
use toolbus_testing::recording_bus::Route;

use crate::fixture::{Message, Sent, Settled, Settlement, World, call, request};

pub(crate) const KEY: &str = "rb-rb-idempotency-key";
pub(crate) const ROOMY: LedgerLimits = LedgerLimits { max_entries: 1_000, max_bytes: 1024 * 1024 };

fn faulty() -> Arc<FaultyLedger> {
    Arc::new(FaultyLedger::new(ledger(ROOMY)))
}

pub(crate) fn ledger(limits: LedgerLimits) -> Arc<dyn Ledger> {
    Arc::new(MemoryLedger::new(limits, Clock::SYSTEM))
}

/// A daemon with this ledger.
pub(crate) fn daemon(ledger: &Arc<dyn Ledger>) -> World {
    World::with(|settings| settings.ledger = Some(kept_in(ledger)))
}

fn kept_in(ledger: &Arc<dyn Ledger>) -> LedgerSettings {
    LedgerSettings { ledger: Arc::clone(ledger), ttl: Duration::from_secs(3600), max_reply: 1024 }
}

/// A daemon with this ledger and no room for a call beside the one that it runs until it is let go on.
async fn busy(ledger: &Arc<dyn Ledger>) -> (World, JoinHandle<()>) {
    let busy = World::with(|it| (it.ledger, it.max_in_flight, it.max_waiting) = (Some(kept_in(ledger)), 1, 0));
    let (occupying, _) = busy.begin_running(wait().id("another")).await;
    (busy, occupying)
}

/// Has a daemon with this ledger begin a call, and kills it meanwhile.
async fn kill_during(ledger: &Arc<dyn Ledger>, message: Message) {
    let killed = daemon(ledger);
    let (running, _) = killed.begin_running(message).await;
    running.abort();
}

/// Registers one more tool, which does what its name begins with.
fn register(world: &World, name: &str, effect: Effect) {
    world.register_as(ToolDescriptor { effect, ..ToolDescriptor::new(name, "test", "local") });
}

fn pay() -> Message {
    call("pay", json!({}))
}

fn wait() -> Message {
    call("wait_effectful", json!({}))
}

fn content(sent: &Sent) -> &Value {
    &sent.body["content"]
}

/// Reply to a failed call: its code, its outcome, and whether it may be retried.
pub(crate) fn code(sent: &Sent) -> (&str, &str, bool) {
    let text = |field: &str| sent.body[field].as_str().unwrap_or_default();
    (text("code"), text("outcome"), sent.body["isRetryable"].as_bool().unwrap())
}

pub(crate) const UNKNOWN: (&str, &str, bool) = ("execution_failed", "unknown", false);
const REFUSED: (&str, &str, bool) = ("execution_failed", "not_started", true);

#[tokio::test]
async fn a_message_published_twice_runs_once_and_has_one_reply() {
    let world = daemon(&ledger(ROOMY));
    let (first, again) = (world.reply(pay()).await, world.reply(pay()).await);
    assert_eq!((world.runs(), content(&first)), (1, &json!("paid")));
    assert_eq!((first.body, first.properties), (again.body, again.properties), "identical, message id included");
    assert_eq!(world.recorder.ledger(), [LedgerEvent::Replayed]);
}

#[tokio::test]
async fn another_daemon_replays_the_reply_of_one_that_ended_before_the_acknowledgement() {
    let ledger = ledger(ROOMY);
    let first = daemon(&ledger).reply(pay()).await;
    let other = daemon(&ledger);
    let again = other.reply(pay().redelivered()).await;
    assert_eq!(other.runs(), 0);
    assert_eq!((first.body, first.properties), (again.body, again.properties), "identical, message id included");
}

#[tokio::test]
async fn a_duplicate_of_a_running_call_gets_the_same_reply_at_its_own_address() {
    let world = daemon(&ledger(ROOMY));
    let (running, first) = world.begin_running(wait()).await;
    let mut elsewhere = wait().reply_to(Some("tool.result.ana.again"));
    elsewhere.properties.correlation_id = Some("corr-2".to_owned());
    let settlements = [world.deliver(elsewhere.clone()).await, world.deliver(elsewhere.redelivered()).await];
    let same = world.deliver(wait()).await;
    assert_eq!(first.get(), Some(Settled::Acknowledged), "one delivery is enough for one address");
    world.finish(running).await;
    let sent = world.sent();
    assert_eq!((world.runs(), sent.len()), (1, 2));
    assert_eq!(sent[1].target, Target::Topic("tool.result.ana.again".to_owned()));
    let ids = sent.iter().map(|sent| (&sent.properties.message_id, sent.properties.correlation_id.as_deref().unwrap()));
    let id = &sent[0].properties.message_id;
    assert_eq!(ids.collect::<Vec<_>>(), [(id, "corr-1"), (id, "corr-2")]);
    assert_eq!(sent[0].body, sent[1].body);
    for settlement in settlements.into_iter().chain([same]) {
        assert_eq!(settlement.get(), Some(Settled::Acknowledged));
    }
    assert_eq!(world.recorder.ledger(), [LedgerEvent::Attached; 3]);
    assert_eq!(world.recorder.attached(), 3, "and the first is none of them");
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_daemon_was_killed_during_it_has_an_unknown_outcome_and_is_not_run() {
    let ledger = ledger(ROOMY);
    kill_during(&ledger, wait()).await;
    let other = daemon(&ledger);
    let reply = other.reply(wait().redelivered()).await;
    assert_eq!((code(&reply), other.runs()), (UNKNOWN, 0));
    assert_eq!(other.recorder.ledger(), [LedgerEvent::Unknown]);
    let third = daemon(&ledger).reply(wait().redelivered()).await;
    assert_eq!((reply.body, reply.properties), (third.body, third.properties), "there is one reply from then on");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_another_daemon_still_runs_is_waited_for() {
    let ledger = ledger(ROOMY);
    let (slow, other) = (daemon(&ledger), daemon(&ledger));
    let (running, _) = slow.begin_running(wait()).await;
    let (waiting, settlement) = other.begin(wait().redelivered());
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!((other.sent().len(), settlement.get()), (0, None), "six leases have passed");
    slow.finish(running).await;
    waiting.await.unwrap();
    let (first, second) = (slow.sent().pop().unwrap(), other.sent().pop().unwrap());
    assert_eq!((other.runs(), content(&second)), (0, &json!("waited")));
    assert_eq!((first.body, first.properties), (second.body, second.properties));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_another_daemon_still_runs_is_waited_for_as_long_as_its_tool_may_take() {
    let ledger = ledger(ROOMY);
    let (slow, other) = (daemon(&ledger), daemon(&ledger));
    for world in [&slow, &other] {
        let (effect, timeout) = (Effect::Effectful, Some(Duration::from_secs(100)));
        world.register_as(ToolDescriptor { effect, timeout, ..ToolDescriptor::new("wait_long", "test", "local") });
    }
    let long = || call("wait_long", json!({}));
    let (running, _) = slow.begin_running(long()).await;
    let (waiting, _) = other.begin(long().redelivered());
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(other.sent().len(), 0, "calls have 60 s where their tool has no limit");
    slow.finish(running).await;
    waiting.await.unwrap();
    let (first, second) = (slow.sent().pop().unwrap(), other.sent().pop().unwrap());
    assert_eq!((content(&second), first.body), (&json!("waited"), second.body.clone()));
}

#[tokio::test(start_paused = true)]
async fn beside_a_run_of_another_daemon_a_key_starts_no_second_one_though_its_tool_may_run_again() {
    let ledger = ledger(ROOMY);
    let (slow, other) = (daemon(&ledger), daemon(&ledger));
    let keyed = || call("wait", json!({})).header(KEY, "k");
    let (running, _) = slow.begin_running(keyed()).await;
    let given_up = other.reply(keyed().id("hasty").header("rb-timeout-ms", "20000")).await;
    assert_eq!((code(&given_up), other.runs()), (UNKNOWN, 0));
    slow.finish(running).await;
    assert_eq!(code(&slow.sent().pop().unwrap()), UNKNOWN, "both send the same");
}

#[tokio::test(start_paused = true)]
async fn a_slow_daemon_and_one_that_gave_its_call_up_send_the_same_reply() {
    let ledger = ledger(ROOMY);
    let (slow, other) = (daemon(&ledger), daemon(&ledger));
    let budget = |message: Message| message.header("rb-timeout-ms", "20000");
    let (running, _) = slow.begin_running(wait()).await;
    let given_up = other.reply(budget(wait()).redelivered()).await;
    assert_eq!(code(&given_up), UNKNOWN);
    slow.finish(running).await;
    let late = slow.sent().pop().unwrap();
    assert_eq!((late.body, late.properties), (given_up.body, given_up.properties));
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_shuts_down_while_it_waits_for_another_gives_the_request_back() {
    let ledger = ledger(ROOMY);
    let (slow, other) = (daemon(&ledger), daemon(&ledger));
    let (running, _) = slow.begin_running(wait()).await;
    let (waiting, settlement) = other.begin(wait().redelivered());
    tokio::time::sleep(Duration::from_secs(2)).await;
    other.dispatcher.shut_down();
    waiting.await.unwrap();
    assert_eq!((settlement.get(), other.sent().len()), (Some(Settled::Requeued), 0));
    running.abort();
}

#[tokio::test]
async fn a_key_identifies_a_request_whatever_its_ids_and_the_order_of_its_fields() {
    let world = daemon(&ledger(ROOMY));
    let keyed = |id: &str, arguments: &str| {
        let body = json!({"toolCallId": id, "toolName": "pay", "arguments": arguments});
        request(&body).id(id).header(KEY, "order-7")
    };
    let first = world.reply(keyed("one", r#"{"a":1,"b":2}"#)).await;
    let again = world.reply(keyed("two", r#"{"b": 2, "a": 1}"#)).await;
    assert_eq!((world.runs(), content(&again)), (1, &json!("paid")));
    assert_eq!(first.properties.message_id, again.properties.message_id);
    assert_eq!([&first.body["toolCallId"], &again.body["toolCallId"]], ["one", "two"], "each its own");
    let other = world.reply(keyed("three", r#"{"a":1,"b":3}"#)).await;
    assert_eq!(code(&other).0, "invalid_arguments");
    assert!(other.body["message"].as_str().unwrap().contains("idempotency key"), "{}", other.body);
    let other_tool = world.reply(call("echo", json!({"text": "t"})).id("four").header(KEY, "order-7")).await;
    assert_eq!((code(&other_tool).0, world.runs()), ("invalid_arguments", 1));
    let mut others = keyed("five", r#"{"a":1,"b":2}"#);
    others.properties.headers[0].1 = "bob".to_owned();
    assert_eq!((content(&world.reply(others).await), world.runs()), (&json!("paid"), 2), "a caller has its own keys");
}

#[tokio::test]
async fn a_call_id_is_the_key_only_if_the_header_requests_it() {
    let world = daemon(&ledger(ROOMY));
    for id in ["one", "two"] {
        world.reply(pay().id(id)).await;
    }
    assert_eq!(world.runs(), 2);
    for id in ["three", "four"] {
        world.reply(pay().id(id).header(KEY, "tool-call-id")).await;
    }
    assert_eq!(world.runs(), 3);
}

#[tokio::test]
async fn a_key_that_cannot_be_used_is_refused_by_the_name_of_its_header() {
    let world = daemon(&ledger(ROOMY));
    for key in ["", "a\u{7}b", &"x".repeat(256)] {
        let refused = world.reply(pay().header(KEY, key)).await;
        assert_eq!(code(&refused).0, "invalid_arguments");
        assert!(refused.body["message"].as_str().unwrap().contains("'rb-idempotency-key'"), "{}", refused.body);
    }
    assert_eq!(world.runs(), 0);
}

#[tokio::test]
async fn a_retry_of_a_call_that_did_not_start_runs() {
    let world = daemon(&ledger(ROOMY));
    for runs in [1, 2] {
        let failed = world.reply(call("fail", json!({})).header(KEY, "k")).await;
        assert_eq!((code(&failed), world.runs()), (REFUSED, runs));
    }
}

#[tokio::test]
async fn a_message_replied_to_as_not_started_is_not_run_on_redelivery() {
    let ledger = ledger(ROOMY);
    let (first, other) = (daemon(&ledger), daemon(&ledger));
    [&first, &other].into_iter().for_each(|world| register(world, "fail_to_pay", Effect::Effectful));
    let refused = first.reply(call("fail_to_pay", json!({}))).await;
    assert_eq!(code(&refused), REFUSED);
    for world in [&first, &other] {
        let again = world.reply(call("fail_to_pay", json!({})).redelivered()).await;
        assert_eq!((&again.body, &again.properties), (&refused.body, &refused.properties));
    }
    assert_eq!((first.runs(), other.runs()), (1, 0), "its caller may try again, under another id");
}

#[tokio::test(start_paused = true)]
async fn an_idempotent_call_that_may_have_acted_before_is_not_reported_as_not_started() {
    let ledger = ledger(ROOMY);
    let killed = daemon(&ledger);
    register(&killed, "wait_to_put", Effect::Idempotent);
    let (running, _) = killed.begin_running(call("wait_to_put", json!({}))).await;
    running.abort();
    let (busy, occupying) = busy(&ledger).await;
    register(&busy, "wait_to_put", Effect::Idempotent);
    let again = busy.reply(call("wait_to_put", json!({})).redelivered()).await;
    assert_eq!(code(&again), ("overloaded", "unknown", true));
    let new = busy.reply(call("wait_to_put", json!({})).id("new")).await;
    assert_eq!(code(&new), ("overloaded", "not_started", true));
    busy.finish(occupying).await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_not_repeated_for_a_message_that_another_daemon_has_run_since() {
    let ledger = ledger(ROOMY);
    let (busy, occupying) = busy(&ledger).await;
    assert_eq!(code(&busy.reply(wait()).await), ("overloaded", "not_started", true));
    kill_during(&ledger, wait()).await;
    assert_eq!(code(&busy.reply(wait().redelivered()).await), UNKNOWN);
    busy.finish(occupying).await;
}

#[tokio::test(start_paused = true)]
async fn a_redelivery_attached_to_a_refused_copy_gets_the_outcome_known_to_another_daemon() {
    let ledger = ledger(ROOMY);
    let (busy, occupying) = busy(&ledger).await;
    let address = Target::Topic("tool.result.ana".to_owned());
    busy.bus.route(address.clone(), Route::Unavailable);
    let (refused, _) = busy.begin(wait());
    kill_during(&ledger, wait()).await;
    let mut elsewhere = wait().reply_to(Some("tool.result.ana.again")).redelivered();
    elsewhere.properties.correlation_id = Some("corr-2".to_owned());
    let settlements = [busy.deliver(wait().redelivered()).await, busy.deliver(elsewhere).await];
    assert_eq!(settlements.each_ref().map(Settlement::get), [None, None]);
    busy.bus.route(address, Route::Routed);
    refused.await.unwrap();
    let sent = busy.sent();
    let overloaded = ("overloaded", "not_started", true);
    assert_eq!(sent.iter().map(code).collect::<Vec<_>>(), [overloaded, UNKNOWN, UNKNOWN]);
    assert_eq!(sent[2].target, Target::Topic("tool.result.ana.again".to_owned()));
    assert_eq!(settlements.each_ref().map(Settlement::get), [Some(Settled::Acknowledged); 2]);
    busy.finish(occupying).await;
}

#[tokio::test(start_paused = true)]
async fn duplicates_are_settled_once_their_reply_is_confirmed() {
    let world = daemon(&ledger(ROOMY));
    let (running, _) = world.begin_running(wait()).await;
    let (elsewhere, address) = (wait().reply_to(Some("tool.result.again")), "tool.result.again");
    let settlements = [world.deliver(elsewhere.clone()).await, world.deliver(elsewhere.redelivered()).await];
    world.route_both(address, &Route::Unavailable);
    world.go_on.notify_one();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(settlements.each_ref().map(Settlement::get), [None, None]);
    world.bus.route(Target::Topic(address.to_owned()), Route::Routed);
    running.await.unwrap();
    assert_eq!(settlements.each_ref().map(Settlement::get), [Some(Settled::Acknowledged); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_repeatable_tool_runs_again_after_a_crash_and_once_per_key() {
    let ledger = ledger(ROOMY);
    let keyed = || call("wait", json!({})).header(KEY, "k");
    kill_during(&ledger, keyed()).await;
    let other = daemon(&ledger);
    other.go_on.notify_one();
    assert_eq!((content(&other.reply(keyed().redelivered()).await), other.runs()), (&json!("waited"), 1));
    assert_eq!((content(&other.reply(keyed().id("another")).await), other.runs()), (&json!("waited"), 1));
}

#[tokio::test]
async fn read_only_tools_are_not_recorded() {
    let ledger = ledger(ROOMY);
    let echo = || call("echo", json!({"text": "hello"}));
    for _ in 0..2 {
        let world = daemon(&ledger);
        assert_eq!(content(&world.reply(echo().redelivered()).await), "hello");
        assert_eq!(world.runs(), 1);
    }
    assert_eq!(ledger.usage(), LedgerUsage::default());
}

#[tokio::test]
async fn a_reply_is_replayed_though_its_tool_is_gone() {
    let ledger = ledger(ROOMY);
    let unknown = || call("gone", json!({}));
    let first = daemon(&ledger);
    first.register("gone");
    let reply = first.reply(unknown()).await;
    let other = daemon(&ledger);
    assert_eq!(other.reply(unknown()).await.body, reply.body);
    assert_eq!(other.reply(unknown().id("new")).await.body["code"], "tool_not_found");
}

#[tokio::test]
async fn requests_without_a_message_id_are_known_again_only_if_the_broker_redelivers_them() {
    let ledger = ledger(ROOMY);
    let plain = || {
        let mut message = pay();
        message.properties.message_id = None;
        message
    };
    let world = daemon(&ledger);
    for runs in [1, 2] {
        world.reply(plain()).await;
        assert_eq!(world.runs(), runs, "two that look alike are two");
    }
    let other = daemon(&ledger);
    assert_eq!((content(&other.reply(plain().redelivered()).await), other.runs()), (&json!("paid"), 0));
}

#[tokio::test]
async fn a_reply_too_large_to_be_kept_stays_known_as_sent() {
    let ledger = ledger(ROOMY);
    let small = LedgerSettings { ledger: Arc::clone(&ledger), ttl: Duration::from_secs(60), max_reply: 3 };
    let world = World::with(|settings| settings.ledger = Some(small));
    assert_eq!(content(&world.reply(pay()).await), "paid");
    let other = daemon(&ledger);
    assert_eq!((code(&other.reply(pay().redelivered()).await), other.runs()), (UNKNOWN, 0));
}

#[tokio::test]
async fn a_full_ledger_refuses_what_it_cannot_remember() {
    let world = daemon(&ledger(LedgerLimits { max_entries: 1, ..ROOMY }));
    let (running, _) = world.begin_running(wait()).await;
    let refused = world.reply(pay()).await;
    assert_eq!((code(&refused), world.runs()), (("overloaded", "not_started", true), 1));
    assert_eq!(world.recorder.ledger(), [LedgerEvent::Full]);
    assert_eq!(content(&world.reply(call("echo", json!({"text": "served"}))).await), "served");
    world.finish(running).await;
    assert_eq!(content(&world.reply(pay()).await), "paid");
}

#[tokio::test]
async fn after_the_ledger_is_lost_a_request_that_comes_again_runs_again() {
    assert_eq!(content(&daemon(&ledger(ROOMY)).reply(pay()).await), "paid");
    let other = daemon(&ledger(ROOMY));
    assert_eq!((content(&other.reply(pay().redelivered()).await), other.runs()), (&json!("paid"), 1));
}

#[tokio::test(start_paused = true)]
async fn without_a_working_ledger_only_repeatable_tools_run() {
    for fault in [StoreFault::Away, StoreFault::Unwritable] {
        let broken = faulty();
        broken.set(fault);
        let world = daemon(&(broken as _));
        let refused = world.reply(pay()).await;
        assert_eq!(code(&refused), REFUSED);
        assert!(!["disk", "away"].iter().any(|detail| refused.body.to_string().contains(detail)), "{}", refused.body);
        // Another daemon may have begun it, or begin it yet.
        assert_eq!(code(&world.reply(pay().id("again").redelivered()).await), UNKNOWN);
        assert_eq!(world.runs(), 0);
        let echo = || call("echo", json!({"text": "served"}));
        for request in [echo(), echo().id("came again").redelivered(), echo().id("with a key").header(KEY, "k")] {
            assert_eq!(content(&world.reply(request).await), "served");
        }
        // Neither the beginning nor the reply of the last one was recorded.
        assert_eq!(world.recorder.ledger(), [LedgerEvent::Failed; 4]);
    }
}

/// A ledger that records the first beginning, and returns an error.
fn unsure_of_beginning() -> Arc<FaultyLedger> {
    let ledger = faulty();
    ledger.fail_once(LedgerOperation::Begin, StoreFault::LostResponses);
    ledger
}

#[tokio::test]
async fn a_call_that_was_refused_runs_when_it_is_retried_though_its_beginning_had_been_recorded() {
    let world = daemon(&(unsure_of_beginning() as _));
    assert_eq!(code(&world.reply(pay()).await), REFUSED);
    assert_eq!((content(&world.reply(pay()).await), world.runs()), (&json!("paid"), 1));
}

#[tokio::test]
async fn a_call_that_was_refused_runs_when_it_is_retried_though_its_beginning_could_not_be_undone() {
    let unsure = unsure_of_beginning();
    for _ in 0..2 {
        unsure.fail_once(LedgerOperation::Release, StoreFault::Away);
    }
    let world = daemon(&(unsure as _));
    let keyed = |id: &str| pay().id(id).header(KEY, "order-7");
    assert_eq!(code(&world.reply(keyed("one")).await), REFUSED);
    assert_eq!((code(&world.reply(keyed("two")).await), world.runs()), (REFUSED, 0), "it still cannot be undone");
    assert_eq!((content(&world.reply(keyed("three")).await), world.runs()), (&json!("paid"), 1));
    assert_eq!((content(&world.reply(keyed("four")).await), world.runs()), (&json!("paid"), 1));
}

#[tokio::test]
async fn a_call_that_had_no_effect_runs_when_it_is_retried_though_its_beginning_could_not_be_undone() {
    let faulty = faulty();
    faulty.fail_once(LedgerOperation::Release, StoreFault::Away);
    let world = daemon(&(faulty as _));
    register(&world, "fail_to_pay", Effect::Effectful);
    for runs in [1, 2] {
        let failed = world.reply(call("fail_to_pay", json!({})).id(&runs.to_string()).header(KEY, "k")).await;
        assert_eq!((code(&failed), world.runs()), (REFUSED, runs));
    }
}

#[tokio::test]
async fn a_lease_that_was_not_renewed_is_renewed_by_the_next_call() {
    let faulty = faulty();
    faulty.fail_once(LedgerOperation::Renew, StoreFault::Away);
    let world = daemon(&(Arc::clone(&faulty) as _));
    for (id, renewals) in [("one", 1), ("two", 2)] {
        world.reply(pay().id(id)).await;
        assert_eq!(faulty.renewals(), renewals);
    }
}
