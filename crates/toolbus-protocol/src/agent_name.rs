//! Names of agents.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest name of an agent, in bytes.
const MAX_NAME: usize = 64;

/// The name of an agent: 1 to 64 letters, digits, `.`, `_` and `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentName(Arc<str>);

/// A text that names no agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no name of an agent; expected 1 to {MAX_NAME} letters, digits, `.`, `_` or `-`")]
pub struct AgentNameError;

impl AgentName {
    /// Reads a name.
    ///
    /// # Errors
    ///
    /// If `text` is not 1 to 64 ASCII letters, digits, `.`, `_` or `-`.
    pub fn parse(text: &str) -> Result<Self, AgentNameError> {
        let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        if text.is_empty() || text.len() > MAX_NAME || !text.bytes().all(fits) {
            return Err(AgentNameError);
        }
        Ok(Self(text.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name, to be shared.
    #[must_use]
    pub const fn shared(&self) -> &Arc<str> {
        &self.0
    }
}

impl std::borrow::Borrow<str> for AgentName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for AgentName {
    type Error = AgentNameError;

    fn try_from(text: String) -> Result<Self, AgentNameError> {
        Self::parse(&text)
    }
}

impl From<AgentName> for String {
    fn from(name: AgentName) -> Self {
        name.0.as_ref().to_owned()
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for AgentName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AgentName".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "format": "toolbus-agent"})
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_agents_have_a_grammar() {
        let long = "x".repeat(65);
        for name in ["", "a b", "ana\n", "ana/x", "ána", "аna", "a:b", "ana\u{200b}", &long] {
            assert_eq!(AgentName::parse(name), Err(AgentNameError), "{name:?}");
        }
        for name in ["ana", "RockBot", "a.b_c-1", &"x".repeat(64)] {
            assert!(AgentName::parse(name).is_ok(), "{name}");
        }
    }
}
