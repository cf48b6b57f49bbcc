//! Which arguments the schema of a tool declares, and which a tool may take for them.

use std::collections::HashSet;

use serde_json::Value;

/// Keywords whose schemas describe the same object as the schema that they stand in.
const LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const ONES: [&str; 3] = ["if", "then", "else"];
/// Most schemas that are looked at: one may refer to others many times.
const MAX_SCHEMAS: usize = 1000;

/// The arguments that a schema names in `properties`: its own, those of what it combines, and those of what it refers to
/// within itself.
#[must_use]
pub fn declared(schema: &Value) -> HashSet<&str> {
    let mut names = HashSet::new();
    let (mut next, mut referred) = (vec![schema], HashSet::new());
    for _ in 0..MAX_SCHEMAS {
        let Some(part) = next.pop() else { break };
        let Value::Object(members) = part else { continue };
        let each = |keyword: &str| members.get(keyword).and_then(Value::as_object);
        names.extend(each("properties").into_iter().flat_map(|properties| properties.keys().map(String::as_str)));
        next.extend(each("dependentSchemas").into_iter().flat_map(|schemas| schemas.values()));
        next.extend(LISTS.iter().filter_map(|keyword| members.get(*keyword)?.as_array()).flatten());
        next.extend(ONES.iter().filter_map(|keyword| members.get(*keyword)));
        let pointer = members.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix('#'));
        if let Some(pointer) = pointer
            && referred.insert(pointer)
        {
            next.extend(schema.pointer(pointer));
        }
    }
    names
}

/// Whether a tool that declares `name` may read `written` as it, although it is another: some do not look at case, and
/// some find lists and objects in names, as `owner[]`, `[owner]` and `owner.x`.
pub(crate) fn may_read_as(written: &str, name: &str) -> bool {
    let bare = written.trim_start_matches([' ', '[']);
    let (start, rest) = (bare.get(..name.len()), bare.get(name.len()..).unwrap_or_default());
    let ends = rest.is_empty() || rest.starts_with(['[', ']', '.', ' ']);
    written != name && ends && start.is_some_and(|start| start.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_declared_wherever_a_schema_speaks_of_the_whole_object() {
        let named = |name: &str| json!({"properties": {name: {"properties": {"within": {}}}}});
        let schema = json!({
            "$ref": "#/$defs/a",
            "$defs": {"a": named("a"), "loop": {"$ref": "#/$defs/loop", "allOf": [named("b")]}, "unused": named("x")},
            "allOf": [named("c"), {"anyOf": [named("d"), true]}, {"$ref": "#/$defs/loop"}, {"$ref": "https://example.com"}],
            "if": named("e"), "then": named("f"), "else": named("g"),
            "dependentSchemas": {"a": named("h")},
            "not": named("x"),
        });
        let mut names: Vec<_> = declared(&schema).into_iter().collect();
        names.sort_unstable();
        assert_eq!(names, ["a", "b", "c", "d", "e", "f", "g", "h"]);
        assert!(declared(&json!({"type": "object"})).is_empty());
        assert!(declared(&json!(true)).is_empty());
    }

    #[test]
    fn a_schema_that_combines_without_end_is_left() {
        let double = |n: usize| json!({"allOf": [{"$ref": format!("#/$defs/{n}")}, {"allOf": [{}, {}]}]});
        let defs: serde_json::Map<_, _> = (0..5_000).map(|n| (n.to_string(), double(n + 1))).collect();
        assert!(declared(&json!({"$defs": defs, "$ref": "#/$defs/0"})).is_empty());
    }
}
