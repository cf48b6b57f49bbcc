//! Start of sessions.

use std::time::Duration;

use super::fixture::{Goes, World, caller, pass, until};
use crate::caller::{AgentName, Caller};
use crate::failure::Cause;

#[tokio::test(start_paused = true)]
async fn nothing_is_built_before_the_first_call() {
    let world = World::new(10);
    assert_eq!((world.starts(), world.set.sessions()), (0, 0));
    assert_eq!(world.count("ana", "s").await.unwrap(), "count 1");
    assert_eq!((world.starts(), world.set.sessions()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn each_session_of_each_agent_has_a_state_of_its_own() {
    let world = World::new(10);
    assert_eq!(world.count("ana", "one").await.unwrap(), "count 1");
    assert_eq!(world.count("ana", "one").await.unwrap(), "count 2");
    assert_eq!(world.count("ana", "two").await.unwrap(), "count 1");
    assert_eq!(world.count("bob", "one").await.unwrap(), "count 1");
    assert_eq!(world.count("ana", "one").await.unwrap(), "count 3");
    assert_eq!(world.starts(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_caller_that_takes_the_name_of_an_agent_has_another_session() {
    let world = World::new(10);
    world.count("ana", "s").await.unwrap();
    let false_ana = Caller { name: "ana".into(), owner: "unknown::ana".into(), ..Caller::unknown() };
    let call = world.begin("count", Caller { session: Some("s".into()), ..false_ana });
    assert_eq!(call.await.unwrap().unwrap().content.unwrap(), "count 1");
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_session_is_invalid_and_builds_nothing() {
    let world = World::new(10);
    let call = world.begin("count", Caller::agent(AgentName::parse("ana").unwrap()));
    let failure = call.await.unwrap().unwrap_err();
    assert_eq!(failure.cause, Cause::InvalidArguments);
    assert_eq!(failure.message, "Tool set 'fs' works within a session. Give the call a sessionId.");
    assert_eq!(world.starts(), 0);
}

#[tokio::test(start_paused = true)]
async fn first_calls_at_the_same_time_share_one_start() {
    let world = World::new(10);
    world.start_goes(Goes::Waits);
    let calls: Vec<_> = (0..20).map(|_| world.begin("count", caller("ana", "s"))).collect();
    world.started(1).await;
    world.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(world.count("ana", "s").await.unwrap(), "count 21");
    assert_eq!(world.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_start_goes_on_when_the_call_that_began_it_is_dropped() {
    let (world, first) = World::starting(Goes::Waits).await;
    let second = world.begin("count", caller("ana", "s"));
    first.abort();
    world.open();
    assert_eq!(second.await.unwrap().unwrap().content.unwrap(), "count 1");
    assert_eq!(world.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_fails_every_waiting_call_and_is_not_remembered() {
    let world = World::new(10);
    world.start_goes(Goes::Fails);
    let calls: Vec<_> = (0..3).map(|_| world.begin("count", caller("ana", "s"))).collect();
    for call in calls {
        let failure = call.await.unwrap().unwrap_err();
        assert_eq!((failure.cause, &*failure.message), (Cause::ConnectFailed, "No server."));
    }
    assert_eq!(world.starts(), 1);
    assert!(world.is_empty());
    world.start_goes(Goes::Well);
    assert_eq!(world.count("ana", "s").await.unwrap(), "count 1");
    assert!(world.stops().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_panics_is_a_failure_without_internals_for_the_caller() {
    let world = World::new(10);
    world.start_goes(Goes::Panics);
    let failure = world.count("ana", "s").await.unwrap_err();
    assert_eq!(failure.cause, Cause::Panicked);
    assert!(!failure.message.contains("secret"));
    assert!(failure.detail.unwrap().contains("secret detail"));
    assert!(world.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_never_ends_is_given_up() {
    let (world, call) = World::starting(Goes::Hangs).await;
    pass(Duration::from_secs(119)).await;
    assert!(!call.is_finished());
    pass(Duration::from_secs(1)).await;
    assert_eq!(call.await.unwrap().unwrap_err().cause, Cause::ConnectFailed);
    assert!(world.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_start_without_a_waiting_call_ends_like_an_idle_session() {
    let (world, call) = World::starting(Goes::Hangs).await;
    call.abort();
    until("the call is gone", || call.is_finished()).await;
    pass(super::fixture::IDLE).await;
    pass(Duration::from_secs(5)).await;
    world.left(0).await;
    assert!(world.is_empty());
}
