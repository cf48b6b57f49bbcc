use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Whether the MCP door lets in clients without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Open {
    /// `false`: none.
    #[default]
    No,
    /// `true`: those of this machine.
    Local,
    /// `"network"`: whoever reaches the port.
    Network,
}

/// What stands for [`Open::Network`].
const NETWORK: &str = "network";

/// The forms that [`Open`] is written in.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Flag(bool),
    Word(String),
}

impl<'de> Deserialize<'de> for Open {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Flag(false) => Ok(Self::No),
            Written::Flag(true) => Ok(Self::Local),
            Written::Word(word) if word == NETWORK => Ok(Self::Network),
            Written::Word(_) => Err(D::Error::custom("expected true, false or \"network\"")),
        }
    }
}

impl Serialize for Open {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::No => serializer.serialize_bool(false),
            Self::Local => serializer.serialize_bool(true),
            Self::Network => serializer.serialize_str(NETWORK),
        }
    }
}

impl JsonSchema for Open {
    fn schema_name() -> Cow<'static, str> {
        "Open".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "boolean"}, {"type": "string", "const": NETWORK}]})
    }
}
