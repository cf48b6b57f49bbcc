//! The JSON Schema of the configuration, and finding one's way in it.

use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

/// The JSON Schema of a configuration of type `T`, without `null`.
#[must_use]
pub fn schema_of<T: JsonSchema>(title: &str) -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.transforms.push(Box::new(WithoutNull));
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_owned(), title.into());
    schema.to_value()
}

/// Takes out `null`, which TOML cannot write: a key that may be absent is simply not required.
#[derive(Debug, Clone)]
struct WithoutNull;

impl Transform for WithoutNull {
    fn transform(&mut self, schema: &mut Schema) {
        transform_subschemas(self, schema);
        let Some(fields) = schema.as_object_mut() else { return };
        if fields.get("default").is_some_and(Value::is_null) {
            fields.remove("default");
        }
        fields.get_mut("default").into_iter().for_each(remove_nulls);
        if let Some(Value::Array(types)) = fields.get_mut("type") {
            types.retain(|name| name != "null");
            if let [only] = types.as_slice() {
                let only = only.clone();
                fields.insert("type".to_owned(), only);
            }
        }
        if let Some(Value::Array(branches)) = fields.get_mut("anyOf") {
            branches.retain(|branch| branch.get("type").is_none_or(|name| name != "null"));
            if let [Value::Object(only)] = branches.as_slice() {
                let only = only.clone();
                fields.remove("anyOf");
                for (key, value) in only {
                    fields.entry(key).or_insert(value);
                }
            }
        }
    }
}

fn remove_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, field| !field.is_null());
        fields.values_mut().for_each(remove_nulls);
    }
}

/// The part of the schema that describes one value.
#[derive(Clone, Copy)]
pub struct SchemaNode<'a> {
    root: &'a Value,
    here: &'a Value,
}

impl<'a> SchemaNode<'a> {
    /// The whole.
    pub fn root(schema: &'a Value) -> Self {
        Self { root: schema, here: schema }
    }

    /// The part at a JSON pointer into the schema.
    pub fn at(schema: &'a Value, pointer: &str) -> Option<Self> {
        Some(Self { root: schema, here: schema.pointer(pointer)? })
    }

    /// This part and, where it is a choice or a reference, the parts that it stands for.
    fn alternatives(self) -> Vec<Self> {
        let mut found = vec![self];
        if let Some(pointer) = self.here.get("$ref").and_then(Value::as_str)
            && let Some(target) = Self::at(self.root, pointer.trim_start_matches('#'))
        {
            found.extend(target.alternatives());
        }
        for choice in ["anyOf", "oneOf"] {
            let branches = self.here.get(choice).and_then(Value::as_array).into_iter().flatten();
            found.extend(branches.flat_map(|branch| Self { root: self.root, here: branch }.alternatives()));
        }
        found
    }

    /// The keys that a table here may have by the schema; those of maps are not among them.
    pub fn keys(self) -> Vec<&'a str> {
        let tables = self.alternatives().into_iter().filter_map(|node| node.here.get("properties")?.as_object());
        let mut keys: Vec<&str> = tables.flat_map(Map::keys).map(String::as_str).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns what describes the value under a key of this table, or an element of this list.
    pub fn child(self, key: &str) -> Option<Self> {
        let any = |node: Self| {
            ["additionalProperties", "items"].iter().find_map(|name| node.here.get(name).filter(|s| s.is_object()))
        };
        let in_map = || self.alternatives().into_iter().find_map(any).map(|here| Self { root: self.root, here });
        self.named(key).first().copied().or_else(in_map)
    }

    /// Returns what describes the value under a key that the schema names, in each form that the table can have.
    pub fn named(self, key: &str) -> Vec<Self> {
        let named = |node: Self| Some(Self { root: self.root, here: node.here.get("properties")?.get(key)? });
        self.alternatives().into_iter().filter_map(named).collect()
    }

    /// The key whose constant distinguishes the forms of a table here, and these constants.
    pub fn tag(self) -> Option<(&'a str, Vec<&'a str>)> {
        let tag = |key: &'a str| {
            let constants = self.named(key).into_iter().filter_map(|node| node.here.get("const")?.as_str());
            Some((key, constants.collect::<Vec<_>>())).filter(|(_, constants)| constants.len() > 1)
        };
        self.keys().into_iter().find_map(tag)
    }

    /// Whether a value here may be of this JSON type.
    pub fn takes(self, kind: &str) -> bool {
        self.alternatives().iter().any(|node| match node.here.get("type") {
            Some(Value::String(name)) => name == kind,
            Some(Value::Array(names)) => names.iter().any(|name| name == kind),
            // A list of constants without a type is one of texts.
            _ => kind == "string" && (node.here.get("enum").is_some() || node.here.get("const").is_some()),
        })
    }

    /// The texts that are allowed here, where they are listed.
    pub fn constants(self) -> Vec<&'a str> {
        let nodes = self.alternatives();
        nodes
            .iter()
            .flat_map(|node| {
                let listed = node.here.get("enum").and_then(Value::as_array).into_iter().flatten();
                listed.chain(node.here.get("const")).filter_map(Value::as_str)
            })
            .collect()
    }

    /// Whether a value here is secret.
    pub fn is_secret(self) -> bool {
        self.alternatives().iter().any(|node| node.here.get("writeOnly") == Some(&Value::Bool(true)))
    }

    /// Describes the values that are valid here.
    pub fn expectation(self) -> String {
        let constants = self.constants();
        if !constants.is_empty() {
            let flag = if self.takes("boolean") { "true, false or " } else { "" };
            return format!("{flag}{}{}", quoted(&constants), if self.takes("array") { " or a list" } else { "" });
        }
        if self.is_secret() && self.takes("object") {
            let list = if self.takes("array") { ", or a list" } else { "" };
            return format!(r#"a text, {{ env = "NAME" }} or {{ file = "path" }}{list}"#);
        }
        let words = [
            ("string", "a text"),
            ("integer", "a whole number"),
            ("number", "a number"),
            ("boolean", "true or false"),
            ("array", "a list"),
            ("object", "a table"),
        ];
        let expected: Vec<&str> = words.iter().filter(|(kind, _)| self.takes(kind)).map(|(_, word)| *word).collect();
        let example = self.here.get("examples").and_then(|examples| examples.get(0));
        expected.join(" or ") + &example.map(|example| format!(", such as {example}")).unwrap_or_default()
    }
}

/// Texts in quotation marks, as a choice.
pub(crate) fn quoted(texts: &[&str]) -> String {
    let list = texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", ");
    if texts.len() > 1 { format!("one of {list}") } else { list }
}
