//! Schemas of OpenAPI as JSON Schema of arguments.
//!
//! Targets of references stand in `$defs`, so that a schema may refer to itself. Only keywords that apply to requests
//! are kept.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use toolbus_core::check_schema;
use toolbus_core::text::shortened;

use super::{resolved, target};

/// Most bytes of names and values in the schema of one operation, with a little for each value.
const MAX_BYTES: usize = 128 * 1024;
/// Size that a value counts beside its text, in bytes.
pub(super) const VALUE: usize = 8;
/// Size that a pattern counts beside its text, in bytes: a pattern takes longer than other values.
const PATTERN: usize = 256;
/// Longest description within a schema, in characters.
const MAX_DESCRIPTION: usize = 1000;

/// Keywords with a schema for each name.
const BY_NAME: [&str; 5] = ["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"];
/// Keywords with a list of schemas.
const SEVERAL: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords with one schema.
const ONE: [&str; 10] = [
    "items",
    "additionalProperties",
    "not",
    "contains",
    "propertyNames",
    "if",
    "then",
    "else",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords with a value.
const DATA: [&str; 24] = [
    "type",
    "enum",
    "const",
    "default",
    "required",
    "title",
    "description",
    "format",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
    "dependentRequired",
];

/// Reads the schemas of one operation.
pub(super) struct OperationSchemas<'a> {
    document: &'a Value,
    is_3_0: bool,
    left: usize,
    /// Names in `$defs`, by reference.
    names: BTreeMap<&'a str, String>,
    taken: BTreeSet<String>,
    /// The last number that was given behind a name that several would have.
    numbers: BTreeMap<String, usize>,
    /// References whose schemas are not read yet.
    pending: Vec<&'a str>,
    definitions: Map<String, Value>,
}

impl<'a> OperationSchemas<'a> {
    pub(super) fn new(document: &'a Value, is_3_0: bool) -> Self {
        Self {
            document,
            is_3_0,
            left: MAX_BYTES,
            names: BTreeMap::new(),
            taken: BTreeSet::new(),
            numbers: BTreeMap::new(),
            pending: Vec::new(),
            definitions: Map::new(),
        }
    }

    /// A schema as JSON Schema.
    ///
    /// # Errors
    ///
    /// If a reference cannot be followed, or the schemas of the operation are too large.
    pub(super) fn schema(&mut self, schema: &'a Value) -> Result<Value, String> {
        let Value::Object(keywords) = schema else {
            self.spend(VALUE)?;
            return Ok(if schema.is_boolean() { schema.clone() } else { json!({}) });
        };
        if let Some(reference) = keywords.get("$ref").and_then(Value::as_str) {
            let name = self.name(reference)?;
            let mut referring = if self.is_3_0 { Map::new() } else { self.keywords(keywords)? };
            if let Some(Value::String(text)) = keywords.get("description") {
                referring.insert("description".to_owned(), self.prose(text)?);
            }
            referring.insert("$ref".to_owned(), Value::String(format!("#/$defs/{name}")));
            return Ok(Value::Object(referring));
        }
        let mut read = self.keywords(keywords)?;
        if self.is_3_0 {
            with_nullable(keywords, &mut read);
        }
        Ok(Value::Object(read))
    }

    fn keywords(&mut self, keywords: &'a Map<String, Value>) -> Result<Map<String, Value>, String> {
        let mut read = Map::new();
        for (keyword, value) in keywords {
            // Before the work, and for what is left out, too: references may lead here again and again.
            self.spend(VALUE + keyword.len())?;
            let value = match (keyword.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    self.spend(VALUE * properties.len())?;
                    let sent = properties.iter().filter(|(_, schema)| !is_read_only(self.document, schema));
                    Value::Object(self.by_name(sent)?)
                }
                (name, Value::Object(by_name)) if BY_NAME.contains(&name) => Value::Object(self.by_name(by_name)?),
                (name, Value::Array(schemas)) if SEVERAL.contains(&name) => {
                    Value::Array(schemas.iter().map(|schema| self.schema(schema)).collect::<Result<_, _>>()?)
                }
                (name, schema) if ONE.contains(&name) => self.schema(schema)?,
                ("description", Value::String(text)) => self.prose(text)?,
                ("required", Value::Array(names)) => {
                    self.spend(bytes(value))?;
                    let properties = keywords.get("properties");
                    let is_sent = |name: &&Value| {
                        let of = name.as_str().and_then(|name| properties?.get(name));
                        !of.is_some_and(|schema| is_read_only(self.document, schema))
                    };
                    names.iter().filter(is_sent).cloned().collect()
                }
                // OpenAPI 2 and JSON Schema 3 had it at each property.
                ("required", _) => continue,
                ("pattern", pattern) => {
                    self.spend(PATTERN + bytes(pattern))?;
                    // Those of other languages are for the service to check.
                    if check_schema(&json!({"pattern": pattern})).is_err() {
                        continue;
                    }
                    pattern.clone()
                }
                ("exclusiveMinimum" | "exclusiveMaximum", Value::Bool(_)) => continue,
                (name, value) if DATA.contains(&name) => {
                    self.spend(bytes(value))?;
                    value.clone()
                }
                _ => continue,
            };
            read.insert(keyword.clone(), value);
        }
        for (bound, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
            if keywords.get(exclusive) == Some(&Value::Bool(true))
                && let Some(value) = read.remove(bound)
            {
                read.insert(exclusive.to_owned(), value);
            }
        }
        Ok(read)
    }

    fn by_name(
        &mut self,
        schemas: impl IntoIterator<Item = (&'a String, &'a Value)>,
    ) -> Result<Map<String, Value>, String> {
        let mut read = Map::new();
        for (name, schema) in schemas {
            self.spend(VALUE + name.len())?;
            read.insert(name.clone(), self.schema(schema)?);
        }
        Ok(read)
    }

    /// A description.
    pub(super) fn prose(&mut self, text: &str) -> Result<Value, String> {
        // No more is looked at, whatever it begins with.
        let text = text.get(..text.floor_char_boundary(8 * MAX_DESCRIPTION)).unwrap_or_default();
        let text = shortened(text.trim(), MAX_DESCRIPTION);
        self.spend(text.len())?;
        Ok(Value::from(text))
    }

    pub(super) fn spend(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| format!("its schemas take more than {} KiB", MAX_BYTES / 1024))?;
        Ok(())
    }

    /// The name in `$defs` of what a reference leads to.
    fn name(&mut self, reference: &'a str) -> Result<String, String> {
        self.spend(VALUE + reference.len())?;
        if let Some(name) = self.names.get(reference) {
            return Ok(name.clone());
        }
        target(self.document, reference)?;
        let last = reference.rsplit('/').next().unwrap_or_default();
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' };
        let base: String = last.chars().take(64).map(plain).collect();
        self.spend(VALUE + base.len())?;
        let number = self.numbers.entry(base.clone()).or_insert(1);
        let mut name = base.clone();
        while !self.taken.insert(name.clone()) {
            *number += 1;
            name = format!("{base}_{number}");
        }
        self.names.insert(reference, name.clone());
        self.pending.push(reference);
        Ok(name)
    }

    /// Returns the definitions that the references of all schemas that were read lead to.
    ///
    /// # Errors
    ///
    /// Those of [`Self::schema`]; and if references lead in a circle with nothing between them.
    pub(super) fn definitions(mut self) -> Result<Map<String, Value>, String> {
        while let Some(reference) = self.pending.pop() {
            let schema = self.schema(target(self.document, reference)?)?;
            let name = self.names.get(reference).cloned().unwrap_or_default();
            self.definitions.insert(name, schema);
        }
        match circle(&self.definitions) {
            Some(name) => Err(format!("the schema `{name}` is defined by itself alone")),
            None => Ok(self.definitions),
        }
    }
}

/// Whether a property is for responses alone, by itself or by the schema that it refers to.
pub(super) fn is_read_only(document: &Value, schema: &Value) -> bool {
    let is_marked = |schema: &Value| schema.get("readOnly") == Some(&Value::Bool(true));
    is_marked(schema) || resolved(document, schema).is_ok_and(is_marked)
}

/// Adds null as `nullable` of OpenAPI 3.0 allows it.
fn with_nullable(keywords: &Map<String, Value>, read: &mut Map<String, Value>) {
    if keywords.get("nullable") != Some(&Value::Bool(true)) {
        return;
    }
    let Some(kind) = read.get("type").and_then(Value::as_str).map(str::to_owned) else {
        if ["allOf", "anyOf", "oneOf"].iter().any(|keyword| read.contains_key(*keyword)) {
            let other = Value::Object(std::mem::take(read));
            read.insert("anyOf".to_owned(), json!([other, {"type": "null"}]));
        }
        return;
    };
    read.insert("type".to_owned(), json!([kind, "null"]));
    if let Some(Value::Array(values)) = read.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
}

/// About the bytes that a value takes.
fn bytes(value: &Value) -> usize {
    VALUE
        + match value {
            Value::String(text) => text.len(),
            Value::Array(elements) => elements.iter().map(bytes).sum(),
            Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + bytes(value)).sum(),
            _ => 0,
        }
}

/// A definition that leads to itself without a step into a value, if there is one: it does not define the values that
/// it admits, and checking it would have no end.
fn circle(definitions: &Map<String, Value>) -> Option<&str> {
    let mut ended = BTreeSet::new();
    for start in definitions.keys() {
        // The names on the way, each with those that it leads to and that were not looked at yet.
        let mut way = vec![(start.as_str(), in_place(definitions.get(start)?))];
        let mut on_the_way = BTreeSet::from([start.as_str()]);
        while let Some((name, next)) = way.last_mut() {
            let (name, next) = (*name, next.pop());
            match next {
                Some(next) if on_the_way.contains(next) => return Some(next),
                Some(next) if ended.contains(next) => {}
                Some(next) => {
                    on_the_way.insert(next);
                    way.push((next, definitions.get(next).map(in_place).unwrap_or_default()));
                }
                None => {
                    on_the_way.remove(name);
                    ended.insert(name);
                    way.pop();
                }
            }
        }
    }
    None
}

/// The definitions that a schema applies to the same value.
fn in_place(schema: &Value) -> Vec<&str> {
    let reference = schema.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix("#/$defs/"));
    let several =
        ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|keyword| schema.get(keyword)?.as_array()).flatten();
    let one = ["not", "if", "then", "else"].into_iter().filter_map(|keyword| schema.get(keyword));
    let by_name = schema.get("dependentSchemas").and_then(Value::as_object).into_iter().flatten();
    let inner = several.chain(one).chain(by_name.map(|(_, schema)| schema));
    reference.into_iter().chain(inner.flat_map(in_place)).collect()
}
