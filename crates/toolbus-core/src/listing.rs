//! Tools as they are listed for callers that may use them.

mod converted;
mod draft;
mod inlined;
mod renamed;
mod render;
mod schema;
mod without;

#[cfg(test)]
mod accepted;

use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use toolbus_protocol::llm_name;

use crate::tool::{Effect, ModelHints, ToolDescriptor};

pub use converted::converted;
pub(crate) use render::cut_description;
pub use render::render;
pub use without::without;

/// Bytes of a version: two digits each.
const VERSION_BYTES: usize = 16;

/// A tool as a list describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTool {
    /// Name of the tool.
    pub name: Arc<str>,
    /// The name as model providers accept it.
    pub llm_name: Arc<str>,
    /// Name of the tool as people are shown it.
    pub title: Option<String>,
    /// Description of the tool, for a model.
    pub description: String,
    /// JSON Schema of the arguments that the caller may give; absent: any object.
    pub parameters: Option<Arc<Value>>,
    /// JSON Schema of the structured part of its results.
    pub output_schema: Option<Arc<Value>>,
    /// Who registered it.
    pub source: Arc<str>,
    /// Effect of repeating a call.
    pub effect: Effect,
    /// Hints for providers of models, beside the definition.
    pub model_hints: Option<Arc<ModelHints>>,
}

impl ListedTool {
    /// The same without arguments that the caller may not give.
    #[must_use]
    pub fn hiding(mut self, arguments: &[&str]) -> Self {
        self.parameters = self.parameters.map(|schema| Arc::new(without(&schema, arguments)));
        if let Some(hints) = &mut self.model_hints {
            let examples = &mut Arc::make_mut(hints).input_examples;
            examples.iter_mut().for_each(|example| example.retain(|name, _| !arguments.contains(&name.as_str())));
        }
        self
    }
}

/// The definition of a tool, with all the parameters that it has.
#[must_use]
pub fn definition(descriptor: &ToolDescriptor) -> ListedTool {
    ListedTool {
        name: Arc::clone(&descriptor.name),
        llm_name: llm_name(&descriptor.name).into(),
        title: descriptor.title.clone(),
        description: descriptor.description.clone(),
        parameters: descriptor.parameters.clone(),
        output_schema: descriptor.output_schema.clone(),
        source: Arc::clone(&descriptor.source),
        effect: descriptor.effect,
        model_hints: descriptor.model_hints.clone(),
    }
}

/// Digest of definitions that are sorted by name: 32 hexadecimal digits, equal wherever and whenever the definitions
/// are.
#[must_use]
pub fn version<'a>(sorted: impl IntoIterator<Item = &'a ListedTool>) -> String {
    let mut hash = Sha256::new();
    for tool in sorted {
        let effect = match tool.effect {
            Effect::ReadOnly => "read-only",
            Effect::Idempotent => "idempotent",
            Effect::Effectful => "effectful",
            Effect::Undeclared => "undeclared",
        };
        let mut canonical = json!([tool.name, tool.description, tool.parameters, tool.source, effect]);
        if let (Value::Array(items), true) = (&mut canonical, tool.title.is_some() || tool.output_schema.is_some()) {
            items.extend([json!(tool.title), json!(tool.output_schema)]);
        }
        if let (Value::Array(items), Some(hints)) = (&mut canonical, &tool.model_hints) {
            let ModelHints { defer_loading, allowed_callers, input_examples } = &**hints;
            items.push(json!({"model": [defer_loading, allowed_callers, input_examples]}));
        }
        canonical.sort_all_objects();
        // No JSON text holds a bare line end: one tool cannot pass for two.
        hash.update(canonical.to_string());
        hash.update("\n");
    }
    hash.finalize().into_iter().take(VERSION_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> ListedTool {
        let descriptor = ToolDescriptor::new(name, "rest", "rest");
        definition(&ToolDescriptor { description: "Does it.".to_owned(), ..descriptor })
    }

    fn with_schema(text: &str) -> ListedTool {
        ListedTool { parameters: Some(Arc::new(serde_json::from_str(text).unwrap())), ..tool("a") }
    }

    #[test]
    fn a_definition_has_both_names() {
        let tool = tool("fs.read");
        assert_eq!((&*tool.name, &*tool.llm_name), ("fs.read", &*llm_name("fs.read")));
    }

    #[test]
    fn a_version_is_the_same_in_every_replica() {
        let ordered = with_schema(r#"{"type":"object","properties":{"a":{"type":"string","minLength":1},"b":{}}}"#);
        let other = with_schema(r#"{"properties":{"b":{},"a":{"minLength":1,"type":"string"}},"type":"object"}"#);
        assert_eq!(version([&ordered]), version([&other]));
        insta::assert_snapshot!(version([&ordered, &tool("b")]), @"9cc8b463e9380128bb0fdb85d7db9d10");
        insta::assert_snapshot!(version([]), @"e3b0c44298fc1c149afbf4c8996fb924");
    }

    #[test]
    fn a_version_changes_with_every_listed_field() {
        let mut versions = vec![
            version([]),
            version([&tool("a")]),
            version([&tool("b")]),
            version([&tool("a"), &tool("b")]),
            version([&with_schema("{}")]),
            version([&with_schema(r#"{"required":["a","b"]}"#)]),
            version([&with_schema(r#"{"required":["b","a"]}"#)]),
            version([&ListedTool { description: String::new(), ..tool("a") }]),
            version([&ListedTool { source: "time".into(), ..tool("a") }]),
            version([&ListedTool { title: Some("A".to_owned()), ..tool("a") }]),
            version([&ListedTool { output_schema: Some(Arc::new(json!({}))), ..tool("a") }]),
            version([&ListedTool { model_hints: Some(Arc::default()), ..tool("a") }]),
            version([&ListedTool {
                model_hints: Some(Arc::new(ModelHints { defer_loading: true, ..ModelHints::default() })),
                ..tool("a")
            }]),
        ];
        for effect in [Effect::ReadOnly, Effect::Idempotent, Effect::Effectful] {
            versions.push(version([&ListedTool { effect, ..tool("a") }]));
        }
        let count = versions.len();
        versions.sort();
        versions.dedup();
        assert_eq!(versions.len(), count);
    }

    #[test]
    fn a_forged_name_does_not_give_the_version_of_two_tools() {
        let two = version([&tool("a"), &tool("b")]);
        let forged = format!("{}\",\"Does it.\",null,\"rest\",\"undeclared\"]\n[\"b", "a");
        assert_ne!(version([&tool(&forged)]), two);
    }
}
