use futures_util::FutureExt;

use super::*;

fn permits(running: usize, waiting: usize) -> Permits {
    Permits::new(running, waiting, Arc::default())
}

fn tool(limit: Option<usize>) -> ToolDescriptor {
    ToolDescriptor { max_in_flight: limit, ..ToolDescriptor::new("slow", "test", "local") }
}

/// An agent without limits of its own.
fn anyone() -> Arc<AgentGate> {
    agent(100, 100)
}

fn agent(max_in_flight: usize, max_queued: usize) -> Arc<AgentGate> {
    Arc::new(AgentGate::new(max_in_flight, max_queued))
}

fn waiting_of(agent: &AgentGate) -> usize {
    agent.used.waiting()
}

fn me() -> Arc<str> {
    "me".into()
}

/// A permit, if there is one now.
fn at_once(permits: &Permits, tool: &ToolDescriptor, agent: &Arc<AgentGate>, caller: &str) -> Option<Permit> {
    permits.acquire(Some(tool), agent, caller.into(), 10, later()).now_or_never()?.ok()
}

/// Makes `count` calls, each in a task of its own and of this length, and returns once each has a place or was refused.
async fn flood(permits: &Arc<Permits>, agent: &Arc<AgentGate>, caller: &str, count: usize, runs: Duration) {
    let placed = Arc::new(AtomicUsize::new(0));
    for _ in 0..count {
        let (permits, agent, caller) = (Arc::clone(permits), Arc::clone(agent), Arc::<str>::from(caller));
        let placed = Arc::clone(&placed);
        tokio::spawn(async move {
            // Within the same step the call is placed.
            placed.fetch_add(1, Ordering::Relaxed);
            let Ok(permit) = permits.acquire(Some(&tool(None)), &agent, caller, 10, later()).await else { return };
            tokio::time::sleep(runs).await;
            drop(permit);
        });
    }
    while placed.load(Ordering::Relaxed) < count {
        tokio::task::yield_now().await;
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

#[tokio::test]
async fn a_free_place_is_given_at_once_and_counted() {
    let permits = permits(1, 0);
    let permit = permits.acquire(Some(&tool(None)), &anyone(), me(), 10, soon()).await.unwrap();
    assert_eq!(permits.load.in_flight(), 1);
    drop(permit);
    assert_eq!(permits.load.in_flight(), 0);
}

#[tokio::test]
async fn without_room_to_wait_a_call_is_refused_at_once() {
    let permits = permits(1, 0);
    let _held = permits.acquire(Some(&tool(None)), &anyone(), me(), 10, later()).await.unwrap();
    let refused = permits.acquire(Some(&tool(None)), &anyone(), me(), 10, later()).await.err().unwrap();
    assert_eq!(refused.cause, Cause::Overloaded);
    assert_eq!(refused.retry_after, Some(RETRY_AFTER));
}

#[tokio::test]
async fn waiting_ends_with_the_deadline() {
    let permits = permits(1, 8);
    let _held = permits.acquire(Some(&tool(None)), &anyone(), me(), 10, later()).await.unwrap();
    assert_eq!(
        permits.acquire(Some(&tool(None)), &anyone(), me(), 10, soon()).await.err().unwrap().cause,
        Cause::Overloaded
    );
    assert_eq!(permits.load.waiting(), 0);
}

#[tokio::test]
async fn a_waiting_call_gets_the_place_that_comes_free() {
    let permits = Arc::new(permits(1, 8));
    let held = permits.acquire(Some(&tool(None)), &anyone(), me(), 10, later()).await.unwrap();
    let waiting = tokio::spawn({
        let permits = Arc::clone(&permits);
        async move { permits.acquire(Some(&tool(None)), &anyone(), me(), 10, later()).await.is_ok() }
    });
    while permits.load.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    drop(held);
    assert!(waiting.await.unwrap());
}

#[tokio::test]
async fn a_tool_at_its_limit_leaves_places_to_others() {
    let permits = permits(2, 0);
    let _held = permits.acquire(Some(&tool(Some(1))), &anyone(), me(), 10, later()).await.unwrap();
    assert!(permits.acquire(Some(&tool(Some(1))), &anyone(), me(), 10, later()).await.is_err());
    let other = ToolDescriptor::new("other", "test", "local");
    assert!(permits.acquire(Some(&other), &anyone(), me(), 10, later()).await.is_ok());
}

#[tokio::test]
async fn waiting_calls_are_bounded_in_bytes() {
    let permits = permits(1, 8);
    let _held = permits.acquire(Some(&tool(None)), &anyone(), me(), 10, later()).await.unwrap();
    assert!(permits.acquire(Some(&tool(None)), &anyone(), me(), MAX_WAITING_BYTES / 2 + 1, later()).await.is_err());
}

#[tokio::test]
async fn an_agent_at_its_limit_leaves_places_to_others() {
    let permits = permits(2, 8);
    let (ana, bob) = (agent(1, 0), agent(1, 0));
    let _held = permits.acquire(Some(&tool(None)), &ana, me(), 10, later()).await.unwrap();
    let refused = permits.acquire(Some(&tool(None)), &ana, me(), 10, later()).await.err().unwrap();
    assert_eq!(refused.message, "Too many calls of this agent are waiting. Try again later.");
    assert!(permits.acquire(Some(&tool(None)), &bob, me(), 10, later()).await.is_ok());
}

#[tokio::test]
async fn a_thousand_waiting_calls_of_one_agent_do_not_delay_the_first_of_another() {
    let permits = Arc::new(permits(8, 2_000));
    let ana = agent(6, 1_000);
    let held: Vec<_> = (0..6).map(|_| at_once(&permits, &tool(None), &ana, "me").unwrap()).collect();
    let waiting: Vec<_> = (0..1_000)
        .map(|_| {
            let (permits, ana) = (Arc::clone(&permits), Arc::clone(&ana));
            tokio::spawn(async move { permits.acquire(Some(&tool(None)), &ana, me(), 10, later()).await.is_ok() })
        })
        .collect();
    while permits.load.waiting() < 1_000 {
        tokio::task::yield_now().await;
    }
    assert!(permits.acquire(Some(&tool(None)), &ana, me(), 10, later()).await.is_err(), "no room to wait for one more");
    let first = at_once(&permits, &tool(None), &anyone(), "me");
    assert!(first.is_some());
    drop((held, first));
    for call in waiting {
        assert!(call.await.unwrap());
    }
    assert_eq!((permits.load.waiting(), permits.load.in_flight()), (0, 0));
}

#[tokio::test]
async fn a_call_that_waits_for_its_agent_holds_no_place_of_the_daemon() {
    let permits = Arc::new(permits(2, 8));
    let ana = agent(1, 1);
    let _held = permits.acquire(Some(&tool(None)), &ana, me(), 10, later()).await.unwrap();
    let any = tool(None);
    let waiting = permits.acquire(Some(&any), &ana, me(), 10, later());
    tokio::pin!(waiting);
    assert!(futures_util::poll!(&mut waiting).is_pending());
    assert!(at_once(&permits, &tool(None), &anyone(), "me").is_some());
}

#[tokio::test]
async fn a_call_that_waits_for_its_tool_holds_no_place_of_its_agent_but_counts_as_waiting() {
    let permits = permits(3, 8);
    let (ana, slow) = (agent(1, 1), tool(Some(1)));
    let _held = permits.acquire(Some(&slow), &anyone(), me(), 10, later()).await.unwrap();
    let waiting = permits.acquire(Some(&slow), &ana, me(), 10, later());
    tokio::pin!(waiting);
    assert!(futures_util::poll!(&mut waiting).is_pending());
    let refused = permits.acquire(Some(&slow), &ana, me(), 10, later()).await.err().unwrap();
    assert_eq!(refused.message, "Too many calls of this agent are waiting. Try again later.");
    assert!(at_once(&permits, &tool(None), &ana, "me").is_some());
}

#[tokio::test]
async fn an_agent_at_its_limit_keeps_no_tool_from_others_and_a_tool_at_its_limit_no_agent_from_its_other_tools() {
    let permits = permits(8, 8);
    let (ana, limited) = (agent(2, 8), tool(Some(1)));
    let at_once = |tool: &ToolDescriptor, agent: &Arc<AgentGate>| at_once(&permits, tool, agent, "me");
    let held = [at_once(&tool(None), &ana).unwrap(), at_once(&tool(None), &ana).unwrap()];
    let waits = permits.acquire(Some(&limited), &ana, me(), 10, later());
    tokio::pin!(waits);
    assert!(futures_util::poll!(&mut waits).is_pending(), "for ana's place");
    let others = at_once(&limited, &anyone()).unwrap();
    drop(held);
    assert!(futures_util::poll!(&mut waits).is_pending(), "for the tool's place");
    let another = [at_once(&tool(None), &ana).unwrap(), at_once(&tool(None), &ana).unwrap()];
    drop((others, another));
    assert!(waits.await.is_ok());
}

#[tokio::test]
async fn a_call_that_stops_waiting_gives_everything_back() {
    let permits = permits(1, 1);
    let ana = agent(1, 1);
    let held = permits.acquire(Some(&tool(None)), &ana, me(), 10, later()).await.unwrap();
    assert!(permits.acquire(Some(&tool(Some(1))), &ana, me(), 10, soon()).await.is_err());
    drop(held);
    assert!(at_once(&permits, &tool(Some(1)), &ana, "me").is_some());
    assert_eq!(waiting_of(&ana), 0);
}

#[tokio::test]
async fn bodies_of_one_agent_fill_half_of_the_room_at_most() {
    let permits = permits(1, 8);
    let (any, ana, other) = (tool(None), agent(1, 8), anyone());
    let _held = permits.acquire(Some(&any), &anyone(), me(), 10, later()).await.unwrap();
    let half = MAX_WAITING_BYTES / 2;
    assert!(permits.acquire(Some(&any), &ana, me(), half + 1, later()).await.is_err());
    let waits = permits.acquire(Some(&any), &ana, me(), half, later());
    tokio::pin!(waits);
    assert!(futures_util::poll!(&mut waits).is_pending());
    assert!(permits.acquire(Some(&any), &ana, me(), 1, later()).await.is_err());
    assert!(permits.acquire(Some(&any), &other, me(), half, later()).now_or_never().is_none(), "it waits");
}

/// How long the first call of a caller waits beside floods of calls that take a second each.
async fn wait_of_quiet(permits: &Permits, agent: &Arc<AgentGate>) -> Duration {
    let asked = tokio::time::Instant::now();
    permits.acquire(Some(&tool(None)), agent, "quiet".into(), 10, later()).await.unwrap();
    asked.elapsed()
}

#[tokio::test(start_paused = true)]
async fn however_many_agents_flood_the_first_call_of_another_waits_for_one_place_at_most() {
    for flooding in [1, 2, 3, 20] {
        let permits = Arc::new(permits(256, 1024));
        for number in 0..flooding {
            flood(&permits, &agent(192, 512), &format!("ana-{number}"), 1_500, Duration::from_secs(1)).await;
        }
        let waited = wait_of_quiet(&permits, &agent(192, 512)).await;
        let bound = if flooding <= 3 { Duration::ZERO } else { Duration::from_secs(1) };
        assert!(waited <= bound, "{waited:?} beside {flooding}");
    }
}

#[tokio::test(start_paused = true)]
async fn however_many_callers_without_a_section_flood_the_first_call_of_another_waits_for_one_place_at_most() {
    for flooding in [1, 2, 3, 20] {
        let permits = Arc::new(permits(256, 1024));
        let shared = Arc::new(AgentGate::shared(192, 512));
        for number in 0..flooding {
            flood(&permits, &shared, &format!("flood-{number}"), 1_500, Duration::from_secs(1)).await;
        }
        let waited = wait_of_quiet(&permits, &shared).await;
        let bound = if flooding <= 3 { Duration::ZERO } else { Duration::from_secs(1) };
        assert!(waited <= bound, "{waited:?} beside {flooding}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_a_section_that_is_alone_gets_most_places_of_its_kind() {
    let permits = Arc::new(permits(256, 1024));
    let shared = Arc::new(AgentGate::shared(192, 512));
    flood(&permits, &shared, "alone", 1_500, Duration::from_secs(10)).await;
    assert_eq!((permits.load.in_flight(), permits.load.waiting()), (144, 385));
}

#[tokio::test(start_paused = true)]
async fn the_next_place_is_of_the_agent_of_whom_the_fewest_run() {
    let permits = Arc::new(permits(4, 100));
    // A limit that its operator set to all there is: nothing stays free.
    let (ana, bob) = (agent(4, 50), agent(4, 50));
    flood(&permits, &ana, "ana", 40, Duration::from_secs(1)).await;
    for _ in 0..3 {
        let waited = wait_of_quiet(&permits, &bob).await;
        assert!(waited <= Duration::from_secs(1), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_agents_that_flood_share_what_there_is() {
    let permits = Arc::new(permits(256, 1024));
    let (ana, bob) = (agent(192, 512), agent(192, 512));
    flood(&permits, &ana, "ana", 1_500, Duration::from_secs(1)).await;
    flood(&permits, &bob, "bob", 1_500, Duration::from_secs(1)).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let running = [&ana, &bob].map(|agent| agent.used.running());
    assert!(running.iter().all(|running| (90..=140).contains(running)), "{running:?}");
}

/// A call that waits with a body of so many bytes; absent when it was refused.
async fn waits<'a>(
    permits: &'a Permits,
    agent: &'a Arc<AgentGate>,
    caller: &str,
    bytes: usize,
) -> Option<impl Future<Output = Result<Permit, ToolFailure>> + Unpin + 'a> {
    let mut waits = Box::pin(permits.acquire(None, agent, caller.into(), bytes, later()));
    futures_util::poll!(&mut waits).is_pending().then_some(waits)
}

const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn one_caller_of_those_that_share_a_gate_does_not_fill_the_room_for_bodies() {
    let (permits, shared) = (permits(1, 256), Arc::new(AgentGate::shared(1, 256)));
    let _held = at_once(&permits, &tool(None), &shared, "flood").unwrap();
    let mut flood = Vec::new();
    while let Some(waiting) = waits(&permits, &shared, "flood", MIB).await {
        flood.push(waiting);
    }
    assert_eq!(flood.len(), 24, "three quarters of the room");
    assert!(waits(&permits, &shared, "flood", MIB).await.is_none());
    assert!(waits(&permits, &shared, "quiet", 8 * MIB).await.is_some());
}

#[tokio::test]
async fn the_first_call_of_a_caller_gets_the_room_of_the_last_ones_whose_bodies_are_the_most() {
    let (permits, shared) = (permits(1, 256), Arc::new(AgentGate::shared(1, 256)));
    let _held = at_once(&permits, &tool(None), &shared, "flood").unwrap();
    let mut floods = Vec::new();
    for (caller, bytes) in (0..40).map(|call| (["heavy", "light"][call % 2], [MIB, MIB / 4][call % 2])) {
        floods.extend(waits(&permits, &shared, caller, bytes).await.map(|waiting| (caller, waiting)));
    }
    let fill = shared_room(&shared);
    let first = waits(&permits, &shared, "filler", fill).await;
    assert!(first.is_some() && shared_room(&shared) == 0);
    assert!(waits(&permits, &shared, "filler", 1).await.is_none(), "it waits already");
    let quiet = waits(&permits, &shared, "quiet", 2 * MIB).await;
    assert!(quiet.is_some());
    let mut removed = Vec::new();
    for (caller, waiting) in &mut floods {
        if let std::task::Poll::Ready(refused) = futures_util::poll!(waiting) {
            assert_eq!(refused.err().unwrap().cause, Cause::Overloaded);
            removed.push(*caller);
        }
    }
    assert_eq!(removed, ["heavy", "heavy"]);
}

fn shared_room(gate: &AgentGate) -> usize {
    MAX_WAITING_BYTES / 2 - gate.used.bytes()
}

#[tokio::test]
async fn a_call_that_others_could_not_make_room_for_removes_none() {
    let (permits, shared) = (permits(1, 256), Arc::new(AgentGate::shared(1, 256)));
    let _held = at_once(&permits, &tool(None), &shared, "flood").unwrap();
    let mut others = Vec::new();
    for caller in 0..32 {
        others.extend(waits(&permits, &shared, &format!("caller-{caller}"), MIB).await);
    }
    assert_eq!((others.len(), shared_room(&shared)), (32, 0));
    let refused = permits.acquire(None, &shared, "quiet".into(), MIB, later()).await.err().unwrap();
    assert_eq!(refused.message, "Too many calls of this agent are waiting. Try again later.");
    for waiting in &mut others {
        assert!(futures_util::poll!(waiting).is_pending());
    }
}

#[tokio::test]
async fn the_first_call_of_a_caller_gets_the_room_of_others_when_bodies_fill_that_of_the_daemon() {
    let permits = permits(1, 256);
    let (ana, bob, shared) = (agent(1, 100), agent(1, 100), Arc::new(AgentGate::shared(1, 256)));
    let _held = at_once(&permits, &tool(None), &ana, "ana").unwrap();
    let mut floods = Vec::new();
    for agent in [&ana, &bob] {
        while let Some(waiting) = waits(&permits, agent, "agent", MIB).await {
            floods.push(waiting);
        }
    }
    // Beyond its share the gate that many share gets room of those whose bodies are the most, and takes no more.
    let mut first = Vec::new();
    for caller in 0..12 {
        first.extend(waits(&permits, &shared, &format!("caller-{caller}"), MIB).await);
    }
    assert_eq!(first.len(), 12);
    let mut removed = 0;
    for waiting in &mut floods {
        removed += usize::from(futures_util::poll!(waiting).is_ready());
    }
    assert!((1..12).contains(&removed), "{removed}");
}

#[tokio::test]
async fn a_refused_turn_is_told_as_one() {
    let (permits, turns) = (permits(1, 0), Arc::new(AgentGate::of_turns(1, 0)));
    let _held = at_once(&permits, &tool(None), &turns, "ana").unwrap();
    let refused = permits.acquire(None, &turns, "bob".into(), 10, later()).await.err().unwrap();
    assert_eq!(refused.message, "Too many calls wait for their turn to be checked or listed. Try again later.");
}

#[tokio::test]
async fn a_call_can_give_its_tools_place_back_and_keep_its_own() {
    let permits = permits(2, 10);
    let mut held = permits.acquire(Some(&tool(Some(1))), &anyone(), me(), 10, later()).await.unwrap();
    let limited = tool(Some(1));
    let agent = anyone();
    let mut waits = std::pin::pin!(permits.acquire(Some(&limited), &agent, me(), 10, later()));
    assert!(waits.as_mut().now_or_never().is_none(), "the tool runs one call at a time");
    held.release_tool();
    let _next = waits.await.unwrap();
    assert!(permits.acquire(None, &agent, me(), 10, later()).now_or_never().is_none(), "both places are taken");
    drop(held);
    assert!(permits.acquire(None, &agent, me(), 10, later()).await.is_ok());
}
