//! TLS with a private authority.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use toolbus_broker::rabbitmq::RabbitMq;
use toolbus_core::bus::Bus;
use toolbus_testing::rabbit::TlsFiles;

use crate::fixture::{consume, node, settings, settings_with_ca, take, to_topic, unique, until};

/// A certificate authority, and a certificate for `localhost` by it, as files.
pub(crate) struct Authority {
    folder: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
        write("ca.pem", authority.pem());
        write("cert.pem", cert.pem());
        write("key.pem", key.serialize_pem());
        Self { folder }
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    pub(crate) fn node_files(&self) -> TlsFiles {
        let file = |name| self.folder.path().join(name);
        TlsFiles { ca: self.ca(), cert: file("cert.pem"), key: file("key.pem"), verify_client: false }
    }
}

#[tokio::test]
async fn a_private_authority_is_trusted_when_it_is_configured() {
    let (node, authority) = node().await;
    let bus = RabbitMq::start(settings_with_ca(&node.tls_url(), authority.ca())).unwrap();
    let mut deliveries = consume(&bus, &unique("tls"), &["t"]).await;
    bus.publish(&to_topic("t", "secret")).await.unwrap();
    assert_eq!(take(&mut deliveries).await, "secret");
    bus.close().await;
}

#[tokio::test]
async fn another_authority_is_refused() {
    let (node, _) = node().await;
    let bus = RabbitMq::start(settings_with_ca(&node.tls_url(), Authority::new().ca())).unwrap();
    let state = until(&bus, "a refusal", |state| state.last_error.is_some()).await;
    assert!(!state.connected);
    assert!(state.last_error.as_ref().unwrap().contains("certificate"), "{state:?}");
}

#[tokio::test]
async fn a_private_authority_that_is_not_configured_is_refused() {
    let (node, _) = node().await;
    let bus = RabbitMq::start(settings(&node.tls_url())).unwrap();
    let state = until(&bus, "a refusal", |state| state.last_error.is_some()).await;
    assert!(!state.connected && state.last_error.as_ref().unwrap().contains("certificate"), "{state:?}");
}

#[tokio::test]
async fn a_port_with_another_protocol_is_named_at_once_with_what_to_change() {
    let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let http_port = http.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = http.accept().await.unwrap();
            let _ = stream.read(&mut [0; 64]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let (node, authority) = node().await;
    let (plain, tls) = (node.url(), node.tls_url());
    for (url, parts) in [
        (tls.replace("amqps://", "amqp://"), ["speaks TLS", "amqps://"]),
        (plain.replace("amqp://", "amqps://"), ["speaks AMQP without TLS", "amqp://"]),
        (format!("amqp://guest:guest@127.0.0.1:{http_port}/%2f"), ["speaks HTTP", "5672"]),
        (format!("amqps://guest:guest@127.0.0.1:{http_port}/%2f"), ["speaks HTTP", "5671"]),
    ] {
        let bus = RabbitMq::start(settings_with_ca(&url, authority.ca())).unwrap();
        let state = until(&bus, "a reason", |state| state.last_error.is_some()).await;
        let text = state.last_error.as_deref().unwrap_or_default();
        assert!(parts.iter().all(|part| text.contains(part)), "{url}: {text}");
        bus.close().await;
    }
}
