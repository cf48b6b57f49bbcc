//! Where schemas stand within a schema, and what part of a value they apply to.
//!
//! Keywords of all drafts at once: a keyword that a draft does not know makes the check stricter, and nothing less safe.

use serde_json::{Map, Value};

/// The part of a value that a schema applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step<'a> {
    /// The value itself.
    Same,
    /// The member of this name.
    Member(&'a str),
    /// Any member.
    AnyMember,
    /// Any member that the same schema does not name.
    OtherMember,
    /// The item at this position.
    Item(usize),
    /// Any item.
    AnyItem,
    /// Any item that the same schema does not give by position.
    OtherItem,
    /// Nothing: the schema is only there to be referred to.
    Nothing,
}

/// Every schema directly within `schema`, and what it applies to.
pub(super) fn subschemas(schema: &Map<String, Value>) -> Vec<(Step<'_>, &Value)> {
    let mut found = Vec::new();
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("not" | "if" | "then" | "else", value) => found.push((Step::Same, value)),
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                found.extend(schemas.iter().map(|schema| (Step::Same, schema)));
            }
            ("dependentSchemas" | "dependencies", Value::Object(schemas)) => {
                found.extend(schemas.values().map(|schema| (Step::Same, schema)));
            }
            ("properties", Value::Object(schemas)) => {
                found.extend(schemas.iter().map(|(name, schema)| (Step::Member(name), schema)));
            }
            ("patternProperties", Value::Object(schemas)) => {
                found.extend(schemas.values().map(|schema| (Step::AnyMember, schema)));
            }
            ("additionalProperties" | "unevaluatedProperties", value) => found.push((Step::OtherMember, value)),
            ("prefixItems" | "items", Value::Array(schemas)) => {
                found.extend(schemas.iter().enumerate().map(|(index, schema)| (Step::Item(index), schema)));
            }
            ("items" | "additionalItems" | "unevaluatedItems", value) => found.push((Step::OtherItem, value)),
            ("contains", value) => found.push((Step::AnyItem, value)),
            ("propertyNames" | "contentSchema", value) => found.push((Step::Nothing, value)),
            ("$defs" | "definitions", Value::Object(schemas)) => {
                found.extend(schemas.values().map(|schema| (Step::Nothing, schema)));
            }
            _ => {}
        }
    }
    // Names of members in `dependencies`, and whatever else is no schema, cost nothing.
    found.retain(|(_, value)| value.is_object() || value.is_boolean());
    found
}

/// How many patterns stand directly within `schema`.
pub(super) fn patterns(schema: &Map<String, Value>) -> usize {
    let named = schema.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
    named + usize::from(schema.contains_key("pattern"))
}

/// Whether `schema` asks what the schemas that it applies to the same value have looked at.
pub(super) fn looks_back(schema: &Map<String, Value>) -> bool {
    ["unevaluatedProperties", "unevaluatedItems"].iter().any(|keyword| schema.contains_key(*keyword))
}
