//! What providers accept, written down as JSON Schema, and that nothing else is ever rendered.

use std::sync::Arc;

use jsonschema::Validator;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Map, Value, json};
use toolbus_protocol::Format;

use super::{definition, render, without};
use crate::tool::{Effect, ModelHints, ToolDescriptor};

fn rules(format: Format) -> Validator {
    let text = match format {
        Format::Registration => include_str!("accepted/registration.json"),
        Format::OpenAi => include_str!("accepted/openai.json"),
        Format::OpenAiResponses => include_str!("accepted/openai-responses.json"),
        Format::Anthropic => include_str!("accepted/anthropic.json"),
        Format::Gemini => include_str!("accepted/gemini.json"),
        Format::Bedrock => include_str!("accepted/bedrock.json"),
        Format::Mcp => include_str!("accepted/mcp.json"),
    };
    jsonschema::validator_for(&serde_json::from_str(text).unwrap()).unwrap()
}

/// Names that a schema requires somewhere without defining them, which JSON Schema cannot forbid and Gemini refuses.
fn undefined(schema: &Value) -> Vec<&Value> {
    let Value::Object(members) = schema else {
        return schema.as_array().into_iter().flatten().flat_map(undefined).collect();
    };
    // What is called so may be a property.
    let required = members.get("required").and_then(Value::as_array).into_iter().flatten();
    let defined = |name: &&Value| schema["properties"].get(name.as_str().unwrap()).is_some();
    let here = required.filter(|name| !defined(name));
    here.chain(members.values().flat_map(undefined)).collect()
}

/// Names of properties: those that keywords have, and those that not every provider accepts, among them.
fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[ab]", select(vec!["$id", "type", "anyOf", "ids[]", "ä", ""]).prop_map(str::to_owned), "[a.]{60,70}"]
}

fn reference() -> impl Strategy<Value = Value> {
    select(vec!["#", "#/$defs/a", "#/$defs/b", "#/anyOf/0", "#/properties/a", "#anchor", "https://example.com/x", "a"])
        .prop_map(Value::from)
}

/// Schemas with every keyword that a provider has an opinion on, and some that are none at all.
fn schema() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![
        select(vec!["object", "array", "string", "null"]).prop_map(Value::from),
        subsequence(vec!["object", "array", "string"], 1..=3).prop_map(Value::from),
    ];
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        kind.clone().prop_map(|kind| json!({"type": kind})),
        reference().prop_map(|reference| json!({"$ref": reference})),
        Just(json!({"enum": [1, "a"], "$id": "https://example.com/leaf"})),
    ];
    leaf.prop_recursive(4, 64, 6, move |inner| {
        let by_name = vec((name(), inner.clone()), 0..4).prop_map(|members| Value::Object(Map::from_iter(members)));
        let member = prop_oneof![
            4 => (select(vec!["properties", "$defs", "patternProperties"]), by_name),
            2 => (select(vec!["allOf", "anyOf", "oneOf"]), vec(inner.clone(), 1..4).prop_map(Value::from)),
            2 => (select(vec!["items", "additionalProperties", "not", "const"]), inner),
            2 => (Just("type"), kind.clone()),
            1 => (Just("$ref"), reference()),
            1 => (Just("required"), subsequence(vec!["a", "b", "ids[]"], 0..=3).prop_map(Value::from)),
            1 => (select(vec!["$schema", "$id"]), Just(json!("https://example.com/schema"))),
        ];
        vec(member, 0..7).prop_map(|members| {
            Value::Object(members.into_iter().map(|(keyword, value)| (keyword.to_owned(), value)).collect())
        })
    })
}

proptest! {
    #[test]
    fn whatever_a_tool_is_every_provider_accepts_it(
        name in "[a-z]{1,8}|\\PC{1,80}",
        description in prop_oneof![Just(String::new()), "\\PC{1,40}", Just("ü".repeat(1025))],
        parameters in prop::option::of(schema()),
        effect in select(vec![Effect::ReadOnly, Effect::Idempotent, Effect::Effectful, Effect::Undeclared]),
        defer_loading in any::<bool>(),
        allowed_callers in subsequence(vec!["direct", "code_execution_20250825", "programmatic"], 0..=3),
    ) {
        let example = json!({"a": 1, "ids[]": []}).as_object().cloned().unwrap();
        let allowed_callers = allowed_callers.into_iter().map(str::to_owned).collect();
        let hints = ModelHints { defer_loading, allowed_callers, input_examples: vec![example] };
        let descriptor = ToolDescriptor::new(name, "test", "local");
        let tool = definition(&ToolDescriptor { description, parameters: parameters.map(Arc::new), effect, model_hints: Some(Arc::new(hints)), ..descriptor });
        for format in Format::ALL {
            let entry = render(&tool, format);
            let problems: Vec<String> = rules(format).iter_errors(&entry).map(|error| error.to_string()).collect();
            prop_assert!(problems.is_empty(), "{}: {:?}\n{}", format, problems, entry);
            let undefined = if format == Format::Gemini { undefined(&entry) } else { Vec::new() };
            prop_assert!(undefined.is_empty(), "{}: {:?}\n{}", format, undefined, entry);
        }
    }

    #[test]
    fn what_is_hidden_is_not_offered(schema in schema()) {
        let offered = without(&schema, &["a"]);
        prop_assert_eq!(offered.pointer("/properties/a"), None);
        prop_assert!(!offered.pointer("/required").is_some_and(|names| names.as_array().unwrap().contains(&json!("a"))));
        prop_assert_eq!(without(&offered, &["a"]), offered);
    }
}

#[test]
fn the_rules_refuse_what_providers_refuse() {
    let function = |parameters: Value| json!({"type": "function", "function": {"name": "t", "parameters": parameters}});
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    let openai = rules(Format::OpenAi);
    assert!(openai.is_valid(&function(object(json!({"a": {"type": "array", "items": {}}})))));
    for parameters in [
        json!({}),
        json!({"type": "object"}),
        json!({"type": "object", "properties": {}, "anyOf": [{}]}),
        json!({"type": "object", "properties": {}, "enum": []}),
        json!({"type": "object", "properties": {}, "$schema": "x"}),
        object(json!({"a": {"type": "array"}})),
        object(json!({"a": {"anyOf": [{"type": ["string", "array"]}]}})),
    ] {
        assert!(!openai.is_valid(&function(parameters.clone())), "{parameters}");
    }
    let anthropic = rules(Format::Anthropic);
    let tool = |name: &str, properties: Value| json!({"name": name, "input_schema": object(properties)});
    assert!(anthropic.is_valid(&tool("t", json!({"a": {"properties": {"ids[]": {}}}}))));
    assert!(!anthropic.is_valid(&tool("t", json!({"ids[]": {}}))));
    assert!(!anthropic.is_valid(&tool("fs.read", json!({}))));
    let gemini = rules(Format::Gemini);
    let declared =
        |name: &str, parameters: Value| json!({"name": name, "description": "d", "parametersJsonSchema": parameters});
    assert!(gemini.is_valid(&declared("t", object(json!({"ids[]": {"type": ["string", "null"]}})))));
    for (name, properties) in [
        ("3d", json!({})),
        ("t", json!({"a": {"$ref": "#"}})),
        ("t", json!({"a": {"const": 1}})),
        ("t", json!({"a": {"type": "any"}})),
    ] {
        assert!(!gemini.is_valid(&declared(name, object(properties.clone()))), "{name} {properties}");
    }
    let responses = rules(Format::OpenAiResponses);
    let flat = json!({"type": "function", "name": "t", "strict": false, "parameters": object(json!({}))});
    assert!(responses.is_valid(&flat) && !responses.is_valid(&function(object(json!({})))));
    let bedrock = rules(Format::Bedrock);
    let specified = |schema: Value| json!({"toolSpec": {"name": "t", "inputSchema": {"json": schema}}});
    assert!(bedrock.is_valid(&specified(object(json!({"a": {"pattern": "x"}})))));
    for refused in
        [json!({"type": "object", "properties": {}, "additionalProperties": false}), object(json!({"ids[]": {}}))]
    {
        assert!(!bedrock.is_valid(&specified(refused.clone())), "{refused}");
    }
}
