//! Patterns of tool names, as the configuration writes them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use toolbus_core::pattern::{Pattern, PatternError};

/// A pattern of tool names: an exact name, or a glob with `*` and `?`. See [`Pattern`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ToolPattern(Pattern);

impl ToolPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// If `text` is not a pattern of names.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        Pattern::parse(text).map(Self)
    }

    /// Whether the pattern matches a tool under its published name, or under its own within a tool set.
    pub(crate) fn matches_either(&self, published: &str, bare: &str) -> bool {
        self.matches(published) || self.matches(bare)
    }
}

impl Deref for ToolPattern {
    type Target = Pattern;

    fn deref(&self) -> &Pattern {
        &self.0
    }
}

impl TryFrom<String> for ToolPattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        Self::parse(&text)
    }
}

impl From<ToolPattern> for String {
    fn from(pattern: ToolPattern) -> Self {
        pattern.0.to_string()
    }
}

impl fmt::Display for ToolPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl JsonSchema for ToolPattern {
    fn schema_name() -> Cow<'static, str> {
        "ToolPattern".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "toolbus-pattern",
            "description": "Name of a tool, or a pattern: `*` any run, `?` one character.",
        })
    }
}
