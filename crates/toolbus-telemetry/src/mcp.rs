//! Common parts of the metrics of MCP servers and of MCP clients, by OpenTelemetry's conventions for MCP.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Histogram, Meter};

use crate::labels::{LabelSet, Labels, among};

/// Seconds, as the conventions for MCP advise.
const BOUNDS: [f64; 14] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// The method that calls a tool.
pub(crate) const CALL: &str = "tools/call";
const VERSIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
const TRANSPORTS: [&str; 2] = ["pipe", "tcp"];

/// Name and description of a metric.
pub(crate) type Metric = (&'static str, &'static str);

/// Durations of requests and of sessions.
pub(crate) struct Durations<K> {
    operation: Histogram<f64>,
    session: Histogram<f64>,
    operations: Labels<K>,
    sessions: Labels<K>,
}

impl<K: LabelSet> Durations<K> {
    pub(crate) fn new(meter: &Meter, operation: Metric, session: Metric) -> Self {
        let histogram = |(name, description): Metric| {
            let builder = meter.f64_histogram(name).with_unit("s").with_description(description);
            builder.with_boundaries(BOUNDS.to_vec()).build()
        };
        let (operations, sessions) = (Labels::default(), Labels::default());
        Self { operation: histogram(operation), session: histogram(session), operations, sessions }
    }

    pub(crate) fn operation(&self, duration: Duration, server: &str, tool: Option<&str>, kind: K) {
        self.operation.record(duration.as_secs_f64(), &self.operations.of(server, tool, kind));
    }

    pub(crate) fn session(&self, duration: Duration, server: &str, kind: K) {
        self.session.record(duration.as_secs_f64(), &self.sessions.of(server, None, kind));
    }
}

/// Protocol version that two programs speak, and transport that they use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wire {
    version: &'static str,
    transport: &'static str,
}

impl Wire {
    pub(crate) fn new(version: &str, transport: &str) -> Self {
        Self { version: among(&VERSIONS, version), transport: among(&TRANSPORTS, transport) }
    }

    pub(crate) fn is_tcp(self) -> bool {
        self.transport == "tcp"
    }

    pub(crate) fn labels(self) -> [KeyValue; 2] {
        [KeyValue::new("mcp.protocol.version", self.version), KeyValue::new("network.transport", self.transport)]
    }
}

/// Combinations of the closed sets, each with its value for everything else; requests may also have no error.
pub(crate) const fn combinations(methods: usize, errors: usize) -> usize {
    (methods + 1) * (VERSIONS.len() + 1) * (TRANSPORTS.len() + 1) * (errors + 2)
}
