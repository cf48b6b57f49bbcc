//! Servers that start together, a few at a time: together they would be slower than one after the other, and too slow for
//! the question of how they want to be spoken to.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Fewest servers that start at a time.
const FEWEST: usize = 4;
/// Longest turn. Whoever takes longer waits for something else than the processor.
const LONGEST: Duration = Duration::from_secs(1);

/// Hands out turns. Clones hand out the same ones.
#[derive(Debug, Clone)]
pub(super) struct StartLimit(Arc<Semaphore>);

/// A server may start.
pub(crate) struct StartPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl StartLimit {
    pub(super) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self(Arc::new(Semaphore::new((processors * 2).max(FEWEST))))
    }

    pub(super) async fn next(&self) -> StartPermit {
        // Nobody closes it.
        StartPermit { _permit: Arc::clone(&self.0).acquire_owned().await.ok() }
    }
}

impl StartPermit {
    /// Runs a start, as a turn while it is short.
    pub(crate) async fn run<T>(self, start: impl Future<Output = T>) -> T {
        let mut start = pin!(start);
        if let Ok(started) = timeout(LONGEST, &mut start).await {
            return started;
        }
        drop(self);
        start.await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_few_start_at_a_time() {
        let (turns, starting, most) = (StartLimit::new(), AtomicUsize::new(0), AtomicUsize::new(0));
        let servers = (0..100).map(async |_| {
            let start = async {
                most.fetch_max(starting.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                sleep(LONGEST / 2).await;
                starting.fetch_sub(1, Ordering::Relaxed);
            };
            turns.next().await.run(start).await;
        });
        futures_util::future::join_all(servers).await;
        assert_eq!(most.into_inner(), turns.0.available_permits());
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_hang_delay_the_others_by_their_turns_alone() {
        let turns = StartLimit::new();
        let hanging = turns.0.available_permits() * 3;
        let servers = (0..hanging).map(async |_| turns.next().await.run(sleep(LONGEST * 60)).await);
        let others = async {
            let began = Instant::now();
            turns.next().await.run(sleep(LONGEST / 2)).await;
            assert_eq!(began.elapsed(), LONGEST * 3 + LONGEST / 2);
        };
        futures_util::future::join(futures_util::future::join_all(servers), others).await;
    }
}
