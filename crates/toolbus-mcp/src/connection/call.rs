//! From a call to a request, and from its answer to a result.

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, Extensions, RequestMetaObject, ServerResult,
};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{ToolCall, ToolOutput};

use super::signals::Token;

/// The request of a call. `token` names it in reports of its progress.
pub(super) fn request(tool: &str, call: &ToolCall, token: Option<Token>) -> ClientRequest {
    let mut extensions = Extensions::new();
    if let Some(trace) = &call.trace {
        let mut meta = RequestMetaObject::new();
        meta.set_traceparent(trace.traceparent());
        if let Some(state) = trace.tracestate() {
            meta.set_tracestate(state);
        }
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
        ServerResult::CallToolResult(result) => Ok(crate::result::output(result)),
        ServerResult::EmptyResult(_) | ServerResult::TaskAckResult(_) => {
            Ok(crate::result::output(CallToolResult::default()))
        }
        ServerResult::InputRequiredResult(_) => Err(ToolFailure::new(
            Cause::Failed,
            format!("Tool '{tool}' needs input from a person, which this bridge does not relay."),
        )),
        ServerResult::CreateTaskResult(_) | ServerResult::GetTaskResult(_) => Err(ToolFailure::new(
            Cause::Failed,
            format!("Tool '{tool}' runs as a task that is asked for its result later, which this bridge does not do."),
        )),
        ServerResult::CustomResult(result) => crate::result::output_of_value(result.0).ok_or_else(|| invalid(tool)),
        _ => Err(invalid(tool)),
    }
}

fn invalid(tool: &str) -> ToolFailure {
    let text = format!("Tool '{tool}' answered with something that is not the result of a call.");
    ToolFailure::new(Cause::InvalidResult, text)
}
