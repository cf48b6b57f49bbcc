//! What agents are told of a tool, in one form and with a fingerprint.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use toolbus_core::tool::{Effect, ToolDescriptor};

/// What a digest is written after.
const PREFIX: &str = "sha256:";

/// A fingerprint: equal for what is equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A text that is no digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected `sha256:` and 64 hexadecimal digits")]
pub struct NoDigest;

/// What agents are told of a tool: its name within its source, title, description, schemas and effect. As JSON whose
/// members are in order, so that the order in which a source writes them changes nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Definition {
    text: Arc<str>,
    digest: Digest,
}

impl Digest {
    /// That of some texts, which no others have.
    pub fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut digest = Sha256::new();
        for text in texts {
            digest.update((text.len() as u64).to_be_bytes());
            digest.update(text);
        }
        Self(digest.finalize().into())
    }

    fn of_definition(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }
}

impl Definition {
    /// What agents are told of this tool. Limits and what runs it are not part of it: they are the operator's.
    #[must_use]
    pub fn of(tool: &ToolDescriptor) -> Self {
        // Every field is named, so that for a new one it is decided whether agents are told of it.
        let ToolDescriptor {
            name: _,
            title,
            description,
            parameters,
            output_schema,
            source: _,
            provider: _,
            effect,
            timeout: _,
            max_in_flight: _,
            own_name: _,
            toolset: _,
            server: _,
            validation: _,
            delegates: _,
            suspicions: _,
        } = tool;
        let effect = match effect {
            Effect::ReadOnly => "read-only",
            Effect::Idempotent => "idempotent",
            Effect::Effectful => "effectful",
            Effect::Undeclared => "undeclared",
        };
        let mut members = Map::new();
        members.insert("name".to_owned(), json!(tool.bare_name()));
        members.insert("description".to_owned(), json!(description));
        members.insert("effect".to_owned(), json!(effect));
        members.extend(title.as_ref().map(|title| ("title".to_owned(), json!(title))));
        members.extend(parameters.as_ref().map(|schema| ("parameters".to_owned(), Value::clone(schema))));
        members.extend(output_schema.as_ref().map(|schema| ("outputSchema".to_owned(), Value::clone(schema))));
        Self::new(canonical(&Value::Object(members)))
    }

    fn new(text: String) -> Self {
        let digest = Digest::of_definition(&text);
        Self { text: text.into(), digest }
    }

    /// Its fingerprint.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// As JSON, on one line.
    #[must_use]
    pub const fn as_json(&self) -> &Arc<str> {
        &self.text
    }

    /// The same, if it can have this fingerprint: somebody may have laid the JSON out in another way.
    pub(super) fn with_digest(self, digest: Digest) -> Option<Self> {
        if self.digest == digest {
            return Some(self);
        }
        let value: Value = serde_json::from_str(&self.text).ok()?;
        Some(Self::new(canonical(&value))).filter(|definition| definition.digest == digest)
    }
}

/// JSON with the members of each object in order, and nothing between its parts.
fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Array(elements) => {
            text.push('[');
            for (number, element) in elements.iter().enumerate() {
                text.push_str(if number > 0 { "," } else { "" });
                write_canonical(element, text);
            }
            text.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            text.push('{');
            for (number, (name, member)) in members.into_iter().enumerate() {
                text.push_str(if number > 0 { "," } else { "" });
                text.push_str(&json!(name).to_string());
                text.push(':');
                write_canonical(member, text);
            }
            text.push('}');
        }
        plain => text.push_str(&plain.to_string()),
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        let digits = text.strip_prefix(PREFIX).filter(|digits| digits.len() == 64).ok_or(NoDigest)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|c| c.is_ascii_hexdigit()));
            *byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).ok_or(NoDigest)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Definition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // As it is: a number that is read and written again may be another one.
        let raw = RawValue::from_string(self.text.to_string()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Definition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::new(Box::<RawValue>::deserialize(deserializer)?.get().to_owned()))
    }
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests;
