//! What is exported for whom: settings, and the resource that they make.

use std::str::FromStr;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::Clock;
use toolbus_core::redact::Redactor;

use crate::environment::{Environment, EnvironmentError, error};

/// The collector, and the service that exports to it.
#[derive(Debug, Clone)]
pub struct TelemetrySettings {
    /// Base address of the collector, `http://host:port` or `https://host:port`; absent: nothing is exported, unless
    /// the environment names one.
    pub otlp_endpoint: Option<String>,
    /// Protocol of the collector, unless the environment names another one.
    pub protocol: Protocol,
    /// Value of `service.name`, unless the environment says otherwise.
    pub service_name: String,
    /// Value of `service.version`.
    pub service_version: String,
    /// Value of `service.instance.id`: different for every running daemon.
    pub service_instance: String,
    /// Removes secrets from what is exported.
    pub redactor: Redactor,
    /// Measures what is recorded.
    pub clock: Clock,
}

/// How metrics, traces and logs are sent.
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

/// Attributes taken from the environment.
const MAX_ATTRIBUTES: usize = 64;

/// Who sends: the settings, over them `OTEL_RESOURCE_ATTRIBUTES`, over both `OTEL_SERVICE_NAME`.
pub(crate) fn resource(
    settings: &TelemetrySettings,
    environment: &Environment<'_>,
) -> Result<Resource, EnvironmentError> {
    let own = [
        KeyValue::new("service.name", settings.service_name.clone()),
        KeyValue::new("service.version", settings.service_version.clone()),
        KeyValue::new("service.instance.id", settings.service_instance.clone()),
    ];
    let given = environment.get("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let given = attributes(&given).ok_or_else(|| {
        error("OTEL_RESOURCE_ATTRIBUTES", "use key=value pairs with commas between them, percent-encoded, at most 64")
    })?;
    let name = environment.get("OTEL_SERVICE_NAME").map(|name| KeyValue::new("service.name", name));
    // Later attributes replace earlier ones of the same key.
    let builder = Resource::builder_empty().with_detector(Box::new(TelemetryResourceDetector));
    Ok(builder.with_attributes(own).with_attributes(given).with_attributes(name).build())
}

/// Reads `key=value,…`; `None` when it cannot be read.
fn attributes(text: &str) -> Option<Vec<KeyValue>> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let read: Option<Vec<KeyValue>> = pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=')?;
            let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
            (!key.trim().is_empty()).then(|| KeyValue::new(key.trim().to_owned(), value.into_owned()))
        })
        .collect();
    read.filter(|attributes| attributes.len() <= MAX_ATTRIBUTES)
}

#[cfg(test)]
mod tests {
    use opentelemetry::Key;

    use super::{Protocol, TelemetrySettings, UnknownProtocol, resource};
    use crate::environment::Environment;

    #[test]
    fn a_protocol_is_known_by_its_standard_name() {
        assert_eq!("grpc".parse(), Ok(Protocol::Grpc));
        assert_eq!("http/protobuf".parse(), Ok(Protocol::HttpProtobuf));
        assert_eq!("http/json".parse::<Protocol>(), Err(UnknownProtocol));
    }

    fn read(key: &'static str, variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let settings = TelemetrySettings {
            otlp_endpoint: None,
            protocol: Protocol::Grpc,
            service_name: "toolbus".into(),
            service_version: "1.2".into(),
            service_instance: "a".into(),
            redactor: Default::default(),
            clock: Default::default(),
        };
        let look_up = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let resource = resource(&settings, &Environment::new(&look_up)).map_err(|error| error.to_string())?;
        Ok(resource.get(&Key::from(key)).map(|value| value.to_string()))
    }

    #[test]
    fn the_settings_name_the_service() {
        assert_eq!(read("service.name", &[]).unwrap().unwrap(), "toolbus");
        assert_eq!(read("service.version", &[]).unwrap().unwrap(), "1.2");
        assert_eq!(read("service.instance.id", &[]).unwrap().unwrap(), "a");
        assert_eq!(read("telemetry.sdk.language", &[]).unwrap().unwrap(), "rust");
    }

    #[test]
    fn the_environment_adds_and_replaces() {
        let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=b, deployment.environment.name=a%2Cb");
        let name = ("OTEL_SERVICE_NAME", "c");
        assert_eq!(read("service.name", &[attributes]).unwrap().unwrap(), "b");
        assert_eq!(read("service.name", &[attributes, name]).unwrap().unwrap(), "c");
        assert_eq!(read("deployment.environment.name", &[attributes]).unwrap().unwrap(), "a,b");
    }

    #[test]
    fn attributes_that_cannot_be_read_are_an_error() {
        assert!(read("service.name", &[("OTEL_RESOURCE_ATTRIBUTES", "novalue")]).is_err());
        assert!(read("service.name", &[("OTEL_RESOURCE_ATTRIBUTES", "a=%ff")]).is_err());
    }
}
