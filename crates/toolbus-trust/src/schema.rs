//! The texts of a JSON Schema: what models read of it, and what validates.

use std::fmt;

use serde_json::{Map, Value};

use crate::text::{self, Removed};

/// Longest prose of a schema, in bytes, as of a tool's description; the rest is cut.
const MAX_PROSE: usize = 8 * 1024;
/// Longest title, in bytes.
const MAX_TITLE: usize = 256;
/// Values deeper than this are not changed. The JSON parser has the same limit, and sources of schemas have lower ones.
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
        Value::Object(keywords) => clean_keywords(keywords, depth, removed),
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

fn clean_keywords(keywords: &mut Map<String, Value>, depth: usize, removed: &mut Removed) {
    if depth >= MAX_DEPTH {
        return;
    }
    for (keyword, value) in keywords {
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

/// Whether a value is a schema; in `dependencies`, it may be a list of names instead.
const fn is_schema(value: &Value) -> bool {
    matches!(value, Value::Object(_))
}

/// Kind of value of a keyword.
enum Keyword {
    /// Schemas by names that the author chose.
    Named,
    /// Values that arguments are compared with, or examples of such.
    Data,
    /// Value that a validator reads.
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

/// Whether this is a keyword of JSON Schema, which is no sign by itself.
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

/// The purpose of a text of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextRole {
    /// Read by people and models alone: it has been cleaned.
    Prose,
    /// The name of something.
    Name,
    /// A value, an example of one, or something for the validator.
    Value,
}

/// Path of a text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextPath<'a> {
    /// Path of the parent of the text.
    pub(crate) within: Option<&'a TextPath<'a>>,
    /// Name of the text in what encloses it.
    pub(crate) step: &'a str,
}

impl<'a> TextPath<'a> {
    pub(crate) const fn root(step: &'a str) -> Self {
        Self { within: None, step }
    }

    const fn of(&'a self, step: &'a str) -> Self {
        Self { within: Some(self), step }
    }
}

/// With dots in between: `parameters.properties.path.description`.
impl fmt::Display for TextPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(within) = self.within {
            write!(f, "{within}.")?;
        }
        f.write_str(self.step)
    }
}

/// Calls `visit` with every text of a schema.
pub(crate) fn each_text<'v>(
    schema: &'v Value,
    path: &TextPath<'_>,
    visit: &mut dyn FnMut(&TextPath<'_>, TextRole, &'v str),
) {
    visit_value(schema, path, 0, false, visit);
}

fn visit_value<'v>(
    value: &'v Value,
    path: &TextPath<'_>,
    depth: usize,
    is_data: bool,
    visit: &mut dyn FnMut(&TextPath<'_>, TextRole, &'v str),
) {
    if depth >= MAX_DEPTH {
        return;
    }
    match value {
        Value::String(text) => visit(path, if is_data { TextRole::Value } else { TextRole::Prose }, text),
        Value::Array(parts) => parts.iter().for_each(|part| visit_value(part, path, depth + 1, is_data, visit)),
        Value::Object(fields) if is_data => {
            for (name, value) in fields {
                let path = path.of(name);
                visit(&path, TextRole::Name, name);
                visit_value(value, &path, depth + 1, true, visit);
            }
        }
        Value::Object(keywords) => {
            for (keyword, value) in keywords {
                let path = path.of(keyword);
                match (Keyword::of(keyword), value) {
                    (Keyword::Technical, value) if is_technical(keyword, value) => {}
                    (Keyword::Data | Keyword::Technical, _) => visit_value(value, &path, depth + 1, true, visit),
                    (Keyword::Named, Value::Object(named)) => {
                        for (name, schema) in named {
                            let path = path.of(name);
                            visit(&path, TextRole::Name, name);
                            visit_value(schema, &path, depth + 2, !is_schema(schema), visit);
                        }
                    }
                    (Keyword::Named, _) => visit_value(value, &path, depth + 1, true, visit),
                    (Keyword::Other, _) => {
                        // Models read unknown keywords, too.
                        if !is_known(keyword) {
                            visit(&path, TextRole::Name, keyword);
                        }
                        visit_value(value, &path, depth + 1, false, visit);
                    }
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(schema: &Value) -> Vec<String> {
        let mut texts = Vec::new();
        each_text(schema, &TextPath::root("parameters"), &mut |path, role, text| {
            texts.push(format!("{path} {role:?} {text}"));
        });
        texts
    }

    #[test]
    fn prose_is_cleaned_at_every_depth_and_under_unknown_keywords() {
        let mut schema = json!({
            "title": "A\u{200b}",
            "properties": {"a": {"anyOf": [{"items": {"description": "B\u{202e}", "x-hint": "C\u{1b}"}}]}},
            "$defs": {"d": {"$comment": "D\u{feff}"}},
        });
        let removed = clean(&mut schema);
        assert_eq!(
            schema,
            json!({
                "title": "A",
                "properties": {"a": {"anyOf": [{"items": {"description": "B", "x-hint": "C"}}]}},
                "$defs": {"d": {"$comment": "D"}},
            })
        );
        assert_eq!(removed, Removed { control: 1, bidirectional: 1, invisible: 2, cut: 0, deliberate: 2 });
    }

    #[test]
    fn prose_in_a_list_is_cleaned_and_names_in_a_list_are_not() {
        let mut schema = json!({
            "x-notes": ["a\u{200b}", {"hint": "b\u{200b}"}],
            "dependencies": {"a": ["b\u{200b}"]},
            "properties": "c\u{200b}",
        });
        assert_eq!(clean(&mut schema).invisible, 2);
        assert_eq!(
            schema,
            json!({
                "x-notes": ["a", {"hint": "b"}],
                "dependencies": {"a": ["b\u{200b}"]},
                "properties": "c\u{200b}",
            })
        );
        let left: Vec<_> = texts(&schema).into_iter().filter(|text| text.contains('\u{200b}')).collect();
        assert!(left.len() == 2 && left.iter().all(|text| text.contains("Value")), "{left:?}");
    }

    #[test]
    fn keywords_that_validate_stay_unchanged() {
        let schema = json!({
            "type": "object",
            "required": ["a\u{200b}"],
            "properties": {
                "a\u{200b}": {"enum": [" x\u{200b}"], "default": "d\u{202e}", "examples": ["e\u{200b}"], "pattern": "^\u{200b}$"},
                "description": {"type": "string"},
                "title": {"const": " c\u{200b} "},
            },
            "patternProperties": {"^\u{200b}": {"$ref": "#/$defs/\u{200b}"}},
            "$defs": {"\u{200b}": {}},
        });
        let mut cleaned = schema.clone();
        assert!(clean(&mut cleaned).is_empty());
        assert_eq!(cleaned, schema);
    }

    #[test]
    fn a_property_called_description_is_no_description() {
        let mut schema =
            json!({"properties": {"description": {"description": "Text\u{200b}"}, "title": {"title": "T\u{200b}"}}});
        clean(&mut schema);
        assert_eq!(schema, json!({"properties": {"description": {"description": "Text"}, "title": {"title": "T"}}}));
    }

    #[test]
    fn long_prose_is_cut_and_a_long_title_sooner() {
        let mut schema = json!({"title": "t".repeat(300), "description": "d".repeat(9000)});
        assert_eq!(clean(&mut schema).cut, 300 - 256 + 9000 - 8192);
    }

    #[test]
    fn prose_that_only_loses_outer_space_is_unchanged() {
        let mut schema = json!({"description": " a \n"});
        assert!(clean(&mut schema).is_empty());
        assert_eq!(schema, json!({"description": "a"}));
    }

    #[test]
    fn every_text_is_visited_with_its_path() {
        let schema = json!({
            "type": "object",
            "properties": {"a": {"title": "T", "enum": ["x", {"k": "v"}], "default": "d"}},
            "x-note": "N",
        });
        insta::assert_debug_snapshot!(texts(&schema), @r#"
    [
        "parameters.properties.a Name a",
        "parameters.properties.a.default Value d",
        "parameters.properties.a.enum Value x",
        "parameters.properties.a.enum.k Name k",
        "parameters.properties.a.enum.k Value v",
        "parameters.properties.a.title Prose T",
        "parameters.x-note Name x-note",
        "parameters.x-note Prose N",
    ]
    "#);
    }

    #[test]
    fn a_schema_of_any_depth_is_gone_through_as_far_as_any_that_parses() {
        let mut schema = json!({"description": "deep\u{200b}"});
        for _ in 0..300 {
            schema = json!({"not": [schema]});
        }
        assert!(clean(&mut schema).is_empty(), "deeper levels are left to others");
        assert!(texts(&schema).len() < 200);
    }
}
