//! Clients that take the HTTP port for another one.

use std::time::{Duration, Instant};

use lapin::ConnectionProperties;
use toolbus_e2e::daemon::Daemon;
use toolbus_testing::patience::{at_most, eventually};

/// Longest time from the first bytes to the line in the log, on a machine with nothing else to do.
const AT_ONCE: Duration = Duration::from_millis(500);
/// Text that the daemon logs about a client of another protocol, after the name of the protocol.
const ADVICE: &str =
    "here, and this port takes HTTP without TLS alone: use http:// in its address, or a proxy that ends TLS";

/// Waits for the line about a client of this protocol, which began to connect at `began`.
async fn is_named(daemon: &Daemon, protocol: &str, began: Instant) {
    let message = format!("HTTP: a client speaks {protocol} {ADVICE}");
    let line = eventually("a warning", async || daemon.logged(&message).pop()).await;
    let took = began.elapsed();
    assert_eq!((&line["level"], &line["remote"]), (&"WARN".into(), &"127.0.0.1".into()), "{line}");
    assert!(took < at_most(AT_ONCE), "{took:?}");
    assert_eq!(daemon.get("/livez").await.unwrap().0, 200, "others are served");
}

#[tokio::test]
async fn a_client_that_speaks_tls_to_the_http_port_is_named_at_once() {
    let daemon = Daemon::alone("").await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let began = Instant::now();
    let response = client.get(format!("https://{}/livez", daemon.listen())).send().await;
    assert!(response.is_err());
    is_named(&daemon, "TLS", began).await;
    daemon.end().await;
}

#[tokio::test]
async fn a_client_that_speaks_amqp_to_the_http_port_is_named_at_once() {
    let daemon = Daemon::alone("").await;
    let began = Instant::now();
    let url = format!("amqp://guest:guest@{}/%2f", daemon.listen());
    assert!(lapin::Connection::connect(&url, ConnectionProperties::default()).await.is_err());
    is_named(&daemon, "AMQP", began).await;
    daemon.end().await;
}
