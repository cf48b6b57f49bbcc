//! Choice of the exported signals and logged events, with their targets.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::Clock;
use toolbus_core::redact::Redactor;

/// The collector, and the service that exports to it.
#[derive(Debug, Clone)]
pub struct TelemetrySettings {
    /// Base address of the collector, `http://host:port` or `https://host:port`; absent: nothing is exported, unless
    /// the environment names one.
    pub otlp_endpoint: Option<String>,
    /// Protocol of the collector, unless the environment names another one.
    pub protocol: Protocol,
    /// Whether metrics can be scraped, whether or not they are exported.
    pub scraped: bool,
    /// Value of `service.name`, unless the environment sets another.
    pub service_name: String,
    /// Value of `service.version`.
    pub service_version: String,
    /// Value of `service.instance.id`: no other running daemon has it.
    pub service_instance: String,
    /// Removes secrets from exports.
    pub redactor: Redactor,
    /// Clock of the recorded times.
    pub clock: Clock,
}

/// Format in which a log line is written.
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

/// Protocol by which metrics, traces and logs are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Protocol {
    /// gRPC, usually port 4317.
    #[default]
    #[serde(rename = "grpc")]
    Grpc,
    /// Protocol Buffers over HTTP, usually port 4318.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

/// A string that names no protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a protocol; use `grpc` or `http/protobuf`")]
pub struct UnknownProtocol;

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "grpc" => Ok(Self::Grpc),
            "http/protobuf" => Ok(Self::HttpProtobuf),
            _ => Err(UnknownProtocol),
        }
    }
}

/// The bus that calls come from, as spans and metrics name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusIdentity {
    /// Value of `messaging.system`: `rabbitmq`, or `toolbus` for the embedded bus.
    pub system: &'static str,
    /// Name of the exchange that requests are published to.
    pub exchange: String,
    /// Value of `messaging.client.id`: the name of our connections to the broker.
    pub client_id: String,
    /// Host of the broker; absent for the embedded bus.
    pub server_address: Option<String>,
    /// Port of the broker.
    pub server_port: Option<u16>,
}

#[cfg(test)]
mod tests {
    use super::{Protocol, UnknownProtocol};

    #[test]
    fn a_protocol_is_known_by_its_standard_name() {
        assert_eq!("grpc".parse(), Ok(Protocol::Grpc));
        assert_eq!("http/protobuf".parse(), Ok(Protocol::HttpProtobuf));
        assert_eq!("http/json".parse::<Protocol>(), Err(UnknownProtocol));
    }
}
