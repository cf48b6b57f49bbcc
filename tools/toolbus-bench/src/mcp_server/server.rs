//! The daemon whose MCP server is measured.

use std::fmt::Write as _;

use crate::mcp_http::McpEndpoint;
use toolbus_protocol::new_message_id;

use crate::daemon::{Daemon, free_address, toolbus};
use crate::error::MeasureError;
use crate::mcp::subject::MeasuredServer;

/// The path of the MCP server.
const PATH: &str = "/mcp";
/// Holds the token of the child's one agent.
const TOKEN: &str = "TOOLBUS_BENCH_TOKEN";

/// A daemon on the embedded bus with a token, in a process of its own.
pub(super) struct Server {
    daemon: Daemon,
    endpoint: McpEndpoint,
}

impl Server {
    /// With the tool `echo`, and the tools of an MCP server if one is given.
    pub(super) async fn start(behind: Option<&MeasuredServer>) -> Result<Self, MeasureError> {
        let (id, token, address) = (new_message_id(), new_message_id(), free_address().await?);
        let mut settings = format!(
            r#"
[bus]
url = "embedded"
[http]
listen = "{address}"
tokens = {{ bench = {{ env = "{TOKEN}" }} }}
[daemon]
socket = "none"
[store]
url = "memory:"
[tools]
echo = true
time = false
[telemetry]
log = "warn"
"#
        );
        if let Some(MeasuredServer { command, args, .. }) = behind {
            let (command, args) = (serde_json::json!(command), serde_json::json!(args));
            let _ = write!(settings, "[mcp.servers.bench]\ncommand = {command}\nargs = {args}\n");
        }
        let mut program = toolbus()?;
        program.env(TOKEN, &token);
        let daemon = Daemon::launch(program, &id, address, &settings).await?;
        Ok(Self { daemon, endpoint: McpEndpoint { address, path: PATH.to_owned(), token: Some(token) } })
    }

    pub(super) const fn endpoint(&self) -> &McpEndpoint {
        &self.endpoint
    }

    pub(super) fn process(&self) -> u32 {
        self.daemon.process()
    }

    pub(super) async fn stop(mut self) {
        self.daemon.stop().await;
    }
}
