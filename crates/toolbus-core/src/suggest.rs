//! Names near to one that was missed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
pub use toolbus_config::near_names;

use crate::Clock;

/// Most names that are offered.
pub const MAX_SUGGESTIONS: usize = 3;
/// Searches per second for one section of the policy: a search looks at every name, and misses are free for a caller to
/// make.
const PER_SECOND: u32 = 5;

/// Finds near names, at a bounded rate for each section of the policy, so that no agent uses up the rate of another.
pub(crate) struct Suggestions {
    clock: Clock,
    windows: Mutex<HashMap<usize, (Instant, u32)>>,
}

impl Suggestions {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, windows: Mutex::default() }
    }

    /// At most three of `names`, nearest first; none when searched too often.
    pub(crate) fn near<'a>(&self, section: usize, missed: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        if self.may_search(section) { near_names(missed, names, MAX_SUGGESTIONS) } else { Vec::new() }
    }

    fn may_search(&self, section: usize) -> bool {
        let now = self.clock.now();
        let mut windows = self.windows.lock();
        let window = windows.entry(section).or_insert((now, 0));
        if now.saturating_duration_since(window.0) >= Duration::from_secs(1) {
            *window = (now, 0);
        }
        window.1 = window.1.saturating_add(1);
        window.1 <= PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["get_weather", "web_search", "web_browse", "echo"];

    #[test]
    fn searches_are_bounded_in_rate() {
        let clock = Clock::manual();
        let suggestions = Suggestions::new(clock);
        let near = |section| suggestions.near(section, "get_wether", NAMES.into_iter()).len();
        let found = (0..100).filter(|_| near(0) > 0).count();
        assert_eq!(found, PER_SECOND as usize);
        assert!(near(1) > 0, "another section");
        clock.advance(Duration::from_secs(1));
        assert!(near(0) > 0);
    }
}
