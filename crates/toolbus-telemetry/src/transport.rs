//! Exporters over OTLP, by gRPC and by HTTP. The first export connects.

use std::io;
use std::time::Duration;

use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{
    ExporterBuildError, LogExporter, MetricExporter, Protocol as Otlp, SpanExporter, WithExportConfig, WithHttpConfig,
    WithTonicConfig,
};
use opentelemetry_sdk::metrics::Temporality;

use crate::environment::ExportRoute;
use crate::settings::Protocol;

/// Reason why an exporter could not be built.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The exporter refuses its configuration.
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
    /// There is no HTTP client.
    #[error("no HTTP client: {0}")]
    Http(#[from] reqwest::Error),
    /// There is no thread to build the HTTP client on.
    #[error("no thread: {0}")]
    Thread(#[from] io::Error),
}

pub(crate) fn spans(route: &ExportRoute) -> Result<SpanExporter, TransportError> {
    let builder = SpanExporter::builder();
    Ok(match route.protocol {
        Protocol::Grpc => addressed(encrypted(builder.with_tonic(), route), route).build()?,
        Protocol::HttpProtobuf => {
            let http = builder.with_http().with_protocol(Otlp::HttpBinary);
            addressed(http.with_http_client(http_client(route)?), route).build()?
        }
    })
}

pub(crate) fn metrics(route: &ExportRoute) -> Result<MetricExporter, TransportError> {
    let builder = MetricExporter::builder().with_temporality(Temporality::Cumulative);
    Ok(match route.protocol {
        Protocol::Grpc => addressed(encrypted(builder.with_tonic(), route), route).build()?,
        Protocol::HttpProtobuf => {
            let http = builder.with_http().with_protocol(Otlp::HttpBinary);
            addressed(http.with_http_client(http_client(route)?), route).build()?
        }
    })
}

pub(crate) fn logs(route: &ExportRoute) -> Result<LogExporter, TransportError> {
    let builder = LogExporter::builder();
    Ok(match route.protocol {
        Protocol::Grpc => addressed(encrypted(builder.with_tonic(), route), route).build()?,
        Protocol::HttpProtobuf => {
            let http = builder.with_http().with_protocol(Otlp::HttpBinary);
            addressed(http.with_http_client(http_client(route)?), route).build()?
        }
    })
}

fn addressed<B: WithExportConfig>(builder: B, route: &ExportRoute) -> B {
    builder.with_endpoint(route.endpoint.as_str()).with_timeout(route.timeout)
}

/// The exporter trusts no certificate by default: it is given the system's.
fn encrypted<B: WithTonicConfig>(builder: B, route: &ExportRoute) -> B {
    if !route.endpoint.starts_with("https://") {
        return builder;
    }
    let tls = ClientTlsConfig::new().with_enabled_roots();
    builder.with_tls_config(match &route.certificate {
        Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
        None => tls,
    })
}

/// A blocking client, as the SDK's own threads need it. It has a runtime inside, which cannot be built inside another.
fn http_client(route: &ExportRoute) -> Result<reqwest::blocking::Client, TransportError> {
    let (timeout, pem) = (route.timeout, route.certificate.clone());
    let build = move || build_http_client(timeout, pem.as_deref());
    let built = std::thread::Builder::new().name("otlp-client".to_owned()).spawn(build)?.join();
    Ok(built.map_err(|_| io::Error::other("it ended early"))??)
}

fn build_http_client(timeout: Duration, pem: Option<&[u8]>) -> Result<reqwest::blocking::Client, reqwest::Error> {
    let own = pem.map(reqwest::Certificate::from_pem_bundle).transpose()?.unwrap_or_default();
    let builder = reqwest::blocking::Client::builder().timeout(timeout).redirect(reqwest::redirect::Policy::none());
    builder.tls_certs_merge(own).build()
}
