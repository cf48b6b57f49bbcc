//! Numbers of bytes, written as `512B`, `64KiB`, `1MiB` or `1GiB`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Largest size: everything that is bounded by one is held in memory.
const LARGEST: u64 = 1024 * 1024 * 1024;
/// Units and their bytes, largest first.
const UNITS: [(&str, u64); 4] = [("GiB", LARGEST), ("MiB", 1024 * 1024), ("KiB", 1024), ("B", 1)];

/// A number of bytes, from one to 1 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ByteSize(u64);

impl ByteSize {
    /// So many mebibytes, at most 1024.
    #[must_use]
    pub const fn from_mib(mebibytes: u16) -> Self {
        Self(mebibytes as u64 * 1024 * 1024)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No number and unit.
    #[error(r#"{0:?} is not a size; expected a whole number and a unit (B, KiB, MiB, GiB), such as "64KiB""#)]
    Form(String),
    /// Nothing, or more than 1 GiB.
    #[error("{0:?} is out of range; expected 1B to 1GiB")]
    Range(String),
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || text.chars().take(40).collect::<String>();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let known = UNITS.iter().find(|(name, _)| *name == unit.trim());
        let Some((_, bytes)) = known.filter(|_| !number.is_empty()) else {
            return Err(SizeError::Form(shown()));
        };
        match number.parse::<u64>().ok().and_then(|number| number.checked_mul(*bytes)) {
            Some(size) if (1..=LARGEST).contains(&size) => Ok(Self(size)),
            _ => Err(SizeError::Range(shown())),
        }
    }
}

impl TryFrom<String> for ByteSize {
    type Error = SizeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, bytes) = UNITS.iter().find(|(_, bytes)| self.0.is_multiple_of(*bytes)).unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> Self {
        size.to_string()
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "toolbus-size", "examples": ["64KiB", "1MiB"]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [("512B", 512), ("64KiB", 65_536), ("1MiB", 1_048_576), ("1GiB", LARGEST)] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, text));
        }
        assert_eq!("2 MiB".parse::<ByteSize>(), Ok(ByteSize::from_mib(2)));
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        let error = |text: &str| text.parse::<ByteSize>().unwrap_err().to_string();
        insta::assert_snapshot!(error("64KB"), @r#""64KB" is not a size; expected a whole number and a unit (B, KiB, MiB, GiB), such as "64KiB""#);
        insta::assert_snapshot!(error("64"), @r#""64" is not a size; expected a whole number and a unit (B, KiB, MiB, GiB), such as "64KiB""#);
        insta::assert_snapshot!(error("0B"), @r#""0B" is out of range; expected 1B to 1GiB"#);
        insta::assert_snapshot!(error("2GiB"), @r#""2GiB" is out of range; expected 1B to 1GiB"#);
    }
}
