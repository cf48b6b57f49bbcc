//! `[telemetry]`: metrics, traces and logs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Protocol;
use crate::logging::LogFormat;

/// Metrics, traces and logs. The standard `OTEL_*` environment variables are honoured too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Collector that metrics, traces and logs are sent to; absent: they are not sent.
    #[schemars(extend("format" = "toolbus-http-url"))]
    pub otlp_endpoint: Option<String>,
    /// Protocol for the collector.
    pub protocol: Protocol,
    /// Log filter: a level (error, warn, info, debug, trace, off), or levels by module, such as
    /// "info,toolbus_broker=debug".
    #[schemars(extend("format" = "toolbus-log-filter"))]
    pub log: String,
    /// Format of the log.
    pub log_format: LogFormat,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            protocol: Protocol::default(),
            log: "info".to_owned(),
            log_format: LogFormat::default(),
        }
    }
}
