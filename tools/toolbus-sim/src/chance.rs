//! Choices by a seed.

use std::ops::RangeInclusive;
use std::time::Duration;

use toolbus_protocol::Random;

/// Makes every choice of a schedule. Copies continue the same sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chance(Random);

impl Chance {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(Random::seeded(seed))
    }

    /// Random numbers of the daemon, from the same sequence.
    pub(crate) const fn random(self) -> Random {
        self.0
    }

    /// A number of this range.
    pub(crate) fn number(self, range: RangeInclusive<u64>) -> u64 {
        let (first, count) = (*range.start(), range.end().saturating_sub(*range.start()).saturating_add(1));
        first + u64::try_from(self.0.bits() >> 64).unwrap_or_default() % count
    }

    /// Whether something happens that happens so often in a hundred times.
    pub(crate) fn percent(self, often: u64) -> bool {
        self.number(0..=99) < often
    }

    /// A time of so many milliseconds.
    pub(crate) fn millis(self, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.number(range))
    }

    /// One of several.
    pub(crate) fn pick<T: Copy>(self, first: T, others: &[T]) -> T {
        let count = u64::try_from(others.len()).unwrap_or_default();
        let chosen = usize::try_from(self.number(0..=count)).unwrap_or_default();
        chosen.checked_sub(1).and_then(|other| others.get(other)).copied().unwrap_or(first)
    }
}
