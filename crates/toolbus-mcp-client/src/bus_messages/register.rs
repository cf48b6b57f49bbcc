//! Requests to add and to remove a server: calls of the tools that do so.

use serde_json::{Map, Value};
use toolbus_core::ControlReply;
use toolbus_core::failure::ToolFailure;
use toolbus_core::log::shown;
use toolbus_core::tool::ToolOutput;
use toolbus_protocol::{
    McpRegisterServerRequest, McpRegisterServerResponse, McpUnregisterServerRequest, McpUnregisterServerResponse,
    ParseError, message_type as types,
};

/// A call that a request stands for.
pub(super) struct Call {
    /// The tool.
    pub(super) tool: &'static str,
    /// The tool's arguments.
    pub(super) arguments: Value,
    server: String,
}

/// The tool that adds a server.
pub(super) const REGISTER: &str = "mcp_register_server";
const UNREGISTER: &str = "mcp_unregister_server";

impl Call {
    /// The call that adds a server.
    pub(super) fn register(body: &[u8]) -> Result<Self, ParseError> {
        let request = McpRegisterServerRequest::parse(body)?;
        let listed = |texts: Vec<String>| (!texts.is_empty()).then(|| Value::from(texts));
        let environment: Map<String, Value> =
            request.env.into_iter().map(|(name, value)| (name, value.into())).collect();
        let given = [
            ("server_name", Some(request.server_name.clone().into())),
            ("type", Some(request.kind).filter(|kind| !kind.is_empty()).map(Value::from)),
            ("url", request.url.map(Value::from)),
            ("command", request.command.map(Value::from)),
            ("arguments", listed(request.args)),
            // The tool takes none, and says so.
            ("env", Some(environment).filter(|environment| !environment.is_empty()).map(Value::from)),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let arguments: Map<String, Value> = given.collect();
        Ok(Self { tool: REGISTER, arguments: arguments.into(), server: request.server_name })
    }

    /// The call that removes a server.
    pub(super) fn unregister(body: &[u8]) -> Result<Self, ParseError> {
        let server = McpUnregisterServerRequest::parse(body)?.server_name;
        let arguments = serde_json::json!({"server_name": server});
        Ok(Self { tool: UNREGISTER, arguments, server })
    }

    /// What the sender of the request is told of the call's result.
    pub(super) fn said(self, result: Result<ToolOutput, ToolFailure>) -> ControlReply {
        let name = shown(&self.server);
        let is_register = self.tool == REGISTER;
        // Agents put words of their own before what they are told, the same that the tools use.
        let (done, not_done) = match is_register {
            true => {
                (format!("Server '{name}' registered successfully. "), format!("Failed to register server '{name}': "))
            }
            false => (format!("Server '{name}' removed successfully."), format!("Failed to remove server '{name}': ")),
        };
        let bare = |text: String, words: &str| text.strip_prefix(words).map(str::to_owned).unwrap_or(text);
        let (summary, error) = match result {
            Ok(output) if output.is_error => (None, Some(bare(output.content.unwrap_or_default(), &not_done))),
            Ok(output) => (output.content.map(|text| bare(text, &done)), None),
            Err(failure) => (None, Some(failure.message)),
        };
        let success = error.is_none();
        if is_register {
            let response = McpRegisterServerResponse { server_name: name, success, summary, error };
            return ControlReply::new(types::MCP_REGISTER_SERVER_RESPONSE, &response);
        }
        let response = McpUnregisterServerResponse { server_name: name, success, error };
        ControlReply::new(types::MCP_UNREGISTER_SERVER_RESPONSE, &response)
    }
}

/// The answer to a request to add a server that cannot be read.
pub(super) fn refused_register(error: &str) -> ControlReply {
    let response = McpRegisterServerResponse { error: Some(error.to_owned()), ..McpRegisterServerResponse::default() };
    ControlReply::new(types::MCP_REGISTER_SERVER_RESPONSE, &response)
}

/// The answer to a request to remove a server that cannot be read.
pub(super) fn refused_unregister(error: &str) -> ControlReply {
    let response =
        McpUnregisterServerResponse { error: Some(error.to_owned()), ..McpUnregisterServerResponse::default() };
    ControlReply::new(types::MCP_UNREGISTER_SERVER_RESPONSE, &response)
}
