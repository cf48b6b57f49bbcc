//! What is recorded of MCP clients and their requests, by the names of OpenTelemetry's conventions for MCP.

mod labels;
mod span;

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry::metrics::{Histogram, Meter};
use opentelemetry_sdk::trace::SdkTracer;
use toolbus_protocol::TraceContext;

use labels::{Closed, Kind};
use span::ServerSpan;

use crate::labels::Labels;
use crate::mcp::BOUNDS;

/// Records requests of MCP clients, and their sessions. Without a collector it does nothing. Cheap to clone.
#[derive(Clone)]
pub struct DoorRecorder(Option<Arc<Shared>>);

struct Shared {
    tracer: Option<SdkTracer>,
    instruments: Option<Instruments>,
}

struct Instruments {
    operation_duration: Histogram<f64>,
    session_duration: Histogram<f64>,
    operations: Labels<Kind>,
    sessions: Labels<Kind>,
}

/// A request of a client.
#[derive(Debug, Clone, Copy)]
pub struct DoorOperation<'a> {
    /// The method, such as `tools/call`. What is not documented is recorded as `unknown`.
    pub method: &'a str,
    /// Revision of the protocol.
    pub protocol_version: &'a str,
    /// `pipe` or `tcp`.
    pub transport: &'a str,
    /// The client's session.
    pub session: Option<&'a str>,
    /// The request's id, as JSON.
    pub request: &'a str,
    /// The client's trace.
    pub parent: Option<&'a TraceContext>,
}

/// A request that is under way.
pub struct DoorRequest {
    shared: Arc<Shared>,
    closed: Closed,
    started: Instant,
    span: Option<ServerSpan>,
    carried: Option<TraceContext>,
}

impl DoorRecorder {
    pub(crate) fn new(tracer: Option<SdkTracer>, meter: Option<&Meter>) -> Self {
        let histogram = |meter: &Meter, name: &'static str, description: &'static str| {
            let builder = meter.f64_histogram(name).with_unit("s").with_description(description);
            builder.with_boundaries(BOUNDS.to_vec()).build()
        };
        let instruments = |meter| Instruments {
            operation_duration: histogram(
                meter,
                "mcp.server.operation.duration",
                "From a request of an MCP client to its answer.",
            ),
            session_duration: histogram(
                meter,
                "mcp.server.session.duration",
                "From the handshake of an MCP client to the end of its session.",
            ),
            operations: Labels::default(),
            sessions: Labels::default(),
        };
        let is_recording = tracer.is_some() || meter.is_some();
        let shared = || Shared { tracer, instruments: meter.map(instruments) };
        Self(is_recording.then(shared).map(Arc::new))
    }

    /// Begins to record a request. None where nothing is recorded: then what it is part of goes on in its own trace.
    #[must_use]
    pub fn started(&self, operation: &DoorOperation<'_>) -> Option<DoorRequest> {
        let shared = Arc::clone(self.0.as_ref()?);
        let closed = Closed::new(operation);
        let (span, carried) = match &shared.tracer {
            Some(tracer) => span::begin(tracer, closed, operation),
            None => (None, operation.parent.cloned()),
        };
        Some(DoorRequest { shared, closed, started: Instant::now(), span, carried })
    }

    /// Records a session that ended.
    pub fn session(&self, protocol_version: &str, transport: &str, duration: Duration) {
        let Some(instruments) = self.0.as_ref().and_then(|shared| shared.instruments.as_ref()) else { return };
        let kind = Kind::session(protocol_version, transport);
        instruments.session_duration.record(duration.as_secs_f64(), &instruments.sessions.of("", None, kind));
    }
}

impl DoorRequest {
    /// The trace that goes on from here.
    #[must_use]
    pub const fn trace(&self) -> Option<&TraceContext> {
        self.carried.as_ref()
    }

    /// Records that it was answered. `tool` is the name of the tool that was called; what is not documented of `error_type` is
    /// recorded as `_OTHER`.
    pub fn finished(self, tool: Option<&str>, error_type: Option<&str>) {
        let kind = Kind::request(self.closed, error_type);
        if let Some(instruments) = &self.shared.instruments {
            let labels = instruments.operations.of("", tool, kind);
            instruments.operation_duration.record(self.started.elapsed().as_secs_f64(), &labels);
        }
        if let Some(span) = self.span {
            span.end(tool, kind);
        }
    }
}

/// Registers what is looked up at each export.
pub(crate) fn observe(meter: &Meter, sessions: impl Fn() -> u64 + Send + Sync + 'static) {
    let gauge = meter.u64_observable_gauge("toolbus.door.sessions").with_unit("{session}");
    let gauge = gauge.with_description("Sessions of MCP clients.");
    gauge.with_callback(move |gauge| gauge.observe(sessions(), &[])).build();
}
