//! Requests that are not served: each gets a reply that its sender can read.

use serde::Serialize;
use toolbus_core::text::shown;
use toolbus_core::{ControlError, ControlReply};
use toolbus_protocol::{
    McpAnswerQuestionResponse, McpEchoed, McpGetPromptResponse, McpListResourcesResponse, McpReadResourceResponse,
    bounded, message_type as types,
};

/// Longest type that is turned into that of its reply, in bytes.
const MAX_TYPE: usize = 200;

/// The response to a request of an unknown type.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct NotServed {
    server_name: String,
    error: String,
}

/// Replies that a request is not supported.
///
/// # Errors
///
/// If the type is not a peer's `…Request`, so that no response type can be derived.
pub(super) fn reply(message_type: &str, body: &[u8]) -> Result<ControlReply, ControlError> {
    let is = |name: &str| message_type.eq_ignore_ascii_case(name);
    // What cannot be read is not repeated; the reply is the same.
    let McpEchoed { server_name, prompt_name, uri, question_id } = McpEchoed::parse(body).unwrap_or_default();
    let [server_name, prompt_name, uri, question_id] =
        [server_name, prompt_name, uri, question_id].map(|text| bounded(&text).to_owned());
    let error = |what: &str| Some(format!("This bridge serves the tools of MCP servers, and not their {what}."));
    Ok(if is(types::MCP_GET_PROMPT_REQUEST) {
        let error = error("prompts");
        let response = McpGetPromptResponse { server_name, prompt_name, error, ..McpGetPromptResponse::default() };
        ControlReply::new(types::MCP_GET_PROMPT_RESPONSE, &response)
    } else if is(types::MCP_LIST_RESOURCES_REQUEST) {
        let error = error("resources");
        let response = McpListResourcesResponse { server_name, error, ..McpListResourcesResponse::default() };
        ControlReply::new(types::MCP_LIST_RESOURCES_RESPONSE, &response)
    } else if is(types::MCP_READ_RESOURCE_REQUEST) {
        let error = error("resources");
        let response = McpReadResourceResponse { server_name, uri, error, ..McpReadResourceResponse::default() };
        ControlReply::new(types::MCP_READ_RESOURCE_RESPONSE, &response)
    } else if is(types::MCP_ANSWER_QUESTION_REQUEST) {
        let error = error("questions");
        let response = McpAnswerQuestionResponse { question_id, error, ..McpAnswerQuestionResponse::default() };
        ControlReply::new(types::MCP_ANSWER_QUESTION_RESPONSE, &response)
    } else {
        let unknown = || ControlError::Type(shown(message_type));
        let reply = reply_type(message_type).ok_or_else(unknown)?;
        let error = format!("This bridge does not serve requests of the type {}.", shown(message_type));
        ControlReply::new(reply, &NotServed { server_name, error })
    })
}

/// The response type of an unknown request type.
fn reply_type(request: &str) -> Option<String> {
    let is_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_');
    let is_usable = request.len() <= MAX_TYPE && request.bytes().all(is_name) && types::is_peer(request);
    request.strip_suffix("Request").filter(|_| is_usable).map(|stem| format!("{stem}Response"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reply_type_follows_from_the_request_type() {
        assert_eq!(reply_type("RockBot.Tools.Mcp.McpNewRequest").as_deref(), Some("RockBot.Tools.Mcp.McpNewResponse"));
        let long = format!("RockBot.{}Request", "x".repeat(MAX_TYPE));
        for name in ["", "my.Request", "RockBot.Tools.Mcp.McpNew", "RockBot.ü.Request", "RockBot.a b.Request", &long] {
            assert_eq!(reply_type(name), None, "{name}");
        }
    }
}
