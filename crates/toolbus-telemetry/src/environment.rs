//! The standard `OTEL_…` variables, read through a function so that nothing depends on the process.

use std::time::Duration;

use opentelemetry_sdk::trace::Sampler;
use toolbus_core::milliseconds;

use crate::settings::{Protocol, TelemetrySettings};

/// Looks a variable up; an empty value counts as absent.
pub(crate) struct Environment<'a> {
    look_up: &'a dyn Fn(&str) -> Option<String>,
}

/// A variable that cannot be honoured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {expected}")]
pub struct EnvironmentError {
    /// Name of the variable, or of the setting.
    pub variable: String,
    /// Description of what the variable or setting should hold. The value itself is not repeated: it may hold
    /// credentials.
    pub expected: &'static str,
}

/// One kind of telemetry that is exported apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Traces,
    Metrics,
    Logs,
}

/// Where and how one signal is exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExportRoute {
    pub(crate) endpoint: String,
    /// The variable or setting that names the endpoint.
    pub(crate) origin: String,
    pub(crate) protocol: Protocol,
    /// Longest time of one export.
    pub(crate) timeout: Duration,
    /// Certificates to trust besides the system's, as PEM.
    pub(crate) certificate: Option<Vec<u8>>,
}

impl ExportRoute {
    /// The endpoint without credentials and query, for the log.
    pub(crate) fn shown(&self) -> String {
        let (scheme, rest) = self.endpoint.split_once("://").unwrap_or(("http", &self.endpoint));
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = authority.rsplit('@').next().unwrap_or_default();
        format!("{scheme}://{host}{path}")
    }
}

/// Longest time of one export, as OTLP defines it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Name of the setting of the collector.
const SETTING: &str = "telemetry.otlp_endpoint";
const ENDPOINT: &str = "use http://host:port or https://host:port";

impl Signal {
    pub(crate) const ALL: [Self; 3] = [Self::Traces, Self::Metrics, Self::Logs];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
            Self::Logs => "LOGS",
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Traces => "v1/traces",
            Self::Metrics => "v1/metrics",
            Self::Logs => "v1/logs",
        }
    }
}

impl<'a> Environment<'a> {
    pub(crate) fn new(look_up: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { look_up }
    }

    /// The value of a variable, trimmed.
    pub(crate) fn get(&self, variable: &str) -> Option<String> {
        let value = (self.look_up)(variable)?;
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// A whole number within `range`, or `default`.
    pub(crate) fn number(
        &self,
        variable: &str,
        range: std::ops::RangeInclusive<u64>,
        default: u64,
    ) -> Result<u64, EnvironmentError> {
        let Some(text) = self.get(variable) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| error(variable, "not a whole number in the range that is allowed"))
    }

    /// Whether nothing is to be exported at all.
    pub(crate) fn is_disabled(&self) -> bool {
        self.get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// The way of one signal; `None` when it is not exported. The environment wins over the settings.
    pub(crate) fn route(
        &self,
        signal: Signal,
        settings: &TelemetrySettings,
    ) -> Result<Option<ExportRoute>, EnvironmentError> {
        if self.is_disabled() || !self.is_exported(signal)? {
            return Ok(None);
        }
        let name = signal.name();
        let protocol = self.protocol(signal)?.unwrap_or(settings.protocol);
        let own = format!("OTEL_EXPORTER_OTLP_{name}_ENDPOINT");
        let common = "OTEL_EXPORTER_OTLP_ENDPOINT";
        let (origin, endpoint) = if let Some(endpoint) = self.get(&own) {
            // A signal's own address is used as it is, path included.
            let endpoint = checked(&own, endpoint)?;
            (own, endpoint)
        } else if let Some(base) = self.get(common) {
            (common.to_owned(), with_path(checked(common, base)?, protocol, signal))
        } else if let Some(base) = &settings.otlp_endpoint {
            (SETTING.to_owned(), with_path(checked(SETTING, base.clone())?, protocol, signal))
        } else {
            return Ok(None);
        };
        let (timeout, certificate) = (self.timeout(signal)?, self.certificate(signal)?);
        Ok(Some(ExportRoute { endpoint, origin, protocol, timeout, certificate }))
    }

    fn is_exported(&self, signal: Signal) -> Result<bool, EnvironmentError> {
        let variable = format!("OTEL_{}_EXPORTER", signal.name());
        match self.get(&variable).as_deref() {
            None | Some("otlp") => Ok(true),
            Some("none") => Ok(false),
            Some(_) => Err(error(&variable, "use `otlp` or `none`")),
        }
    }

    fn protocol(&self, signal: Signal) -> Result<Option<Protocol>, EnvironmentError> {
        let own = format!("OTEL_EXPORTER_OTLP_{}_PROTOCOL", signal.name());
        for variable in [own.as_str(), "OTEL_EXPORTER_OTLP_PROTOCOL"] {
            if let Some(text) = self.get(variable) {
                let protocol = text.parse().map_err(|_| error(variable, "use `grpc` or `http/protobuf`"))?;
                return Ok(Some(protocol));
            }
        }
        Ok(None)
    }

    fn certificate(&self, signal: Signal) -> Result<Option<Vec<u8>>, EnvironmentError> {
        let own = format!("OTEL_EXPORTER_OTLP_{}_CERTIFICATE", signal.name());
        for variable in [own.as_str(), "OTEL_EXPORTER_OTLP_CERTIFICATE"] {
            if let Some(path) = self.get(variable) {
                let pem = std::fs::read(path).map_err(|_| error(variable, "not a file that can be read"))?;
                return Ok(Some(pem));
            }
        }
        Ok(None)
    }

    fn timeout(&self, signal: Signal) -> Result<Duration, EnvironmentError> {
        let common = self.number("OTEL_EXPORTER_OTLP_TIMEOUT", 1..=600_000, milliseconds(TIMEOUT))?;
        let own = format!("OTEL_EXPORTER_OTLP_{}_TIMEOUT", signal.name());
        Ok(Duration::from_millis(self.number(&own, 1..=600_000, common)?))
    }
}

pub(crate) fn error(variable: &str, expected: &'static str) -> EnvironmentError {
    EnvironmentError { variable: variable.to_owned(), expected }
}

/// An address without a scheme would silently mean TLS, and another one nothing at all.
fn checked(variable: &str, endpoint: String) -> Result<String, EnvironmentError> {
    let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    // Where a password with a reserved character ended too early, the user is the host, and is shown.
    let is_whole =
        |rest: &str| !rest.contains('#') && !rest.split(['/', '?', '\\']).skip(1).any(|part| part.contains('@'));
    match rest {
        Some(rest) if !rest.is_empty() && !rest.starts_with('/') && is_whole(rest) => Ok(endpoint),
        _ => Err(error(variable, ENDPOINT)),
    }
}

fn with_path(base: String, protocol: Protocol, signal: Signal) -> String {
    match protocol {
        Protocol::Grpc => base,
        Protocol::HttpProtobuf => {
            let (address, query) = base.split_at(base.find('?').unwrap_or(base.len()));
            format!("{}/{}{query}", address.trim_end_matches('/'), signal.path())
        }
    }
}

/// The sampler that `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` name; by default what the sender decided, and
/// every trace that begins here.
pub(crate) fn sampler(environment: &Environment<'_>) -> Result<Sampler, EnvironmentError> {
    let name = environment.get("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_always_on".to_owned());
    let (root, follows_parent) = match name.strip_prefix("parentbased_") {
        Some(root) => (root, true),
        None => (name.as_str(), false),
    };
    let root = match root {
        "always_on" => Sampler::AlwaysOn,
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => Sampler::TraceIdRatioBased(ratio(environment)?),
        _ => {
            let expected = "use always_on, always_off, traceidratio, or one of these after parentbased_";
            return Err(error("OTEL_TRACES_SAMPLER", expected));
        }
    };
    Ok(if follows_parent { Sampler::ParentBased(Box::new(root)) } else { root })
}

fn ratio(environment: &Environment<'_>) -> Result<f64, EnvironmentError> {
    let variable = "OTEL_TRACES_SAMPLER_ARG";
    let Some(text) = environment.get(variable) else { return Ok(1.0) };
    let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| error(variable, "use a number from 0 to 1"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Environment, EnvironmentError, ExportRoute, Signal, sampler};
    use crate::settings::{Protocol, TelemetrySettings};

    fn settings(endpoint: Option<&str>) -> TelemetrySettings {
        TelemetrySettings {
            otlp_endpoint: endpoint.map(str::to_owned),
            protocol: Protocol::Grpc,
            scraped: false,
            service_name: "toolbus".into(),
            service_version: "1".into(),
            service_instance: "a".into(),
            redactor: Default::default(),
            clock: Default::default(),
        }
    }

    fn route(
        signal: Signal,
        endpoint: Option<&str>,
        variables: &[(&str, &str)],
    ) -> Result<Option<ExportRoute>, EnvironmentError> {
        let look_up = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Environment::new(&look_up).route(signal, &settings(endpoint))
    }

    #[test]
    fn the_settings_are_used_when_the_environment_is_silent() {
        let expected = ExportRoute {
            endpoint: "http://a:4317".into(),
            origin: "telemetry.otlp_endpoint".into(),
            protocol: Protocol::Grpc,
            timeout: Duration::from_secs(10),
            certificate: None,
        };
        assert_eq!(route(Signal::Metrics, Some("http://a:4317"), &[]), Ok(Some(expected)));
    }

    #[test]
    fn an_address_is_that_of_the_signal_of_the_environment_or_of_the_settings() {
        use Signal::{Logs, Metrics, Traces};
        let common = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://b:4317");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/custom");
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        let with_query = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a/otlp?tenant=b");
        // An empty variable counts as absent.
        let empty = [("OTEL_EXPORTER_OTLP_ENDPOINT", " "), ("OTEL_EXPORTER_OTLP_PROTOCOL", "")];
        let (settings, no_traces) = (Some("http://a"), ("OTEL_TRACES_EXPORTER", "none"));
        type Row<'a> = (Signal, Option<&'a str>, &'a [(&'a str, &'a str)], Option<&'a str>);
        let table: [Row<'_>; 13] = [
            (Traces, None, &[], None),
            (Traces, settings, &[common], Some("http://b:4317")),
            (Traces, settings, &[common, own], Some("http://c/custom")),
            (Metrics, settings, &[common, own], Some("http://b:4317")),
            (Traces, settings, &empty, settings),
            // Over HTTP, a base gets the path of its signal, and an own address none.
            (Metrics, Some("http://a/"), &[http], Some("http://a/v1/metrics")),
            (Logs, settings, &[http], Some("http://a/v1/logs")),
            (Logs, None, &[http, with_query], Some("http://a/otlp/v1/logs?tenant=b")),
            (Traces, settings, &[http, own], Some("http://c/custom")),
            // One signal or all can be switched off.
            (Traces, settings, &[no_traces], None),
            (Metrics, settings, &[no_traces], settings),
            (Logs, settings, &[("OTEL_LOGS_EXPORTER", "none")], None),
            (Metrics, settings, &[("OTEL_SDK_DISABLED", "TRUE")], None),
        ];
        for (signal, configured, variables, expected) in table {
            let route = route(signal, configured, variables).unwrap();
            assert_eq!(route.map(|route| route.endpoint).as_deref(), expected, "{configured:?} {variables:?}");
        }
    }

    #[test]
    fn a_signal_can_have_its_own_protocol_and_timeout() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "3000"),
        ];
        let traces = route(Signal::Traces, Some("http://a"), &variables).unwrap().unwrap();
        let metrics = route(Signal::Metrics, Some("http://a"), &variables).unwrap().unwrap();
        assert_eq!((traces.protocol, traces.timeout), (Protocol::Grpc, Duration::from_secs(2)));
        assert_eq!((metrics.protocol, metrics.timeout), (Protocol::HttpProtobuf, Duration::from_secs(3)));
    }

    #[test]
    fn a_value_that_cannot_be_honoured_is_named_and_not_repeated() {
        let bad = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "user:hunter2@collector:4317"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem"),
        ];
        for variable in bad {
            let error = route(Signal::Traces, Some("http://a"), &[variable]).unwrap_err().to_string();
            assert!(error.starts_with(variable.0), "{error}");
            assert!(!error.contains(variable.1), "{error}");
        }
        let error = route(Signal::Traces, Some("collector:4317"), &[]).unwrap_err();
        assert_eq!(error.variable, "telemetry.otlp_endpoint");
    }

    #[test]
    fn the_log_names_the_collector_without_credentials() {
        let shown = |endpoint: &str| {
            let (protocol, timeout) = (Protocol::Grpc, std::time::Duration::ZERO);
            let (endpoint, origin) = (endpoint.to_owned(), String::new());
            ExportRoute { endpoint, origin, protocol, timeout, certificate: None }.shown()
        };
        assert_eq!(shown("http://collector:4317"), "http://collector:4317");
        assert_eq!(shown("https://ana:hunter2@collector/v1/traces?token=hunter2"), "https://collector/v1/traces");
        assert_eq!(shown("https://collector?user=a@b"), "https://collector");
    }

    fn sampled(name: &str, argument: Option<&str>) -> Result<String, String> {
        let look_up = |variable: &str| match variable {
            "OTEL_TRACES_SAMPLER" => Some(name.to_owned()),
            "OTEL_TRACES_SAMPLER_ARG" => argument.map(str::to_owned),
            _ => None,
        };
        let read = sampler(&Environment::new(&look_up));
        read.map(|sampler| format!("{sampler:?}")).map_err(|error| error.to_string())
    }

    #[test]
    fn every_standard_sampler_is_known_and_the_senders_decision_is_followed_by_default() {
        let table = [
            ("", None, "ParentBased(AlwaysOn)"),
            ("always_on", None, "AlwaysOn"),
            ("always_off", None, "AlwaysOff"),
            ("traceidratio", Some("0.01"), "TraceIdRatioBased(0.01)"),
            ("parentbased_always_off", None, "ParentBased(AlwaysOff)"),
            ("parentbased_traceidratio", None, "ParentBased(TraceIdRatioBased(1.0))"),
        ];
        for (name, argument, expected) in table {
            assert_eq!(sampled(name, argument).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn an_unknown_sampler_and_a_bad_ratio_are_errors() {
        assert!(sampled("xray", None).unwrap_err().starts_with("OTEL_TRACES_SAMPLER: "));
        assert!(sampled("traceidratio", Some("2")).unwrap_err().starts_with("OTEL_TRACES_SAMPLER_ARG: "));
    }
}
