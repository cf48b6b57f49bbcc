//! `tools/list`: the tools of the caller, as MCP describes them.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use toolbus_core::listing::ListedTool;
use toolbus_core::tool::Effect;

use super::ServerParts;
use super::{Cursor, FRESH_MS, ListParams, optional};
use crate::rpc::{self, RpcError, RpcRequest};
use crate::session::{ListFingerprints, Peer};
use crate::version::Version;

/// The result of a list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolsResult<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
    tools: Vec<ToolEntry<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_scope: Option<&'static str>,
}

pub(super) async fn list(parts: &ServerParts, peer: &Peer, call: &RpcRequest<'_>) -> Result<Bytes, RpcError> {
    let listing: ListParams = optional(call.params)?;
    let cursor = Cursor::read(listing.cursor.as_deref())?;
    if let Some(session) = peer.session.as_ref().filter(|_| listing.cursor.is_none()) {
        let (tools, _) = parts.backend.fingerprints(&peer.caller).await;
        session.lists(ListFingerprints { tools: Some(tools), texts: None });
    }
    let listed = parts.backend.list(&peer.caller).await;
    let listed = listed.map_err(|error| RpcError::new(RpcError::INTERNAL_ERROR, error.to_string()))?;
    let (tools, next_cursor) = cursor.page(&listed.tools, |tool| &tool.name, |tool| tool, size);
    let is_alone = peer.is_alone();
    let result = ToolsResult {
        result_type: is_alone.then_some("complete"),
        tools: tools.into_iter().map(|tool| ToolEntry::new(tool, peer.version)).collect(),
        next_cursor,
        ttl_ms: is_alone.then_some(FRESH_MS),
        cache_scope: is_alone.then_some("private"),
    };
    Ok(rpc::success(&call.id, result))
}

/// Longest name of a tool, in characters.
const MAX_NAME: usize = 128;
/// Keyword that makes clients repeat an argument in an HTTP header. Removed, because such headers are not checked here.
const HEADER: &str = "x-mcp-header";

/// A tool, as MCP has it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ToolEntry<'a> {
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

/// The effect of a tool as MCP annotations: what the tool declares, not what is assumed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Annotations {
    read_only_hint: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotent_hint: Option<bool>,
}

impl<'a> ToolEntry<'a> {
    /// The tool, for a client of this protocol version.
    pub(crate) fn new(definition: &'a ListedTool, version: Version) -> Self {
        Self {
            name: name(definition),
            title: definition.title.as_deref(),
            description: &definition.description,
            input_schema: input_schema(definition.parameters.as_deref()),
            output_schema: definition
                .output_schema
                .as_deref()
                .filter(|schema| !version.has_sessions() || is_of_objects(schema)),
            annotations: annotations(definition.effect),
        }
    }
}

/// The name that MCP clients call it by: its own, where MCP allows that.
pub(crate) fn name(definition: &ListedTool) -> &str {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let name = &*definition.name;
    if name.len() <= MAX_NAME && name.bytes().all(fits) { name } else { &definition.llm_name }
}

/// Approximate size of the tool on a page, in bytes.
pub(crate) fn size(definition: &ListedTool) -> usize {
    let schemas = [&definition.parameters, &definition.output_schema];
    let schemas = schemas.into_iter().flatten().map(|schema| schema.to_string().len()).sum::<usize>();
    definition.name.len() + definition.description.len() + schemas
}

/// The input schema with `"type": "object"`, which MCP requires.
fn input_schema(parameters: Option<&Value>) -> Cow<'_, Value> {
    match parameters {
        Some(schema) if is_of_objects(schema) && !may_request_headers(schema) => Cow::Borrowed(schema),
        Some(Value::Object(keywords)) => {
            let mut keywords = keywords.clone();
            keywords.insert("type".to_owned(), "object".into());
            let mut schema = Value::Object(keywords);
            remove_header_requests(&mut schema);
            Cow::Owned(schema)
        }
        _ => Cow::Owned(json!({"type": "object"})),
    }
}

/// Whether its type is `object`. Clients before version 2026-07-28 reject a list with an output schema of another type.
fn is_of_objects(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object")
}

/// Whether a schema may request headers: whether it has the keyword anywhere. Most schemas need not be copied.
fn may_request_headers(value: &Value) -> bool {
    match value {
        Value::Object(keywords) => keywords.contains_key(HEADER) || keywords.values().any(may_request_headers),
        Value::Array(items) => items.iter().any(may_request_headers),
        _ => false,
    }
}

/// Removes header requests at every depth: clients drop a tool that requests a header where it must not.
fn remove_header_requests(schema: &mut Value) {
    match schema {
        Value::Object(keywords) => {
            keywords.remove(HEADER);
            for (keyword, value) in keywords {
                match (&**keyword, value) {
                    // Values of arguments.
                    ("const" | "default" | "enum" | "examples", _) => {}
                    // Names that the tool gives, and a schema of each.
                    (
                        "$defs" | "definitions" | "dependentSchemas" | "patternProperties" | "properties",
                        Value::Object(named),
                    ) => {
                        named.values_mut().for_each(remove_header_requests);
                    }
                    (_, value) => remove_header_requests(value),
                }
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(remove_header_requests),
        _ => {}
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
        shown_to(Version::V20251125, &descriptor)
    }

    fn shown_to(version: Version, descriptor: &ToolDescriptor) -> String {
        serde_json::to_string(&ToolEntry::new(&definition(descriptor), version)).unwrap()
    }

    #[test]
    fn a_tool_is_listed_with_all_that_is_known_of_it() {
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
    fn undeclared_properties_are_not_listed() {
        let bare = ToolDescriptor::new("bare", "rest", "rest");
        insta::assert_snapshot!(shown(bare.clone()), @r#"{"name":"bare","description":"","inputSchema":{"type":"object"}}"#);
        let untyped = ToolDescriptor { parameters: Some(Arc::new(json!({"required": ["a"]}))), ..bare };
        insta::assert_snapshot!(shown(untyped), @r#"{"name":"bare","description":"","inputSchema":{"required":["a"],"type":"object"}}"#);
    }

    #[test]
    fn a_result_schema_of_no_object_is_listed_to_versions_that_allow_it() {
        for (schema, to_sessions) in [
            (json!({"type": "object", "required": ["a"]}), true),
            (json!({"type": "array"}), false),
            (json!({"type": ["object", "null"]}), false),
            (json!({"anyOf": [{"type": "object"}]}), false),
            (json!(true), false),
        ] {
            let tool = ToolDescriptor {
                output_schema: Some(Arc::new(schema.clone())),
                ..ToolDescriptor::new("shapes", "rest", "rest")
            };
            for version in Version::ALL {
                let is_listed = shown_to(version, &tool).contains(&format!(r#""outputSchema":{schema}"#));
                assert_eq!(is_listed, to_sessions || version == Version::V20260728, "{version}: {schema}");
            }
        }
    }

    #[test]
    fn header_requests_are_removed_from_schemas() {
        let listed = |schema: Value| {
            let tool =
                ToolDescriptor { parameters: Some(Arc::new(schema)), ..ToolDescriptor::new("query", "rest", "rest") };
            shown_to(Version::V20260728, &tool)
        };
        let region = json!({"type": "string", "x-mcp-header": "Region"});
        let nested = json!({"type": "object", "properties": {"region": region}});
        let everywhere = json!({
            "type": "object",
            "properties": {"region": region, "x-mcp-header": {"type": "string", "x-mcp-header": "Own"}, "place": nested},
            "items": [region],
            "anyOf": [nested],
            "$defs": {"properties": region},
            "default": {"x-mcp-header": "a value"},
        });
        insta::assert_snapshot!(listed(everywhere), @r#"{"name":"query","description":"","inputSchema":{"$defs":{"properties":{"type":"string"}},"anyOf":[{"properties":{"region":{"type":"string"}},"type":"object"}],"default":{"x-mcp-header":"a value"},"items":[{"type":"string"}],"properties":{"place":{"properties":{"region":{"type":"string"}},"type":"object"},"region":{"type":"string"},"x-mcp-header":{"type":"string"}},"type":"object"}}"#);
        let plain =
            r#"{"name":"query","description":"","inputSchema":{"properties":{"x-mcp-header":{}},"type":"object"}}"#;
        assert_eq!(listed(json!({"type": "object", "properties": {"x-mcp-header": {}}})), plain);
        assert_eq!(listed(json!({"properties": {"x-mcp-header": {}}})), plain);
    }

    #[test]
    fn a_name_that_mcp_does_not_allow_is_listed_as_models_know_it() {
        let listed = shown(ToolDescriptor::new("notes/add ü", "rest", "rest"));
        let name = toolbus_protocol::llm_name("notes/add ü");
        assert!(listed.contains(&format!(r#""name":"{name}""#)), "{listed}");
    }
}
