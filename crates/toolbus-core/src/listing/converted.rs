//! Schemas as draft 2020-12 puts them, and as its metaschema accepts them, whatever their authors wrote.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use super::draft::{Anchors, BY_NAME, Draft, ONE, SEVERAL};
use crate::ecma_pattern::is_portable;

/// Most schemas that a converted one has; beyond, anything fits. A schema that several references lead to counts once.
const MAX_SCHEMAS: usize = 10_000;
/// Types of JSON Schema.
const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "integer", "string"];
/// Keywords that refer to another schema. In one document, the others mean what the first one does.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords that describe a value without any effect on which values fit.
const ANNOTATIONS: [&str; 7] = ["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"];

/// The same schema in draft 2020-12: without names of its own, with all that its references name in `$defs`, and with
/// no keyword whose value the metaschema refuses. Patterns that not every provider can read are left out.
pub fn converted(document: &Value) -> Value {
    let mut converter = Converter {
        document,
        draft: Draft::of(document),
        anchors: Anchors::of(document),
        names: BTreeMap::new(),
        taken: HashSet::new(),
        pending: Vec::new(),
        left: MAX_SCHEMAS,
    };
    let mut root = converter.object(document);
    let mut definitions = Map::new();
    while let Some((name, schema)) = converter.pending.pop() {
        definitions.insert(name, converter.schema(schema));
    }
    if !definitions.is_empty() {
        root.insert("$defs".to_owned(), Value::Object(definitions));
    }
    Value::Object(root)
}

struct Converter<'a> {
    document: &'a Value,
    draft: Draft,
    anchors: Anchors<'a>,
    /// The names in `$defs` of what was referred to, by where that is in memory.
    names: BTreeMap<*const Value, String>,
    taken: HashSet<String>,
    /// Schemas that were referred to and are not converted yet.
    pending: Vec<(String, &'a Value)>,
    left: usize,
}

impl<'a> Converter<'a> {
    /// A schema, as an object: not every provider reads `true` and `false` everywhere.
    fn schema(&mut self, schema: &'a Value) -> Value {
        match schema {
            Value::Bool(false) => json!({"not": {}}),
            schema => Value::Object(self.object(schema)),
        }
    }

    fn object(&mut self, schema: &'a Value) -> Map<String, Value> {
        let Value::Object(fields) = schema else { return Map::new() };
        let Some(left) = self.left.checked_sub(1) else { return Map::new() };
        self.left = left;
        let is_reference = fields.get("$ref").is_some_and(Value::is_string);
        let only_annotations = is_reference && self.draft.ignores_siblings();
        let mut converted = Map::new();
        for (keyword, value) in fields {
            let keyword = keyword.as_str();
            let is_kept = !only_annotations || keyword == "$ref" || ANNOTATIONS.contains(&keyword);
            if is_kept && self.draft.knows(keyword) {
                self.keyword(&mut converted, keyword, value, fields);
            }
        }
        if let Some(Value::Object(properties)) = fields.get("properties").filter(|_| !only_annotations) {
            require_marked(&mut converted, properties);
        }
        if converted.get("type").is_some_and(allows_arrays) && !converted.contains_key("items") {
            converted.insert("items".to_owned(), json!({}));
        }
        converted
    }

    /// Adds a keyword with its value to a converted schema; `beside` is the whole one that it stands in.
    fn keyword(
        &mut self,
        to: &mut Map<String, Value>,
        keyword: &str,
        value: &'a Value,
        beside: &'a Map<String, Value>,
    ) {
        let converted = match (keyword, value) {
            ("$defs" | "definitions", _) => None,
            (keyword, Value::String(reference)) if REFERENCES.contains(&keyword) => {
                to.extend(self.reference(reference).map(|reference| ("$ref".to_owned(), reference)));
                None
            }
            ("id", Value::String(_)) => None,
            // Names and languages of schemas, and other keywords that no provider reads.
            (keyword, _) if keyword.starts_with('$') && keyword != "$comment" => None,
            ("items", Value::Array(items)) => {
                if !items.is_empty() {
                    let items = items.iter().map(|item| self.schema(item)).collect();
                    to.insert("prefixItems".to_owned(), items);
                }
                let others = beside.get("additionalItems").filter(|others| is_schema(others));
                to.extend(others.map(|others| ("items".to_owned(), self.one(others))));
                None
            }
            ("dependencies", Value::Object(dependencies)) => {
                self.dependencies(to, dependencies);
                None
            }
            ("dependentRequired", Value::Object(by_name)) => {
                by_name.iter().for_each(|(name, names)| add_by_name(to, keyword, name, names_in(names)));
                None
            }
            ("additionalItems" | "dependentRequired", _) => None,
            ("patternProperties", Value::Object(by_name)) => {
                let portable = by_name.iter().filter(|(pattern, _)| is_portable(pattern));
                Some(self.named(portable))
            }
            ("properties" | "dependentSchemas", Value::Object(by_name)) => Some(self.named(by_name)),
            ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(schemas)) if !schemas.is_empty() => {
                Some(schemas.iter().map(|schema| self.schema(schema)).collect())
            }
            // A schema that is closed except for names that are left out would be closed to these, too.
            ("additionalProperties", value) if is_schema(value) => {
                let by_pattern = beside.get("patternProperties").and_then(Value::as_object);
                let is_kept = by_pattern.is_none_or(|by_name| by_name.keys().all(|pattern| is_portable(pattern)));
                is_kept.then(|| self.one(value))
            }
            (keyword, value) if ONE.contains(&keyword) => is_schema(value).then(|| self.one(value)),
            (keyword, _) if BY_NAME.contains(&keyword) || SEVERAL.contains(&keyword) => None,
            (keyword, value) => plain(keyword, value, beside),
        };
        let name = match (keyword, beside.get("multipleOf")) {
            ("divisibleBy", None) => "multipleOf",
            _ => keyword,
        };
        to.extend(converted.map(|value| (name.to_owned(), value)));
    }

    /// A schema where `true` and `false` are read everywhere.
    fn one(&mut self, schema: &'a Value) -> Value {
        if schema.is_boolean() { schema.clone() } else { self.schema(schema) }
    }

    fn named(&mut self, by_name: impl IntoIterator<Item = (&'a String, &'a Value)>) -> Value {
        let schemas = by_name.into_iter().map(|(name, schema)| (name.clone(), self.schema(schema)));
        Value::Object(schemas.collect())
    }

    /// The lists of `dependencies` become `dependentRequired`, its schemas `dependentSchemas`.
    fn dependencies(&mut self, to: &mut Map<String, Value>, dependencies: &'a Map<String, Value>) {
        for (name, value) in dependencies {
            match value {
                Value::Array(_) => add_by_name(to, "dependentRequired", name, names_in(value)),
                Value::String(required) => add_by_name(to, "dependentRequired", name, Some(json!([required]))),
                value if is_schema(value) => {
                    let schema = self.schema(value);
                    add_by_name(to, "dependentSchemas", name, Some(schema));
                }
                _ => {}
            }
        }
    }

    /// The reference to where a schema is in the converted document; `None` if there is none.
    fn reference(&mut self, reference: &str) -> Option<Value> {
        let target = self.anchors.resolve(self.document, reference)?;
        if std::ptr::eq(target, self.document) {
            return Some(json!("#"));
        }
        let address = std::ptr::from_ref(target);
        if let Some(name) = self.names.get(&address) {
            return Some(json!(format!("#/$defs/{name}")));
        }
        let name = self.free_name(reference);
        self.names.insert(address, name.clone());
        self.pending.push((name.clone(), target));
        Some(json!(format!("#/$defs/{name}")))
    }

    /// A name in `$defs` that nothing has to be escaped in, made of the last part of a reference.
    fn free_name(&mut self, reference: &str) -> String {
        let last = reference.rsplit(['/', '#']).next().unwrap_or_default();
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-') { c } else { '_' };
        let plain: String = last.chars().map(plain).collect();
        let numbered = (2..).map(|number: usize| format!("{plain}_{number}"));
        let mut names = std::iter::once(plain.clone()).chain(numbered);
        let free = names.find(|name| !self.taken.contains(name)).unwrap_or(plain);
        self.taken.insert(free.clone());
        free
    }
}

/// The value of a keyword that holds no schema; `None` if the metaschema refuses it.
fn plain(keyword: &str, value: &Value, beside: &Map<String, Value>) -> Option<Value> {
    match keyword {
        "type" => types(value),
        "enum" => {
            let mut seen = HashSet::new();
            let values: Vec<_> = value.as_array()?.iter().filter(|value| seen.insert(value.to_string())).collect();
            (!values.is_empty()).then(|| json!(values))
        }
        "required" => names_in(value).filter(|names| names.as_array().is_some_and(|names| !names.is_empty())),
        "pattern" => value.as_str().filter(|pattern| is_portable(pattern)).map(Value::from),
        "minimum" | "maximum" => {
            let exclusive = if keyword == "minimum" { "exclusiveMinimum" } else { "exclusiveMaximum" };
            (value.is_number() && beside.get(exclusive) != Some(&Value::Bool(true))).then(|| value.clone())
        }
        "exclusiveMinimum" | "exclusiveMaximum" => {
            let limit = if keyword == "exclusiveMinimum" { "minimum" } else { "maximum" };
            // A flag of the limit, in draft 4.
            let value = if *value == true { beside.get(limit)? } else { value };
            value.is_number().then(|| value.clone())
        }
        "multipleOf" | "divisibleBy" => value.as_f64().filter(|value| *value > 0.0).map(|_| value.clone()),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" | "minContains"
        | "maxContains" => {
            let is_count = value.as_u64().is_some() || value.as_f64().is_some_and(|v| v >= 0.0 && v.fract() == 0.0);
            is_count.then(|| value.clone())
        }
        "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => value.is_boolean().then(|| value.clone()),
        "title" | "description" | "$comment" | "format" | "contentEncoding" | "contentMediaType" => {
            value.is_string().then(|| value.clone())
        }
        "examples" => value.is_array().then(|| value.clone()),
        _ => Some(value.clone()),
    }
}

fn types(value: &Value) -> Option<Value> {
    let is_known = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
    let Value::Array(kinds) = value else { return is_known(value).then(|| value.clone()) };
    let mut seen = HashSet::new();
    let known: Vec<_> = kinds.iter().filter(|kind| is_known(kind) && seen.insert(kind.as_str())).collect();
    // A type that is none is any, as the author meant it.
    (!known.is_empty() && kinds.iter().all(is_known)).then(|| json!(known))
}

/// The different names of a list.
fn names_in(value: &Value) -> Option<Value> {
    let mut seen = HashSet::new();
    let names = value.as_array()?.iter().filter_map(Value::as_str).filter(|name| seen.insert(*name));
    Some(names.collect())
}

fn add_by_name(to: &mut Map<String, Value>, keyword: &str, name: &str, value: Option<Value>) {
    let by_name = to.entry(keyword).or_insert_with(|| json!({}));
    if let (Value::Object(by_name), Some(value)) = (by_name, value) {
        by_name.insert(name.to_owned(), value);
    }
}

/// Requires the properties that have `required: true` themselves, as in draft 3.
fn require_marked(schema: &mut Map<String, Value>, properties: &Map<String, Value>) {
    let marked = properties.iter().filter(|(_, property)| property.get("required") == Some(&Value::Bool(true)));
    for (name, _) in marked {
        let required = schema.entry("required").or_insert_with(|| json!([]));
        if let Value::Array(names) = required
            && !names.iter().any(|known| known == name)
        {
            names.push(json!(name));
        }
    }
}

const fn is_schema(value: &Value) -> bool {
    matches!(value, Value::Object(_) | Value::Bool(_))
}

/// Whether a `type` allows arrays.
fn allows_arrays(kind: &Value) -> bool {
    kind == "array" || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "array"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(draft: &str, schema: Value) -> Value {
        let mut schema = schema;
        schema["$schema"] = json!(draft);
        converted(&schema)
    }

    #[test]
    fn draft_4_has_flags_for_limits_definitions_and_names_without_a_dollar() {
        let schema = json!({
            "id": "https://example.com/tool", "definitions": {"Id": {"id": "#id", "type": "integer", "minimum": 0, "exclusiveMinimum": true}},
            "properties": {
                "a": {"$ref": "#/definitions/Id", "minimum": 5, "description": "Kept."},
                "b": {"$ref": "#id"},
                "c": {"type": "number", "maximum": 1, "exclusiveMaximum": false, "const": 2},
                "id": {"type": "string"},
            },
        });
        let expected = json!({
            "$defs": {"Id": {"type": "integer", "exclusiveMinimum": 0}},
            "properties": {
                "a": {"$ref": "#/$defs/Id", "description": "Kept."},
                "b": {"$ref": "#/$defs/Id"},
                "c": {"type": "number", "maximum": 1},
                "id": {"type": "string"},
            },
        });
        assert_eq!(of("http://json-schema.org/draft-04/schema#", schema), expected);
    }

    #[test]
    fn drafts_6_and_7_have_tuples_in_items_and_two_kinds_of_dependencies() {
        let schema = json!({
            "properties": {
                "pair": {"type": "array", "items": [{"type": "string"}, true], "additionalItems": false},
                "list": {"type": "array", "items": {"type": "string"}, "additionalItems": false},
                "one": {"const": 1, "if": {"minimum": 1}},
            },
            "dependencies": {"pair": ["list"], "list": {"required": ["one"]}},
        });
        let expected = |one: Value| {
            json!({
                "properties": {
                    "pair": {"type": "array", "prefixItems": [{"type": "string"}, {}], "items": false},
                    "list": {"type": "array", "items": {"type": "string"}},
                    "one": one,
                },
                "dependentRequired": {"pair": ["list"]}, "dependentSchemas": {"list": {"required": ["one"]}},
            })
        };
        assert_eq!(of("http://json-schema.org/draft-06/schema#", schema.clone()), expected(json!({"const": 1})));
        let with_condition = json!({"const": 1, "if": {"minimum": 1}});
        assert_eq!(of("http://json-schema.org/draft-07/schema#", schema), expected(with_condition));
    }

    #[test]
    fn draft_2019_09_refers_to_anchors_and_recursively() {
        let schema = json!({
            "$id": "https://example.com/tree", "$recursiveAnchor": true,
            "properties": {"left": {"$recursiveRef": "#"}, "leaf": {"$ref": "#leaf", "maxLength": 3}},
            "$defs": {"x": {"$anchor": "leaf", "type": "string"}, "unused": {}},
        });
        let expected = json!({
            "properties": {"left": {"$ref": "#"}, "leaf": {"$ref": "#/$defs/leaf", "maxLength": 3}},
            "$defs": {"leaf": {"type": "string"}},
        });
        assert_eq!(of("https://json-schema.org/draft/2019-09/schema", schema), expected);
        let dynamic =
            json!({"items": {"$dynamicRef": "#node"}, "$defs": {"n": {"$dynamicAnchor": "node", "type": "null"}}});
        let expected = json!({"items": {"$ref": "#/$defs/node"}, "$defs": {"node": {"type": "null"}}});
        assert_eq!(converted(&dynamic), expected);
    }

    #[test]
    fn targets_of_references_are_kept_at_any_path() {
        let schema = json!({
            "properties": {
                "a": {"$ref": "#/components/schemas/Pet"}, "b": {"$ref": "#/properties/a/items/0"},
                "c": {"$ref": "#/%24defs/a~1b"}, "d": {"$ref": "#/properties/d"}, "e": {"$ref": "#/nowhere"},
                "f": {"$ref": "https://example.com/x"}, "g": {"$ref": "#/components"},
            },
            "$defs": {"a/b": {"items": [{"type": "null"}]}},
            "components": {"schemas": {"Pet": {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Pet"}}}}},
        });
        let converted = converted(&schema);
        assert_eq!(converted["properties"]["a"], json!({"$ref": "#/$defs/Pet"}));
        assert_eq!(converted["$defs"]["Pet"]["properties"]["next"], json!({"$ref": "#/$defs/Pet"}));
        assert_eq!(converted["$defs"]["a_1b"], json!({"prefixItems": [{"type": "null"}]}));
        assert_eq!(converted["$defs"]["d"], json!({"$ref": "#/$defs/d"}));
        assert_eq!((&converted["properties"]["e"], &converted["properties"]["f"]), (&json!({}), &json!({})));
    }

    #[test]
    fn keywords_that_the_metaschema_refuses_are_left_out_or_corrected() {
        let schema = json!({
            "properties": {
                "a": {"type": "any", "enum": [], "required": true},
                "b": {"type": ["string", "file"], "minLength": "1", "maxLength": -1, "pattern": "("},
                "c": {"type": "string", "enum": ["x", "x"], "required": false, "title": 1},
                "d": {"anyOf": [], "items": 3, "properties": [], "multipleOf": 0},
                "e": {"divisibleBy": 2, "x-order": 3, "default": null},
            },
            "required": ["c", "c", 1],
        });
        let expected = json!({
            "properties": {"a": {}, "b": {}, "c": {"type": "string", "enum": ["x"]}, "d": {},
                "e": {"multipleOf": 2, "x-order": 3, "default": null}},
            "required": ["c", "a"],
        });
        assert_eq!(converted(&schema), expected);
    }

    #[test]
    fn a_pattern_that_not_every_provider_reads_is_left_out_and_closes_nothing() {
        let schema = json!({
            "properties": {"a": {"type": "string", "pattern": "^(?!x)"}, "b": {"pattern": "^x"}},
            "patternProperties": {"^(?=x)": {}, "^y": {}}, "additionalProperties": false,
        });
        let expected = json!({
            "properties": {"a": {"type": "string"}, "b": {"pattern": "^x"}}, "patternProperties": {"^y": {}},
        });
        assert_eq!(converted(&schema), expected);
    }
}
