//! The definition of a tool as agents see it, in a canonical form and with a fingerprint.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use toolbus_core::tool::{Effect, ToolDescriptor};

/// Prefix of a digest in text.
const PREFIX: &str = "sha256:";

/// A fingerprint (SHA-256).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// A string that is not a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected `sha256:` and 64 hexadecimal digits")]
pub struct NoDigest;

/// The definition of a tool as agents see it: its name within its source, title, description, schemas and effect. It is JSON
/// with sorted fields, so that the order in which a source writes them does not matter.
#[derive(Clone, PartialEq, Eq)]
pub struct Definition {
    text: Arc<str>,
    digest: Digest,
}

impl Digest {
    /// The digest of a list of strings, each with its length.
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
    /// The definition of a tool. Limits and the executor are not part of it: they are the operator's.
    #[must_use]
    pub fn of(tool: &ToolDescriptor) -> Self {
        // Every field is named, so that a new one must be considered here.
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
            is_learnt: _,
            // The operator sets it, not the server.
            model_hints: _,
            suspicions: _,
        } = tool;
        let effect = match effect {
            Effect::ReadOnly => "read-only",
            Effect::Idempotent => "idempotent",
            Effect::Effectful => "effectful",
            Effect::Undeclared => "undeclared",
        };
        let mut fields = Map::new();
        fields.insert("name".to_owned(), json!(tool.bare_name()));
        fields.insert("description".to_owned(), json!(description));
        fields.insert("effect".to_owned(), json!(effect));
        fields.extend(title.as_ref().map(|title| ("title".to_owned(), json!(title))));
        fields.extend(parameters.as_ref().map(|schema| ("parameters".to_owned(), Value::clone(schema))));
        fields.extend(output_schema.as_ref().map(|schema| ("outputSchema".to_owned(), Value::clone(schema))));
        Self::new(canonical(&Value::Object(fields)))
    }

    fn new(text: String) -> Self {
        let digest = Digest::of_definition(&text);
        Self { text: text.into(), digest }
    }

    /// Returns the fingerprint of the definition.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// The definition as JSON, on one line.
    #[must_use]
    pub const fn as_json(&self) -> &Arc<str> {
        &self.text
    }

    /// The definition, if it has this fingerprint, perhaps after its JSON was reformatted.
    pub(super) fn with_digest(self, digest: Digest) -> Option<Self> {
        if self.digest == digest {
            return Some(self);
        }
        let value: Value = serde_json::from_str(&self.text).ok()?;
        Some(Self::new(canonical(&value))).filter(|definition| definition.digest == digest)
    }
}

/// JSON with sorted fields and without white space.
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
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            text.push('{');
            for (number, (name, field)) in fields.into_iter().enumerate() {
                text.push_str(if number > 0 { "," } else { "" });
                text.push_str(&json!(name).to_string());
                text.push(':');
                write_canonical(field, text);
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
        // Unchanged: a number that is parsed and written again may differ.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tool(description: &str, schema: Value) -> ToolDescriptor {
        ToolDescriptor {
            description: description.to_owned(),
            parameters: Some(schema.into()),
            ..ToolDescriptor::new("read", "mcp:files", "mcp")
        }
    }

    fn digest(tool: &ToolDescriptor) -> Digest {
        Definition::of(tool).digest()
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..5)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    /// The same object with the fields in the opposite order, as far as its map keeps one.
    fn reversed(value: &Value) -> Value {
        match value {
            Value::Array(elements) => elements.iter().map(reversed).collect(),
            Value::Object(fields) => {
                Value::Object(fields.iter().rev().map(|(name, field)| (name.clone(), reversed(field))).collect())
            }
            plain => plain.clone(),
        }
    }

    /// Every value that differs from this one at one path.
    fn changed(value: &Value) -> Vec<Value> {
        let mut all = vec![json!({"other": value}), Value::String(format!("{value}x"))];
        if let Value::Object(fields) = value {
            for name in fields.keys() {
                let mut without = fields.clone();
                let field = without.remove(name);
                all.push(Value::Object(without.clone()));
                without.insert(format!("{name}'"), field.unwrap_or_default());
                all.push(Value::Object(without));
            }
        }
        if let Value::Array(elements) = value {
            all.push(elements.iter().skip(1).chain([&Value::Null]).cloned().collect());
        }
        all.retain(|other| other != value);
        all
    }

    proptest! {
        #[test]
        fn any_change_of_a_schema_changes_the_fingerprint_and_the_order_of_fields_does_not(schema in json()) {
            let known = digest(&tool("Reads.", schema.clone()));
            prop_assert_eq!(digest(&tool("Reads.", reversed(&schema))), known);
            for other in changed(&schema) {
                prop_assert_ne!(digest(&tool("Reads.", other.clone())), known, "{} and {}", schema, other);
            }
        }

        #[test]
        fn a_definition_survives_writing_and_reading(description in any::<String>(), schema in json()) {
            let definition = Definition::of(&tool(&description, schema));
            let written = serde_json::to_string(&definition).unwrap();
            let read: Definition = serde_json::from_str(&written).unwrap();
            prop_assert_eq!(&read, &definition);
            prop_assert_eq!(read.with_digest(definition.digest()), Some(definition));
        }
    }

    #[test]
    fn only_parts_that_agents_see_change_the_fingerprint() {
        let known = ToolDescriptor {
            title: Some("Read".to_owned()),
            output_schema: Some(json!({"type": "string"}).into()),
            effect: Effect::ReadOnly,
            ..tool("Reads.", json!({"type": "object"}))
        };
        let other = |change: fn(&mut ToolDescriptor)| {
            let mut other = known.clone();
            change(&mut other);
            digest(&other) != digest(&known)
        };
        let visible: [fn(&mut ToolDescriptor); 9] = [
            |tool| tool.name = "Read".into(),
            |tool| tool.title = None,
            |tool| tool.title = Some(String::new()),
            |tool| tool.description.push(' '),
            |tool| tool.parameters = None,
            |tool| tool.parameters = Some(json!({"type": "Object"}).into()),
            |tool| tool.output_schema = None,
            |tool| tool.effect = Effect::Idempotent,
            |tool| tool.effect = Effect::Undeclared,
        ];
        assert_eq!(visible.map(other), [true; 9]);
        let hidden: [fn(&mut ToolDescriptor); 5] = [
            |tool| tool.timeout = Some(std::time::Duration::from_secs(1)),
            |tool| tool.max_in_flight = Some(1),
            |tool| tool.delegates = true,
            |tool| tool.validation = toolbus_core::tool::Validation::Off,
            // The prefix of a tool set is the operator's.
            |tool| {
                tool.name = "fs.read".into();
                tool.toolset =
                    Some(toolbus_core::tool::Membership { set: "s".into(), name: "read".into(), needs_session: true });
            },
        ];
        assert_eq!(hidden.map(other), [false; 5]);
    }

    #[test]
    fn the_layout_of_json_does_not_change_the_fingerprint() {
        let definition = Definition::of(&tool("Reads.", json!({"b": 1, "a": [true, 0.1]})));
        let value: Value = serde_json::from_str(definition.as_json()).unwrap();
        let read: Definition = serde_json::from_str(&format!("{value:#}")).unwrap();
        assert_eq!(read.clone().with_digest(definition.digest()), Some(definition));
        assert_eq!(read.with_digest(Digest::of(["other"])), None);
    }

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest = Digest::of(["a", "b"]);
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_ne!(digest, Digest::of(["ab"]));
        let long = format!("sha256:{}", "g".repeat(64));
        for text in
            ["", "sha256:", "sha256:00", &long, &digest.to_string().to_uppercase(), "sha256:+0".repeat(8).as_str()]
        {
            assert_eq!(text.parse::<Digest>(), Err(NoDigest), "{text}");
        }
    }
}
