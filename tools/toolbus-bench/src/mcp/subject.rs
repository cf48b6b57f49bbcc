//! Subject of a measurement: a server, and a call of its tool.

use std::sync::Arc;

use crate::broker::load::TEXT;
use serde_json::{Map, Value, json};

use super::echo;
use crate::args::MeasureArgs;
use crate::error::MeasureError;

/// A server, and the call that is repeated.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MeasuredServer {
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) tool: Arc<str>,
    pub(crate) arguments: Arc<Map<String, Value>>,
    /// Text of the tool's result; absent: anything that is no error.
    pub(crate) text: Option<&'static str>,
}

impl MeasuredServer {
    /// Returns the server that the arguments name, or else this program as the smallest server.
    pub(crate) fn of(args: &MeasureArgs) -> Result<Self, MeasureError> {
        let Some(command) = &args.mcp_command else { return Self::smallest() };
        let mut words = command.split_whitespace().map(str::to_owned);
        let command = words.next().ok_or_else(|| MeasureError::Mcp("--mcp-command is empty".to_owned()))?;
        let arguments = serde_json::from_str(&args.mcp_arguments)
            .map_err(|error| MeasureError::Mcp(format!("--mcp-arguments is no JSON object: {error}")))?;
        Ok(Self {
            command,
            args: words.collect(),
            tool: args.mcp_tool.as_str().into(),
            arguments: Arc::new(arguments),
            text: None,
        })
    }

    pub(super) fn smallest() -> Result<Self, MeasureError> {
        let arguments = Map::from_iter([("text".to_owned(), json!(TEXT))]);
        Ok(Self {
            command: std::env::current_exe()?.display().to_string(),
            args: vec![echo::WORD.to_owned()],
            tool: echo::TOOL.into(),
            arguments: Arc::new(arguments),
            text: Some(TEXT),
        })
    }

    /// A result is only good when it has the expected text.
    pub(super) fn check(&self, text: Option<&str>, is_error: bool) -> Result<(), MeasureError> {
        match (self.text, text) {
            (Some(expected), Some(text)) if text == expected && !is_error => Ok(()),
            (None, Some(_)) if !is_error => Ok(()),
            (_, other) => Err(MeasureError::Mcp(format!("the tool answered {other:?}"))),
        }
    }
}
