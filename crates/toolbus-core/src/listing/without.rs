use serde_json::{Map, Value};

/// Keywords whose schemas describe the same object as the schema that they stand in.
pub(super) const BRANCHES: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords that map names of properties to something.
const BY_NAME: [&str; 4] = ["properties", "dependentRequired", "dependentSchemas", "dependencies"];

/// The schema without the properties named in `hidden`, for arguments that the caller shall not give.
///
/// They are also no longer required, in the schema and in its `allOf`, `anyOf` and `oneOf`. Properties of properties
/// stay, as does what stands behind a `$ref`.
#[must_use]
pub fn without(schema: &Value, hidden: &[&str]) -> Value {
    let mut schema = schema.clone();
    if !hidden.is_empty() {
        remove(&mut schema, hidden);
    }
    schema
}

fn remove(schema: &mut Value, hidden: &[&str]) {
    let Value::Object(fields) = schema else { return };
    for keyword in BY_NAME {
        if let Some(Value::Object(by_name)) = fields.get_mut(keyword) {
            by_name.retain(|name, _| !hidden.contains(&name.as_str()));
        }
    }
    remove_names(fields, "required", hidden);
    for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
        let Some(Value::Object(by_name)) = fields.get_mut(keyword) else { continue };
        let others: Vec<String> = by_name.keys().cloned().collect();
        for name in others {
            remove_names(by_name, &name, hidden);
            if let Some(schema) = by_name.get_mut(&name) {
                remove(schema, hidden);
            }
        }
        if by_name.is_empty() {
            fields.remove(keyword);
        }
    }
    for keyword in BRANCHES {
        if let Some(Value::Array(branches)) = fields.get_mut(keyword) {
            branches.iter_mut().for_each(|branch| remove(branch, hidden));
        }
    }
}

/// Removes names from the list in a field, and the field if the list is empty then.
fn remove_names(fields: &mut Map<String, Value>, field: &str, hidden: &[&str]) {
    if let Some(Value::Array(names)) = fields.get_mut(field) {
        names.retain(|name| name.as_str().is_none_or(|name| !hidden.contains(&name)));
        if names.is_empty() {
            fields.remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_hidden_property_is_neither_described_nor_required() {
        let schema = json!({
            "type": "object",
            "properties": {"city": {"type": "string"}, "token": {"type": "string"}},
            "required": ["token", "city"],
            "additionalProperties": false,
        });
        let expected = json!({
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": false,
        });
        assert_eq!(without(&schema, &["token", "unknown"]), expected);
        assert_eq!(without(&schema, &[]), schema);
        assert_eq!(without(&schema, &["token", "city"])["required"], Value::Null);
    }

    #[test]
    fn dependencies_on_a_hidden_property_go_too() {
        let schema = json!({
            "properties": {"a": {}, "b": {}, "h": {}},
            "dependentRequired": {"h": ["a"], "a": ["b", "h"], "b": ["h"]},
            "dependentSchemas": {"h": {}, "a": {"properties": {"h": {}, "c": {}}, "required": ["h"]}},
            "dependencies": {"h": ["a"]},
        });
        let expected = json!({
            "properties": {"a": {}, "b": {}},
            "dependentRequired": {"a": ["b"]},
            "dependentSchemas": {"a": {"properties": {"c": {}}}},
        });
        assert_eq!(without(&schema, &["h"]), expected);
    }

    #[test]
    fn a_choice_that_needs_a_hidden_property_needs_it_no_longer() {
        for keyword in BRANCHES {
            let schema = json!({keyword: [
                {"properties": {"h": {}, "a": {}}, "required": ["h", "a"]},
                {"required": ["h"], "anyOf": [{"required": ["h", "b"]}]},
                true,
            ]});
            let expected = json!({keyword: [
                {"properties": {"a": {}}, "required": ["a"]},
                {"anyOf": [{"required": ["b"]}]},
                true,
            ]});
            assert_eq!(without(&schema, &["h"]), expected);
        }
    }

    #[test]
    fn properties_of_properties_stay() {
        let schema = json!({"properties": {"a": {"properties": {"h": {}}, "required": ["h"]}}, "$defs": {"h": {}}});
        assert_eq!(without(&schema, &["h"]), schema);
    }

    #[test]
    fn a_value_that_is_no_schema_stays_unchanged() {
        for schema in [json!(true), json!(null), json!({"properties": [1], "required": "h", "allOf": {"h": 1}})] {
            assert_eq!(without(&schema, &["h"]), schema);
        }
    }

    proptest! {
        #[test]
        fn arguments_fit_the_reduced_schema_iff_they_fit_with_the_hidden_property(
            required in prop::sample::subsequence(vec!["a", "b", "h"], 0..=3),
            given in prop::sample::subsequence(vec!["a", "b"], 0..=2),
        ) {
            let schema = json!({"type": "object", "properties": {"a": {}, "b": {}, "h": {}}, "required": required});
            let arguments = |names: &[&str]| Value::Object(names.iter().map(|name| ((*name).to_owned(), json!(1))).collect());
            let fits = jsonschema::is_valid(&without(&schema, &["h"]), &arguments(&given));
            prop_assert_eq!(fits, jsonschema::is_valid(&schema, &arguments(&[&given[..], &["h"]].concat())));
        }
    }
}
