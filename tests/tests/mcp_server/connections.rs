//! Connections that stay, and clients that take more than their share.

use std::time::{Duration, Instant};

use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::http::{Connection, hello, posted};

use crate::tokens::{ANA, RULES};

/// Time that a head may take, and how much longer the busiest machine may take to notice.
const HEAD_TIME: Duration = Duration::from_secs(2);
const LATE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_connection_serves_many_requests_and_several_at_once() {
    let daemon = Daemon::alone(RULES).await;
    let mut connection = Connection::open(daemon.listen()).await;
    for _ in 0..100 {
        assert_eq!(connection.post(&[ANA], &hello()).await.code, 200);
        connection.write("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        assert_eq!(connection.response().await.body, "ok\n");
    }
    let body = hello().to_string();
    let one = format!("{}{body}", posted(&[ANA], body.len()));
    connection.write(&one.repeat(20)).await;
    for _ in 0..20 {
        assert_eq!(connection.response().await.code, 200);
    }
    daemon.end().await;
}

#[tokio::test]
async fn slow_clients_are_closed_and_keep_nobody_out() {
    let daemon = Daemon::alone(RULES).await;
    let mut slow = Vec::new();
    for _ in 0..300 {
        let mut connection = Connection::open(daemon.listen()).await;
        connection.write("POST /mcp HTTP/1.1\r\nHost: lo").await;
        slow.push(connection);
    }
    let started = Instant::now();
    assert_eq!(Connection::open(daemon.listen()).await.post(&[ANA], &hello()).await.code, 200);
    assert_eq!(daemon.get("/healthz").await.unwrap().0, 200);
    assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
    for mut connection in slow {
        assert!(connection.closed_after().await < HEAD_TIME + LATE);
    }
    daemon.end().await;
}

#[tokio::test]
async fn connections_that_have_shown_a_token_stay_while_strangers_come_and_go() {
    let daemon = Daemon::alone(RULES).await;
    let mut known = Vec::new();
    for _ in 0..200 {
        let mut connection = Connection::open(daemon.listen()).await;
        assert_eq!(connection.post(&[ANA], &hello()).await.code, 200);
        known.push(connection);
    }
    for _ in 0..200 {
        let mut connection = Connection::open(daemon.listen()).await;
        assert_eq!(connection.post(&[], &hello()).await.code, 401);
    }
    for connection in &mut known {
        assert_eq!(connection.post(&[ANA], &hello()).await.code, 200);
    }
    daemon.end().await;
}

#[tokio::test]
async fn bodies_are_bounded_in_size_and_time() {
    let daemon = Daemon::alone(&format!("{RULES}max_body = \"1MiB\"\n")).await;
    let mut large = hello();
    large["padding"] = "x".repeat(1 << 20).into();
    let response = Connection::open(daemon.listen()).await.post(&[ANA], &large).await;
    assert_eq!(response.code, 413);
    assert!(response.body.contains("http.max_body"), "{response:?}");
    large["padding"] = "x".repeat(1 << 19).into();
    assert_eq!(Connection::open(daemon.listen()).await.post(&[ANA], &large).await.code, 200);

    let mut connection = Connection::open(daemon.listen()).await;
    connection.write(&posted(&[ANA], 1000)).await;
    assert_eq!(connection.response().await.code, 408);
    assert!(connection.closed_after().await < LATE);
    daemon.end().await;
}

#[tokio::test]
async fn a_daemon_that_ends_closes_connections_at_rest_at_once() {
    let mut daemon = Daemon::alone(RULES).await;
    let mut connection = Connection::open(daemon.listen()).await;
    assert_eq!(connection.post(&[ANA], &hello()).await.code, 200);
    daemon.signal("TERM").await;
    assert_eq!(daemon.ended().await.code(), Some(0));
    assert!(connection.closed_after().await < LATE);
}
