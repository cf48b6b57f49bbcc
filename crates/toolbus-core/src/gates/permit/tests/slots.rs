//! Calls that get a slot, and the turns that urgent ones take.

use super::*;

#[test]
fn a_tool_with_a_limit_of_two_runs_two_calls_at_a_time_whichever_ends() {
    let (permits, agent, limited) = (permits(8, 0), anyone(), tool(Some(2)));
    let run = || at_once(&permits, &limited, &agent, "me");
    let [first, second] = [run(), run()].map(Option::unwrap);
    assert!(run().is_none());
    drop(first);
    let third = run().unwrap();
    assert!(run().is_none());
    drop((second, third));
    assert!(lock(&permits.state).tools.is_empty());
}

#[test]
fn beside_another_agent_an_agent_gets_at_most_three_slots_for_each_free_one() {
    let (permits, ana, bob) = (permits(8, 0), agent(6, 0), agent(6, 0));
    let run = |agent: &Arc<AgentGate>| at_once(&permits, &tool(None), agent, "me");
    let _held = [&bob, &bob, &bob, &bob, &ana, &ana, &ana].map(|agent| run(agent).unwrap());
    assert!(run(&ana).is_none(), "one slot is free");
    assert!(run(&agent(6, 0)).is_some());
}

#[tokio::test(start_paused = true)]
async fn an_urgent_call_behind_those_of_others_takes_the_turn_of_its_own_caller() {
    let permits = Arc::new(permits(2, 16));
    let [other, carol, ana, bob] = std::array::from_fn(|_| agent(1, 8));
    let of_carol = at_once(&permits, &tool(None), &carol, "me").unwrap();
    let held = at_once(&permits, &tool(None), &other, "me").unwrap();
    let calls = [("carol's", &carol, 60), ("ana's first", &ana, 60), ("bob's", &bob, 60), ("urgent", &ana, 5)];
    let order = queue_up(&permits, &calls).await;
    drop(held);
    while order.lock().len() < 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(*order.lock(), ["urgent", "bob's", "ana's first"]);
    drop(of_carol);
    emptied(&permits).await;
}

#[test]
fn a_caller_that_shares_a_gate_leaves_the_last_slot_to_others() {
    let (permits, shared) = (permits(100, 0), Arc::new(AgentGate::shared(4, 0)));
    let run = |caller| at_once(&permits, &tool(None), &shared, caller);
    let held = ["flood", "flood", "flood"].map(|caller| run(caller).unwrap());
    assert!(run("flood").is_none());
    let quiet = run("quiet").unwrap();
    drop(held);
    assert!(run("quiet").is_some(), "what ran is counted no more");
    drop(quiet);
    assert!(lock(&permits.state).callers.is_empty());
}

#[tokio::test]
async fn in_a_full_queue_a_callers_first_call_replaces_the_last_call_of_the_caller_with_the_most() {
    let (permits, bob, shared) = (permits(1, 256), agent(1, 20), Arc::new(AgentGate::shared(1, 8)));
    let _held = at_once(&permits, &tool(None), &bob, "bob").unwrap();
    let (mut of_bob, mut flood) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        of_bob.extend(waits(&permits, &bob, "bob", 1).await);
        flood.extend(waits(&permits, &shared, "flood", 1).await);
    }
    assert_eq!((of_bob.len(), flood.len()), (10, 7), "one slot of the eight is for others");
    let _quiet = waits(&permits, &shared, "quiet", 1).await.unwrap();
    let _first = waits(&permits, &shared, "first", 1).await.unwrap();
    assert!(waits(&permits, &shared, "first", 1).await.is_none(), "it waits already");
    let mut left = Vec::new();
    for waiting in of_bob.iter_mut().chain(&mut flood) {
        left.push(futures_util::poll!(waiting).is_pending());
    }
    assert_eq!(left, [[true; 16].as_slice(), &[false]].concat());
}

#[tokio::test]
async fn an_urgent_call_takes_no_turn_of_another_caller_of_its_gate() {
    let (permits, shared) = (permits(1, 256), Arc::new(AgentGate::shared(1, 8)));
    let held = at_once(&permits, &tool(None), &shared, "other").unwrap();
    let mut calls = Vec::new();
    for (caller, seconds) in [("ana", 60), ("bob", 60), ("ana", 50), ("bob", 40)] {
        let until = Clock::SYSTEM.now() + Duration::from_secs(seconds);
        let mut waiting = Box::pin(permits.acquire(None, &shared, caller.into(), 1, until));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        calls.push(waiting);
    }
    drop(held);
    let mut polled = Vec::new();
    for waiting in &mut calls {
        polled.push(futures_util::poll!(waiting));
    }
    let given: Vec<_> = polled.iter().map(std::task::Poll::is_ready).collect();
    assert_eq!(given, [false, false, true, false]);
}
