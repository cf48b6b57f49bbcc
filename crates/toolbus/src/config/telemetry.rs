//! `[telemetry]`: metrics, traces and logs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Metrics, traces and logs. The standard `OTEL_*` environment variables are honoured too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Collector that metrics, traces and logs are sent to; absent: they are not sent.
    #[schemars(extend("format" = "toolbus-http-url"))]
    pub otlp_endpoint: Option<String>,
    /// How they are sent.
    pub protocol: OtlpProtocol,
    /// What is logged: a level (error, warn, info, debug, trace, off), or levels by module, such as
    /// "info,toolbus_broker=debug".
    #[schemars(extend("format" = "toolbus-log-filter"))]
    pub log: String,
    /// How it is logged.
    pub log_format: LogFormat,
}

/// How metrics, traces and logs are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum OtlpProtocol {
    /// gRPC, usually port 4317.
    #[default]
    #[serde(rename = "grpc")]
    Grpc,
    /// Protocol Buffers over HTTP, usually port 4318.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            protocol: OtlpProtocol::default(),
            log: "info".to_owned(),
            log_format: LogFormat::default(),
        }
    }
}
