//! Collectors behind TLS.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::NamedTempFile;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use toolbus_telemetry::Protocol;
use toolbus_testing::otlp::Receiver;

use crate::observed::metrics;
use crate::support::{Daemon, LIMIT, OK, Script, rabbit, tool};

/// A proxy that ends TLS before a receiver, and the certificate that it shows.
struct TlsProxy {
    address: SocketAddr,
    certificate: NamedTempFile,
    _open: JoinSet<()>,
}

impl TlsProxy {
    /// `speaks` is the one protocol that is offered to clients: the receiver takes what it is sent.
    async fn before(endpoint: &str, speaks: &str) -> Self {
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let mut certificate = NamedTempFile::new().unwrap();
        certificate.write_all(own.cert.pem().as_bytes()).unwrap();
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder().with_no_client_auth();
        let mut config = config.with_single_cert(vec![own.cert.der().clone()], key).unwrap();
        config.alpn_protocols = vec![speaks.as_bytes().to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let inside = endpoint.trim_start_matches("http://").to_owned();
        let mut open = JoinSet::new();
        open.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((outside, _)) = listener.accept().await {
                connections.spawn(forward(acceptor.clone(), outside, inside.clone()));
            }
        });
        Self { address, certificate, _open: open }
    }

    fn endpoint(&self) -> String {
        format!("https://{}", self.address)
    }
}

/// A client that does not trust the proxy leaves, which is what some tests are about.
async fn forward(acceptor: TlsAcceptor, outside: TcpStream, inside: String) {
    let Ok(mut outside) = acceptor.accept(outside).await else { return };
    let mut inside = TcpStream::connect(inside).await.unwrap();
    drop(copy_bidirectional(&mut outside, &mut inside).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_behind_tls_is_trusted_by_its_certificate() {
    for protocol in [Protocol::Grpc, Protocol::HttpProtobuf] {
        let receiver = Receiver::start().await.unwrap();
        let proxy = match protocol {
            Protocol::Grpc => TlsProxy::before(&receiver.grpc_endpoint(), "h2").await,
            Protocol::HttpProtobuf => TlsProxy::before(&receiver.http_endpoint(), "http/1.1").await,
        };
        let weather = tool("weather");

        let stranger = Daemon::with(Some(proxy.endpoint()), protocol, &[], rabbit());
        Script::of(Some(&weather), OK).tell(&*stranger.telemetry);
        stranger.exporters.shutdown(LIMIT).await.unwrap_err();
        assert_eq!(
            receiver.attempts(),
            0,
            "{protocol:?}: a collector whose certificate is not trusted receives nothing"
        );

        let certificate = proxy.certificate.path().to_str().unwrap();
        let trusting = [("OTEL_EXPORTER_OTLP_CERTIFICATE", certificate)];
        let daemon = Daemon::with(Some(proxy.endpoint()), protocol, &trusting, rabbit());
        Script::of(Some(&weather), OK).tell(&*daemon.telemetry);
        daemon.end().await;
        assert_eq!(receiver.spans().len(), 3, "{protocol:?}");
        assert_eq!(metrics(&receiver)["rockbot.tool.invocations"].value(&[]), Some(1.0));
    }
}
