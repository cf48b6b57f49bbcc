//! Lengths of time, written as `250ms`, `60s`, `10m`, `24h` or `7d`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::problem::nearest;

/// Longest duration: a year. Longer ones are mistakes, and overflow clocks.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// Units and their milliseconds, longest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
/// Describes the expected value.
const EXPECTED: &str = r#"expected a whole number and a unit (ms, s, m, h, d), such as "60s""#;

/// A length of time: whole milliseconds, from one to a year.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HumanDuration(Duration);

impl HumanDuration {
    /// Returns a duration of so many seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// The length.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl TryFrom<Duration> for HumanDuration {
    type Error = DurationError;

    fn try_from(duration: Duration) -> Result<Self, Self::Error> {
        let whole = duration.subsec_nanos().is_multiple_of(1_000_000);
        let fits = whole && !duration.is_zero() && duration <= LONGEST;
        if fits { Ok(Self(duration)) } else { Err(DurationError::Range(format!("{duration:?}"))) }
    }
}

impl From<HumanDuration> for Duration {
    fn from(duration: HumanDuration) -> Self {
        duration.0
    }
}

/// Reason why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// No number and unit.
    #[error("{0:?} is not a duration; {EXPECTED}")]
    Form(String),
    /// A unit that there is not.
    #[error("unknown unit `{unit}`; {hint}{EXPECTED}")]
    Unit {
        /// The unit.
        unit: String,
        /// The nearest unit, as a question.
        hint: String,
    },
    /// Nothing, or more than a year.
    #[error("{0:?} is out of range; expected 1ms to 366d")]
    Range(String),
}

impl FromStr for HumanDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || text.chars().take(40).collect::<String>();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim();
        if number.is_empty() || unit.is_empty() || !unit.chars().all(char::is_alphabetic) {
            return Err(DurationError::Form(shown()));
        }
        let known = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(|| {
            let words = ["days", "hours", "minutes", "seconds", "milliseconds"];
            let near = match unit.to_lowercase().as_str() {
                "sec" | "secs" => Some("s"),
                "min" | "mins" => Some("m"),
                "hrs" => Some("h"),
                lower => UNITS.iter().find(|(name, _)| *name == lower).map(|(name, _)| *name).or_else(|| {
                    let word = nearest(lower, words)?;
                    UNITS.iter().zip(words).find(|(_, known)| *known == word).map(|((name, _), _)| *name)
                }),
            };
            DurationError::Unit {
                unit: unit.chars().take(40).collect(),
                hint: near.map(|name| format!("did you mean `{name}`? ")).unwrap_or_default(),
            }
        })?;
        let milliseconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(known.1));
        match milliseconds.map(Duration::from_millis) {
            Some(duration) if !duration.is_zero() && duration <= LONGEST => Ok(Self(duration)),
            _ => Err(DurationError::Range(shown())),
        }
    }
}

impl TryFrom<String> for HumanDuration {
    type Error = DurationError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.0.as_millis();
        // Up to a few minutes people count in seconds.
        let usual = |unit: &str| unit != "m" || milliseconds >= 300_000;
        let (unit, length) = UNITS
            .iter()
            .find(|(unit, length)| usual(unit) && milliseconds.is_multiple_of(u128::from(*length)))
            .unwrap_or(&("ms", 1));
        write!(f, "{}{unit}", milliseconds / u128::from(*length))
    }
}

impl From<HumanDuration> for String {
    fn from(duration: HumanDuration) -> Self {
        duration.to_string()
    }
}

impl JsonSchema for HumanDuration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "toolbus-duration", "examples": ["60s", "250ms", "24h"]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read() {
        let table = [("250ms", 250), ("60s", 60_000), ("10m", 600_000), ("24h", 86_400_000), ("7 d", 604_800_000)];
        for (text, milliseconds) in table {
            assert_eq!(text.parse::<HumanDuration>().unwrap().get(), Duration::from_millis(milliseconds), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_refused_with_the_reason() {
        let error = |text: &str| text.parse::<HumanDuration>().unwrap_err().to_string();
        insta::assert_snapshot!(error("60"), @r#""60" is not a duration; expected a whole number and a unit (ms, s, m, h, d), such as "60s""#);
        insta::assert_snapshot!(error("s"), @r#""s" is not a duration; expected a whole number and a unit (ms, s, m, h, d), such as "60s""#);
        insta::assert_snapshot!(error("-1s"), @r#""-1s" is not a duration; expected a whole number and a unit (ms, s, m, h, d), such as "60s""#);
        insta::assert_snapshot!(error("1.5s"), @r#""1.5s" is not a duration; expected a whole number and a unit (ms, s, m, h, d), such as "60s""#);
        insta::assert_snapshot!(error("60sec"), @r#"unknown unit `sec`; did you mean `s`? expected a whole number and a unit (ms, s, m, h, d), such as "60s""#);
        insta::assert_snapshot!(error("5 Minutes"), @r#"unknown unit `Minutes`; did you mean `m`? expected a whole number and a unit (ms, s, m, h, d), such as "60s""#);
        insta::assert_snapshot!(error("3 fortnights"), @r#"unknown unit `fortnights`; expected a whole number and a unit (ms, s, m, h, d), such as "60s""#);
        insta::assert_snapshot!(error("0s"), @r#""0s" is out of range; expected 1ms to 366d"#);
        insta::assert_snapshot!(error("99999999999999999999d"), @r#""99999999999999999999d" is out of range; expected 1ms to 366d"#);
    }

    #[test]
    fn a_duration_is_written_so_that_it_reads_the_same() {
        for text in ["250ms", "1s", "60s", "120s", "10m", "24h", "7d", "1500ms"] {
            assert_eq!(
                text.parse::<HumanDuration>().unwrap().to_string().parse(),
                text.parse::<HumanDuration>(),
                "{text}"
            );
        }
        assert_eq!(HumanDuration::from_secs(60).to_string(), "60s");
        assert_eq!(HumanDuration::from_secs(120).to_string(), "120s");
    }
}
