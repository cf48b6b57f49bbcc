//! Names of agents, as the configuration writes them.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use toolbus_core::caller::{AgentName, AgentNameError};

/// The section for every agent that has none of its own.
pub const DEFAULT_AGENT: &str = "default";
/// What a caller is called that is no agent.
pub(crate) const UNKNOWN_AGENT: &str = "unknown";

/// The name of an agent: 1 to 64 letters, digits, `.`, `_` or `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Agent(AgentName);

impl Agent {
    /// Reads a name.
    ///
    /// # Errors
    ///
    /// If `text` is not the name of an agent.
    pub fn parse(text: &str) -> Result<Self, AgentNameError> {
        AgentName::parse(text).map(Self)
    }

    /// Whether it stands for every agent without a section.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.as_str() == DEFAULT_AGENT
    }
}

impl Deref for Agent {
    type Target = AgentName;

    fn deref(&self) -> &AgentName {
        &self.0
    }
}

impl Borrow<str> for Agent {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl TryFrom<String> for Agent {
    type Error = AgentNameError;

    fn try_from(text: String) -> Result<Self, AgentNameError> {
        Self::parse(&text)
    }
}

impl From<Agent> for String {
    fn from(agent: Agent) -> Self {
        agent.0.to_string()
    }
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl JsonSchema for Agent {
    fn schema_name() -> Cow<'static, str> {
        "Agent".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "toolbus-agent"})
    }
}
