//! Schemas without references, for providers that know few keywords of JSON Schema.

use serde_json::{Map, Value, json};

use super::draft::{BY_NAME, ONE, SEVERAL};
use super::schema::resolve;

/// Deepest chain of references that is followed; beyond, and in a circle, anything fits.
const MAX_REFERENCES: usize = 8;
/// Most schemas within one that is written out; beyond, anything fits.
const MAX_SCHEMAS: usize = 5_000;
/// Most bytes of names and of values that are no schemas, such as `enum`, within one that is written out; beyond,
/// anything fits.
const MAX_BYTES: usize = 1024 * 1024;

/// Keywords that Gemini documents for JSON Schemas: the list at `response_json_schema` of `GenerateContentConfig`, in
/// `google/genai/types.py` of the package google-genai 3.4.0, without those of references.
const GEMINI: [&str; 16] = [
    "type",
    "format",
    "title",
    "description",
    "enum",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "anyOf",
    "oneOf",
    "properties",
    "additionalProperties",
    "required",
];
/// Keywords that Amazon's models accept at the root.
const BEDROCK_ROOT: [&str; 3] = ["type", "properties", "required"];

/// The schema as Gemini documents schemas: without references, and with the keywords that it knows.
pub(super) fn of_gemini(schema: &Value) -> Value {
    let mut schema = Inliner::new(schema).schema(schema, 0);
    keep_gemini(&mut schema);
    schema
}

/// The schema as all models of Bedrock accept one: without references, and at the root with nothing but properties.
pub(super) fn of_bedrock(schema: &Value) -> Value {
    let mut schema = Inliner::new(schema).schema(schema, 0);
    if let Value::Object(fields) = &mut schema {
        fields.retain(|keyword, _| BEDROCK_ROOT.contains(&keyword.as_str()));
    }
    schema
}

/// Writes out what references stand for.
struct Inliner<'a> {
    document: &'a Value,
    left: usize,
    bytes_left: usize,
}

impl<'a> Inliner<'a> {
    const fn new(document: &'a Value) -> Self {
        Self { document, left: MAX_SCHEMAS, bytes_left: MAX_BYTES }
    }

    /// A schema; `references` were followed on the way to it.
    fn schema(&mut self, schema: &'a Value, references: usize) -> Value {
        if self.left == 0 {
            return json!({});
        }
        self.left -= 1;
        let Some(bytes_left) = self.bytes_left.checked_sub(own_bytes(schema)) else {
            self.left = 0;
            return json!({});
        };
        self.bytes_left = bytes_left;
        let Value::Object(fields) = schema else { return schema.clone() };
        let mut inlined = Map::new();
        for (keyword, value) in fields {
            let value = match (keyword.as_str(), value) {
                ("$ref" | "$defs", _) => continue,
                (name, Value::Object(by_name)) if BY_NAME.contains(&name) => {
                    let inner = by_name.iter().map(|(name, schema)| (name.clone(), self.schema(schema, references)));
                    Value::Object(inner.collect())
                }
                (name, Value::Array(schemas)) if SEVERAL.contains(&name) => {
                    schemas.iter().map(|schema| self.schema(schema, references)).collect()
                }
                (name, value) if ONE.contains(&name) => self.schema(value, references),
                (_, value) => value.clone(),
            };
            inlined.insert(keyword.clone(), value);
        }
        let target = fields.get("$ref").and_then(Value::as_str).and_then(|it| resolve(self.document, it));
        if let Some(target) = target.filter(|_| references < MAX_REFERENCES)
            && let Value::Object(target) = self.schema(target, references + 1)
        {
            // Keywords beside a reference are more specific.
            for (keyword, value) in target {
                inlined.entry(keyword).or_insert(value);
            }
        }
        Value::Object(inlined)
    }
}

/// Bytes of a schema without those of the schemas in it: each of these counts by itself.
fn own_bytes(schema: &Value) -> usize {
    let Value::Object(fields) = schema else { return bytes(schema) };
    let of_keyword = |(keyword, value): (&String, &Value)| match (keyword.as_str(), value) {
        ("$ref" | "$defs", _) => 0,
        (name, Value::Object(by_name)) if BY_NAME.contains(&name) => by_name.keys().map(String::len).sum(),
        (name, Value::Array(_)) if SEVERAL.contains(&name) => 0,
        (name, _) if ONE.contains(&name) => 0,
        (name, value) => name.len() + bytes(value),
    };
    fields.iter().map(of_keyword).sum()
}

/// About the bytes that a value takes as JSON.
fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(elements) => elements.iter().map(|element| bytes(element) + 1).sum::<usize>() + 2,
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + bytes(value) + 4).sum::<usize>() + 2,
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

/// Leaves out keywords that Gemini does not document.
fn keep_gemini(schema: &mut Value) {
    if schema.is_boolean() {
        *schema = json!({});
    }
    let Value::Object(fields) = schema else { return };
    if let Some(only) = fields.remove("const") {
        fields.entry("enum").or_insert_with(|| json!([only]));
    }
    fields.retain(|keyword, _| GEMINI.contains(&keyword.as_str()));
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        values.retain(|value| value.is_number() || value.as_str().is_some_and(|text| !text.is_empty()));
    }
    if fields.get("enum").is_some_and(|values| values.as_array().is_none_or(Vec::is_empty)) {
        fields.remove("enum");
    }
    keep_defined(fields);
    for (keyword, value) in fields.iter_mut() {
        match (keyword.as_str(), value) {
            ("properties", Value::Object(properties)) => properties.values_mut().for_each(keep_gemini),
            ("anyOf" | "oneOf" | "prefixItems", Value::Array(schemas)) => schemas.iter_mut().for_each(keep_gemini),
            ("additionalProperties", Value::Bool(_)) => {}
            ("items" | "additionalProperties", inner) => keep_gemini(inner),
            _ => {}
        }
    }
}

/// Leaves out of `required` what `properties` does not have: the service responds with `property is not defined`.
fn keep_defined(fields: &mut Map<String, Value>) {
    let Some(Value::Array(mut names)) = fields.remove("required") else { return };
    let defined = fields.get("properties").and_then(Value::as_object);
    names.retain(|name| name.as_str().is_some_and(|name| defined.is_some_and(|defined| defined.contains_key(name))));
    if !names.is_empty() {
        fields.insert("required".to_owned(), Value::Array(names));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_written_out_and_circles_end() {
        let schema = json!({
            "type": "object",
            "properties": {"root": {"$ref": "#/$defs/node", "description": "Here."}},
            "$defs": {"node": {"type": "object", "description": "A node.", "properties": {"next": {"$ref": "#/$defs/node"}}}}
        });
        for inlined in [of_gemini(&schema), of_bedrock(&schema)] {
            let text = inlined.to_string();
            assert!(!text.contains("$ref") && !text.contains("$defs"), "{text}");
            assert_eq!(inlined["properties"]["root"]["description"], "Here.");
            assert_eq!(inlined["properties"]["root"]["properties"]["next"]["description"], "A node.");
            assert_eq!(text.matches("A node.").count(), MAX_REFERENCES - 1);
        }
    }

    #[test]
    fn a_schema_that_grows_without_end_is_cut() {
        let branch = json!({"properties": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/b"}, "c": {"$ref": "#/$defs/b"},
            "d": {"$ref": "#/$defs/b"}, "e": {"$ref": "#/$defs/b"}, "f": {"$ref": "#/$defs/b"}}});
        let schema = json!({"type": "object", "properties": {"root": {"$ref": "#/$defs/b"}}, "$defs": {"b": branch}});
        let size = of_bedrock(&schema).to_string().len();
        assert!(size < MAX_SCHEMAS * 32, "{size} bytes");
    }

    #[test]
    fn values_that_references_multiply_are_cut() {
        let long = "x".repeat(45_000);
        let fifteen = |of: &str| -> Value {
            let properties = (0..15).map(|n| (format!("p{n}"), json!({"$ref": format!("#/$defs/{of}")})));
            json!({"type": "object", "properties": properties.collect::<Map<_, _>>()})
        };
        let values = [
            json!({"enum": [long]}),
            json!({"const": long}),
            json!({"anyOf": [long]}),
            json!({"dependencies": {"a": [long]}}),
            json!({"items": long}),
            json!({"default": {"of": [long]}}),
            json!({"required": [long]}),
            json!({"properties": {long.clone(): {}}}),
            json!({(long.clone()): 1}),
        ];
        for leaf in values {
            let mut schema = fifteen("a");
            schema["$defs"] = json!({"a": fifteen("b"), "b": fifteen("leaf"), "leaf": leaf});
            let size = of_bedrock(&schema).to_string().len();
            assert!(size < MAX_BYTES + MAX_SCHEMAS * 32, "{size} bytes");
            assert!(size > 100_000, "some are written out: {size} bytes");
        }
    }

    #[test]
    fn gemini_gets_the_keywords_that_it_documents() {
        let schema = json!({"type": "object", "additionalProperties": false, "minProperties": 1, "properties": {
            "a": {"const": "x", "pattern": "x"}, "b": {"type": "boolean", "enum": [true]}, "c": true,
            "d": {"type": "array", "items": true, "uniqueItems": true}, "e": {"enum": ["", "y", 3, null], "default": "y"}
        }});
        let expected = json!({"type": "object", "additionalProperties": false, "properties": {
            "a": {"enum": ["x"]}, "b": {"type": "boolean"}, "c": {}, "d": {"type": "array", "items": {}}, "e": {"enum": ["y", 3]}
        }});
        assert_eq!(of_gemini(&schema), expected);
    }

    #[test]
    fn schemas_for_gemini_require_only_defined_properties() {
        let schema = json!({"type": "object", "required": ["a", "x"], "properties": {
            "a": {"type": "object", "required": ["b"]}
        }});
        let expected = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "object"}}});
        assert_eq!(of_gemini(&schema), expected);
    }
}
