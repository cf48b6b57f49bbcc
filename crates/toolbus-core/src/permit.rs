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
    _daemon: OwnedSemaphorePermit,
    _running: LoadGuard,
}

/// A tool's name and its limit, so that a tool registered again with another limit gets what it says.
type ToolLimit = (Arc<str>, usize);

/// Grants permits, first of the tool and then of the daemon.
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
    /// # Errors
    ///
    /// [`Cause::Overloaded`] when too many wait already, or none comes free in time.
    pub(crate) async fn acquire(
        &self,
        tool: &ToolDescriptor,
        bytes: usize,
        deadline: Instant,
    ) -> Result<Permit, ToolFailure> {
        let of_tool = self.semaphore(tool);
        if let Some(permit) = self.at_once(of_tool.as_ref()) {
            return Ok(permit);
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let (Ok(_place), Ok(_bytes)) = (
            Arc::clone(&self.waiting).try_acquire_owned(),
            Arc::clone(&self.waiting_bytes).try_acquire_many_owned(bytes),
        ) else {
            return Err(overloaded("Too many calls are waiting."));
        };
        let _waiting = self.load.enter_waiting();
        let in_turn = async {
            let tool = match of_tool {
                Some(semaphore) => Some(semaphore.acquire_owned().await.ok()?),
                None => None,
            };
            Some(self.permit(tool, Arc::clone(&self.daemon).acquire_owned().await.ok()?))
        };
        match tokio::time::timeout_at(deadline.into(), in_turn).await {
            Ok(Some(permit)) => Ok(permit),
            _ => Err(overloaded("No place to run this call came free in time.")),
        }
    }

    fn at_once(&self, of_tool: Option<&Arc<Semaphore>>) -> Option<Permit> {
        let tool = match of_tool {
            Some(semaphore) => Some(Arc::clone(semaphore).try_acquire_owned().ok()?),
            None => None,
        };
        Some(self.permit(tool, Arc::clone(&self.daemon).try_acquire_owned().ok()?))
    }

    fn permit(&self, tool: Option<OwnedSemaphorePermit>, daemon: OwnedSemaphorePermit) -> Permit {
        Permit { _tool: tool, _daemon: daemon, _running: self.load.enter_running() }
    }

    fn semaphore(&self, tool: &ToolDescriptor) -> Option<Arc<Semaphore>> {
        let limit = tool.max_in_flight?;
        let mut tools = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        let semaphore = tools.entry((Arc::clone(&tool.name), limit)).or_insert_with(|| Arc::new(Semaphore::new(limit)));
        Some(Arc::clone(semaphore))
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

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[tokio::test]
    async fn a_free_place_is_given_at_once_and_counted() {
        let permits = permits(1, 0);
        let permit = permits.acquire(&tool(None), 10, soon()).await.unwrap();
        assert_eq!(permits.load.in_flight(), 1);
        drop(permit);
        assert_eq!(permits.load.in_flight(), 0);
    }

    #[tokio::test]
    async fn without_room_to_wait_a_call_is_refused_at_once() {
        let permits = permits(1, 0);
        let _held = permits.acquire(&tool(None), 10, later()).await.unwrap();
        let refused = permits.acquire(&tool(None), 10, later()).await.err().unwrap();
        assert_eq!(refused.cause, Cause::Overloaded);
        assert_eq!(refused.retry_after, Some(RETRY_AFTER));
    }

    #[tokio::test]
    async fn waiting_ends_with_the_deadline() {
        let permits = permits(1, 8);
        let _held = permits.acquire(&tool(None), 10, later()).await.unwrap();
        assert_eq!(permits.acquire(&tool(None), 10, soon()).await.err().unwrap().cause, Cause::Overloaded);
        assert_eq!(permits.load.waiting(), 0);
    }

    #[tokio::test]
    async fn a_waiting_call_gets_the_place_that_comes_free() {
        let permits = Arc::new(permits(1, 8));
        let held = permits.acquire(&tool(None), 10, later()).await.unwrap();
        let waiting = tokio::spawn({
            let permits = Arc::clone(&permits);
            async move { permits.acquire(&tool(None), 10, later()).await.is_ok() }
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
        let _held = permits.acquire(&tool(Some(1)), 10, later()).await.unwrap();
        assert!(permits.acquire(&tool(Some(1)), 10, later()).await.is_err());
        let other = ToolDescriptor::new("other", "test", "local");
        assert!(permits.acquire(&other, 10, later()).await.is_ok());
    }

    #[tokio::test]
    async fn waiting_calls_are_bounded_in_bytes() {
        let permits = permits(1, 8);
        let _held = permits.acquire(&tool(None), 10, later()).await.unwrap();
        assert!(permits.acquire(&tool(None), MAX_WAITING_BYTES + 1, later()).await.is_err());
    }
}
