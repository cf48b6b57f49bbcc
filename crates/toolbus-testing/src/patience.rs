//! Waiting on a condition instead of sleeping.

use std::time::{Duration, Instant};

/// Longest wait for a condition, before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(150);

/// Checks `condition` every few milliseconds until it gives a value.
///
/// # Panics
///
/// When [`PATIENCE`] runs out, with `what` in the message.
pub async fn eventually<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(started.elapsed() < PATIENCE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
