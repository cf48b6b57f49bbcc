use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::config::{Agent, Secret};

/// Most tokens of one agent.
const MAX_OF_AGENT: usize = 8;

/// Tokens by agent.
pub type Tokens = BTreeMap<Agent, AgentTokens>;

/// The tokens of one agent: usually one, and several while one replaces another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AgentTokens {
    /// One.
    One(Secret),
    /// Each of these.
    Several(Vec<Secret>),
}

impl AgentTokens {
    /// Every one of them.
    #[must_use]
    pub fn all(&self) -> &[Secret] {
        match self {
            Self::One(token) => std::slice::from_ref(token),
            Self::Several(tokens) => tokens,
        }
    }
}

impl JsonSchema for AgentTokens {
    fn schema_name() -> Cow<'static, str> {
        "AgentTokens".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let secret = generator.subschema_for::<Secret>();
        json_schema!({
            "description": "A token, or a list of tokens that all count.",
            "anyOf": [secret, {"type": "array", "minItems": 1, "maxItems": MAX_OF_AGENT, "items": secret}],
        })
    }
}
