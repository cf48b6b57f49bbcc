//! Drafts of JSON Schema: which keywords each has, and where the schemas that a reference names are.

use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// Keywords that hold one schema.
pub(super) const ONE: [&str; 12] = [
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
    "contentSchema",
    "not",
    "if",
    "then",
    "else",
];
/// Keywords that hold a list of schemas; `items` did once.
pub(super) const SEVERAL: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];
/// Keywords that hold schemas by name.
pub(super) const BY_NAME: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

/// A draft, the oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Draft {
    Four,
    Six,
    Seven,
    September2019,
    December2020,
}

impl Draft {
    /// The draft that a document declares; without `$schema`, the default of MCP.
    pub(super) fn of(document: &Value) -> Self {
        let uri = document.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let named = |names: &[&str]| names.iter().any(|name| uri.contains(name));
        match () {
            () if named(&["draft-03", "draft-04"]) => Self::Four,
            () if named(&["draft-06"]) => Self::Six,
            () if named(&["draft-07"]) => Self::Seven,
            () if named(&["2019-09"]) => Self::September2019,
            () => Self::December2020,
        }
    }

    /// Whether what stands beside a `$ref` means nothing.
    pub(super) fn ignores_siblings(self) -> bool {
        self <= Self::Seven
    }

    /// Whether a keyword means something. Those of older drafts do in every draft: authors name a draft and write
    /// another, and none of these has another meaning.
    pub(super) fn knows(self, keyword: &str) -> bool {
        let since = match keyword {
            "const" | "contains" | "propertyNames" => Self::Six,
            "if" | "then" | "else" | "contentEncoding" | "contentMediaType" => Self::Seven,
            "minContains"
            | "maxContains"
            | "dependentRequired"
            | "dependentSchemas"
            | "unevaluatedItems"
            | "unevaluatedProperties"
            | "contentSchema" => Self::September2019,
            "prefixItems" => Self::December2020,
            _ => Self::Four,
        };
        self >= since
    }
}

/// The names that schemas of a document have, and what they are names of.
#[derive(Default)]
pub(super) struct Anchors<'a>(HashMap<&'a str, &'a Value>);

impl<'a> Anchors<'a> {
    pub(super) fn of(document: &'a Value) -> Self {
        let mut anchors = Self::default();
        anchors.note(document);
        anchors
    }

    fn note(&mut self, part: &'a Value) {
        match part {
            Value::Array(elements) => elements.iter().for_each(|element| self.note(element)),
            Value::Object(fields) => {
                for keyword in ["$anchor", "$dynamicAnchor"] {
                    let name = fields.get(keyword).and_then(Value::as_str);
                    name.into_iter().for_each(|name| self.add(name, part));
                }
                // The anchors of the drafts up to 7.
                for keyword in ["$id", "id"] {
                    let name = fields.get(keyword).and_then(Value::as_str).and_then(|id| id.strip_prefix('#'));
                    name.into_iter().for_each(|name| self.add(name, part));
                }
                fields.values().for_each(|value| self.note(value));
            }
            _ => {}
        }
    }

    fn add(&mut self, name: &'a str, part: &'a Value) {
        if !name.is_empty() {
            self.0.entry(name).or_insert(part);
        }
    }

    /// The schema that a reference within `document` names.
    pub(super) fn resolve(&self, document: &'a Value, reference: &str) -> Option<&'a Value> {
        let fragment = reference.strip_prefix('#')?;
        let found = match fragment.is_empty() || fragment.starts_with('/') {
            true => document.pointer(&percent_decode_str(fragment).decode_utf8().ok()?),
            false => self.0.get(fragment).copied(),
        };
        found.filter(|schema| schema.is_object() || schema.is_boolean())
    }
}
