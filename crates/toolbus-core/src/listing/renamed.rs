use serde_json::{Map, Value};

use super::without::BRANCHES;
use crate::argument_names::{is_accepted, shown_name};

/// Keywords whose schemas describe the same object as the schema that they stand in, beside [`BRANCHES`].
const CONDITIONS: [&str; 4] = ["not", "if", "then", "else"];

/// The schema with the properties at its root under names that every provider accepts.
///
/// Properties of properties keep their names, as do those behind a `$ref`: providers look at the root alone.
pub(super) fn renamed(mut schema: Value) -> Value {
    rename(&mut schema);
    schema
}

fn rename(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    for keyword in ["properties", "dependentRequired", "dependentSchemas"] {
        if let Some(Value::Object(by_name)) = fields.get_mut(keyword) {
            rename_keys(by_name);
        }
    }
    fields.get_mut("required").into_iter().for_each(rename_list);
    if let Some(Value::Object(by_name)) = fields.get_mut("dependentRequired") {
        by_name.values_mut().for_each(rename_list);
    }
    if let Some(Value::Object(by_name)) = fields.get_mut("dependentSchemas") {
        by_name.values_mut().for_each(rename);
    }
    for keyword in BRANCHES {
        if let Some(Value::Array(schemas)) = fields.get_mut(keyword) {
            schemas.iter_mut().for_each(rename);
        }
    }
    CONDITIONS.iter().for_each(|keyword| fields.get_mut(*keyword).into_iter().for_each(rename));
}

fn rename_keys(by_name: &mut Map<String, Value>) {
    let refused: Vec<String> = by_name.keys().filter(|name| !is_accepted(name)).cloned().collect();
    for name in refused {
        if let Some(value) = by_name.remove(&name) {
            // A tool that declares the other name, too, means that one by it.
            by_name.entry(shown_name(&name)).or_insert(value);
        }
    }
}

fn rename_list(names: &mut Value) {
    for name in names.as_array_mut().into_iter().flatten() {
        if let Value::String(text) = name {
            *text = shown_name(text).into_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_changed_in_every_schema_of_the_root_and_nowhere_else() {
        let inner = json!({"type": "object", "properties": {"ids[]": {}}, "required": ["ids[]"]});
        let schema = json!({
            "properties": {"ids[]": inner, "a.b": {}}, "required": ["a.b", "ids[]"],
            "dependentRequired": {"ids[]": ["a.b"], "a.b": ["ids[]"]},
            "dependentSchemas": {"ids[]": {"required": ["ids[]"]}},
            "if": {"properties": {"ids[]": {}}}, "not": {"anyOf": [{"required": ["ids[]"]}]},
        });
        let name = shown_name("ids[]").into_owned();
        let expected = json!({
            "properties": {&*name: inner, "a.b": {}}, "required": ["a.b", name],
            "dependentRequired": {&*name: ["a.b"], "a.b": [name]},
            "dependentSchemas": {&*name: {"required": [name]}},
            "if": {"properties": {&*name: {}}}, "not": {"anyOf": [{"required": [name]}]},
        });
        assert_eq!(renamed(schema), expected);
    }
}
