//! What an answer from the bus says, as the result of a tool.

use std::time::Duration;

use serde_json::Value;
use toolbus_core::failure::{Cause, ToolFailure, Verdict};
use toolbus_core::tool::ToolOutput;
use toolbus_protocol::{Code, ToolError, ToolInvokeResponse};

use crate::Content;

pub(super) fn told(content: Content) -> Result<ToolOutput, ToolFailure> {
    match content {
        Content::Result(result) => Ok(output(result)),
        Content::Error(error) => Err(failure(error)),
    }
}

fn output(result: ToolInvokeResponse) -> ToolOutput {
    let blocks = result.content_blocks.unwrap_or_default();
    let structured = blocks.iter().find(|block| block.is_structured());
    let structured = structured.and_then(|block| serde_json::from_str::<Value>(block.text.as_deref()?).ok());
    ToolOutput {
        content: result.content,
        blocks,
        is_error: result.is_error,
        structured: structured.map(Box::new),
        program: None,
    }
}

/// The daemon has decided what the caller is told; the cause only says what kind of mistake it was.
fn failure(error: ToolError) -> ToolFailure {
    let cause = match error.code {
        Code::ToolNotFound => Cause::UnknownTool,
        Code::InvalidArguments => Cause::InvalidArguments,
        Code::Timeout => Cause::DeadlineExceeded,
        Code::NotAllowed => Cause::NotAllowed,
        Code::RateLimited => Cause::RateLimited,
        Code::Overloaded => Cause::Overloaded,
        Code::Cancelled => Cause::Cancelled,
        Code::AuthRequired => Cause::AuthRequired,
        Code::ExecutionFailed => Cause::Failed,
    };
    let verdict = Verdict { code: error.code, is_retryable: error.is_retryable, outcome: error.outcome };
    ToolFailure {
        retry_after: error.retry_after_ms.map(Duration::from_millis),
        verdict: Some(verdict),
        ..ToolFailure::new(cause, error.message)
    }
}
