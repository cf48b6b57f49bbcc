//! `pattern` for schemas with patterns that backtrack.

use jsonschema::json::Node;
use jsonschema::{Keyword, ValidationError};
use serde_json::Value;

use super::meter::{Metered, MeteredValue};
use crate::ecma_pattern::EcmaPattern;

/// The keyword, which leaves texts that are not decided to the tool.
pub(super) struct PatternKeyword {
    source: String,
    pattern: EcmaPattern,
}

impl PatternKeyword {
    /// Compiles the value of the keyword, with each part of it at most `size` bytes large, and `states` for
    /// comparisons.
    ///
    /// # Errors
    ///
    /// If it is no pattern, or too large.
    pub(super) fn new(value: &Value, size: usize, states: usize) -> Result<Self, ValidationError<'static>> {
        let source = value.as_str().unwrap_or_default();
        let pattern = EcmaPattern::new(source, size, states);
        let pattern = pattern.ok_or_else(|| ValidationError::schema("the pattern cannot be used, or is too large"))?;
        Ok(Self { source: source.to_owned(), pattern })
    }
}

impl<'i> Keyword<'i, Metered> for PatternKeyword {
    fn validate(&self, instance: MeteredValue<'i>) -> Result<(), ValidationError<'i>> {
        match self.is_valid(instance) {
            true => Ok(()),
            false => Err(ValidationError::custom(format!("value does not match \"{}\"", self.source))),
        }
    }

    fn is_valid(&self, instance: MeteredValue<'i>) -> bool {
        let Some(text) = instance.as_string() else { return true };
        if matches!(self.pattern, EcmaPattern::Backtracking(_)) {
            instance.charge_backtracking(text.len());
        }
        self.pattern.is_match(&text).unwrap_or(true)
    }
}
