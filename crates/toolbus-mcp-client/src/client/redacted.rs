//! Texts of servers without secrets and control characters: a server that was given a token may repeat it anywhere.
//!
//! Secrets are removed before a text is shortened, so that no part of one is left. The dispatcher redacts the results
//! of calls, as it does for all tools.

use rmcp::model::{ErrorData, ServerResult};
use rmcp::service::{ClientInitializeError, ServiceError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toolbus_core::redact::Redactor;

use super::list::ServerListing;
use crate::status::HiddenTool;

/// Reason why a tool is hidden: without secrets, its name would be another.
const SECRET_NAME: &str = "its name holds a secret of this daemon";

/// Removes secrets from a response, as far as it is no result of a call.
pub(super) fn response(redactor: &Redactor, response: &mut Result<ServerResult, ServiceError>) {
    match response {
        Err(ServiceError::McpError(refusal)) => error(redactor, refusal),
        Ok(ServerResult::CustomResult(result)) => redactor.clean_value(&mut result.0),
        Ok(_) | Err(_) => {}
    }
}

/// Removes secrets from why there is no connection.
pub(super) fn handshake(redactor: &Redactor, failure: &mut ClientInitializeError) {
    match failure {
        ClientInitializeError::JsonRpcError(refusal) => error(redactor, refusal),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => handshake(redactor, fallback),
        _ => {}
    }
}

/// Removes secrets from an error.
pub(super) fn error(redactor: &Redactor, error: &mut ErrorData) {
    if let std::borrow::Cow::Owned(clean) = redactor.text(&error.message) {
        error.message = clean.into();
    }
}

/// Removes secrets from definitions. A tool whose name has one is hidden: by another name it could not be called.
pub(super) fn listed(redactor: &Redactor, listed: &mut ServerListing) {
    let tools = std::mem::take(&mut listed.tools);
    for mut tool in tools {
        let name = tool.name.clone();
        anything(redactor, &mut tool);
        if tool.name == name {
            listed.tools.push(tool);
        } else {
            listed.unreadable.push(HiddenTool { name: tool.name.into_owned(), reason: SECRET_NAME.to_owned() });
        }
    }
}

/// Removes secrets from every text of a message's part.
pub(super) fn anything<T: Serialize + DeserializeOwned>(redactor: &Redactor, part: &mut T) {
    let written = serde_json::to_vec(part).unwrap_or_default();
    if let Some(clean) = redactor.json(&written)
        && let Ok(clean) = serde_json::from_slice(&clean)
    {
        *part = clean;
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::Tool;
    use serde_json::{Value, json};
    use toolbus_core::secret::Secret;

    use super::*;

    #[test]
    fn a_definition_loses_its_secrets_and_a_tool_named_by_one_is_hidden() {
        let redactor = Redactor::default();
        redactor.configure([Secret::new("s3cr3t-t0ken")]);
        let tool = |value: Value| serde_json::from_value::<Tool>(value).unwrap();
        let secret = tool(json!({
            "name": "read", "title": "Read as s3cr3t-t0ken", "description": "Uses s3cr3t-t0ken.",
            "inputSchema": {"type": "object", "properties": {"key": {"default": "s3cr3t-t0ken", "maxLength": 12}}},
            "annotations": {"title": "s3cr3t-t0ken", "readOnlyHint": true},
        }));
        let ordinary = tool(json!({"name": "list", "description": "Lists.", "inputSchema": {"type": "object"}}));
        let named = tool(json!({"name": "get_s3cr3t-t0ken", "inputSchema": {}}));
        let mut all = ServerListing { tools: vec![secret, ordinary.clone(), named], ..ServerListing::default() };
        listed(&redactor, &mut all);
        assert_eq!(all.tools.len(), 2);
        assert_eq!(all.tools[1], ordinary);
        let written = serde_json::to_value(&all.tools[0]).unwrap();
        assert_eq!(written["description"], "Uses [redacted].");
        assert_eq!(written["inputSchema"]["properties"]["key"], json!({"default": "[redacted]", "maxLength": 12}));
        assert!(!written.to_string().contains("s3cr3t"), "{written}");
        assert_eq!(all.unreadable, [HiddenTool { name: "get_[redacted]".to_owned(), reason: SECRET_NAME.to_owned() }]);
    }
}
