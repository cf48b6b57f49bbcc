//! Sessions that end on request.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::fixture::{Goes, World, caller, pass, until};
use crate::Clock;
use crate::failure::Cause;
use crate::toolsets::SessionSets;

#[tokio::test(start_paused = true)]
async fn an_ended_session_is_stopped_once_and_leaves_nothing_behind() {
    let world = World::new(10);
    world.count("ana", "s").await.unwrap();
    assert_eq!(world.instances(), 1);
    world.set.end("ana", "s");
    world.set.end("ana", "s");
    world.left(0).await;
    world.set.end("ana", "s");
    assert_eq!(world.stops(), ["ana/s"]);
    assert!(world.is_empty());
}

#[tokio::test(start_paused = true)]
async fn only_the_callers_own_session_of_that_name_ends() {
    let world = World::new(10);
    for (agent, session) in [("ana", "s"), ("ana", "t"), ("bob", "s")] {
        world.count(agent, session).await.unwrap();
    }
    world.set.end("ana", "s");
    world.set.end("eve", "s");
    world.left(2).await;
    assert_eq!(world.stops(), ["ana/s"]);
    assert_eq!(world.count("bob", "s").await.unwrap(), "count 2");
    assert_eq!(world.count("ana", "t").await.unwrap(), "count 2");
}

#[tokio::test(start_paused = true)]
async fn calls_are_cancelled_and_fail_as_such_before_the_instance_is_stopped() {
    let world = World::new(10);
    world.stop_goes(Goes::Waits);
    let call = world.hang("ana", "s").await;
    world.set.end("ana", "s");
    let failure = call.await.unwrap().unwrap_err();
    assert_eq!(failure.cause, Cause::Cancelled);
    assert_eq!(failure.message, "Tool 'hang' was cancelled because the session of its tool set ended.");
    assert_eq!(world.running(), 0);
    until("it stops", || world.stops() == ["ana/s"]).await;
    world.open();
    world.left(0).await;
    assert!(world.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_while_it_starts_is_stopped_too() {
    let (world, call) = World::starting(Goes::Waits).await;
    world.set.end("ana", "s");
    assert_eq!(call.await.unwrap().unwrap_err().cause, Cause::CancelledBeforeStart);
    assert!(world.stops().is_empty());
    world.open();
    world.left(0).await;
    assert_eq!(world.stops(), ["ana/s"]);
    assert!(world.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_hanging_start_does_not_delay_the_end() {
    let (world, call) = World::starting(Goes::Hangs).await;
    world.set.end("ana", "s");
    assert_eq!(call.await.unwrap().unwrap_err().cause, Cause::CancelledBeforeStart);
    pass(Duration::from_secs(5)).await;
    world.left(0).await;
    assert_eq!(world.notes.dropped_starts.load(Ordering::Relaxed), 1);
    assert!(world.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_call_after_the_end_gets_a_session_that_begins_when_the_old_one_is_gone() {
    let world = World::new(1);
    world.stop_goes(Goes::Waits);
    world.count("ana", "s").await.unwrap();
    world.set.end("ana", "s");
    let call = world.begin("count", caller("ana", "s"));
    until("it stops", || world.stops().len() == 1).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!((world.starts(), call.is_finished()), (1, false));
    world.open();
    assert_eq!(call.await.unwrap().unwrap().content.unwrap(), "count 1");
    assert_eq!((world.starts(), world.instances()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_panics_or_hangs_frees_its_slot() {
    for (how, time) in [(Goes::Panics, 0), (Goes::Hangs, 10)] {
        let world = World::new(10);
        world.stop_goes(how);
        world.count("ana", "s").await.unwrap();
        world.set.end("ana", "s");
        until("it stops", || world.stops() == ["ana/s"]).await;
        pass(Duration::from_secs(time)).await;
        world.left(0).await;
        assert!(world.is_empty(), "{how:?}");
        world.stop_goes(Goes::Well);
        assert_eq!(world.count("ana", "s").await.unwrap(), "count 1");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_in_every_set_that_has_it() {
    let (first, second, third) = (World::new(10), World::new(10), World::new(10));
    let sets = SessionSets::new([&first, &second, &third].map(|world| world.set.clone()).to_vec());
    first.count("ana", "s").await.unwrap();
    second.count("ana", "s").await.unwrap();
    second.count("bob", "s").await.unwrap();
    assert_eq!(sets.sessions(), 3);
    sets.end_session("ana", "s");
    until("one is left", || sets.sessions() == 1).await;
    assert!(first.is_empty() && third.is_empty());
    assert_eq!(second.stops(), ["ana/s"]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_stops_every_session_and_no_further_one_begins() {
    let (world, other) = (World::new(10), World::new(10));
    let sets = SessionSets::new(vec![world.set.clone(), other.set.clone()]);
    let call = world.hang("ana", "s").await;
    world.count("bob", "s").await.unwrap();
    other.start_goes(Goes::Waits);
    let waiting = other.begin("count", caller("ana", "s"));
    other.started(1).await;
    other.open();
    sets.shutdown().await;
    assert_eq!(call.await.unwrap().unwrap_err().cause, Cause::Cancelled);
    assert!(waiting.await.unwrap().is_err());
    assert!(world.is_empty() && other.is_empty());
    let mut stopped = world.stops();
    stopped.sort();
    assert_eq!(stopped, ["ana/s", "bob/s"]);
    assert_eq!(other.stops(), ["ana/s"]);
    let refused = world.count("ana", "t").await.unwrap_err();
    assert_eq!(refused.cause, Cause::Overloaded);
    assert_eq!((world.starts(), sets.sessions()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn hanging_stops_delay_a_shutdown_concurrently_and_for_a_limited_time() {
    let worlds = [World::new(10), World::new(10)];
    for world in &worlds {
        world.stop_goes(Goes::Hangs);
        for agent in ["ana", "bob", "eve"] {
            world.count(agent, "s").await.unwrap();
        }
    }
    let began = Clock::SYSTEM.now();
    SessionSets::new(worlds.iter().map(|world| world.set.clone()).collect()).shutdown().await;
    assert_eq!(Clock::SYSTEM.since(began).as_secs(), 10);
    assert!(worlds.iter().all(World::is_empty));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_concurrent_calls_and_ends_every_start_has_its_stop() {
    let world = World::new(4);
    let mut calls = Vec::new();
    for round in 0..3_000 {
        let (agent, session) = (["ana", "bob", "eve"][round % 3], ["s", "t", "u", "v"][round % 4]);
        calls.push(world.begin("count", caller(agent, session)));
        if round % 5 == 0 {
            world.set.end(agent, session);
            tokio::task::yield_now().await;
        }
    }
    let mut counted = 0;
    for call in calls {
        match call.await.unwrap() {
            Ok(_) => counted += 1,
            Err(failure) => assert!(
                matches!(failure.cause, Cause::Cancelled | Cause::CancelledBeforeStart | Cause::Overloaded),
                "{failure:?}"
            ),
        }
    }
    world.set.shutdown().await;
    assert!(counted > 0 && world.starts() > 1);
    assert_eq!(world.stops().len(), world.starts());
    assert!(world.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_over_ends_its_session_and_the_next_call_begins_another() {
    let world = World::new(10);
    assert_eq!(world.count("ana", "s").await.unwrap(), "count 1");
    world.count("ana", "t").await.unwrap();
    let failure = world.begin("break", caller("ana", "s")).await.unwrap().unwrap_err();
    assert_eq!(failure.message, "Broken.");
    assert_eq!(world.count("ana", "s").await.unwrap(), "count 1");
    assert_eq!(world.stops(), ["ana/s"]);
    assert_eq!(world.count("ana", "t").await.unwrap(), "count 2", "the other session goes on");
}
