//! Events of the traffic with clients, named after OpenTelemetry's conventions for MCP.

use std::time::Duration;

use toolbus_protocol::TraceContext;

use crate::meta::Version;

/// Takes what happens at the server into metrics and traces. Implementations neither block nor fail.
pub trait Observer: Send + Sync + 'static {
    /// A request has come.
    fn started(&self, operation: &Operation<'_>) -> Box<dyn Started>;
    /// A session has ended.
    fn session_ended(&self, version: Version, transport: &'static str, duration: Duration);
}

/// A request of a client.
#[derive(Debug, Clone, Copy)]
pub struct Operation<'a> {
    /// The method; `unknown` for one that there is not.
    pub method: &'static str,
    /// Revision of the protocol.
    pub version: Version,
    /// `tcp` or `pipe`.
    pub transport: &'static str,
    /// The client's session.
    pub session: Option<&'a str>,
    /// The request's id, as JSON.
    pub request: &'a str,
    /// The client's trace.
    pub parent: Option<&'a TraceContext>,
}

/// A request that is under way.
pub trait Started: Send {
    /// The trace to go on in.
    fn trace(&self) -> Option<TraceContext>;
    /// The request was answered. `tool` is the called tool, if the client has it. `error_type` is `tool_error`, the
    /// bus's code of a failure, or a JSON-RPC error code.
    fn finished(self: Box<Self>, tool: Option<&str>, error_type: Option<&str>);
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Discard;

impl Observer for Discard {
    fn started(&self, _: &Operation<'_>) -> Box<dyn Started> {
        Box::new(Self)
    }

    fn session_ended(&self, _: Version, _: &'static str, _: Duration) {}
}

impl Started for Discard {
    fn trace(&self) -> Option<TraceContext> {
        None
    }

    fn finished(self: Box<Self>, _: Option<&str>, _: Option<&str>) {}
}
