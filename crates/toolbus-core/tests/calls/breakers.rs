//! Tools that fail again and again.

use std::time::Duration;

use serde_json::{Value, json};
use toolbus_core::caller::{AgentName, Caller, Identity};
use toolbus_core::failure::Cause;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{AgentPolicy, Policy};
use toolbus_core::rate::{Rate, RateRule, RateRules};
use toolbus_core::tool::{Effect, ToolDescriptor};
use toolbus_core::{InnerCall, Invoker as _, StepName};

use crate::fixture::{Message, Sent, World, call, inner_call};
use crate::ledger::{KEY, ROOMY, daemon, ledger};

/// Failures that trip a breaker, and the time to the first trial, unless they are configured.
const FAILURES: usize = 5;
const PAUSE: Duration = Duration::from_secs(5);

fn with(world: World, name: &str, provider: &'static str) -> World {
    world.register_as(ToolDescriptor { effect: Effect::Effectful, ..ToolDescriptor::new(name, "test", provider) });
    world
}

/// A message of its own.
fn message(tool: &str, number: usize) -> Message {
    call(tool, json!({})).id(&format!("m{number}"))
}

/// Report of a failure: outcome, whether it may be retried, and when.
fn failure(sent: &Sent) -> (&str, bool, Option<u64>) {
    assert_eq!(sent.body["code"], "execution_failed", "{}", sent.body);
    let body = &sent.body;
    (body["outcome"].as_str().unwrap(), body["isRetryable"].as_bool().unwrap(), body["retryAfterMs"].as_u64())
}

async fn trip(world: &World, tool: &str) {
    for number in 0..FAILURES {
        assert_eq!(failure(&world.reply(message(tool, number)).await), ("not_started", true, None));
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_tool_that_failed_five_times_are_refused_until_a_trial_succeeds() {
    let world = with(World::new(), "fail_five", "rest");
    trip(&world, "fail_five").await;
    let refused = world.reply(message("fail_five", 5)).await;
    assert_eq!((failure(&refused), world.runs()), (("not_started", true, Some(5_000)), FAILURES));
    let caller = world.dispatcher.policy().vouched(None, "s".into());
    let of_client = InnerCall { arguments: None, ..inner_call(caller, "fail_five", &json!({})) };
    let refused = world.dispatcher.invoke(of_client).await.unwrap_err();
    assert_eq!((refused.cause, refused.retry_after), (Cause::BreakerOpen, Some(PAUSE)));
    tokio::time::sleep(PAUSE).await;
    for number in 6..8 {
        assert_eq!(world.reply(message("fail_five", number)).await.body["content"], "paid");
    }
    assert_eq!(world.runs(), FAILURES + 2);
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_fails_doubles_the_pause() {
    let world = with(World::new(), "fail_always", "rest");
    trip(&world, "fail_always").await;
    tokio::time::sleep(PAUSE).await;
    assert_eq!(failure(&world.reply(message("fail_always", 5)).await), ("not_started", true, None), "the trial itself");
    assert_eq!(failure(&world.reply(message("fail_always", 6)).await), ("not_started", true, Some(10_000)));
    assert_eq!(world.runs(), FAILURES + 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_takes_no_slot_and_waits_for_none() {
    let world = with(World::with(|it| (it.max_in_flight, it.max_waiting) = (1, 0)), "fail_always", "command");
    trip(&world, "fail_always").await;
    let (occupying, _) = world.begin_running(call("wait_effectful", json!({})).id("another")).await;
    assert_eq!(failure(&world.reply(message("fail_always", 5)).await).0, "not_started");
    assert_eq!(world.reply(call("pay", json!({}))).await.body["code"], "overloaded");
    world.finish(occupying).await;
}

/// An agent that tried again after the stated wait was refused for its rate, though nothing had run.
#[tokio::test(start_paused = true)]
async fn a_refused_call_takes_no_token_and_explain_reports_the_refusal() {
    let world = with(World::new(), "fail_five", "rest");
    trip(&world, "fail_five").await;
    let pattern = Pattern::parse("fail_five").unwrap();
    let rates = RateRules::new(vec![RateRule::new(pattern, Rate::new(0.01, 1).unwrap())]).unwrap().into();
    let agents = [(AgentName::parse("ana").unwrap(), AgentPolicy { rates, ..AgentPolicy::default() })].into();
    let policy = Policy { agents, ..Policy::default() };
    let access = world.dispatcher.policy();
    access.replace(Identity::default(), policy, |_| Ok::<_, std::convert::Infallible>(())).unwrap();

    assert_eq!(failure(&world.reply(message("fail_five", 5)).await), ("not_started", true, Some(5_000)));
    let caller = Caller::agent(AgentName::parse("ana").unwrap());
    let last = world.gates.explain(&caller, "fail_five", None).pop().unwrap();
    assert_eq!((last.name, last.passes), (StepName::Breaker, false));
    assert_eq!(last.text, "the breaker is open; the next trial is in 5000 ms");
    tokio::time::sleep(PAUSE).await;
    assert_eq!(world.reply(message("fail_five", 6)).await.body["content"], "paid");
    assert_eq!(world.reply(message("fail_five", 7)).await.body["code"], "rate_limited");
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_call_was_refused_may_try_again() {
    let world = with(daemon(&ledger(ROOMY)), "fail_five", "rest");
    trip(&world, "fail_five").await;
    let keyed = |number: usize| message("fail_five", number).header(KEY, "k");
    assert_eq!(failure(&world.reply(keyed(5)).await), ("not_started", true, Some(5_000)));
    tokio::time::sleep(PAUSE).await;
    for number in [6, 7] {
        assert_eq!(world.reply(keyed(number)).await.body["content"], "paid");
    }
    assert_eq!(world.runs(), FAILURES + 1, "the second is a repetition");
}

#[tokio::test(start_paused = true)]
async fn tools_of_the_daemon_and_results_with_is_error_trip_nothing() {
    for (name, provider) in [("fail_always", "local"), ("sad_news", "rest")] {
        let world = with(World::new(), name, provider);
        let mut last = Value::Null;
        for number in 0..2 * FAILURES {
            last = world.reply(message(name, number)).await.body;
        }
        assert_eq!((world.runs(), &last["retryAfterMs"]), (2 * FAILURES, &Value::Null), "{last}");
    }
}
