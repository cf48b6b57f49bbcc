//! Shares of processor cores, written as Kubernetes does: `500m`, `1`, `2.5`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Thousandths of a core: the smallest share and the largest.
const RANGE: std::ops::RangeInclusive<u32> = 10..=64_000;

/// A share of a core, in thousandths, from a hundredth to 64 cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cpu(u32);

/// Reason why a text is no share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// Neither thousandths nor a number with at most three decimals.
    #[error(r#"{0:?} is not a share of cores; expected thousandths such as "500m", or cores such as "1" or "2.5""#)]
    Form(String),
    /// Too little or too much.
    #[error(r#"{0:?} is out of range; expected "10m" to "64""#)]
    Range(String),
}

impl Cpu {
    /// Half a core.
    pub const HALF: Self = Self(500);

    /// Thousandths of a core.
    #[must_use]
    pub const fn millis(self) -> u32 {
        self.0
    }
}

impl FromStr for Cpu {
    type Err = CpuError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || text.chars().take(40).collect::<String>();
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let thousandths = match (text.strip_suffix('m'), text.split_once('.')) {
            (Some(number), _) if digits(number) => number.parse().ok(),
            (None, Some((whole, part))) if digits(whole) && digits(part) && part.len() <= 3 => {
                format!("{whole}{part:0<3}").parse().ok()
            }
            (None, None) if digits(text) => text.parse::<u32>().ok().and_then(|cores| cores.checked_mul(1000)),
            _ => return Err(CpuError::Form(shown())),
        };
        thousandths.filter(|share| RANGE.contains(share)).map(Self).ok_or_else(|| CpuError::Range(shown()))
    }
}

impl TryFrom<String> for Cpu {
    type Error = CpuError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1000) { write!(f, "{}", self.0 / 1000) } else { write!(f, "{}m", self.0) }
    }
}

impl From<Cpu> for String {
    fn from(share: Cpu) -> Self {
        share.to_string()
    }
}

impl JsonSchema for Cpu {
    fn schema_name() -> Cow<'static, str> {
        "Cpu".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "toolbus-cpu", "examples": ["500m", "1", "2.5"]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_written() {
        let table = [
            ("500m", 500, "500m"),
            ("1", 1000, "1"),
            ("2.5", 2500, "2500m"),
            ("0.01", 10, "10m"),
            ("64", 64_000, "64"),
        ];
        for (text, millis, written) in table {
            let share: Cpu = text.parse().unwrap();
            assert_eq!((share.millis(), share.to_string().as_str()), (millis, written), "{text}");
            assert_eq!(written.parse(), Ok(share), "{written}");
        }
    }

    #[test]
    fn an_invalid_share_is_refused_with_the_reason() {
        let error = |text: &str| text.parse::<Cpu>().unwrap_err().to_string();
        insta::assert_snapshot!(error("50%"), @r#""50%" is not a share of cores; expected thousandths such as "500m", or cores such as "1" or "2.5""#);
        insta::assert_snapshot!(error("9m"), @r#""9m" is out of range; expected "10m" to "64""#);
        for form in ["", "m", ".5", "1.", "-1", "+1", "1.5m", "0.0001", "1 ", "1e3", "١"] {
            assert_eq!(form.parse::<Cpu>(), Err(CpuError::Form(form.to_owned())));
        }
        for range in ["0", "64001m", "65", "99999999999", "99999999999.5", "4294968"] {
            assert_eq!(range.parse::<Cpu>(), Err(CpuError::Range(range.to_owned())));
        }
    }
}
