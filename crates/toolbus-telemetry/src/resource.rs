//! The resource that everything exported names: the daemon, as OpenTelemetry describes a service.

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use percent_encoding::percent_decode_str;

use crate::environment::{Environment, EnvironmentError, error};
use crate::settings::TelemetrySettings;

/// Attributes taken from the environment.
const MAX_ATTRIBUTES: usize = 64;

/// Returns the attributes of the sender: the settings, over them `OTEL_RESOURCE_ATTRIBUTES`, over both
/// `OTEL_SERVICE_NAME`.
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

    use super::*;
    use crate::settings::Protocol;

    fn read(key: &'static str, variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let settings = TelemetrySettings {
            otlp_endpoint: None,
            protocol: Protocol::Grpc,
            scraped: false,
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
