//! TLS with a private authority.

#![expect(clippy::disallowed_methods, reason = "tasks of a test end with its runtime")]

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use toolbus_broker::rabbitmq::RabbitMq;
use toolbus_bus::Bus;
use toolbus_testing::tls::{AUTHORITY, write_authority};

use crate::fixture::{consume, failed, node, settings, settings_with_ca, take, to_topic, unique, until};

#[tokio::test]
async fn a_private_authority_is_trusted_when_it_is_configured() {
    let node = node().await;
    let bus = RabbitMq::start(settings_with_ca(&node.tls_url(), node.authority())).unwrap();
    let mut deliveries = consume(&bus, &unique("tls"), &["t"]).await;
    bus.publish(&to_topic("t", "secret")).await.unwrap();
    assert_eq!(take(&mut deliveries).await, "secret");
    bus.close().await;
}

#[tokio::test]
async fn another_authority_is_refused() {
    let node = node().await;
    let other = tempfile::tempdir().unwrap();
    write_authority(other.path()).unwrap();
    let bus = RabbitMq::start(settings_with_ca(&node.tls_url(), other.path().join(AUTHORITY))).unwrap();
    let (text, state) = failed(&bus).await;
    assert!(!state.connected && text.contains("bus.tls.ca"), "{state:?}");
}

#[tokio::test]
async fn a_private_authority_that_is_not_configured_is_refused() {
    let node = node().await;
    let bus = RabbitMq::start(settings(&node.tls_url())).unwrap();
    // The node's port for TLS may open a moment after the others.
    let is_refused = |error: &String| error.contains("certificate") && error.contains("bus.tls.ca");
    let state = until(&bus, "a refusal", |state| state.last_error.as_ref().is_some_and(is_refused)).await;
    assert!(!state.connected, "{state:?}");
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
    let node = node().await;
    let (plain, tls) = (node.url(), node.tls_url());
    for (url, parts) in [
        (tls.replace("amqps://", "amqp://"), ["speaks TLS", "amqps://"]),
        (plain.replace("amqp://", "amqps://"), ["speaks AMQP without TLS", "amqp://"]),
        (format!("amqp://guest:guest@127.0.0.1:{http_port}/%2f"), ["speaks HTTP", "5672"]),
        (format!("amqps://guest:guest@127.0.0.1:{http_port}/%2f"), ["speaks HTTP", "5671"]),
    ] {
        let bus = RabbitMq::start(settings_with_ca(&url, node.authority())).unwrap();
        let (text, _) = failed(&bus).await;
        assert!(parts.iter().all(|part| text.contains(part)), "{url}: {text}");
        bus.close().await;
    }
}
