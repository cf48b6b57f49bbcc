//! Definitions of tools, as a daemon lists them.

use std::sync::Arc;

use serde_json::Value;
use toolbus_core::listing::ListedTool;
use toolbus_core::tool::Effect;
use toolbus_protocol::llm_name;

/// The source of every definition: a list for MCP clients does not name it.
const SOURCE: &str = "bus";

/// Reads a tool as a daemon lists it for MCP clients; `None` if it has no name.
pub(super) fn definition(tool: &Value) -> Option<ListedTool> {
    let text = |name: &str| tool.get(name).and_then(Value::as_str);
    let schema = |name: &str| tool.get(name).filter(|schema| schema.is_object()).cloned().map(Arc::new);
    let name = text("name").filter(|name| !name.is_empty())?;
    Some(ListedTool {
        name: name.into(),
        llm_name: llm_name(name).into(),
        title: text("title").map(str::to_owned),
        description: text("description").unwrap_or_default().to_owned(),
        parameters: schema("inputSchema"),
        output_schema: schema("outputSchema"),
        source: SOURCE.into(),
        effect: effect(tool),
        model_hints: None,
    })
}

/// What the hints say about repeating a call; [`Effect::Undeclared`] without them.
fn effect(tool: &Value) -> Effect {
    let hint = |name: &str| tool.get("annotations").and_then(|hints| hints.get(name)).and_then(Value::as_bool);
    match (hint("readOnlyHint"), hint("idempotentHint")) {
        (Some(true), _) => Effect::ReadOnly,
        (_, Some(true)) => Effect::Idempotent,
        (Some(false), Some(false)) => Effect::Effectful,
        _ => Effect::Undeclared,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolbus_core::listing::{self, render};
    use toolbus_core::tool::ToolDescriptor;
    use toolbus_protocol::Format;

    use super::*;

    #[test]
    fn a_tool_is_the_same_on_both_sides_of_the_bus() {
        for effect in [Effect::ReadOnly, Effect::Idempotent, Effect::Effectful, Effect::Undeclared] {
            let here = listing::definition(&ToolDescriptor {
                title: Some("Read a file".to_owned()),
                description: "Reads a file.".to_owned(),
                parameters: Some(Arc::new(json!({"type": "object", "properties": {"path": {}}}))),
                output_schema: Some(Arc::new(json!({"type": "object"}))),
                effect,
                ..ToolDescriptor::new("fs.read", SOURCE, "mcp")
            });
            assert_eq!(definition(&render(&here, Format::Mcp)), Some(here), "{effect:?}");
        }
    }

    #[test]
    fn what_has_no_name_is_no_tool() {
        for tool in [json!({}), json!({"name": ""}), json!({"name": 7}), json!([])] {
            assert_eq!(definition(&tool), None, "{tool}");
        }
        let bare = definition(&json!({"name": "a", "inputSchema": true, "annotations": 1})).unwrap();
        assert_eq!((bare.parameters, bare.effect), (None, Effect::Undeclared));
    }
}
