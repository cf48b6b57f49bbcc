//! The texts of a JSON Schema: what models read of it, and what validates.

use std::fmt;

use serde_json::{Map, Value};

use crate::text::{self, Removed};

/// Longest prose of a schema, in bytes, as of a tool's description; what is beyond is cut.
const MAX_PROSE: usize = 8 * 1024;
/// Longest title, in bytes.
const MAX_TITLE: usize = 256;
/// Values deeper than this are left alone. What parses has no more, and whoever offers a schema bounds it far lower.
const MAX_DEPTH: usize = 128;

/// Cleans everything in a schema that only people and models read: titles, descriptions, comments and other strings that
/// no validator looks at, at every depth. Names, values and patterns stay as they are, because arguments are compared
/// with them.
pub fn clean(schema: &mut Value) -> Removed {
    let mut removed = Removed::default();
    clean_schema(schema, MAX_PROSE, 0, &mut removed);
    removed
}

fn clean_schema(value: &mut Value, limit: usize, depth: usize, removed: &mut Removed) {
    match value {
        Value::Object(members) => clean_members(members, depth, removed),
        Value::Array(parts) if depth < MAX_DEPTH => {
            parts.iter_mut().for_each(|part| clean_schema(part, limit, depth + 1, removed));
        }
        Value::String(prose) => {
            let cleaned = text::clean(prose, limit);
            if *cleaned.text != **prose {
                removed.add(&cleaned.removed);
                *prose = cleaned.text.into_owned();
            }
        }
        _ => {}
    }
}

fn clean_members(members: &mut Map<String, Value>, depth: usize, removed: &mut Removed) {
    if depth >= MAX_DEPTH {
        return;
    }
    for (keyword, value) in members {
        let limit = if keyword == "title" { MAX_TITLE } else { MAX_PROSE };
        match (Keyword::of(keyword), value) {
            (Keyword::Other, value) => clean_schema(value, limit, depth + 1, removed),
            (Keyword::Named, Value::Object(named)) => {
                let schemas = named.values_mut().filter(|schema| is_schema(schema));
                schemas.for_each(|schema| clean_schema(schema, MAX_PROSE, depth + 2, removed));
            }
            (Keyword::Named | Keyword::Data | Keyword::Technical, _) => {}
        }
    }
}

/// Whether what has a name is a schema: names in the place of one are what properties depend on.
const fn is_schema(value: &Value) -> bool {
    matches!(value, Value::Object(_))
}

/// What the value of a keyword is.
enum Keyword {
    /// Schemas by names that the author chose.
    Named,
    /// Values that arguments are compared with, or examples of such.
    Data,
    /// What a validator reads.
    Technical,
    /// A schema, several, or prose.
    Other,
}

impl Keyword {
    fn of(keyword: &str) -> Self {
        match keyword {
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" | "dependencies" => {
                Self::Named
            }
            "enum" | "const" | "default" | "examples" | "example" | "required" | "dependentRequired" => Self::Data,
            "$ref" | "$id" | "$schema" | "$anchor" | "$dynamicRef" | "$dynamicAnchor" | "$recursiveRef"
            | "$vocabulary" | "id" | "type" | "pattern" | "format" | "contentEncoding" | "contentMediaType" => {
                Self::Technical
            }
            _ => Self::Other,
        }
    }
}

/// Whether this is a keyword of JSON Schema, which says nothing by itself.
fn is_known(keyword: &str) -> bool {
    matches!(
        keyword,
        "title"
            | "description"
            | "$comment"
            | "items"
            | "prefixItems"
            | "additionalItems"
            | "additionalProperties"
            | "unevaluatedProperties"
            | "unevaluatedItems"
            | "propertyNames"
            | "contains"
            | "anyOf"
            | "allOf"
            | "oneOf"
            | "not"
            | "if"
            | "then"
            | "else"
            | "minimum"
            | "maximum"
            | "exclusiveMinimum"
            | "exclusiveMaximum"
            | "multipleOf"
            | "minLength"
            | "maxLength"
            | "minItems"
            | "maxItems"
            | "uniqueItems"
            | "minProperties"
            | "maxProperties"
            | "minContains"
            | "maxContains"
            | "nullable"
            | "readOnly"
            | "writeOnly"
            | "deprecated"
    )
}

/// Whether a string only names a type, or the language that a schema is written in.
fn is_technical(keyword: &str, value: &Value) -> bool {
    let Value::String(text) = value else { return false };
    match keyword {
        "type" => matches!(&**text, "string" | "number" | "integer" | "boolean" | "object" | "array" | "null"),
        "$schema" => text.len() <= 64 && text.starts_with("http") && text.bytes().all(|byte| byte.is_ascii_graphic()),
        _ => false,
    }
}

/// What a text of a schema is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Read by people and models alone: it has been cleaned.
    Prose,
    /// The name of something.
    Name,
    /// A value, an example of one, or something for the validator.
    Value,
}

/// Where a text is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// What it is in.
    pub(crate) within: Option<&'a Place<'a>>,
    /// Its name there.
    pub(crate) step: &'a str,
}

impl<'a> Place<'a> {
    pub(crate) const fn root(step: &'a str) -> Self {
        Self { within: None, step }
    }

    const fn of(&'a self, step: &'a str) -> Self {
        Self { within: Some(self), step }
    }
}

/// With dots in between: `parameters.properties.path.description`.
impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(within) = self.within {
            write!(f, "{within}.")?;
        }
        f.write_str(self.step)
    }
}

/// Calls `visit` with every text of a schema.
pub(crate) fn each_text<'v>(schema: &'v Value, place: &Place<'_>, visit: &mut dyn FnMut(&Place<'_>, Role, &'v str)) {
    visit_value(schema, place, 0, false, visit);
}

fn visit_value<'v>(
    value: &'v Value,
    place: &Place<'_>,
    depth: usize,
    is_data: bool,
    visit: &mut dyn FnMut(&Place<'_>, Role, &'v str),
) {
    if depth >= MAX_DEPTH {
        return;
    }
    match value {
        Value::String(text) => visit(place, if is_data { Role::Value } else { Role::Prose }, text),
        Value::Array(parts) => parts.iter().for_each(|part| visit_value(part, place, depth + 1, is_data, visit)),
        Value::Object(members) if is_data => {
            for (name, value) in members {
                let place = place.of(name);
                visit(&place, Role::Name, name);
                visit_value(value, &place, depth + 1, true, visit);
            }
        }
        Value::Object(members) => {
            for (keyword, value) in members {
                let place = place.of(keyword);
                match (Keyword::of(keyword), value) {
                    (Keyword::Technical, value) if is_technical(keyword, value) => {}
                    (Keyword::Data | Keyword::Technical, _) => visit_value(value, &place, depth + 1, true, visit),
                    (Keyword::Named, Value::Object(named)) => {
                        for (name, schema) in named {
                            let place = place.of(name);
                            visit(&place, Role::Name, name);
                            visit_value(schema, &place, depth + 2, !is_schema(schema), visit);
                        }
                    }
                    (Keyword::Named, _) => visit_value(value, &place, depth + 1, true, visit),
                    (Keyword::Other, _) => {
                        // Keywords that nobody knows are read by models all the same.
                        if !is_known(keyword) {
                            visit(&place, Role::Name, keyword);
                        }
                        visit_value(value, &place, depth + 1, false, visit);
                    }
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
