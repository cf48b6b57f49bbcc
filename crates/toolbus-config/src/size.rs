//! Numbers of bytes, written as `512B`, `64KiB`, `1MiB` or `1GiB`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Units and their bytes, largest first.
const UNITS: [(&str, u64); 4] = [("GiB", GIB), ("MiB", 1024 * 1024), ("KiB", 1024), ("B", 1)];
/// Bytes of the largest unit.
const GIB: u64 = 1024 * 1024 * 1024;

/// A number of bytes, from one to `MOST` GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Size<const MOST: u64>(u64);

/// A size of what the daemon holds in memory: up to 1 GiB.
pub type ByteSize = Size<1>;

/// A size of what others use, in memory or on a disk: up to 1024 GiB.
pub type LargeSize = Size<1024>;

impl<const MOST: u64> Size<MOST> {
    /// Returns a size of so many mebibytes, at most 1024.
    #[must_use]
    pub const fn from_mib(mebibytes: u16) -> Self {
        Self(mebibytes as u64 * 1024 * 1024)
    }

    /// Returns a size of so many gibibytes, at most the largest size.
    #[must_use]
    pub const fn from_gib(gibibytes: u16) -> Self {
        let gibibytes = gibibytes as u64;
        Self(if gibibytes > MOST { MOST } else { gibibytes } * GIB)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// Reason why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No number and unit.
    #[error(r#"{0:?} is not a size; expected a whole number and a unit (B, KiB, MiB, GiB), such as "64KiB""#)]
    Form(String),
    /// Nothing, or more than so many GiB.
    #[error("{0:?} is out of range; expected 1B to {1}GiB")]
    Range(String, u64),
}

impl<const MOST: u64> FromStr for Size<MOST> {
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
            Some(size) if (1..=MOST.saturating_mul(GIB)).contains(&size) => Ok(Self(size)),
            _ => Err(SizeError::Range(shown(), MOST)),
        }
    }
}

impl<const MOST: u64> TryFrom<String> for Size<MOST> {
    type Error = SizeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl<const MOST: u64> fmt::Display for Size<MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, bytes) = UNITS.iter().find(|(_, bytes)| self.0.is_multiple_of(*bytes)).unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

impl<const MOST: u64> From<Size<MOST>> for String {
    fn from(size: Size<MOST>) -> Self {
        size.to_string()
    }
}

impl<const MOST: u64> JsonSchema for Size<MOST> {
    fn schema_name() -> Cow<'static, str> {
        format!("Size{MOST}").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let format = if MOST > 1 { "toolbus-large-size" } else { "toolbus-size" };
        json_schema!({"type": "string", "format": format, "examples": ["64KiB", "1MiB"]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [("512B", 512), ("64KiB", 65_536), ("1MiB", 1_048_576), ("1GiB", GIB)] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, text));
        }
        assert_eq!("2 MiB".parse::<ByteSize>(), Ok(ByteSize::from_mib(2)));
    }

    #[test]
    fn an_invalid_size_is_refused_with_the_reason() {
        let error = |text: &str| text.parse::<ByteSize>().unwrap_err().to_string();
        insta::assert_snapshot!(error("64KB"), @r#""64KB" is not a size; expected a whole number and a unit (B, KiB, MiB, GiB), such as "64KiB""#);
        insta::assert_snapshot!(error("64"), @r#""64" is not a size; expected a whole number and a unit (B, KiB, MiB, GiB), such as "64KiB""#);
        insta::assert_snapshot!(error("0B"), @r#""0B" is out of range; expected 1B to 1GiB"#);
        insta::assert_snapshot!(error("2GiB"), @r#""2GiB" is out of range; expected 1B to 1GiB"#);
        assert_eq!("2GiB".parse::<LargeSize>().unwrap().bytes(), 2 * GIB);
        let error = "1025GiB".parse::<LargeSize>().unwrap_err().to_string();
        insta::assert_snapshot!(error, @r#""1025GiB" is out of range; expected 1B to 1024GiB"#);
    }
}
