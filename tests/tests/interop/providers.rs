//! Lists in the formats of model providers, checked by what the providers publish: `tests/providers/check.py`.

use std::path::Path;

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::{check_by_providers, interpreter};

const FORMATS: [&str; 5] = ["openai", "openai-responses", "anthropic", "gemini", "bedrock"];

/// Tools of an MCP server that are as hard to pass on as JSON Schema allows.
fn awkward() -> Vec<Value> {
    let any = json!({"type": "object"});
    let next = json!({"$ref": "#/$defs/node"});
    let node = json!({"type": "object", "title": "N", "properties": {"next": next, "of": {"type": "array"}}});
    let schemas = [
        ("bare", any.clone()),
        (
            "references",
            json!({"type": "object", "properties": {"root": {"$ref": "#/$defs/node", "description": "Here."},
            "path": {"$ref": "#/properties/root"}}, "required": ["root"], "$defs": {"node": node}}),
        ),
        (
            "old_references",
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://example.com/x",
            "type": "object", "properties": {"a": {"$ref": "#/definitions/a"}}, "definitions": {"a": {"format": "x"}}}),
        ),
        (
            "choices",
            json!({"type": "object", "anyOf": [{"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
            {"properties": {"kind": {"const": 2}}}], "oneOf": [{"required": ["b"]}, {"required": ["c"]}],
            "allOf": [{"properties": {"d": {"not": {"const": 1}}}, "required": ["d"]}], "not": {"required": ["x"]}}),
        ),
        (
            "enumerations",
            json!({"type": "object", "properties": {"a": {"enum": [1, "a", "", null, true, 2.5, {"b": 1}]},
            "b": {"type": "boolean", "enum": [true]}, "c": {"type": ["null"], "enum": [null]}, "d": {"const": null}}}),
        ),
        (
            "lists",
            json!({"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": ["array", "null"]},
            "c": {"type": "array", "prefixItems": [{"type": "string"}, true], "items": false, "uniqueItems": true},
            "d": {"type": "array", "items": {"type": "array", "contains": {"type": "string"}}, "minItems": 1}}}),
        ),
        (
            "booleans",
            json!({"type": "object", "properties": {"a": true, "b": false, "c": {}}, "additionalProperties": true}),
        ),
        (
            "names",
            json!({"type": "object", "properties": {"ids[]": {"type": "array"}, "": {}, "größe": {"type": "number"},
            "$ref": {"type": "string"}, "a.b-c": {}, ("n".repeat(100)): {}}, "required": ["ids[]", "a.b-c"]}),
        ),
        (
            "required",
            json!({"type": "object", "properties": {"a": {"type": "object", "required": ["b"]}, "c": {"required": ["d"],
            "properties": {"d": {}}}}, "required": ["a", "undefined"]}),
        ),
        (
            "conditions",
            json!({"type": "object", "properties": {"a": {}}, "if": {"required": ["a"]}, "then": {"required": ["b"]},
            "dependentRequired": {"a": ["b"]}, "patternProperties": {"^x": {}}, "propertyNames": {"maxLength": 9},
            "unevaluatedProperties": false, "minProperties": 1}),
        ),
        (
            "annotations",
            json!({"type": "object", "title": "T", "description": "D", "examples": [{}], "default": {}, "$comment": "c",
            "deprecated": true, "properties": {"a": {"type": "string", "format": "uri", "pattern": "^h", "default": "x",
            "examples": ["y"], "x-order": 1}, "b": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9},
            "c": {"type": "object", "additionalProperties": {"type": "array", "readOnly": true}}}}),
        ),
    ];
    let mut tools: Vec<Value> = schemas.map(|(name, schema)| json!({"name": name, "inputSchema": schema})).to_vec();
    let names = ["3d", "-x", "fs.read", "a/b c:d", "größe", &"n".repeat(64), &"m".repeat(65), &"8".repeat(128)];
    tools.extend(names.map(|name| json!({"name": name, "description": "Named oddly", "inputSchema": any})));
    for (name, description) in
        [("empty", String::new()), ("long", "ü".repeat(1025)), ("lines", "a\n\"b\"\n\t".to_owned())]
    {
        tools.push(json!({"name": name, "description": description, "inputSchema": any}));
    }
    tools
}

#[tokio::test]
async fn schemas_of_providers_accept_every_tool_in_their_own_format_alone() {
    let (site, backend, folder) =
        (BrokerNamespace::shared().await, Backend::start().await, tempfile::tempdir().unwrap());
    let (list, entries) = (folder.path().join("list.json"), folder.path().join("entries.json"));
    let awkward = awkward();
    std::fs::write(&list, json!(awkward).to_string()).unwrap();
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/mcp_small.py");
    let rules = format!(
        "[tools]\necho = true\n[tools.definitions.\"*\"]\ndefer_loading = true\n\
         allowed_callers = [\"direct\", \"code_execution_20250825\", \"programmatic\"]\n\
         input_examples = [{{ a = 1 }}]\n{}[mcp]\nrequired = [\"awkward\"]\n[mcp.servers.awkward]\ncommand = {:?}\n\
         args = [{server:?}, \"awkward\", \"unused\"]\nenv = {{ LIST = {list:?} }}\n",
        backend.tool("work", "/work?id={id}", ""),
        interpreter(),
    );
    let daemon = Daemon::start(&site, &rules).await;
    let client = Client::connect(&site).await;
    let (mut all, mut expected) = (Vec::new(), Vec::new());
    for format in FORMATS {
        let request = client.raw(json!({"format": format}).to_string()).on("tool.list");
        let listed = client.exchange(&request).await.body();
        let tools = listed["tools"].as_array().unwrap();
        assert!(tools.len() > awkward.len(), "{format} has all tools: {listed}");
        for tool in tools {
            for other in FORMATS {
                all.push((other, tool.clone()));
                expected.push(other == format);
            }
        }
    }
    daemon.stop(&site).await;
    std::fs::write(&entries, json!(all).to_string()).unwrap();
    let checked = check_by_providers(&entries).await;
    assert_eq!(checked.code, 0, "{checked:?}");
    let problems: Vec<Vec<String>> = serde_json::from_str(&checked.out).unwrap();
    let entries = all.iter().zip(&problems).zip(expected);
    let wrong = entries.filter(|((_, problems), accepted)| problems.is_empty() != *accepted);
    let wrong: Vec<String> =
        wrong.map(|(((format, tool), problems), _)| format!("{format}: {problems:?}\n{tool}")).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_documents_name_the_packages_that_lists_are_checked_by() {
    let pins = include_str!("../../providers/requirements.txt");
    let (_, section) = include_str!("../../../docs/wire.md").split_once("| `format` | Package | There |").unwrap();
    let rows = section.lines().skip(2).take_while(|line| line.starts_with('|'));
    let packages = rows.map(|row| row.split('|').nth(2).unwrap().replace('`', "").trim().replace(' ', "=="));
    let known = packages.inspect(|pin| assert!(pins.lines().any(|line| line == pin), "{pin} is not what is pinned"));
    assert_eq!(known.count(), FORMATS.len());
}
