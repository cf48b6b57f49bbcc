use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use super::converted::converted;
use super::without::BRANCHES;

/// The schema of a tool that has none, as text.
pub(super) const ANY_OBJECT: &str = r#"{"properties":{},"type":"object"}"#;
/// Keywords that OpenAI or Anthropic refuse at the root, or that mean nothing there once their properties are taken
/// out.
const REFUSED: [&str; 7] = ["$ref", "allOf", "anyOf", "oneOf", "not", "enum", "const"];
/// The whole schema, as one of an object.
pub(super) fn full(schema: Option<&Value>) -> Value {
    let mut root = schema.and_then(Value::as_object).cloned().unwrap_or_default();
    root.insert("type".to_owned(), json!("object"));
    if !root.get("properties").is_some_and(Value::is_object) {
        root.insert("properties".to_owned(), json!({}));
    }
    Value::Object(root)
}

/// The schema as every model provider accepts it: an object with properties, and no choice at its root.
///
/// The properties that stand in the choices are shown as if all could be given: a model must know their names.
pub(super) fn simple(schema: Option<&Value>) -> Value {
    let document = schema.map(converted).unwrap_or_default();
    let mut root = full(Some(&document));
    if let Value::Object(fields) = &mut root {
        let mut lifted =
            Lifted { document: &document, followed: HashSet::new(), properties: BTreeMap::new(), required: Vec::new() };
        lifted.read(&document, true);
        lifted.write(fields);
        fields.retain(|keyword, _| !REFUSED.contains(&keyword.as_str()));
    }
    root
}

/// Contents of the schemas that describe the same object as the root does.
struct Lifted<'a> {
    document: &'a Value,
    /// References that were followed: each once, so that a schema that refers to itself ends.
    followed: HashSet<&'a str>,
    /// For each property its different schemas, by their text.
    properties: BTreeMap<&'a str, BTreeMap<String, &'a Value>>,
    required: Vec<&'a str>,
}

impl<'a> Lifted<'a> {
    /// Reads a schema; what it requires counts only if it `must` hold.
    fn read(&mut self, schema: &'a Value, must: bool) {
        let Value::Object(fields) = schema else { return };
        if let Some(Value::Object(properties)) = fields.get("properties") {
            for (name, property) in properties {
                self.properties.entry(name).or_default().insert(property.to_string(), property);
            }
        }
        if let Some(Value::Array(names)) = fields.get("required").filter(|_| must) {
            self.required.extend(names.iter().filter_map(Value::as_str));
        }
        if let Some(Value::String(reference)) = fields.get("$ref")
            && self.followed.insert(reference)
            && let Some(target) = resolve(self.document, reference)
        {
            self.read(target, must);
        }
        for keyword in BRANCHES {
            if let Some(Value::Array(branches)) = fields.get(keyword) {
                branches.iter().for_each(|branch| self.read(branch, must && keyword == "allOf"));
            }
        }
    }

    /// Adds to the root the keywords that it does not have itself.
    fn write(mut self, root: &mut Map<String, Value>) {
        if let Some(Value::Object(properties)) = root.get_mut("properties") {
            for (name, schemas) in self.properties {
                if properties.contains_key(name) {
                    continue;
                }
                let mut schemas: Vec<Value> = schemas.into_values().cloned().collect();
                let schema = if schemas.len() == 1 { schemas.pop() } else { Some(json!({"anyOf": schemas})) };
                properties.insert(name.to_owned(), schema.unwrap_or_default());
            }
        }
        self.required.sort_unstable();
        self.required.dedup();
        if let Some(Value::Object(properties)) = root.get_mut("properties") {
            for name in &self.required {
                // A model must know that it is to be given.
                properties.entry(*name).or_insert_with(|| json!({}));
            }
        }
        if self.required.is_empty() {
            root.remove("required");
        } else {
            root.insert("required".to_owned(), json!(self.required));
        }
    }
}

/// The schema that a reference of a converted document names.
pub(super) fn resolve<'a>(document: &'a Value, reference: &str) -> Option<&'a Value> {
    document.pointer(reference.strip_prefix('#')?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simplified(schema: Value) -> String {
        simple(Some(&schema)).to_string()
    }

    #[test]
    fn a_tool_without_a_schema_takes_any_object() {
        for schema in [None, Some(&json!(true)), Some(&json!({})), Some(&json!([1]))] {
            assert_eq!(simple(schema).to_string(), ANY_OBJECT);
            assert_eq!(full(schema).to_string(), ANY_OBJECT);
        }
    }

    #[test]
    fn an_ordinary_schema_stays_as_it_is() {
        let schema = json!({
            "type": "object",
            "properties": {
                "$id": {"type": "string", "description": "A property may be called so."},
                "when": {"anyOf": [{"type": "string", "enum": ["now"]}, {"$ref": "#/$defs/time"}]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["when"],
            "additionalProperties": false,
            "$defs": {"time": {"type": "integer"}},
        });
        assert_eq!(simple(Some(&schema)), schema);
        assert_eq!(full(Some(&schema)), schema);
    }

    #[test]
    fn a_choice_at_the_root_becomes_properties_that_may_be_given() {
        insta::assert_snapshot!(simplified(json!({
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": "file"}, "path": {"type": "string"}}, "required": ["kind", "path"]},
                {"type": "object", "properties": {"kind": {"const": "url"}, "url": {"type": "string"}}, "required": ["kind", "url"]},
            ],
        })), @r#"{"properties":{"kind":{"anyOf":[{"const":"file"},{"const":"url"}]},"path":{"type":"string"},"url":{"type":"string"}},"type":"object"}"#);
    }

    #[test]
    fn properties_required_by_references_and_all_of_stay_required() {
        insta::assert_snapshot!(simplified(json!({
            "$ref": "#/$defs/Query",
            "allOf": [{"properties": {"page": {"type": "integer"}}, "required": ["page"]}],
            "$defs": {"Query": {"properties": {"q": {"type": "string"}}, "required": ["q"], "anyOf": [{"required": ["no"]}]}},
        })), @r#"{"$defs":{"Query":{"anyOf":[{"required":["no"]}],"properties":{"q":{"type":"string"}},"required":["q"]}},"properties":{"page":{"type":"integer"},"q":{"type":"string"}},"required":["page","q"],"type":"object"}"#);
    }

    #[test]
    fn properties_of_the_root_win_over_those_of_its_branches() {
        insta::assert_snapshot!(simplified(json!({
            "type": ["object", "null"],
            "properties": {"a": {"type": "string"}},
            "anyOf": [{"properties": {"a": {"minLength": 1}}}],
            "enum": [{"a": "b"}], "const": {"a": "b"}, "not": {},
        })), @r#"{"properties":{"a":{"type":"string"}},"type":"object"}"#);
    }

    #[test]
    fn an_array_without_items_is_an_array_of_anything() {
        insta::assert_snapshot!(simplified(json!({
            "properties": {
                "a": {"type": "array"},
                "b": {"type": ["string", "array"]},
                "c": {"type": "object", "properties": {"type": {"type": "array"}}},
                "d": {"type": "array", "items": {"type": "array"}},
                "e": true,
            },
        })), @r#"{"properties":{"a":{"items":{},"type":"array"},"b":{"items":{},"type":["string","array"]},"c":{"properties":{"type":{"items":{},"type":"array"}},"type":"object"},"d":{"items":{"items":{},"type":"array"},"type":"array"},"e":{}},"type":"object"}"#);
    }

    #[test]
    fn a_reference_that_leads_nowhere_is_dropped() {
        insta::assert_snapshot!(simplified(json!({
            "$id": "https://example.com/tool",
            "properties": {
                "a": {"$ref": "#/anyOf/0", "description": "Kept from the choice."},
                "b": {"$ref": "https://example.com/tool#/$defs/x"},
                "c": {"$ref": "#/%24defs/x"},
                "d": {"$ref": "#"},
            },
            "anyOf": [{}],
            "$defs": {"x": {"$id": "x", "type": "string"}},
        })), @r##"{"$defs":{"0":{},"x":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/0","description":"Kept from the choice."},"b":{},"c":{"$ref":"#/$defs/x"},"d":{"$ref":"#"}},"type":"object"}"##);
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}, {"$ref": "#/allOf/0"}, {"$ref": "#/allOf"}]}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        ] {
            assert_eq!(simple(Some(&schema))["properties"], json!({}));
        }
    }
}
