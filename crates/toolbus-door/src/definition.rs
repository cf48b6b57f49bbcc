//! A tool as MCP clients are told of it.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};
use toolbus_core::listing::Definition;
use toolbus_core::tool::Effect;

/// Longest name of a tool, in characters.
const MAX_NAME: usize = 128;

/// A tool, as MCP has it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Tool<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    description: &'a str,
    input_schema: Cow<'a, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<Annotations>,
}

/// What repeating a call does, in the words of MCP. Who calls must know what is said of the tool, not what is assumed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Annotations {
    read_only_hint: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotent_hint: Option<bool>,
}

impl<'a> Tool<'a> {
    pub(crate) fn new(definition: &'a Definition) -> Self {
        Self {
            name: name(definition),
            title: definition.title.as_deref(),
            description: &definition.description,
            input_schema: input_schema(definition.parameters.as_deref()),
            output_schema: definition.output_schema.as_deref(),
            annotations: annotations(definition.effect),
        }
    }
}

/// The name that MCP clients call it by: its own, where MCP allows that.
pub(crate) fn name(definition: &Definition) -> &str {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let name = &*definition.name;
    if name.len() <= MAX_NAME && name.bytes().all(fits) { name } else { &definition.llm_name }
}

/// About how many bytes it takes on a page.
pub(crate) fn size(definition: &Definition) -> usize {
    let schemas = [&definition.parameters, &definition.output_schema];
    let schemas = schemas.into_iter().flatten().map(|schema| schema.to_string().len()).sum::<usize>();
    definition.name.len() + definition.description.len() + schemas
}

/// MCP wants it said that arguments are an object, which here goes without saying.
fn input_schema(parameters: Option<&Value>) -> Cow<'_, Value> {
    match parameters {
        Some(schema) if schema.get("type").is_some_and(|kind| kind == "object") => Cow::Borrowed(schema),
        Some(Value::Object(members)) => {
            let mut members = members.clone();
            members.insert("type".to_owned(), "object".into());
            Cow::Owned(Value::Object(members))
        }
        _ => Cow::Owned(json!({"type": "object"})),
    }
}

const fn annotations(effect: Effect) -> Option<Annotations> {
    match effect {
        Effect::ReadOnly => Some(Annotations { read_only_hint: true, idempotent_hint: None }),
        Effect::Idempotent => Some(Annotations { read_only_hint: false, idempotent_hint: Some(true) }),
        Effect::Effectful => Some(Annotations { read_only_hint: false, idempotent_hint: Some(false) }),
        Effect::Undeclared => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use toolbus_core::listing::definition;
    use toolbus_core::tool::ToolDescriptor;

    use super::*;

    fn shown(descriptor: ToolDescriptor) -> String {
        serde_json::to_string(&Tool::new(&definition(&descriptor))).unwrap()
    }

    #[test]
    fn a_tool_is_told_with_all_that_is_known_of_it() {
        let descriptor = ToolDescriptor {
            title: Some("Add a note".to_owned()),
            description: "Adds a note.".to_owned(),
            parameters: Some(Arc::new(json!({"type": "object", "required": ["text"]}))),
            output_schema: Some(Arc::new(json!({"type": "object"}))),
            effect: Effect::Idempotent,
            ..ToolDescriptor::new("notes.add", "rest", "rest")
        };
        insta::assert_snapshot!(shown(descriptor), @r#"{"name":"notes.add","title":"Add a note","description":"Adds a note.","inputSchema":{"required":["text"],"type":"object"},"outputSchema":{"type":"object"},"annotations":{"readOnlyHint":false,"idempotentHint":true}}"#);
    }

    #[test]
    fn what_nobody_declared_is_not_told() {
        let bare = ToolDescriptor::new("bare", "rest", "rest");
        insta::assert_snapshot!(shown(bare.clone()), @r#"{"name":"bare","description":"","inputSchema":{"type":"object"}}"#);
        let untyped = ToolDescriptor { parameters: Some(Arc::new(json!({"required": ["a"]}))), ..bare };
        insta::assert_snapshot!(shown(untyped), @r#"{"name":"bare","description":"","inputSchema":{"required":["a"],"type":"object"}}"#);
    }

    #[test]
    fn a_name_that_mcp_does_not_allow_is_told_as_models_know_it() {
        let told = shown(ToolDescriptor::new("notes/add ü", "rest", "rest"));
        let name = toolbus_protocol::llm_name("notes/add ü");
        assert!(told.contains(&format!(r#""name":"{name}""#)), "{told}");
    }
}
