//! Calls that no message brings and that have a key: those of MCP clients, and scheduled ones.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use toolbus_core::failure::{Cause, ToolFailure, Verdict};
use toolbus_core::telemetry::LedgerEvent;
use toolbus_core::tool::ToolOutput;
use toolbus_core::{Drained, InnerCall, InnerOrigin, Invoker as _, Service};
use toolbus_protocol::{Code, Outcome, new_message_id};

use crate::fixture::{World, call as message, inner_call};
use crate::ledger::{KEY, ROOMY, daemon, ledger};

type Ended = Result<ToolOutput, ToolFailure>;

/// A call of ana's client with a key.
fn keyed(world: &World, tool: &str, arguments: &Value) -> InnerCall {
    let caller = world.dispatcher.policy().vouched(toolbus_core::caller::AgentName::parse("ana").ok(), "s".into());
    let idempotency_key = Some("k".into());
    InnerCall { call_id: new_message_id().into(), idempotency_key, ..inner_call(caller, tool, arguments) }
}

/// Makes a call that waits, and waits until it is the one that runs.
async fn begin_running(world: &World) -> JoinHandle<Ended> {
    let running = world.begin_inner(waiting(world));
    world.until_running(1).await;
    running
}

async fn pay(world: &World) -> Ended {
    world.dispatcher.invoke(keyed(world, "pay", &json!({}))).await
}

fn waiting(world: &World) -> InnerCall {
    keyed(world, "wait_effectful", &json!({}))
}

fn failure(ended: Ended) -> (Code, Option<Outcome>) {
    let Verdict { code, outcome, .. } = ended.unwrap_err().verdict.unwrap();
    (code, outcome)
}

#[tokio::test]
async fn a_repeated_call_gets_the_same_reply_here_and_from_another_daemon() {
    for origin in [InnerOrigin::McpClient, InnerOrigin::Schedule] {
        let ledger = ledger(ROOMY);
        let pay = async |world: &World| {
            world.dispatcher.invoke(InnerCall { origin, ..keyed(world, "pay", &json!({})) }).await
        };
        let world = daemon(&ledger);
        for _ in 0..2 {
            assert_eq!(pay(&world).await, Ok(ToolOutput::text("paid")));
        }
        assert_eq!((world.runs(), world.recorder.ledger()), (1, vec![LedgerEvent::Replayed]));
        let other = daemon(&ledger);
        assert_eq!((pay(&other).await, other.runs()), (Ok(ToolOutput::text("paid")), 0));
        assert!(world.bus.attempts().is_empty(), "its reply goes to its maker alone");
    }
}

#[tokio::test]
async fn calls_without_a_key_and_with_another_one_are_others() {
    let world = daemon(&ledger(ROOMY));
    for key in [None, None, Some("k"), Some("l")] {
        let call = InnerCall { idempotency_key: key.map(Into::into), ..keyed(&world, "pay", &json!({})) };
        assert_eq!(world.dispatcher.invoke(call).await, Ok(ToolOutput::text("paid")));
    }
    assert_eq!((world.runs(), world.recorder.ledger()), (4, Vec::new()));
}

#[tokio::test]
async fn a_key_of_another_tool_or_of_other_arguments_is_refused() {
    let world = daemon(&ledger(ROOMY));
    pay(&world).await.unwrap();
    for (tool, arguments) in [("echo", json!({"text": "t"})), ("pay", json!({"more": 1}))] {
        let refused = world.dispatcher.invoke(keyed(&world, tool, &arguments)).await;
        assert_eq!(failure(refused), (Code::InvalidArguments, None));
    }
    assert_eq!((world.runs(), world.recorder.ledger()), (1, vec![LedgerEvent::Conflict; 2]));
}

#[tokio::test]
async fn a_key_stands_for_the_same_request_on_the_bus() {
    let world = daemon(&ledger(ROOMY));
    pay(&world).await.unwrap();
    let again = world.reply(message("pay", json!({})).header(KEY, "k")).await;
    assert_eq!((&again.body["content"], &again.body["toolCallId"]), (&json!("paid"), &json!("call_1")));
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn duplicates_attach_to_a_call_under_way_whichever_way_they_come() {
    let world = daemon(&ledger(ROOMY));
    let first = begin_running(&world).await;
    let (by_message, _) = world.begin(message("wait_effectful", json!({})).header(KEY, "k"));
    let second = world.begin_inner(waiting(&world));
    world.until_recorded(2).await;
    world.go_on.notify_one();
    for call in [first, second] {
        assert_eq!(call.await.unwrap(), Ok(ToolOutput::text("waited")));
    }
    by_message.await.unwrap();
    let sent = world.sent();
    assert_eq!((sent.len(), &sent[0].body["content"], world.runs()), (1, &json!("waited"), 1));
    assert_eq!(world.recorder.ledger(), [LedgerEvent::Attached; 2]);
}

#[tokio::test]
async fn duplicates_of_one_call_id_get_a_reply_each() {
    let call = |world: &World| InnerCall { call_id: "t1".into(), ..waiting(world) };
    for is_message_first in [false, true] {
        let world = daemon(&ledger(ROOMY));
        let (by_message, first) = match is_message_first {
            true => (Some(world.begin(message("wait_effectful", json!({})).header(KEY, "k")).0), None),
            false => (None, Some(world.begin_inner(call(&world)))),
        };
        world.until_running(1).await;
        let duplicates = [world.begin_inner(call(&world)), world.begin_inner(call(&world))];
        while world.recorder.ledger().len() < 2 && !duplicates.iter().any(JoinHandle::is_finished) {
            tokio::task::yield_now().await;
        }
        world.go_on.notify_one();
        for call in first.into_iter().chain(duplicates) {
            assert_eq!(call.await.unwrap(), Ok(ToolOutput::text("waited")), "message first: {is_message_first}");
        }
        if let Some(by_message) = by_message {
            by_message.await.unwrap();
        }
        assert_eq!((world.runs(), world.recorder.ledger()), (1, vec![LedgerEvent::Attached; 2]));
    }
}

#[tokio::test]
async fn a_client_attaches_to_a_call_that_a_message_brought() {
    let world = daemon(&ledger(ROOMY));
    let (running, _) = world.begin_running(message("wait_effectful", json!({})).header(KEY, "k")).await;
    let attached = world.begin_inner(waiting(&world));
    world.until_recorded(1).await;
    assert_eq!(world.finish(attached).await, Ok(ToolOutput::text("waited")));
    running.await.unwrap();
    assert_eq!((world.runs(), world.sent().len()), (1, 1));
}

#[tokio::test]
async fn a_duplicate_that_is_given_up_leaves_the_call_under_way() {
    let world = daemon(&ledger(ROOMY));
    let first = begin_running(&world).await;
    let duplicate = waiting(&world);
    let cancelled = duplicate.cancelled.clone();
    let second = world.begin_inner(duplicate);
    world.until_recorded(1).await;
    cancelled.cancel();
    assert_eq!(failure(second.await.unwrap()), (Code::Cancelled, Some(Outcome::Unknown)));
    assert_eq!(world.finish(first).await, Ok(ToolOutput::text("waited")));
}

#[tokio::test]
async fn the_number_of_duplicates_that_wait_is_bounded() {
    let world = daemon(&ledger(ROOMY));
    let first = begin_running(&world).await;
    let attached: Vec<_> = (0..64).map(|_| world.begin_inner(waiting(&world))).collect();
    world.until_recorded(attached.len()).await;
    let refused = world.dispatcher.invoke(waiting(&world)).await;
    assert_eq!(failure(refused), (Code::Overloaded, Some(Outcome::NotStarted)));
    world.go_on.notify_one();
    for call in [vec![first], attached].into_iter().flatten() {
        assert_eq!(call.await.unwrap(), Ok(ToolOutput::text("waited")));
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_another_daemon_still_runs_is_waited_for_and_can_be_given_up() {
    let ledger = ledger(ROOMY);
    let (slow, other) = (daemon(&ledger), daemon(&ledger));
    let running = begin_running(&slow).await;
    let given_up = waiting(&other);
    let cancelled = given_up.cancelled.clone();
    let given_up = other.begin_inner(given_up);
    tokio::time::sleep(Duration::from_secs(10)).await;
    cancelled.cancel();
    assert_eq!(failure(given_up.await.unwrap()), (Code::Cancelled, Some(Outcome::Unknown)));
    let patient = other.begin_inner(waiting(&other));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(slow.finish(running).await, Ok(ToolOutput::text("waited")));
    assert_eq!((patient.await.unwrap(), other.runs()), (Ok(ToolOutput::text("waited")), 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_daemon_was_killed_while_it_ran_is_not_run_again() {
    let ledger = ledger(ROOMY);
    let killed = daemon(&ledger);
    let running = begin_running(&killed).await;
    running.abort();
    let other = daemon(&ledger);
    let unknown = other.dispatcher.invoke(waiting(&other)).await.unwrap_err();
    assert!(unknown.message.ends_with("find out before calling again."), "{}", unknown.message);
    assert_eq!((failure(Err(unknown)), other.runs()), ((Code::ExecutionFailed, Some(Outcome::Unknown)), 0));
}

#[tokio::test]
async fn a_call_that_did_not_start_may_be_tried_again_by_its_key() {
    let world = daemon(&ledger(ROOMY));
    for runs in [1, 2] {
        let failed = world.dispatcher.invoke(keyed(&world, "fail", &json!({}))).await;
        assert_eq!((failure(failed), world.runs()), ((Code::ExecutionFailed, Some(Outcome::NotStarted)), runs));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_a_shutdown_ends_is_answered_and_one_that_may_run_again_is_not_kept() {
    let ledger = ledger(ROOMY);
    let world = daemon(&ledger);
    let repeatable = world.begin_inner(keyed(&world, "wait", &json!({})));
    world.until_running(1).await;
    assert_eq!(Service::new(world.dispatcher.clone()).drain(Duration::from_secs(1)).await, Drained::Cut(1));
    assert_eq!(repeatable.await.unwrap().unwrap_err().cause, Cause::Cancelled);
    let other = daemon(&ledger);
    other.go_on.notify_one();
    let again = other.dispatcher.invoke(keyed(&other, "wait", &json!({}))).await;
    assert_eq!((again, other.runs()), (Ok(ToolOutput::text("waited")), 1));
}
