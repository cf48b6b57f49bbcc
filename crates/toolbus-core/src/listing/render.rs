use serde_json::{Map, Value, json};
use toolbus_protocol::{Format, gemini_name};

use super::ListedTool;
use super::inlined::{of_bedrock, of_gemini};
use super::renamed::renamed;
use super::schema::{ANY_OBJECT, full, simple};
use crate::argument_names::shown_name;
use crate::tool::{Effect, ModelHints};

/// Longest description that OpenAI accepts, in characters.
const MAX_OPENAI_DESCRIPTION: usize = 1024;

/// Describes a tool in a format: the first as an agent registers tools, the others ready to be sent.
///
/// The schema for a model may be wider than the tool's own, because providers refuse some of what JSON Schema allows,
/// and then the whole request. Arguments are validated against all of the tool's schema anyway.
#[must_use]
pub fn render(tool: &ListedTool, format: Format) -> Value {
    match format {
        Format::Registration => registration(tool),
        Format::OpenAi => openai(tool),
        Format::OpenAiResponses => openai_responses(tool),
        Format::Anthropic => anthropic(tool),
        Format::Gemini => gemini(tool),
        Format::Bedrock => bedrock(tool),
        Format::Mcp => mcp(tool),
    }
}

fn registration(tool: &ListedTool) -> Value {
    // A schema may also be `true`, which readers of this text do not expect.
    let schema = tool.parameters.as_ref().filter(|schema| schema.is_object());
    let schema = schema.map_or_else(|| ANY_OBJECT.to_owned(), |schema| schema.to_string());
    let mut entry = Map::new();
    entry.insert("name".to_owned(), json!(tool.name));
    entry.insert("description".to_owned(), json!(tool.description));
    entry.insert("parametersSchema".to_owned(), json!(schema));
    entry.insert("source".to_owned(), json!(tool.source));
    entry.insert("llmName".to_owned(), json!(tool.llm_name));
    entry.extend(Hints::of(tool.effect).named(["readOnly", "destructive", "idempotent"]));
    Value::Object(entry)
}

fn openai(tool: &ListedTool) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(tool.llm_name));
    let cut = cut_description(&tool.description, Format::OpenAi);
    describe(&mut function, cut.as_deref().unwrap_or(&tool.description));
    function.insert("parameters".to_owned(), simple(tool.parameters.as_deref()));
    json!({"type": "function", "function": function})
}

fn openai_responses(tool: &ListedTool) -> Value {
    let mut entry = Map::new();
    entry.insert("type".to_owned(), json!("function"));
    entry.insert("name".to_owned(), json!(tool.llm_name));
    let cut = cut_description(&tool.description, Format::OpenAiResponses);
    describe(&mut entry, cut.as_deref().unwrap_or(&tool.description));
    entry.insert("parameters".to_owned(), simple(tool.parameters.as_deref()));
    // Taken for `true` where it is absent; then every property must be required, which few tools' are.
    entry.insert("strict".to_owned(), json!(false));
    if let Some(hints) = &tool.model_hints {
        call_hints(&mut entry, hints, |caller| matches!(caller, "direct" | "programmatic"));
    }
    Value::Object(entry)
}

fn anthropic(tool: &ListedTool) -> Value {
    let mut entry = Map::new();
    entry.insert("name".to_owned(), json!(tool.llm_name));
    describe(&mut entry, &tool.description);
    entry.insert("input_schema".to_owned(), renamed(simple(tool.parameters.as_deref())));
    if let Some(hints) = &tool.model_hints {
        call_hints(&mut entry, hints, |caller| caller == "direct" || caller.starts_with("code_execution_"));
        // An example with a name that the schema may not have would be refused with the whole request.
        let with_shown_names = |example: &Map<String, Value>| -> Map<String, Value> {
            example.iter().map(|(name, value)| (shown_name(name).into_owned(), value.clone())).collect()
        };
        let examples: Vec<_> = hints.input_examples.iter().map(with_shown_names).collect();
        if !examples.is_empty() {
            entry.insert("input_examples".to_owned(), json!(examples));
        }
    }
    Value::Object(entry)
}

/// Adds the hints on calls that two providers read, with the callers that this one knows.
fn call_hints(entry: &mut Map<String, Value>, hints: &ModelHints, is_known: impl Fn(&str) -> bool) {
    if hints.defer_loading {
        entry.insert("defer_loading".to_owned(), json!(true));
    }
    let callers: Vec<&String> = hints.allowed_callers.iter().filter(|caller| is_known(caller)).collect();
    if !callers.is_empty() {
        entry.insert("allowed_callers".to_owned(), json!(callers));
    }
}

fn gemini(tool: &ListedTool) -> Value {
    let mut entry = Map::new();
    entry.insert("name".to_owned(), json!(gemini_name(&tool.name)));
    // Required there.
    let description = if tool.description.is_empty() { &*tool.name } else { &tool.description };
    entry.insert("description".to_owned(), json!(description));
    entry.insert("parametersJsonSchema".to_owned(), of_gemini(&simple(tool.parameters.as_deref())));
    Value::Object(entry)
}

fn bedrock(tool: &ListedTool) -> Value {
    let mut entry = Map::new();
    entry.insert("name".to_owned(), json!(tool.llm_name));
    describe(&mut entry, &tool.description);
    let schema = of_bedrock(&renamed(simple(tool.parameters.as_deref())));
    entry.insert("inputSchema".to_owned(), json!({"json": schema}));
    json!({"toolSpec": entry})
}

fn mcp(tool: &ListedTool) -> Value {
    let mut entry = Map::new();
    entry.insert("name".to_owned(), json!(tool.name));
    entry.extend(tool.title.as_ref().map(|title| ("title".to_owned(), json!(title))));
    describe(&mut entry, &tool.description);
    entry.insert("inputSchema".to_owned(), full(tool.parameters.as_deref()));
    entry.extend(tool.output_schema.as_ref().map(|schema| ("outputSchema".to_owned(), json!(schema))));
    let hints: Map<_, _> =
        Hints::of(tool.effect).named(["readOnlyHint", "destructiveHint", "idempotentHint"]).collect();
    if !hints.is_empty() {
        entry.insert("annotations".to_owned(), Value::Object(hints));
    }
    Value::Object(entry)
}

/// An empty description is left out: not every provider takes one.
fn describe(entry: &mut Map<String, Value>, description: &str) {
    if !description.is_empty() {
        entry.insert("description".to_owned(), json!(description));
    }
}

/// A description as long as a format takes it, where it does not take it whole.
pub(crate) fn cut_description(description: &str, format: Format) -> Option<String> {
    let is_cut = matches!(format, Format::OpenAi | Format::OpenAiResponses)
        && description.chars().nth(MAX_OPENAI_DESCRIPTION).is_some();
    is_cut.then(|| description.chars().take(MAX_OPENAI_DESCRIPTION - 1).chain(['…']).collect())
}

/// Effect of a tool as the hints of MCP put it; absent: not known.
struct Hints {
    read_only: Option<bool>,
    destructive: Option<bool>,
    idempotent: Option<bool>,
}

impl Hints {
    /// An idempotent tool may or may not delete. An effectful one is assumed to, as MCP does without a hint.
    const fn of(effect: Effect) -> Self {
        let (read_only, destructive, idempotent) = match effect {
            Effect::ReadOnly => (Some(true), Some(false), Some(true)),
            Effect::Idempotent => (Some(false), None, Some(true)),
            Effect::Effectful => (Some(false), Some(true), Some(false)),
            Effect::Undeclared => (None, None, None),
        };
        Self { read_only, destructive, idempotent }
    }

    /// Those that are known, under the names of a format.
    fn named(self, names: [&'static str; 3]) -> impl Iterator<Item = (String, Value)> {
        let hints = [self.read_only, self.destructive, self.idempotent];
        names.into_iter().zip(hints).filter_map(|(name, hint)| Some((name.to_owned(), Value::Bool(hint?))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::listing::definition;
    use crate::tool::ToolDescriptor;

    fn tool(effect: Effect) -> ListedTool {
        definition(&ToolDescriptor {
            description: "Reads a file.".to_owned(),
            parameters: Some(Arc::new(json!({
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {"path": {"type": "string"}, "bytes[]": {"type": "array"}},
                "required": ["path", "bytes[]"],
                "anyOf": [{"required": ["path"]}],
            }))),
            effect,
            ..ToolDescriptor::new("fs.read", "mcp:fs", "mcp")
        })
    }

    fn rendered(tool: &ListedTool, format: Format) -> String {
        render(tool, format).to_string()
    }

    #[test]
    fn each_format_has_the_names_and_the_schema_that_its_readers_use() {
        let rendered = |format| rendered(&tool(Effect::ReadOnly), format);
        // The whole schema, as text.
        insta::assert_snapshot!(rendered(Format::Registration), @r#"{"description":"Reads a file.","destructive":false,"idempotent":true,"llmName":"fs_read_4074bc025755","name":"fs.read","parametersSchema":"{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"anyOf\":[{\"required\":[\"path\"]}],\"properties\":{\"bytes[]\":{\"type\":\"array\"},\"path\":{\"type\":\"string\"}},\"required\":[\"path\",\"bytes[]\"],\"type\":\"object\"}","readOnly":true,"source":"mcp:fs"}"#);
        insta::assert_snapshot!(rendered(Format::OpenAi), @r#"{"function":{"description":"Reads a file.","name":"fs_read_4074bc025755","parameters":{"properties":{"bytes[]":{"items":{},"type":"array"},"path":{"type":"string"}},"required":["bytes[]","path"],"type":"object"}},"type":"function"}"#);
        insta::assert_snapshot!(rendered(Format::OpenAiResponses), @r#"{"description":"Reads a file.","name":"fs_read_4074bc025755","parameters":{"properties":{"bytes[]":{"items":{},"type":"array"},"path":{"type":"string"}},"required":["bytes[]","path"],"type":"object"},"strict":false,"type":"function"}"#);
        insta::assert_snapshot!(rendered(Format::Gemini), @r#"{"description":"Reads a file.","name":"fs_read_4074bc025755","parametersJsonSchema":{"properties":{"bytes[]":{"items":{},"type":"array"},"path":{"type":"string"}},"required":["bytes[]","path"],"type":"object"}}"#);
        insta::assert_snapshot!(rendered(Format::Bedrock), @r#"{"toolSpec":{"description":"Reads a file.","inputSchema":{"json":{"properties":{"bytes__7d0c787019d2":{"items":{},"type":"array"},"path":{"type":"string"}},"required":["bytes__7d0c787019d2","path"],"type":"object"}},"name":"fs_read_4074bc025755"}}"#);
        insta::assert_snapshot!(rendered(Format::Anthropic), @r#"{"description":"Reads a file.","input_schema":{"properties":{"bytes__7d0c787019d2":{"items":{},"type":"array"},"path":{"type":"string"}},"required":["bytes__7d0c787019d2","path"],"type":"object"},"name":"fs_read_4074bc025755"}"#);
        // The real name, the whole schema, and hints.
        insta::assert_snapshot!(rendered(Format::Mcp), @r#"{"annotations":{"destructiveHint":false,"idempotentHint":true,"readOnlyHint":true},"description":"Reads a file.","inputSchema":{"$schema":"https://json-schema.org/draft/2020-12/schema","anyOf":[{"required":["path"]}],"properties":{"bytes[]":{"type":"array"},"path":{"type":"string"}},"required":["path","bytes[]"],"type":"object"},"name":"fs.read"}"#);
    }

    #[test]
    fn model_hints_are_rendered_for_providers_that_know_them() {
        let example = json!({"path": "/a", "bytes[]": [1]}).as_object().cloned().unwrap();
        let hints = ModelHints {
            defer_loading: true,
            allowed_callers: ["direct", "code_execution_20250825", "programmatic"].map(str::to_owned).into(),
            input_examples: vec![example],
        };
        let plain = tool(Effect::ReadOnly);
        let hinted = ListedTool { model_hints: Some(Arc::new(hints)), ..plain.clone() };
        let added = |format| {
            let (Value::Object(mut entry), before) = (render(&hinted, format), render(&plain, format)) else {
                panic!("an object")
            };
            entry.retain(|key, _| before.get(key).is_none());
            format!("{format}: {}", Value::Object(entry))
        };
        insta::assert_snapshot!(Format::ALL.map(added).join("\n"), @r#"
        registration: {}
        openai: {}
        openai-responses: {"allowed_callers":["direct","programmatic"],"defer_loading":true}
        anthropic: {"allowed_callers":["direct","code_execution_20250825"],"defer_loading":true,"input_examples":[{"bytes__7d0c787019d2":[1],"path":"/a"}]}
        gemini: {}
        bedrock: {}
        mcp: {}
        "#);
        let hidden = hinted.hiding(&["path"]);
        assert_eq!(hidden.model_hints.unwrap().input_examples[0].keys().collect::<Vec<_>>(), ["bytes[]"]);
    }

    #[test]
    fn an_mcp_client_gets_titles_and_output_schemas() {
        let output_schema = Some(Arc::new(json!({"type": "object"})));
        let tool = ListedTool { title: Some("Read".to_owned()), output_schema, ..tool(Effect::Undeclared) };
        let entry = render(&tool, Format::Mcp);
        assert_eq!((&entry["title"], &entry["outputSchema"]), (&json!("Read"), &json!({"type": "object"})));
        assert_eq!(
            rendered(&tool, Format::Registration),
            rendered(&ListedTool { title: None, ..tool.clone() }, Format::Registration)
        );
    }

    #[test]
    fn a_tool_without_a_schema_and_a_description_takes_any_object() {
        let tool = definition(&ToolDescriptor::new("now", "time", "local"));
        let all: Vec<String> = Format::ALL.iter().map(|format| rendered(&tool, *format)).collect();
        insta::assert_snapshot!(all.join("\n"), @r#"
        {"description":"","llmName":"now","name":"now","parametersSchema":"{\"properties\":{},\"type\":\"object\"}","source":"time"}
        {"function":{"name":"now","parameters":{"properties":{},"type":"object"}},"type":"function"}
        {"name":"now","parameters":{"properties":{},"type":"object"},"strict":false,"type":"function"}
        {"input_schema":{"properties":{},"type":"object"},"name":"now"}
        {"description":"now","name":"now","parametersJsonSchema":{"properties":{},"type":"object"}}
        {"toolSpec":{"inputSchema":{"json":{"properties":{},"type":"object"}},"name":"now"}}
        {"inputSchema":{"properties":{},"type":"object"},"name":"now"}
        "#);
    }

    #[test]
    fn hints_contain_what_is_declared_and_no_more() {
        let hints = |effect| {
            let entry = render(&tool(effect), Format::Mcp);
            let entry = entry["annotations"].to_string();
            format!("{effect:?} {entry}")
        };
        let all = [Effect::ReadOnly, Effect::Idempotent, Effect::Effectful, Effect::Undeclared].map(hints);
        insta::assert_snapshot!(all.join("\n"), @r#"
        ReadOnly {"destructiveHint":false,"idempotentHint":true,"readOnlyHint":true}
        Idempotent {"idempotentHint":true,"readOnlyHint":false}
        Effectful {"destructiveHint":true,"idempotentHint":false,"readOnlyHint":false}
        Undeclared null
        "#);
    }

    #[test]
    fn a_long_description_is_cut_for_openai_alone() {
        for (length, expected) in [(1024, 1024), (1025, 1024), (100_000, 1024)] {
            let tool = ListedTool { description: "ü".repeat(length), ..tool(Effect::ReadOnly) };
            let entry = render(&tool, Format::OpenAi);
            let text = entry["function"]["description"].as_str().unwrap();
            assert_eq!((text.chars().count(), text.ends_with('…')), (expected, length > 1024));
            assert_eq!(render(&tool, Format::Anthropic)["description"], tool.description);
        }
    }
}
