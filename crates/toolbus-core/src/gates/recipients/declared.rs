//! Which arguments the schema of a tool declares, and which a tool may take for them.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Keywords whose schemas describe the same object as the schema that they stand in.
const LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const ONES: [&str; 3] = ["if", "then", "else"];
/// Keywords whose schemas describe elements of a list.
const ELEMENTS: [&str; 3] = ["items", "prefixItems", "additionalItems"];
/// Most schemas that are looked at: one may refer to others many times.
const MAX_SCHEMAS: usize = 1000;

/// The arguments that a schema names in `properties`: its own, those of what it combines, and those of what it refers
/// to within itself.
#[must_use]
pub fn declared(schema: &Value) -> HashSet<&str> {
    Declaration::of(schema).names()
}

/// Schemas that describe one value: one of a tool's parameters, with what it combines and refers to.
pub(super) struct Declaration<'a> {
    root: &'a Value,
    parts: Vec<&'a Map<String, Value>>,
}

impl<'a> Declaration<'a> {
    /// Returns the declaration of all arguments of a tool.
    pub(super) fn of(root: &'a Value) -> Self {
        Self::expanded(root, vec![root])
    }

    fn expanded(root: &'a Value, mut next: Vec<&'a Value>) -> Self {
        let (mut parts, mut referred) = (Vec::new(), HashSet::new());
        for _ in 0..MAX_SCHEMAS {
            let Some(part) = next.pop() else { break };
            let Value::Object(keywords) = part else { continue };
            parts.push(keywords);
            let dependent = keywords.get("dependentSchemas").and_then(Value::as_object);
            next.extend(dependent.into_iter().flat_map(|schemas| schemas.values()));
            next.extend(LISTS.iter().filter_map(|keyword| keywords.get(*keyword)?.as_array()).flatten());
            next.extend(ONES.iter().filter_map(|keyword| keywords.get(*keyword)));
            let reference = keywords.get("$ref").and_then(Value::as_str);
            let pointer = reference.and_then(|reference| reference.strip_prefix('#'));
            if let Some(pointer) = pointer
                && referred.insert(pointer)
            {
                next.extend(root.pointer(pointer));
            }
        }
        Self { root, parts }
    }

    fn properties(&self) -> impl Iterator<Item = &'a Map<String, Value>> {
        self.parts.iter().filter_map(|part| part.get("properties")?.as_object())
    }

    /// Returns the names of the declared fields.
    pub(super) fn names(&self) -> HashSet<&'a str> {
        self.properties().flat_map(|properties| properties.keys().map(String::as_str)).collect()
    }

    /// Returns the declaration of a field's value.
    pub(super) fn field(&self, name: &str) -> Self {
        Self::expanded(self.root, self.properties().filter_map(|properties| properties.get(name)).collect())
    }

    /// Returns the declaration of every element of a list.
    pub(super) fn elements(&self) -> Self {
        let schemas = |keyword: &str, part: &'a Map<String, Value>| match part.get(keyword) {
            Some(Value::Array(positions)) => positions.iter().collect(),
            Some(schema) => vec![schema],
            None => Vec::new(),
        };
        let of = |part: &&'a Map<String, Value>| ELEMENTS.map(|keyword| schemas(keyword, part)).into_iter().flatten();
        Self::expanded(self.root, self.parts.iter().flat_map(of).collect())
    }
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
    fn fields_within_an_argument_are_declared_in_its_own_schema() {
        let person = json!({"properties": {"number": {}, "name": {}}});
        let list = |keyword: &str, of: Value| json!({"properties": {"to": {keyword: of}}});
        let schemas = [
            list("items", json!({"$ref": "#/$defs/person"})),
            list("items", json!([{"properties": {"number": {}}}, {"properties": {"name": {}}}])),
            list("prefixItems", json!([person])),
            json!({"properties": {"to": {"items": {"properties": {"number": {}}}}},
                "allOf": [{"properties": {"to": {"items": {"properties": {"name": {}}}}}}]}),
        ];
        for mut schema in schemas {
            schema["$defs"] = json!({"person": person});
            let to = Declaration::of(&schema).field("to");
            assert_eq!(to.elements().names(), HashSet::from(["number", "name"]), "{schema}");
            assert!(to.names().is_empty() && to.field("number").names().is_empty());
        }
    }

    #[test]
    fn a_schema_that_combines_without_end_is_left() {
        let double = |n: usize| json!({"allOf": [{"$ref": format!("#/$defs/{n}")}, {"allOf": [{}, {}]}]});
        let defs: serde_json::Map<_, _> = (0..5_000).map(|n| (n.to_string(), double(n + 1))).collect();
        assert!(declared(&json!({"$defs": defs, "$ref": "#/$defs/0"})).is_empty());
    }
}
