//! Definitions that providers accept, as JSON Schema, and that nothing else is ever rendered.

use std::sync::Arc;

use jsonschema::Validator;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Map, Value, json};
use toolbus_protocol::Format;

use super::{ListedTool, definition, render, without};
use crate::argument_names;
use crate::tool::{Effect, ModelHints, ToolDescriptor};

/// The formats that are sent to a provider.
const OF_PROVIDERS: [Format; 5] =
    [Format::OpenAi, Format::OpenAiResponses, Format::Anthropic, Format::Gemini, Format::Bedrock];
/// Tools of servers, by server: their names and schemas as the servers list them, with texts that are cut.
const SERVERS: &str = include_str!("accepted/servers.json");

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

/// Reasons for which a provider refuses a tool in its format: those that it documents, and drafts before 2020-12.
fn problems(tool: &ListedTool, format: Format) -> Vec<String> {
    let entry = render(tool, format);
    let mut problems: Vec<String> = rules(format).iter_errors(&entry).map(|error| error.to_string()).collect();
    if OF_PROVIDERS.contains(&format) {
        let schema = [
            "/function/parameters",
            "/parameters",
            "/input_schema",
            "/parametersJsonSchema",
            "/toolSpec/inputSchema/json",
        ];
        let schema = schema.iter().find_map(|pointer| entry.pointer(pointer)).unwrap();
        let compiled = jsonschema::options().with_draft(jsonschema::Draft::Draft202012).offline().build(schema);
        problems.extend(compiled.err().map(|error| format!("{}: {error}", error.instance_path())));
        let text = schema.to_string();
        problems.extend(
            ["(?!", "(?=", "(?<", "\"enum\":[]"]
                .iter()
                .filter(|part| text.contains(**part))
                .map(|part| (*part).to_owned()),
        );
    }
    if format == Format::Gemini {
        problems.extend(undefined(&entry).iter().map(|name| format!("{name} is not defined")));
    }
    if !problems.is_empty() {
        problems.push(entry.to_string());
    }
    problems
}

/// Names that a schema requires somewhere without defining them, which JSON Schema cannot forbid and Gemini refuses.
fn undefined(schema: &Value) -> Vec<&Value> {
    let Value::Object(fields) = schema else {
        return schema.as_array().into_iter().flatten().flat_map(undefined).collect();
    };
    // What is called so may be a property.
    let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
    let defined = |name: &&Value| schema["properties"].get(name.as_str().unwrap()).is_some();
    let here = required.filter(|name| !defined(name));
    here.chain(fields.values().flat_map(undefined)).collect()
}

/// Names of properties: those that keywords have, and those that not every provider accepts, among them.
fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[ab]", select(vec!["$id", "type", "anyOf", "ids[]", "ä", ""]).prop_map(str::to_owned), "[a.]{60,70}"]
}

fn reference() -> impl Strategy<Value = Value> {
    select(vec!["#", "#/$defs/a", "#/$defs/b", "#/anyOf/0", "#/properties/a", "#anchor", "https://example.com/x", "a"])
        .prop_map(Value::from)
}

/// Keywords of every draft, which schemas have with values of every kind.
const KEYWORDS: [&str; 40] = [
    "type",
    "enum",
    "const",
    "required",
    "properties",
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "divisibleBy",
    "minLength",
    "maxItems",
    "uniqueItems",
    "pattern",
    "format",
    "title",
    "description",
    "examples",
    "default",
    "deprecated",
    "allOf",
    "anyOf",
    "not",
    "if",
    "contains",
    "$ref",
    "$recursiveRef",
    "$anchor",
    "$defs",
    "definitions",
    "x-order",
];
/// Keywords with schemas by name, the usual ones more often.
const BY_NAME: [&str; 8] = [
    "properties",
    "properties",
    "$defs",
    "$defs",
    "patternProperties",
    "definitions",
    "dependencies",
    "dependentSchemas",
];
const DRAFTS: [&str; 7] = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
    "https://example.com/schema",
    "#anchor",
];

/// Values that few keywords take.
fn wrong() -> impl Strategy<Value = Value> {
    select(vec![
        json!(null),
        json!(true),
        json!(false),
        json!(-1),
        json!(0),
        json!(1.5),
        json!("a"),
        json!("any"),
        json!([]),
        json!([1, "a", "a"]),
        json!(["string", "file"]),
        json!({}),
        json!({"a": 1}),
        json!({"a": ["b", "b"], "b": true}),
    ])
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
        let by_name = vec((name(), inner.clone()), 0..4).prop_map(|fields| Value::Object(Map::from_iter(fields)));
        let field = prop_oneof![
            4 => (select(BY_NAME.to_vec()), by_name),
            2 => (select(vec!["allOf", "anyOf", "oneOf", "items"]), vec(inner.clone(), 1..4).prop_map(Value::from)),
            2 => (select(KEYWORDS.to_vec()), wrong()),
            // Not below `const`, where a pattern is data, and stays.
            2 => (select(vec!["items", "additionalProperties", "not"]), inner),
            2 => (Just("type"), kind.clone()),
            1 => (Just("$ref"), reference()),
            1 => (Just("required"), subsequence(vec!["a", "b", "ids[]"], 0..=3).prop_map(Value::from)),
            1 => (select(vec!["$schema", "$id", "id"]), select(DRAFTS.to_vec()).prop_map(Value::from)),
            1 => (Just("pattern"), select(vec!["^a", "^(?!a)", "(", r"(a)\1"]).prop_map(Value::from)),
        ];
        vec(field, 0..7).prop_map(|fields| {
            Value::Object(fields.into_iter().map(|(keyword, value)| (keyword.to_owned(), value)).collect())
        })
    })
}

proptest! {
    #[test]
    fn every_provider_accepts_every_rendered_tool(
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
            let problems = problems(&tool, format);
            prop_assert!(problems.is_empty(), "{}: {:?}", format, problems);
        }
    }

    #[test]
    fn hidden_properties_are_not_offered(schema in schema()) {
        let offered = without(&schema, &["a"]);
        prop_assert_eq!(offered.pointer("/properties/a"), None);
        prop_assert!(!offered.pointer("/required").is_some_and(|names| names.as_array().is_some_and(|names| names.contains(&json!("a")))));
        prop_assert_eq!(without(&offered, &["a"]), offered);
    }
}

#[test]
fn every_provider_accepts_the_tools_of_real_servers_with_all_that_they_require() {
    let servers: Value = serde_json::from_str(SERVERS).unwrap();
    assert!(servers.as_object().unwrap().len() >= 25);
    for (server, tools) in servers.as_object().unwrap() {
        for listed in tools.as_array().unwrap() {
            let (name, schema) = (listed["name"].as_str().unwrap(), &listed["inputSchema"]);
            let descriptor = ToolDescriptor::new(name, "mcp:x", "mcp");
            let tool = definition(&ToolDescriptor { parameters: Some(Arc::new(schema.clone())), ..descriptor });
            for format in Format::ALL {
                assert_eq!(problems(&tool, format), [""; 0], "{server} {name} {format}");
            }
            let shown = &render(&tool, Format::Anthropic)["input_schema"];
            for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                let required = argument_names::shown_name(required);
                assert!(shown["properties"].get(&*required).is_some(), "{server} {name}: {required}");
                assert!(shown["required"].as_array().unwrap().iter().any(|name| name == &*required), "{server} {name}");
            }
        }
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
