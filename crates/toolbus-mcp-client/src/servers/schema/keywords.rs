//! Where schemas stand within a schema, and what part of a value they apply to.
//!
//! Keywords of all drafts at once: a keyword that a draft does not know makes the check stricter, and nothing less
//! safe.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use toolbus_core::text::shown;

use super::SchemaProblem;

/// The part of a value that a schema applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum SchemaStep<'a> {
    /// The value itself.
    Same,
    /// The property of this name.
    Property(&'a str),
    /// Any property.
    AnyProperty,
    /// Any property that the same schema does not name.
    OtherProperty,
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
pub(super) fn subschemas(schema: &Map<String, Value>) -> Vec<(SchemaStep<'_>, &Value)> {
    let mut found = Vec::new();
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("not" | "if" | "then" | "else", value) => found.push((SchemaStep::Same, value)),
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                found.extend(schemas.iter().map(|schema| (SchemaStep::Same, schema)));
            }
            ("dependentSchemas" | "dependencies", Value::Object(schemas)) => {
                found.extend(schemas.values().map(|schema| (SchemaStep::Same, schema)));
            }
            ("properties", Value::Object(schemas)) => {
                found.extend(schemas.iter().map(|(name, schema)| (SchemaStep::Property(name), schema)));
            }
            ("patternProperties", Value::Object(schemas)) => {
                found.extend(schemas.values().map(|schema| (SchemaStep::AnyProperty, schema)));
            }
            ("additionalProperties" | "unevaluatedProperties", value) => found.push((SchemaStep::OtherProperty, value)),
            ("prefixItems" | "items", Value::Array(schemas)) => {
                found.extend(schemas.iter().enumerate().map(|(index, schema)| (SchemaStep::Item(index), schema)));
            }
            ("items" | "additionalItems" | "unevaluatedItems", value) => found.push((SchemaStep::OtherItem, value)),
            ("contains", value) => found.push((SchemaStep::AnyItem, value)),
            ("propertyNames" | "contentSchema", value) => found.push((SchemaStep::Nothing, value)),
            ("$defs" | "definitions", Value::Object(schemas)) => {
                found.extend(schemas.values().map(|schema| (SchemaStep::Nothing, schema)));
            }
            _ => {}
        }
    }
    // Names of properties in `dependencies`, and other values that are no schemas, cost nothing.
    found.retain(|(_, value)| value.is_object() || value.is_boolean());
    found
}

/// Counts the patterns directly within `schema`.
pub(super) fn patterns(schema: &Map<String, Value>) -> usize {
    let named = schema.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
    named + usize::from(schema.contains_key("pattern"))
}

/// Whether `schema` depends on what the schemas that it applies to the same value have evaluated.
pub(super) fn looks_back(schema: &Map<String, Value>) -> bool {
    ["unevaluatedProperties", "unevaluatedItems"].iter().any(|keyword| schema.contains_key(*keyword))
}

/// Keywords that refer to another schema. In a document without parts of their own identity, the dynamic ones mean what
/// `$ref` means.
const KEYWORDS: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords by which a schema gets a name.
const ANCHORS: [&str; 2] = ["$anchor", "$dynamicAnchor"];
/// Keywords that give a part of a document an identity of its own; `id` did in draft 4.
const IDENTITY: [&str; 3] = ["$id", "id", "$schema"];

/// A reference within the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reference<'a> {
    /// To the schema that stands there.
    Schema(&'a Value),
    /// To the schema of this name.
    Named(&'a str),
}

/// Every reference that stands directly within `schema`.
pub(super) fn references<'a>(
    document: &'a Value,
    schema: &'a Map<String, Value>,
) -> Result<Vec<Reference<'a>>, SchemaProblem> {
    let texts = KEYWORDS.iter().filter_map(|keyword| schema.get(*keyword)?.as_str());
    texts.map(|text| resolve(document, text)).collect()
}

fn resolve<'a>(document: &'a Value, text: &'a str) -> Result<Reference<'a>, SchemaProblem> {
    let fragment = text.strip_prefix('#').ok_or_else(|| SchemaProblem::Elsewhere(shown(text)))?;
    if !fragment.is_empty() && !fragment.starts_with('/') {
        return Ok(Reference::Named(fragment));
    }
    let nowhere = || SchemaProblem::Nowhere(shown(text));
    let pointer = percent_decode_str(fragment).decode_utf8().map_err(|_| nowhere())?;
    let mut target = document;
    for segment in pointer.split('/').skip(1) {
        target = target.pointer(&format!("/{segment}")).ok_or_else(nowhere)?;
        // On the way there may be parts that are no schemas, and that nothing else looks at.
        target.as_object().map_or(Ok(()), |part| check_identity(document, part))?;
    }
    if target.is_object() || target.is_boolean() { Ok(Reference::Schema(target)) } else { Err(nowhere()) }
}

/// Refuses a part of a document that has an identity of its own: references in it would mean something else than they
/// intend. The document as a whole may have one, unless it is that of JSON Schema itself.
pub(super) fn check_identity(document: &Value, part: &Map<String, Value>) -> Result<(), SchemaProblem> {
    let is_whole = document.as_object().is_some_and(|document| std::ptr::eq(document, part));
    for keyword in IDENTITY {
        let Some(identity) = part.get(keyword).and_then(Value::as_str) else { continue };
        let is_harmless = match keyword {
            "$schema" => is_whole || document.get(keyword).is_some_and(|whole| whole == identity),
            _ => is_whole && !identity.contains("json-schema.org"),
        };
        if !is_harmless {
            return Err(SchemaProblem::Identity(keyword));
        }
    }
    Ok(())
}

/// Notes the names of a schema.
pub(super) fn note_anchors<'a>(
    schema: &'a Map<String, Value>,
    index: usize,
    anchors: &mut HashMap<&'a str, usize>,
) -> Result<(), SchemaProblem> {
    for name in ANCHORS.iter().filter_map(|keyword| schema.get(*keyword)?.as_str()) {
        if anchors.insert(name, index).is_some_and(|other| other != index) {
            return Err(SchemaProblem::Anchor(shown(name)));
        }
    }
    Ok(())
}
