//! A tool of a server, as it is run.

use std::sync::Arc;

use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

use super::entry::ServerEntry;

/// Runs one tool at its server.
pub(super) struct McpTool {
    entry: Arc<ServerEntry>,
    /// The name that it is called by.
    name: Arc<str>,
    is_repeatable: bool,
}

impl McpTool {
    /// The tool that `descriptor` describes, run by `entry`.
    pub(super) fn tool(entry: Arc<ServerEntry>, descriptor: ToolDescriptor) -> Tool {
        let is_repeatable = descriptor.effect.is_repeatable();
        let name = Arc::clone(&descriptor.name);
        Tool::new(descriptor, Self { entry, name, is_repeatable })
    }
}

impl Executor for McpTool {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let server = self.entry.server_for(&call.caller)?;
        let is_admitted = || self.entry.still_admits(&self.name, self);
        server.call(&call.tool, &call, self.is_repeatable, &is_admitted).await
    }
}
