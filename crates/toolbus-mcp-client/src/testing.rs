//! Calls and programs for tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use toolbus_core::caller::Caller;
use toolbus_core::tool::ToolCall;

use crate::spec::StdioSpec;

/// A call of this tool by an unknown caller, without arguments, with a minute to go.
pub(crate) fn call(tool: &str) -> ToolCall {
    ToolCall {
        idempotency_key: None,
        tool: tool.into(),
        call_id: "call-1".into(),
        caller: Arc::new(Caller::unknown()),
        arguments: Arc::default(),
        deadline: Instant::now() + Duration::from_secs(60),
        limit: Duration::from_secs(60),
        cancelled: CancellationToken::new(),
        trace: None,
        number: None,
        room: None,
        turns: toolbus_core::Turns::default(),
        progress: None,
    }
}

/// A program with these arguments and nothing else.
pub(crate) fn program(command: &str, args: &[&str]) -> StdioSpec {
    StdioSpec {
        command: command.to_owned(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: BTreeMap::new(),
        cwd: None,
        roots: Vec::new(),
    }
}
