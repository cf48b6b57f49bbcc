//! How many calls run and wait at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::failure::{Cause, ToolFailure};
use crate::telemetry::{Load, LoadGuard};
use crate::tool::ToolDescriptor;

/// Bodies of waiting calls may hold this much memory together, in bytes.
const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// When a refused caller may try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The right to run: held while a call runs, given back when dropped.
pub(crate) struct Permit {
    _tool: Option<OwnedSemaphorePermit>,
    _agent: OwnedSemaphorePermit,
    _daemon: OwnedSemaphorePermit,
    _running: LoadGuard,
}

/// How many calls of one agent run and wait at a time, so that others always find room.
pub(crate) struct AgentGate {
    running: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    /// Half of what the bodies of all waiting calls may hold.
    waiting_bytes: Arc<Semaphore>,
}

/// A tool's name and its limit, so that a tool registered again with another limit gets what it says.
type ToolLimit = (Arc<str>, usize);

/// Places of a call that waits, given back when it no longer does.
pub(crate) struct Waiting {
    _agent: [OwnedSemaphorePermit; 2],
    _daemon: [OwnedSemaphorePermit; 2],
    _counted: LoadGuard,
}

/// Grants permits: of the tool, then of the agent, then of the daemon.
pub(crate) struct Permits {
    daemon: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    waiting_bytes: Arc<Semaphore>,
    tools: Mutex<HashMap<ToolLimit, Arc<Semaphore>>>,
    load: Arc<Load>,
}

impl Permits {
    pub(crate) fn new(max_in_flight: usize, max_waiting: usize, load: Arc<Load>) -> Self {
        Self {
            daemon: Arc::new(Semaphore::new(max_in_flight)),
            waiting: Arc::new(Semaphore::new(max_waiting)),
            waiting_bytes: Arc::new(Semaphore::new(MAX_WAITING_BYTES)),
            tools: Mutex::default(),
            load,
        }
    }

    /// Waits for a permit, at most until `deadline`; `bytes` is what the call holds while it waits.
    ///
    /// A call that waits for the place of its tool or of its agent holds none of the daemon's.
    ///
    /// # Errors
    ///
    /// [`Cause::Overloaded`] when too many wait already, or none comes free in time.
    pub(crate) async fn acquire(
        &self,
        tool: &ToolDescriptor,
        agent: &AgentGate,
        bytes: usize,
        deadline: Instant,
    ) -> Result<Permit, ToolFailure> {
        let of_tool = self.semaphore(tool);
        if let Some(permit) = self.at_once(of_tool.as_ref(), agent) {
            return Ok(permit);
        }
        let _waiting = self.wait(agent, bytes)?;
        let in_turn = async {
            let (tool, agent) = both(of_tool.as_ref(), &agent.running).await?;
            Some(self.permit(tool, agent, Arc::clone(&self.daemon).acquire_owned().await.ok()?))
        };
        match tokio::time::timeout_at(deadline.into(), in_turn).await {
            Ok(Some(permit)) => Ok(permit),
            _ => Err(overloaded("No place to run this call came free in time.")),
        }
    }

    fn at_once(&self, of_tool: Option<&Arc<Semaphore>>, agent: &AgentGate) -> Option<Permit> {
        let tool = match of_tool {
            Some(semaphore) => Some(Arc::clone(semaphore).try_acquire_owned().ok()?),
            None => None,
        };
        let agent = Arc::clone(&agent.running).try_acquire_owned().ok()?;
        Some(self.permit(tool, agent, Arc::clone(&self.daemon).try_acquire_owned().ok()?))
    }

    /// Takes a place among those who wait, whatever for: first among those of the agent, who learns nothing of how busy
    /// others are. `bytes` is what the call holds while it waits.
    ///
    /// # Errors
    ///
    /// [`Cause::Overloaded`] when too many wait already.
    pub(crate) fn wait(&self, agent: &AgentGate, bytes: usize) -> Result<Waiting, ToolFailure> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let take = |places: &Arc<Semaphore>, room: &Arc<Semaphore>| {
            let place = Arc::clone(places).try_acquire_owned().ok()?;
            Some([place, Arc::clone(room).try_acquire_many_owned(bytes).ok()?])
        };
        let too_many = |whose| overloaded(&format!("Too many calls{whose} are waiting."));
        Ok(Waiting {
            _agent: take(&agent.waiting, &agent.waiting_bytes).ok_or_else(|| too_many(" of this agent"))?,
            _daemon: take(&self.waiting, &self.waiting_bytes).ok_or_else(|| too_many(""))?,
            _counted: self.load.enter_waiting(),
        })
    }

    fn permit(
        &self,
        tool: Option<OwnedSemaphorePermit>,
        agent: OwnedSemaphorePermit,
        daemon: OwnedSemaphorePermit,
    ) -> Permit {
        Permit { _tool: tool, _agent: agent, _daemon: daemon, _running: self.load.enter_running() }
    }

    fn semaphore(&self, tool: &ToolDescriptor) -> Option<Arc<Semaphore>> {
        let limit = tool.max_in_flight?;
        let mut tools = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        let semaphore = tools.entry((Arc::clone(&tool.name), limit)).or_insert_with(|| Arc::new(Semaphore::new(limit)));
        Some(Arc::clone(semaphore))
    }
}

impl AgentGate {
    /// At most `max_in_flight` calls run and `max_queued` wait.
    #[must_use]
    pub(crate) fn new(max_in_flight: usize, max_queued: usize) -> Self {
        Self {
            running: Arc::new(Semaphore::new(max_in_flight)),
            waiting: Arc::new(Semaphore::new(max_queued)),
            waiting_bytes: Arc::new(Semaphore::new(MAX_WAITING_BYTES / 2)),
        }
    }
}

/// Waits for a place of the tool and one of the agent, holding neither while it waits for the other: an agent at its limit
/// must not keep a tool from others, and a tool at its limit must not keep an agent from its other tools.
async fn both(
    tool: Option<&Arc<Semaphore>>,
    agent: &Arc<Semaphore>,
) -> Option<(Option<OwnedSemaphorePermit>, OwnedSemaphorePermit)> {
    let Some(tool) = tool else {
        return Some((None, Arc::clone(agent).acquire_owned().await.ok()?));
    };
    loop {
        let of_tool = Arc::clone(tool).acquire_owned().await.ok()?;
        if let Ok(of_agent) = Arc::clone(agent).try_acquire_owned() {
            return Some((Some(of_tool), of_agent));
        }
        drop(of_tool);
        let of_agent = Arc::clone(agent).acquire_owned().await.ok()?;
        if let Ok(of_tool) = Arc::clone(tool).try_acquire_owned() {
            return Some((Some(of_tool), of_agent));
        }
    }
}

fn overloaded(reason: &str) -> ToolFailure {
    ToolFailure::new(Cause::Overloaded, format!("{reason} Try again later.")).with_retry_after(RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(running: usize, waiting: usize) -> Permits {
        Permits::new(running, waiting, Arc::default())
    }

    fn tool(limit: Option<usize>) -> ToolDescriptor {
        ToolDescriptor { max_in_flight: limit, ..ToolDescriptor::new("slow", "test", "local") }
    }

    /// An agent without limits of its own.
    fn anyone() -> AgentGate {
        AgentGate::new(100, 100)
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
        let permit = permits.acquire(&tool(None), &anyone(), 10, soon()).await.unwrap();
        assert_eq!(permits.load.in_flight(), 1);
        drop(permit);
        assert_eq!(permits.load.in_flight(), 0);
    }

    #[tokio::test]
    async fn without_room_to_wait_a_call_is_refused_at_once() {
        let permits = permits(1, 0);
        let _held = permits.acquire(&tool(None), &anyone(), 10, later()).await.unwrap();
        let refused = permits.acquire(&tool(None), &anyone(), 10, later()).await.err().unwrap();
        assert_eq!(refused.cause, Cause::Overloaded);
        assert_eq!(refused.retry_after, Some(RETRY_AFTER));
    }

    #[tokio::test]
    async fn waiting_ends_with_the_deadline() {
        let permits = permits(1, 8);
        let _held = permits.acquire(&tool(None), &anyone(), 10, later()).await.unwrap();
        assert_eq!(permits.acquire(&tool(None), &anyone(), 10, soon()).await.err().unwrap().cause, Cause::Overloaded);
        assert_eq!(permits.load.waiting(), 0);
    }

    #[tokio::test]
    async fn a_waiting_call_gets_the_place_that_comes_free() {
        let permits = Arc::new(permits(1, 8));
        let held = permits.acquire(&tool(None), &anyone(), 10, later()).await.unwrap();
        let waiting = tokio::spawn({
            let permits = Arc::clone(&permits);
            async move { permits.acquire(&tool(None), &anyone(), 10, later()).await.is_ok() }
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
        let _held = permits.acquire(&tool(Some(1)), &anyone(), 10, later()).await.unwrap();
        assert!(permits.acquire(&tool(Some(1)), &anyone(), 10, later()).await.is_err());
        let other = ToolDescriptor::new("other", "test", "local");
        assert!(permits.acquire(&other, &anyone(), 10, later()).await.is_ok());
    }

    #[tokio::test]
    async fn waiting_calls_are_bounded_in_bytes() {
        let permits = permits(1, 8);
        let _held = permits.acquire(&tool(None), &anyone(), 10, later()).await.unwrap();
        assert!(permits.acquire(&tool(None), &anyone(), MAX_WAITING_BYTES / 2 + 1, later()).await.is_err());
    }

    #[tokio::test]
    async fn an_agent_at_its_limit_leaves_places_to_others() {
        let permits = permits(2, 8);
        let (ana, bob) = (AgentGate::new(1, 0), AgentGate::new(1, 0));
        let _held = permits.acquire(&tool(None), &ana, 10, later()).await.unwrap();
        let refused = permits.acquire(&tool(None), &ana, 10, later()).await.err().unwrap();
        assert_eq!(refused.message, "Too many calls of this agent are waiting. Try again later.");
        assert!(permits.acquire(&tool(None), &bob, 10, later()).await.is_ok());
    }

    #[tokio::test]
    async fn a_thousand_waiting_calls_of_one_agent_do_not_delay_the_first_of_another() {
        let permits = Arc::new(permits(8, 2_000));
        let ana = Arc::new(AgentGate::new(6, 1_000));
        let held: Vec<_> = (0..6).map(|_| permits.at_once(None, &ana).unwrap()).collect();
        let waiting: Vec<_> = (0..1_000)
            .map(|_| {
                let (permits, ana) = (Arc::clone(&permits), Arc::clone(&ana));
                tokio::spawn(async move { permits.acquire(&tool(None), &ana, 10, later()).await.is_ok() })
            })
            .collect();
        while permits.load.waiting() < 1_000 {
            tokio::task::yield_now().await;
        }
        assert!(permits.acquire(&tool(None), &ana, 10, later()).await.is_err(), "no room to wait for one more");
        let first = permits.at_once(None, &anyone());
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
        let ana = AgentGate::new(1, 1);
        let _held = permits.acquire(&tool(None), &ana, 10, later()).await.unwrap();
        let any = tool(None);
        let waiting = permits.acquire(&any, &ana, 10, later());
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        assert!(permits.at_once(None, &anyone()).is_some());
    }

    #[tokio::test]
    async fn a_call_that_waits_for_its_tool_holds_no_place_of_its_agent_but_counts_as_waiting() {
        let permits = permits(3, 8);
        let (ana, slow) = (AgentGate::new(1, 1), tool(Some(1)));
        let _held = permits.acquire(&slow, &anyone(), 10, later()).await.unwrap();
        let waiting = permits.acquire(&slow, &ana, 10, later());
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        let refused = permits.acquire(&slow, &ana, 10, later()).await.err().unwrap();
        assert_eq!(refused.message, "Too many calls of this agent are waiting. Try again later.");
        assert!(permits.at_once(None, &ana).is_some());
    }

    #[tokio::test]
    async fn an_agent_at_its_limit_keeps_no_tool_from_others_and_a_tool_at_its_limit_no_agent_from_its_other_tools() {
        let permits = permits(8, 8);
        let (ana, limited) = (AgentGate::new(2, 8), tool(Some(1)));
        let at_once =
            |tool: &ToolDescriptor, agent: &AgentGate| permits.at_once(permits.semaphore(tool).as_ref(), agent);
        let held = [at_once(&tool(None), &ana).unwrap(), at_once(&tool(None), &ana).unwrap()];
        let waits = permits.acquire(&limited, &ana, 10, later());
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
        let ana = AgentGate::new(1, 1);
        let held = permits.acquire(&tool(None), &ana, 10, later()).await.unwrap();
        assert!(permits.acquire(&tool(Some(1)), &ana, 10, soon()).await.is_err());
        drop(held);
        assert!(permits.at_once(permits.semaphore(&tool(Some(1))).as_ref(), &ana).is_some());
        assert!(permits.wait(&ana, 10).is_ok());
    }

    #[tokio::test]
    async fn bodies_of_one_agent_fill_half_of_the_room_at_most() {
        let permits = permits(1, 8);
        let ana = AgentGate::new(1, 8);
        assert!(permits.wait(&ana, MAX_WAITING_BYTES / 2 + 1).is_err());
        let _waits = permits.wait(&ana, MAX_WAITING_BYTES / 2).unwrap();
        assert!(permits.wait(&ana, 1).is_err());
        assert!(permits.wait(&anyone(), MAX_WAITING_BYTES / 2).is_ok());
    }
}
