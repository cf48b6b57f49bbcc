mod slots;

use futures_util::FutureExt;

use tokio_util::task::TaskTracker;

use toolbus_protocol::Random;

use super::*;

fn permits(running: usize, waiting: usize) -> Permits {
    Permits::new(running, waiting, Arc::default(), Clock::SYSTEM)
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

/// Makes `count` calls, each in a task of its own and of this length, and returns once each has a slot or was refused.
async fn flood(permits: &Arc<Permits>, agent: &Arc<AgentGate>, caller: &str, count: usize, runs: Duration) {
    let placed = Arc::new(AtomicUsize::new(0));
    for _ in 0..count {
        let (permits, agent, caller) = (Arc::clone(permits), Arc::clone(agent), Arc::<str>::from(caller));
        let placed = Arc::clone(&placed);
        TaskTracker::new().spawn(async move {
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
    Clock::SYSTEM.now() + Duration::from_millis(20)
}

fn later() -> Instant {
    Clock::SYSTEM.now() + Duration::from_secs(30)
}

#[tokio::test]
async fn a_free_slot_is_given_at_once_and_counted() {
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
    let any = tool(None);
    let refused = permits.acquire(Some(&any), &anyone(), me(), 10, later()).now_or_never().unwrap().err().unwrap();
    assert_eq!((refused.cause, refused.retry_after), (Cause::Overloaded, Some(RETRY_AFTER)));
}

#[tokio::test]
async fn waiting_ends_with_the_deadline() {
    let permits = permits(1, 8);
    let _held = permits.acquire(Some(&tool(None)), &anyone(), me(), 10, later()).await.unwrap();
    let refused = permits.acquire(Some(&tool(None)), &anyone(), me(), 10, soon()).await.err().unwrap();
    assert_eq!(refused.cause, Cause::Overloaded);
    assert_eq!(permits.load.waiting(), 0);
}

#[test]
fn a_call_that_waited_for_something_else_gives_its_slot_back() {
    let (permits, agent) = (permits(1, 1), anyone());
    for _ in 0..3 {
        let slot = permits.wait(&agent, me(), 10).unwrap();
        assert_eq!(waiting_of(&agent), 1);
        drop(slot);
    }
    assert_eq!(waiting_of(&agent), 0);
}

#[tokio::test]
async fn a_slot_that_a_call_was_given_and_did_not_take_is_given_back() {
    let (permits, agent, slow) = (permits(1, 8), anyone(), tool(None));
    let held = at_once(&permits, &slow, &agent, "me").unwrap();
    let mut waiting = Box::pin(permits.acquire(Some(&slow), &agent, me(), 10, later()));
    assert!((&mut waiting).now_or_never().is_none());
    drop((held, waiting));
    assert!(at_once(&permits, &slow, &agent, "me").is_some());
}

#[tokio::test]
async fn a_waiting_call_gets_the_slot_that_comes_free() {
    let permits = Arc::new(permits(1, 8));
    let held = permits.acquire(Some(&tool(None)), &anyone(), me(), 10, later()).await.unwrap();
    let waiting = TaskTracker::new().spawn({
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
async fn a_tool_at_its_limit_leaves_slots_to_others() {
    let permits = permits(2, 0);
    let _held = permits.acquire(Some(&tool(Some(1))), &anyone(), me(), 10, later()).await.unwrap();
    assert!(permits.acquire(Some(&tool(Some(1))), &anyone(), me(), 10, later()).await.is_err());
    let other = ToolDescriptor::new("other", "test", "local");
    assert!(permits.acquire(Some(&other), &anyone(), me(), 10, later()).await.is_ok());
}

#[tokio::test]
async fn an_agent_at_its_limit_leaves_slots_to_others() {
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
            TaskTracker::new()
                .spawn(async move { permits.acquire(Some(&tool(None)), &ana, me(), 10, later()).await.is_ok() })
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
async fn a_call_that_waits_for_its_agent_holds_no_slot_of_the_daemon() {
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
async fn a_call_that_waits_for_its_tool_holds_no_slot_of_its_agent_but_counts_as_waiting() {
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
    assert!(futures_util::poll!(&mut waits).is_pending(), "for ana's slot");
    let others = at_once(&limited, &anyone()).unwrap();
    drop(held);
    assert!(futures_util::poll!(&mut waits).is_pending(), "for the tool's slot");
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

/// Time that the first call of a caller waits beside floods of calls that take a second each.
async fn wait_of_quiet(permits: &Permits, agent: &Arc<AgentGate>) -> Duration {
    let requested = Clock::SYSTEM.now();
    permits.acquire(Some(&tool(None)), agent, "quiet".into(), 10, later()).await.unwrap();
    Clock::SYSTEM.since(requested)
}

#[tokio::test(start_paused = true)]
async fn during_floods_the_first_call_of_another_agent_waits_for_one_slot_at_most() {
    for (has_section, flooding) in [true, false].into_iter().flat_map(|has| [1, 2, 3, 20].map(|count| (has, count))) {
        let (permits, shared) = (Arc::new(permits(256, 1024)), Arc::new(AgentGate::shared(192, 512)));
        let gate = || if has_section { agent(192, 512) } else { Arc::clone(&shared) };
        for number in 0..flooding {
            flood(&permits, &gate(), &format!("flood-{number}"), 1_500, Duration::from_secs(1)).await;
        }
        let waited = wait_of_quiet(&permits, &gate()).await;
        let bound = if flooding <= 3 { Duration::ZERO } else { Duration::from_secs(1) };
        assert!(waited <= bound, "{waited:?} beside {flooding}, of agents: {has_section}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_without_a_section_that_is_alone_gets_most_slots_of_its_kind() {
    let permits = Arc::new(permits(256, 1024));
    let shared = Arc::new(AgentGate::shared(192, 512));
    flood(&permits, &shared, "alone", 1_500, Duration::from_secs(10)).await;
    assert_eq!((permits.load.in_flight(), permits.load.waiting()), (144, 385));
}

#[tokio::test(start_paused = true)]
async fn the_next_slot_goes_to_the_agent_with_the_fewest_running_calls() {
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
async fn two_flooding_agents_share_the_slots() {
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
async fn a_caller_that_shares_a_gate_does_not_fill_the_room_for_bodies() {
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
async fn a_callers_first_call_gets_the_room_of_the_last_calls_of_the_caller_with_the_most_bytes() {
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
async fn a_call_for_which_removals_make_too_little_room_removes_no_other() {
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
async fn a_call_can_release_the_slot_of_its_tool_and_keep_its_own() {
    let permits = permits(2, 10);
    let mut held = permits.acquire(Some(&tool(Some(1))), &anyone(), me(), 10, later()).await.unwrap();
    let limited = tool(Some(1));
    let agent = anyone();
    let mut waits = std::pin::pin!(permits.acquire(Some(&limited), &agent, me(), 10, later()));
    assert!(waits.as_mut().now_or_never().is_none(), "the tool runs one call at a time");
    held.release_tool();
    let _next = waits.await.unwrap();
    assert!(permits.acquire(None, &agent, me(), 10, later()).now_or_never().is_none(), "both slots are taken");
    drop(held);
    assert!(permits.acquire(None, &agent, me(), 10, later()).await.is_ok());
}

/// Calls of one tool that wait, each in a task that notes its name once it has a slot, and gives that back at once.
async fn queue_up(permits: &Arc<Permits>, calls: &[(&str, &Arc<AgentGate>, u64)]) -> Arc<Mutex<Vec<String>>> {
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    for (name, agent, seconds) in calls {
        let until = Clock::SYSTEM.now() + Duration::from_secs(*seconds);
        let (permits, agent, name, noted) =
            (Arc::clone(permits), Arc::clone(agent), (*name).to_owned(), Arc::clone(&order));
        let before = permits.load.waiting();
        let load = Arc::clone(&permits.load);
        TaskTracker::new().spawn(async move {
            let permit = permits.acquire(Some(&tool(None)), &agent, me(), 10, until).await.unwrap();
            noted.lock().push(name);
            drop(permit);
        });
        while load.waiting() == before {
            tokio::task::yield_now().await;
        }
    }
    order
}

async fn emptied(permits: &Permits) {
    while permits.load.waiting() + permits.load.in_flight() > 0 {
        tokio::task::yield_now().await;
    }
}

/// The order in which calls run that queued up behind this permit.
async fn order_after(held: Permit, permits: &Arc<Permits>, calls: &[(&str, &Arc<AgentGate>, u64)]) -> Vec<String> {
    let order = queue_up(permits, calls).await;
    drop(held);
    emptied(permits).await;
    std::mem::take(&mut *order.lock())
}

#[tokio::test(start_paused = true)]
async fn the_next_call_of_a_caller_is_the_one_whose_wait_ends_first() {
    let (permits, ana) = (Arc::new(permits(1, 8)), agent(1, 8));
    let held = at_once(&permits, &tool(None), &ana, "me").unwrap();
    let calls = [("30", &ana, 30), ("10", &ana, 10), ("20", &ana, 20), ("10 again", &ana, 10)];
    let order = order_after(held, &permits, &calls).await;
    assert_eq!(order, ["10", "10 again", "20", "30"]);
}

#[tokio::test(start_paused = true)]
async fn urgent_calls_of_one_caller_take_no_turn_of_another() {
    let permits = Arc::new(permits(1, 16));
    let [other, ana, bob] = [agent(1, 8), agent(1, 8), agent(1, 8)];
    let held = at_once(&permits, &tool(None), &other, "me").unwrap();
    let calls = [("ana's first", &ana, 60), ("bob's", &bob, 60), ("urgent", &ana, 5), ("more urgent", &ana, 4)];
    let order = order_after(held, &permits, &calls).await;
    assert_eq!(order, ["more urgent", "bob's", "urgent", "ana's first"]);
}

/// Has so many calls run, one after the other, each as long.
async fn run_in_turn(permits: &Permits, agent: &Arc<AgentGate>, calls: usize, each: Duration) {
    for _ in 0..calls {
        let permit = permits.acquire(Some(&tool(None)), agent, me(), 10, later()).await;
        tokio::time::sleep(each).await;
        drop(permit.ok().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_behind_too_many_waiting_ones_is_refused_before_it_waits() {
    let (permits, ana, bob) = (Arc::new(permits(2, 100)), agent(1, 50), agent(1, 50));
    run_in_turn(&permits, &ana, 8, Duration::from_secs(5)).await;
    let _held = at_once(&permits, &tool(None), &ana, "me").unwrap();
    let any = tool(None);
    let mut waiting: Vec<_> = (0..6).map(|_| Box::pin(permits.acquire(Some(&any), &ana, me(), 10, later()))).collect();
    for call in &mut waiting {
        assert!(futures_util::poll!(call).is_pending(), "the last of them begins after 30 s");
    }
    let refused = permits.acquire(Some(&any), &ana, me(), 10, later()).now_or_never().unwrap().err().unwrap();
    assert_eq!((refused.cause, refused.retry_after), (Cause::Overloaded, Some(RETRY_AFTER)));
    assert!(refused.message.contains("take longer than this call may wait"), "{}", refused.message);
    let until = later() + Duration::from_secs(6);
    let mut patient = Box::pin(permits.acquire(Some(&any), &ana, me(), 10, until));
    assert!(futures_util::poll!(&mut patient).is_pending());
    let until = Clock::SYSTEM.now() + Duration::from_secs(7);
    let mut urgent = Box::pin(permits.acquire(Some(&any), &ana, me(), 10, until));
    assert!(futures_util::poll!(&mut urgent).is_pending(), "it goes before them");
    let limited = tool(Some(1));
    let mut others = Box::pin(permits.acquire(Some(&limited), &ana, me(), 10, later()));
    assert!(futures_util::poll!(&mut others).is_pending(), "another tool's calls need not go first");
    assert!(at_once(&permits, &any, &bob, "me").is_some(), "another agent's neither");
}

#[tokio::test(start_paused = true)]
async fn calls_of_even_length_that_would_have_run_are_not_refused_early() {
    const EACH: u64 = 4_000;
    let random = Random::seeded(11);
    let below = |most: u64| random.below(Duration::from_millis(most)).as_millis() as u64;
    let mut refused_early = 0;
    for round in 0..60 {
        let slots = 1 + round % 3;
        let (permits, ana) = (Arc::new(permits(slots, 200)), agent(slots, 200));
        run_in_turn(&permits, &ana, 8, Duration::from_millis(EACH)).await;
        // Calls come and end at even milliseconds, no two at the same time, and waits end at odd ones.
        let mut calls: Vec<(u64, u64)> =
            (0..60).map(|number| (below(5) * EACH + number * 60 + below(15) * 2, below(9_000) * 2 + 1)).collect();
        calls.sort_unstable();
        let start = Clock::SYSTEM.now();
        let tasks: Vec<_> = calls
            .iter()
            .map(|(arrival, wait)| {
                let (permits, ana) = (Arc::clone(&permits), Arc::clone(&ana));
                let arrival = start + Duration::from_millis(*arrival);
                let until = arrival + Duration::from_millis(*wait);
                TaskTracker::new().spawn(async move {
                    tokio::time::sleep_until(arrival.into()).await;
                    let requested = Clock::SYSTEM.now();
                    let permit = permits.acquire(Some(&tool(None)), &ana, me(), 10, until).await;
                    let waited = Clock::SYSTEM.since(requested);
                    if permit.is_ok() {
                        tokio::time::sleep(Duration::from_millis(EACH)).await;
                    }
                    (permit.is_ok(), waited)
                })
            })
            .collect();
        let mut ran = Vec::new();
        for task in tasks {
            let (has_run, waited) = task.await.unwrap();
            refused_early += usize::from(!has_run && waited.is_zero());
            ran.push(has_run);
        }
        assert_eq!(ran, without_estimate(&calls, slots, EACH), "round {round}: {calls:?}");
    }
    assert!(refused_early > 100, "{refused_early}");
}

/// Which of these calls, each with its arrival and the length of its wait, run where none is refused early.
fn without_estimate(calls: &[(u64, u64)], slots: usize, each: u64) -> Vec<bool> {
    let mut free = vec![0; slots];
    let mut ran = vec![false; calls.len()];
    loop {
        free.sort_unstable();
        // The slot that comes free first goes to the call whose wait ends first, of those that wait then, or else to
        // the next one that comes.
        let left = || calls.iter().enumerate().filter(|(call, _)| !ran[*call]);
        let can_wait = |(_, (arrival, wait)): &(usize, &(u64, u64))| arrival + wait > free[0];
        let waits = left().filter(can_wait).filter(|(_, (arrival, _))| *arrival <= free[0]);
        let urgent = waits.min_by_key(|(_, (arrival, wait))| arrival + wait);
        let next = urgent.or_else(|| left().filter(can_wait).min_by_key(|(_, (arrival, _))| *arrival));
        let Some((call, (arrival, _))) = next else { return ran };
        ran[call] = true;
        free[0] = free[0].max(*arrival) + each;
    }
}
