//! Calls and programs for tests.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Map;
use toolbus_core::caller::Caller;
use toolbus_core::tool::ToolCall;

use crate::spec::StdioSpec;

/// A call of this tool by an unknown caller, without arguments, with a minute to go.
pub(crate) fn call(tool: &str) -> ToolCall {
    ToolCall::new(tool, Caller::unknown(), Map::new(), Duration::from_secs(60))
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
