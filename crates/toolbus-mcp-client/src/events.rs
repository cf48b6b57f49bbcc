//! Events of the traffic with servers, named after OpenTelemetry's conventions for MCP.

use std::time::Duration;

/// Takes what happens with servers into metrics.
pub trait Observer: Send + Sync + 'static {
    /// A request that was answered, or not.
    fn operation(&self, operation: &Operation<'_>);
    /// A connection that ended.
    fn session(&self, session: &Session<'_>);
}

/// One request to a server.
#[derive(Debug, Clone, Copy)]
pub struct Operation<'a> {
    /// The method, such as `tools/call`.
    pub method: &'static str,
    /// The tool of a `tools/call`.
    pub tool: Option<&'a str>,
    /// The server's name.
    pub server: &'a str,
    /// Version of the protocol.
    pub protocol_version: &'a str,
    /// `pipe` or `tcp`.
    pub transport: &'static str,
    /// From the request to its answer.
    pub duration: Duration,
    /// What went wrong, if anything: `tool_error`, `timeout`, `cancelled`, `connection_lost`, or a JSON-RPC error code.
    pub error_type: Option<&'a str>,
}

/// One connection to a server, from its handshake to its end.
#[derive(Debug, Clone, Copy)]
pub struct Session<'a> {
    /// The server's name.
    pub server: &'a str,
    /// Version of the protocol.
    pub protocol_version: &'a str,
    /// `pipe` or `tcp`.
    pub transport: &'static str,
    /// How long it lasted.
    pub duration: Duration,
    /// Why it ended, unless it was closed in order.
    pub error_type: Option<&'static str>,
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Discard;

impl Observer for Discard {
    fn operation(&self, _: &Operation<'_>) {}
    fn session(&self, _: &Session<'_>) {}
}
