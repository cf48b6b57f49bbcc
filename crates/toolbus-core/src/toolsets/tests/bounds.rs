//! Lifetime and number of sessions.

use std::time::Duration;

use super::fixture::{IDLE, World, pass, until};
use crate::caller::Caller;
use crate::failure::Cause;
use crate::toolsets::SessionLimits;

const MOMENT: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_it_was_idle_for_long_enough() {
    let world = World::new(10);
    world.count("ana", "s").await.unwrap();
    pass(IDLE - MOMENT).await;
    assert_eq!(world.set.sessions(), 1);
    pass(MOMENT).await;
    assert_eq!(world.stops(), ["ana/s"]);
    assert!(world.is_empty());
    assert_eq!(world.count("ana", "s").await.unwrap(), "count 1", "another session begins with the next call");
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_with_its_longest_life_whether_it_is_used_or_not() {
    let limits = SessionLimits { idle_timeout: IDLE, max_lifetime: Some(3 * IDLE), max_sessions: 10 };
    let world = World::with(limits);
    for count in 1..=3 {
        assert_eq!(world.count("ana", "s").await.unwrap(), format!("count {count}"));
        pass(IDLE - MOMENT).await;
    }
    let held = world.hang("ana", "s").await;
    pass(3 * MOMENT).await;
    assert_eq!(held.await.unwrap().unwrap_err().cause, Cause::Cancelled);
    assert_eq!(world.stops(), ["ana/s"]);
    assert!(world.is_empty());
}

#[tokio::test(start_paused = true)]
async fn every_call_begins_the_idle_time_anew() {
    let world = World::new(10);
    for count in 1..=5 {
        assert_eq!(world.count("ana", "s").await.unwrap(), format!("count {count}"));
        pass(IDLE - MOMENT).await;
    }
    pass(MOMENT).await;
    assert!(world.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_session_is_not_idle_while_a_call_runs() {
    let world = World::new(10);
    let call = world.hang("ana", "s").await;
    for _ in 0..10 {
        pass(IDLE * 3 / 4).await;
    }
    assert_eq!((world.running(), world.set.sessions()), (1, 1));
    call.abort();
    until("the call is gone", || call.is_finished()).await;
    pass(IDLE - MOMENT).await;
    assert_eq!(world.set.sessions(), 1, "its idle time begins with the end of the call");
    pass(MOMENT).await;
    assert!(world.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_full_set_refuses_further_sessions_and_evicts_none() {
    let world = World::new(4);
    for (agent, session) in [("ana", "1"), ("ana", "2"), ("bob", "1"), ("bob", "2")] {
        world.count(agent, session).await.unwrap();
    }
    let failure = world.count("eve", "1").await.unwrap_err();
    assert_eq!(failure.cause, Cause::Overloaded);
    assert_eq!(failure.retry_after, Some(Duration::from_secs(5)));
    assert_eq!(
        failure.message,
        "Tool set 'fs' has no room for another session: there are 4, the most. Try again later."
    );
    assert_eq!(world.count("ana", "1").await.unwrap(), "count 2", "those that there are go on");
    assert!(world.stops().is_empty());
    world.set.end("bob", "1");
    world.left(3).await;
    assert_eq!(world.count("eve", "1").await.unwrap(), "count 1");
}

#[tokio::test(start_paused = true)]
async fn a_full_set_has_room_again_when_the_idle_time_of_a_session_is_over() {
    let world = World::new(2);
    world.count("ana", "1").await.unwrap();
    world.count("bob", "1").await.unwrap();
    pass(IDLE - MOMENT).await;
    assert_eq!(world.count("eve", "1").await.unwrap_err().cause, Cause::Overloaded);
    pass(MOMENT).await;
    assert_eq!(world.count("eve", "1").await.unwrap(), "count 1");
}

#[tokio::test(start_paused = true)]
async fn one_agent_has_at_most_half_of_the_room() {
    let world = World::new(5);
    world.count("ana", "1").await.unwrap();
    world.count("ana", "2").await.unwrap();
    let failure = world.count("ana", "3").await.unwrap_err();
    assert_eq!(failure.cause, Cause::Overloaded);
    assert!(failure.retry_after.is_some());
    assert_eq!(
        failure.message,
        "Tool set 'fs' has no room for another session of this agent, which has 2, the most. End one that is not needed \
         any more, or try again later."
    );
    assert_eq!(world.count("bob", "3").await.unwrap(), "count 1");
    for (agent, session) in [("bob", "4"), ("eve", "1")] {
        world.count(agent, session).await.unwrap();
    }
    assert_eq!(world.count("ana", "3").await.unwrap_err(), failure, "its own limit, also where all room is taken");
    world.set.end("ana", "1");
    world.left(4).await;
    assert_eq!(world.count("ana", "3").await.unwrap(), "count 1");
}

#[tokio::test(start_paused = true)]
async fn a_set_with_room_for_one_session_gives_it_to_the_first_agent() {
    let world = World::new(1);
    assert_eq!(world.count("ana", "s").await.unwrap(), "count 1");
    assert_eq!(world.count("bob", "s").await.unwrap_err().cause, Cause::Overloaded);
}

#[tokio::test(start_paused = true)]
async fn unknown_callers_share_the_room_of_one_agent_whatever_they_call_themselves() {
    let world = World::new(4);
    let call = |name: &str| {
        let unknown = Caller { owner: format!("unknown::{name}").into(), name: name.into(), ..Caller::unknown() };
        world.begin("count", Caller { session: Some("s".into()), ..unknown })
    };
    call("a").await.unwrap().unwrap();
    call("b").await.unwrap().unwrap();
    assert_eq!(call("c").await.unwrap().unwrap_err().cause, Cause::Overloaded);
    assert_eq!(world.count("ana", "s").await.unwrap(), "count 1");
}
