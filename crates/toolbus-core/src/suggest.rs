//! Names near to one that was missed.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::clock::Clock;

/// Longest missed name that is compared, in bytes: comparing costs the product of both lengths.
const MAX_NAME: usize = 64;
/// Most names that are offered.
const MAX_SUGGESTIONS: usize = 3;
/// Searches per second for one section of the policy: a search looks at every name, and misses are free for a caller to
/// make.
const PER_SECOND: u32 = 5;

/// Finds near names, at a bounded rate for each section of the policy, so that nobody is silenced by another.
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
        if missed.len() > MAX_NAME || !self.may_search(section) {
            return Vec::new();
        }
        nearest(missed, names)
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

/// At most three of `names`, nearest first. Costs the product of the lengths for each name that is about as long.
#[must_use]
pub fn nearest<'a>(missed: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let furthest = (missed.len() / 3).max(1);
    let lower = missed.to_lowercase();
    let mut near: Vec<(usize, &str)> = names
        .filter(|name| name.len().abs_diff(missed.len()) <= furthest)
        .map(|name| (strsim::osa_distance(&lower, &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= furthest)
        .collect();
    near.sort_unstable();
    near.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 4] = ["get_weather", "web_search", "web_browse", "echo"];

    #[test]
    fn near_names_come_nearest_first() {
        assert_eq!(nearest("web_serach", NAMES.into_iter()), ["web_search"]);
        assert_eq!(nearest("Get_Weather", NAMES.into_iter()), ["get_weather"]);
        assert_eq!(nearest("ecko", NAMES.into_iter()), ["echo"]);
    }

    #[test]
    fn a_name_that_is_like_none_gets_none() {
        assert!(nearest("transfer_money", NAMES.into_iter()).is_empty());
    }

    #[test]
    fn a_long_name_is_not_compared() {
        let long = "x".repeat(MAX_NAME + 1);
        assert!(Suggestions::new(Clock::SYSTEM).near(0, &long, [long.as_str()].into_iter()).is_empty());
    }

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
