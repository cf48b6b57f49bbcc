//! From a call to a request, and from its answer to a result.

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, Extensions, RequestMetaObject, ServerResult,
};
use serde::Serialize;
use serde_json::{Map, Value};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{ToolCall, ToolOutput};

use super::notifications::Token;

/// The parameters of a call, as they are written.
#[derive(Serialize)]
pub(super) struct Params<'a> {
    name: &'a str,
    arguments: &'a Map<String, Value>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<RequestMetaObject>,
}

/// The parameters of a call, where `common` is what every request says.
pub(super) fn params<'a>(tool: &'a str, call: &'a ToolCall, common: Option<&RequestMetaObject>) -> Params<'a> {
    let meta = match (common.cloned(), trace(call)) {
        (Some(mut common), Some(trace)) => {
            common.extend(trace);
            Some(common)
        }
        (common, trace) => common.or(trace),
    };
    Params { name: tool, arguments: &call.arguments, meta }
}

/// The trace of a call, for the server to go on with.
fn trace(call: &ToolCall) -> Option<RequestMetaObject> {
    let trace = call.trace.as_ref()?;
    let mut meta = RequestMetaObject::new();
    meta.set_traceparent(trace.traceparent());
    if let Some(state) = trace.tracestate() {
        meta.set_tracestate(state);
    }
    Some(meta)
}

/// The request of a call, for the SDK. `token` names it in reports of its progress.
pub(super) fn request(tool: &str, call: &ToolCall, token: Option<Token>) -> ClientRequest {
    let mut extensions = Extensions::new();
    if let Some(meta) = trace(call) {
        extensions.insert(meta);
    }
    if let Some(token) = token {
        extensions.insert(token);
    }
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments((*call.arguments).clone());
    let mut request = CallToolRequest::new(params);
    request.extensions = extensions;
    ClientRequest::CallToolRequest(request)
}

/// The result of a call.
pub(super) fn output(tool: &str, result: ServerResult) -> Result<ToolOutput, ToolFailure> {
    match result {
        ServerResult::CallToolResult(result) => Ok(super::result::from_result(result)),
        ServerResult::EmptyResult(_) | ServerResult::TaskAckResult(_) => {
            Ok(super::result::from_result(CallToolResult::default()))
        }
        ServerResult::InputRequiredResult(_) => Err(ToolFailure::new(
            Cause::Failed,
            format!("Tool '{tool}' needs input from a person, which this bridge does not relay."),
        )),
        ServerResult::CreateTaskResult(_) | ServerResult::GetTaskResult(_) => Err(ToolFailure::new(
            Cause::Failed,
            format!("Tool '{tool}' runs as a task that is asked for its result later, which this bridge does not do."),
        )),
        ServerResult::CustomResult(result) => super::result::from_value_result(result.0).ok_or_else(|| invalid(tool)),
        _ => Err(invalid(tool)),
    }
}

fn invalid(tool: &str) -> ToolFailure {
    let text = format!("Tool '{tool}' answered with something that is not the result of a call.");
    ToolFailure::new(Cause::InvalidResult, text)
}
