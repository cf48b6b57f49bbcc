//! Time is paused: nothing here waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proptest::prelude::*;

use super::{Bounds, FairQueue, QueueError, Turn};

const BOUNDS: Bounds = Bounds { running: 1, waiting_per_owner: 100, waiting: 200 };

type Acquiring<'a> = BoxFuture<'a, Result<Turn, QueueError>>;

fn later() -> Instant {
    tokio::time::Instant::now().into_std() + Duration::from_secs(60)
}

/// Begins to wait, or gets a turn at once.
fn asked<'a>(queue: &'a FairQueue, owner: &'static str) -> Acquiring<'a> {
    let mut asking = async move { queue.acquire(&Arc::from(owner), later()).await }.boxed();
    match (&mut asking).now_or_never() {
        Some(turn) => std::future::ready(turn).boxed(),
        None => asking,
    }
}

fn turn(asking: &mut Acquiring<'_>) -> Option<Turn> {
    asking.now_or_never().map(Result::unwrap)
}

#[tokio::test(start_paused = true)]
async fn turns_of_one_owner_come_in_the_order_in_which_they_were_asked_for() {
    let queue = FairQueue::new(BOUNDS);
    let mut current = turn(&mut asked(&queue, "a")).unwrap();
    let mut waiting: Vec<_> = (0..5).map(|_| asked(&queue, "a")).collect();
    while !waiting.is_empty() {
        assert!(waiting.iter_mut().all(|asking| turn(asking).is_none()));
        drop(current);
        current = turn(&mut waiting.remove(0)).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_with_a_hundred_waiting_delays_another_by_one_run() {
    for running in [1, 2, 8] {
        let queue = FairQueue::new(Bounds { running, ..BOUNDS });
        let mut turns: Vec<Turn> = (0..running).map(|_| turn(&mut asked(&queue, "many")).unwrap()).collect();
        let mut many: VecDeque<_> = (0..100).map(|_| asked(&queue, "many")).collect();
        let mut one = asked(&queue, "one");
        let mut ended = 0;
        while turn(&mut one).is_none() {
            // The first of many is the first to have a turn.
            turns.extend((ended > 0).then(|| turn(&mut many.pop_front().unwrap()).unwrap()));
            assert!(turns.pop().is_some());
            ended += 1;
        }
        assert_eq!(ended, if running == 1 { 2 } else { 1 }, "{running} at a time");
    }
}

#[tokio::test(start_paused = true)]
async fn owners_take_turns() {
    let queue = FairQueue::new(BOUNDS);
    let mut current = turn(&mut asked(&queue, "a")).unwrap();
    let owners = ["a", "a", "a", "b", "b", "c"];
    let mut waiting: Vec<_> = owners.map(|owner| (owner, asked(&queue, owner))).into();
    let mut order = Vec::new();
    while !waiting.is_empty() {
        drop(current);
        let (place, next) =
            waiting.iter_mut().enumerate().find_map(|(at, (_, asking))| Some((at, turn(asking)?))).unwrap();
        order.push(waiting.remove(place).0);
        current = next;
    }
    assert_eq!(order, ["a", "b", "c", "a", "b", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_turn_goes_to_the_owner_of_whom_fewest_run() {
    let queue = FairQueue::new(Bounds { running: 3, ..BOUNDS });
    let mut of_a: Vec<_> = (0..2).map(|_| turn(&mut asked(&queue, "a")).unwrap()).collect();
    let _of_b = turn(&mut asked(&queue, "b")).unwrap();
    let mut waiting = ["a", "b", "c"].map(|owner| asked(&queue, owner));
    let mut next = || waiting.iter_mut().position(|asking| turn(asking).map(std::mem::forget).is_some());
    of_a.pop();
    assert_eq!(next(), Some(2), "none of c runs");
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may() {
    let queue = FairQueue::new(Bounds { running: 1, waiting_per_owner: 2, waiting: 3 });
    let _running = turn(&mut asked(&queue, "a")).unwrap();
    let mut waiting: Vec<_> = ["a", "a", "a", "b", "b"].map(|owner| asked(&queue, owner)).into();
    let refused: Vec<_> = waiting.iter_mut().map(|asking| asking.now_or_never().map(Result::unwrap_err)).collect();
    let full = Some(QueueError::Full);
    assert_eq!(refused, [None, None, full, None, full]);
    assert_eq!((queue.running(), queue.waiting()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn who_is_too_late_is_told_and_leaves() {
    let queue = FairQueue::new(BOUNDS);
    let running = turn(&mut asked(&queue, "a")).unwrap();
    let began = tokio::time::Instant::now();
    let owner = Arc::from("a");
    assert_eq!(queue.acquire(&owner, later()).await.unwrap_err(), QueueError::TooLate);
    assert_eq!(began.elapsed().as_secs(), 60);
    assert_eq!((queue.running(), queue.waiting()), (1, 0));
    drop(running);
    assert_eq!(queue.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_stops_waiting_gives_its_place_up() {
    let queue = FairQueue::new(BOUNDS);
    let running = turn(&mut asked(&queue, "a")).unwrap();
    let leaving = asked(&queue, "b");
    let mut staying = asked(&queue, "b");
    drop(leaving);
    assert_eq!(queue.waiting(), 1);
    drop(running);
    assert!(turn(&mut staying).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_was_given_to_one_who_left_goes_to_the_next() {
    let queue = FairQueue::new(BOUNDS);
    let running = turn(&mut asked(&queue, "a")).unwrap();
    let leaving = asked(&queue, "b");
    let mut staying = asked(&queue, "c");
    drop(running);
    drop(leaving);
    let turn = turn(&mut staying).unwrap();
    assert_eq!((queue.running(), queue.waiting()), (1, 0));
    drop(turn);
    assert_eq!(queue.running(), 0);
}

/// What happens to a queue.
#[derive(Debug, Clone, Copy)]
enum Step {
    Ask(usize),
    GiveUp(usize),
    Take(usize),
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..4_usize).prop_map(Step::Ask),
        1 => (0..20_usize).prop_map(Step::GiveUp),
        3 => (0..20_usize).prop_map(Step::Take),
        2 => (0..20_usize).prop_map(Step::End),
    ]
}

fn run_steps(queue: &FairQueue, steps: &[Step]) {
    let mut waiting: Vec<Acquiring<'_>> = Vec::new();
    let mut turns: Vec<Turn> = Vec::new();
    for step in steps {
        match *step {
            Step::Ask(owner) => waiting.push(asked(queue, ["a", "b", "c", "d"][owner])),
            Step::GiveUp(at) if at < waiting.len() => drop(waiting.remove(at)),
            Step::Take(at) if at < waiting.len() => {
                if let Some(taken) = (&mut waiting[at]).now_or_never() {
                    drop(waiting.remove(at));
                    turns.extend(taken);
                }
            }
            Step::End(at) if at < turns.len() => drop(turns.remove(at)),
            _ => {}
        }
        assert!(queue.state().is_consistent(), "after {step:?}");
    }
    // Whoever still waits gets a turn.
    while !(waiting.is_empty() && turns.is_empty()) {
        turns.clear();
        let before = waiting.len();
        for mut asking in std::mem::take(&mut waiting) {
            match (&mut asking).now_or_never() {
                Some(taken) => turns.extend(taken),
                None => waiting.push(asking),
            }
        }
        assert!(before == 0 || waiting.len() < before, "nobody was woken");
    }
    assert_eq!((queue.running(), queue.waiting()), (0, 0));
}

proptest! {
    #[test]
    fn whatever_happens_nobody_is_forgotten_and_no_place_lost(
        running in 1..4_usize,
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let queue = FairQueue::new(Bounds { running, waiting_per_owner: 5, waiting: 12 });
        runtime.block_on(async { run_steps(&queue, &steps) });
    }
}
