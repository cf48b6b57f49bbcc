//! Waiting on a condition instead of sleeping.

use std::time::{Duration, Instant};

/// Longest wait for a condition, before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Factor by which permitted times are multiplied on a machine that does other work as well.
const SLACK: u32 = 20;

/// The longest time that something may take which needs less than `quiet` on a machine with nothing else to do: `quiet`
/// itself if `TOOLBUS_LAB` is set, and 20 times as much otherwise.
#[must_use]
pub fn at_most(quiet: Duration) -> Duration {
    if std::env::var_os("TOOLBUS_LAB").is_some() { quiet } else { quiet * SLACK }
}

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
