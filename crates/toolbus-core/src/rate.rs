//! How often a caller may call a tool.
//!
//! [`Rate`] and [`RateRules`] are what a configuration says; `RateLimits` keeps count while calls come.

mod limits;
mod overlap;
mod rules;

use std::fmt;
use std::time::Duration;

pub(crate) use self::limits::RateLimits;
pub use self::rules::{RateRule, RateRules, RateRulesError};

/// The slowest rate, in calls per second: about one a day.
const MIN_RPS: f64 = 0.000_01;
/// The fastest rate, in calls per second. A token then takes whole microseconds, so that rounding it is no matter.
const MAX_RPS: f64 = 1_000_000.0;
/// Most calls at once.
const MAX_BURST: u32 = 1_000_000;
const NANOS_PER_SECOND: f64 = 1e9;

/// A token bucket: calls per second on average, and calls at once after a rest.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Rate {
    /// Calls per second, on average: 0.00001 to 1,000,000.
    pub rps: f64,
    /// Calls at once, after a rest: 1 to 1,000,000.
    pub burst: u32,
}

/// Why two numbers are no rate.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum RateError {
    /// Not a number, or infinite.
    #[error("`rps` is {0}; expected a finite number of calls per second")]
    NotFinite(f64),
    /// Nothing would ever pass.
    #[error("`rps` is {0}; expected more than 0 (to forbid a tool, list it in `denied_tools`)")]
    NotPositive(f64),
    /// Slower than one call a day.
    #[error("`rps` is {0}; expected at least {MIN_RPS}, which is about one call a day")]
    TooSlow(f64),
    /// Faster than is measured.
    #[error("`rps` is {0}; expected at most {MAX_RPS}")]
    TooFast(f64),
    /// Nothing would ever pass.
    #[error("`burst` is 0; expected at least 1, or no call would ever pass")]
    NoBurst,
    /// More than is measured.
    #[error("`burst` is {0}; expected at most {MAX_BURST}")]
    BurstTooLarge(u32),
}

impl Rate {
    /// A rate of `rps` calls per second on average, of which `burst` may come at once.
    ///
    /// # Errors
    ///
    /// When a number is out of its range; the text names the key of the configuration.
    pub fn new(rps: f64, burst: u32) -> Result<Self, RateError> {
        match rps {
            rps if !rps.is_finite() => Err(RateError::NotFinite(rps)),
            rps if rps <= 0.0 => Err(RateError::NotPositive(rps)),
            rps if rps < MIN_RPS => Err(RateError::TooSlow(rps)),
            rps if rps > MAX_RPS => Err(RateError::TooFast(rps)),
            _ if burst == 0 => Err(RateError::NoBurst),
            _ if burst > MAX_BURST => Err(RateError::BurstTooLarge(burst)),
            rps => Ok(Self { rps, burst }),
        }
    }

    /// Time in which one token comes, in whole nanoseconds: rounded up, so that the rate is never exceeded.
    fn interval(&self) -> Duration {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "casts saturate, and rates are checked"
        )]
        let nanos = (NANOS_PER_SECOND / self.rps).ceil() as u64;
        Duration::from_nanos(nanos.max(1))
    }

    /// Time in which an empty bucket becomes full.
    fn fill_time(&self) -> Duration {
        self.interval().saturating_mul(self.burst)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per second, {} at once", self.rps, self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_out_of_range_is_refused_with_the_key_to_change() {
        let table =
            [(f64::NAN, 1), (f64::INFINITY, 1), (0.0, 1), (-1.0, 1), (1e-9, 1), (1e9, 1), (1.0, 0), (1.0, u32::MAX)];
        let texts: Vec<String> =
            table.into_iter().map(|(rps, burst)| Rate::new(rps, burst).unwrap_err().to_string()).collect();
        insta::assert_snapshot!(texts.join("\n"), @"
        `rps` is NaN; expected a finite number of calls per second
        `rps` is inf; expected a finite number of calls per second
        `rps` is 0; expected more than 0 (to forbid a tool, list it in `denied_tools`)
        `rps` is -1; expected more than 0 (to forbid a tool, list it in `denied_tools`)
        `rps` is 0.000000001; expected at least 0.00001, which is about one call a day
        `rps` is 1000000000; expected at most 1000000
        `burst` is 0; expected at least 1, or no call would ever pass
        `burst` is 4294967295; expected at most 1000000
        ");
    }

    #[test]
    fn a_token_takes_whole_nanoseconds_and_never_too_few() {
        let interval = |rps| Rate::new(rps, 1).unwrap().interval();
        assert_eq!(interval(10.0), Duration::from_millis(100));
        assert_eq!(interval(0.5), Duration::from_secs(2));
        assert_eq!(interval(3.0), Duration::from_nanos(333_333_334));
        assert_eq!(interval(MAX_RPS), Duration::from_micros(1));
    }

    #[test]
    fn the_slowest_and_largest_bucket_still_fills_at_a_time_that_can_be_told() {
        let rate = Rate::new(MIN_RPS, MAX_BURST).unwrap();
        assert_eq!(rate.fill_time(), rate.interval() * MAX_BURST);
    }

    #[test]
    fn a_rate_reads_as_its_two_numbers() {
        assert_eq!(Rate::new(1.5, 3).unwrap().to_string(), "1.5 per second, 3 at once");
    }
}
