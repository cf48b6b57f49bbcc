//! The time between two requests to one host.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use toolbus_core::Clock;

use super::FetchError;

/// Hosts that are remembered.
const MAX_HOSTS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Time of the next request to each host.
#[derive(Debug)]
pub(super) struct HostSpacing {
    interval: Duration,
    next: Mutex<LruCache<String, Instant>>,
}

impl HostSpacing {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, next: Mutex::new(LruCache::new(MAX_HOSTS)) }
    }

    /// Waits for the turn of a request, unless it comes too late.
    pub(super) async fn wait(&self, host: &str, until: Instant) -> Result<(), FetchError> {
        let at = {
            let now = Clock::SYSTEM.now();
            let mut next = self.next.lock();
            let at = next.get(host).copied().unwrap_or(now).max(now);
            if at >= until {
                return Err(FetchError::Spaced { host: host.to_owned(), wait: at - now });
            }
            next.put(host.to_owned(), at + self.interval);
            at
        };
        tokio::time::sleep_until(at.into()).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_to_one_host_are_spaced_and_those_to_others_are_not() {
        let interval = Duration::from_secs(3600);
        let spacing = HostSpacing::new(interval);
        let until = Clock::SYSTEM.now() + Duration::from_secs(60);
        spacing.wait("a", until).await.unwrap();
        spacing.wait("b", until).await.unwrap();
        let Err(FetchError::Spaced { host, wait }) = spacing.wait("a", until).await else { panic!("too early") };
        assert!(host == "a" && wait <= interval && wait > interval / 2);
    }
}
