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

/// Whether a tool that declares `name` may read `written` as it, although it is another: some do not look at case, some
/// find lists and objects in names, as `owner[]`, `[owner]` and `owner.x`, and some take `.` and ` ` for `_`.
#[must_use]
pub fn may_read_as(written: &str, name: &str) -> bool {
    let begins = |separators: &[char], [written, name]: [String; 2]| {
        let [written, name] = [&written, &name].map(|text| steps(text, separators));
        !name.is_empty() && written.starts_with(&name)
    };
    let folded = [written, name].map(folded);
    let underscored = folded.each_ref().map(|text| text.trim_matches([' ', '[']).replace(['.', ' '], "_"));
    written != name && (begins(&['[', ']', '.'], folded) || begins(&['[', ']'], underscored))
}

/// The names of objects and lists that a name leads through.
fn steps<'a>(name: &'a str, separators: &[char]) -> Vec<&'a str> {
    name.split(separators).map(str::trim).filter(|step| !step.is_empty()).collect()
}

/// A name without regard to case, as readers have it that also take the long s and the sign for kelvin for letters.
fn folded(name: &str) -> String {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    name.chars().map(fold).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_may_be_read_as_another_that_it_spells_in_another_way() {
        let table = [
            (
                "owner",
                ["Owner", "owner[]", "[owner]", " owner", "owner ", "owner.x", "owner[x].y", "OWNER[0]"].as_slice(),
            ),
            ("user_id", &["user.id", "user id", "User_ID", "user.id[]"]),
            ("ids[]", &["ids", "IDS", "ids[0]"]),
            ("token", &["to\u{212a}en"]),
            ("users", &["u\u{17f}ers"]),
            ("page[size]", &["page[size]", "Page[Size]", "page.size"]),
        ];
        for (name, spellings) in table {
            assert!(spellings.iter().all(|written| *written == name || may_read_as(written, name)), "{name}");
        }
        let others = [
            ("owner", "owners"),
            ("owner", "own"),
            ("owner", "owner_id"),
            ("page[size]", "page[number]"),
            ("page[size]", "page"),
            ("", "a"),
            ("owner", "owner"),
            ("user_id", "userid"),
        ];
        for (name, written) in others {
            assert!(!may_read_as(written, name), "{written} for {name}");
        }
    }

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
