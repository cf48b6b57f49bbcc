//! Calls that no message brings.

use std::time::Duration;

use serde_json::json;
use toolbus_core::caller::AgentName;
use toolbus_core::failure::{Cause, ToolFailure, Verdict};
use toolbus_core::tool::ToolOutput;
use toolbus_core::{Drained, InnerCall, Service};

use crate::fixture::{World, inner_call};
use toolbus_core::Clock;
use toolbus_protocol::{Code, Outcome};

/// A call of an MCP client.
fn call(world: &World, tool: &str, session: &str) -> InnerCall {
    let caller = world.dispatcher.policy().vouched(AgentName::parse("ana").ok(), session.into());
    inner_call(caller, tool, &json!({}))
}

fn cause(result: Result<ToolOutput, ToolFailure>) -> Cause {
    result.unwrap_err().cause
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_budget_has_that_of_the_daemon() {
    let world = World::new();
    let begun = Clock::SYSTEM.now();
    let waiting = world.begin_inner(call(&world, "wait_effectful", "s"));
    assert_eq!(cause(waiting.await.unwrap()), Cause::DeadlineExceeded);
    assert!(Clock::SYSTEM.since(begun) >= Duration::from_secs(50), "{:?}", Clock::SYSTEM.since(begun));
    assert!(world.bus.attempts().is_empty(), "no client on the bus waits for it");
}

#[tokio::test]
async fn a_caller_that_another_component_identified_is_verified() {
    let world = World::new();
    let caller = call(&world, "echo", "s").caller;
    assert!(caller.verified);
    assert_eq!((&*caller.owner, caller.session.as_deref()), ("ana", Some("s")));
    let without_agent = world.dispatcher.policy().vouched(None, "s".into());
    assert!(!without_agent.verified && without_agent.agent.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_an_inner_call_then_ends_it_and_refuses_further_ones() {
    let world = World::new();
    let running = world.begin_inner(call(&world, "wait_effectful", "s"));
    world.until_running(1).await;
    let service = Service::new(world.dispatcher.clone());
    let begun = Clock::SYSTEM.now();
    assert_eq!(service.drain(Duration::from_secs(5)).await, Drained::Cut(1));
    assert_eq!(Clock::SYSTEM.since(begun), Duration::from_secs(5));
    assert_eq!(cause(running.await.unwrap()), Cause::Cancelled);
    let late = world.begin_inner(call(&world, "echo", "s")).await.unwrap().unwrap_err();
    assert_eq!((late.cause, &*late.message), (Cause::Overloaded, "The daemon is shutting down. Try again soon."));
}

#[tokio::test]
async fn a_call_that_did_not_begin_before_the_time_is_over_can_be_made_again() {
    for (tool, key) in [("pay", None), ("pay", Some("k")), ("pending", None), ("pending", Some("k"))] {
        let world = World::with(|settings| settings.max_in_flight = 1);
        world.register("pending");
        // What waits for its turn does so behind this one.
        let before = match tool {
            "pay" => Some(world.begin_inner(call(&world, "wait_effectful", "s"))),
            _ => None,
        };
        let waiting = InnerCall { idempotency_key: key.map(Into::into), ..call(&world, tool, "s") };
        if before.is_some() {
            world.until_running(1).await;
        }
        let waiting = world.begin_inner(waiting);
        while world.load.waiting() == 0 && before.is_some() || world.load.in_flight() == 0 {
            tokio::task::yield_now().await;
        }
        world.dispatcher.shut_down();
        let verdict = waiting.await.unwrap().unwrap_err().verdict.unwrap();
        assert_eq!(
            verdict,
            Verdict { code: Code::Overloaded, is_retryable: true, outcome: Some(Outcome::NotStarted) },
            "{tool} {key:?}"
        );
    }
}
