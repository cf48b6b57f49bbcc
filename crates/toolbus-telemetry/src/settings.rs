use std::str::FromStr;

use toolbus_core::redact::Redactor;

/// Where telemetry goes, and for whom.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Base address of the collector, `http://host:port` or `https://host:port`; absent: nothing is exported, unless
    /// the environment names one.
    pub otlp_endpoint: Option<String>,
    /// How the collector is spoken to, unless the environment says otherwise.
    pub protocol: Protocol,
    /// Value of `service.name`, unless the environment says otherwise.
    pub service_name: String,
    /// Value of `service.version`.
    pub service_version: String,
    /// Value of `service.instance.id`: different for every running daemon.
    pub service_instance: String,
    /// Removes secrets from what is exported.
    pub redactor: Redactor,
}

/// How a collector is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// OTLP over gRPC; port 4317 by custom.
    #[default]
    Grpc,
    /// OTLP over HTTP with protobuf bodies; port 4318 by custom.
    HttpProtobuf,
}

/// A text that names no protocol.
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

/// What spans and metrics say of the bus that calls come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
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
