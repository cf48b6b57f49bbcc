//! Times of connections, and evictions that make room for others.

use std::convert::Infallible;

use axum::Extension;
use axum::body::Body;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use axum::routing::get;
use futures_util::StreamExt as _;
use futures_util::stream::{iter, pending, repeat};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use toolbus_core::Clock;
use toolbus_mcp_server::TokenId;

use super::harness::{Client, Server, WINDOW};
use super::*;
use crate::http::connections::{Accept as _, SEND_BUFFER};
use crate::http::slots::*;

/// A response that is long in leaving, in bytes.
const LARGE: usize = 30 * WINDOW;

/// A server, and the notification that lets its slow requests end.
struct Fixture {
    server: Server,
    go_on: Arc<Notify>,
}

impl Fixture {
    fn new() -> Self {
        let go_on = Arc::new(Notify::new());
        let held = Arc::clone(&go_on);
        let slow = async move || {
            held.notified().await;
            "slow"
        };
        let slowed = slow.clone();
        let slowed = async move |Extension(state): Extension<Arc<ConnectionState>>| {
            assert!(state.slow_down());
            slowed().await
        };
        let known = async |Extension(state): Extension<Arc<ConnectionState>>| state.vouch(None).await.to_string();
        let quiet = async |Extension(state): Extension<Arc<ConnectionState>>| {
            assert!(state.vouch(None).await);
            state.take_any_time();
            Body::from_stream(iter([Ok::<_, Infallible>("x")]).chain(pending()))
        };
        let of_token = async |Path(token): Path<u64>, Extension(state): Extension<Arc<ConnectionState>>| {
            if !state.vouch(Some(TokenId(token))).await {
                return StatusCode::SERVICE_UNAVAILABLE.into_response();
            }
            state.take_any_time();
            Body::from_stream(iter([Ok::<_, Infallible>("x")]).chain(pending())).into_response()
        };
        let endless = async |Extension(state): Extension<Arc<ConnectionState>>| {
            state.take_any_time();
            Body::from_stream(repeat(Ok::<_, Infallible>("x".repeat(100))))
        };
        let routes = Router::new()
            .route("/quick", get(async || "quick"))
            .route("/slow", get(slow))
            .route("/slowed", get(slowed))
            .route("/known", get(known))
            .route("/stream", get(quiet))
            .route("/stream/{token}", get(of_token))
            .route("/endless", get(endless))
            .route("/large", get(async || "x".repeat(LARGE)))
            .route("/panic", get(async || -> &'static str { panic!("a handler that panics") }));
        Self { server: Server::start(routes), go_on }
    }

    fn connect(&self) -> Client {
        self.server.connect()
    }

    /// Connections that each have had a response to this.
    async fn connected(&self, count: usize, path: &str) -> Vec<Client> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let mut client = self.connect();
            assert_eq!(client.get(path).await.0, 200);
            clients.push(client);
        }
        clients
    }

    /// Connections that wait for their response.
    async fn waiting(&self, count: usize, path: &str) -> Vec<Client> {
        let mut clients: Vec<Client> = (0..count).map(|_| self.connect()).collect();
        for client in &mut clients {
            client.send(path).await;
        }
        // Everything that can happen without time passing has happened after this.
        tokio::time::sleep(Duration::from_millis(1)).await;
        clients
    }
}

fn quick() -> (u16, String) {
    (200, "quick".to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_connection_serves_one_request_after_the_other() {
    let fixture = Fixture::new();
    let mut client = fixture.connect();
    for _ in 0..100 {
        assert_eq!(client.get("/quick").await, quick());
    }
    for _ in 0..3 {
        client.send("/quick").await;
    }
    for _ in 0..3 {
        assert_eq!(client.body().await, quick());
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_closed_soon_and_an_idle_one_later() {
    let fixture = Fixture::new();
    assert_eq!(fixture.connect().closed_after().await.as_secs(), HEAD_TIME.as_secs());
    let mut client = fixture.connected(1, "/quick").await.remove(0);
    tokio::time::sleep(IDLE_TIME - HEAD_TIME).await;
    assert_eq!(client.get("/quick").await, quick());
    assert_eq!(client.closed_after().await.as_secs(), IDLE_TIME.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_times_out_as_a_missing_one() {
    let fixture = Fixture::new();
    let mut client = fixture.connected(1, "/quick").await.remove(0);
    tokio::time::sleep(IDLE_TIME / 2).await;
    let started = Clock::SYSTEM.now();
    while client.0.write_all(b"G").await.is_ok() {
        tokio::time::sleep(HEAD_TIME / 10).await;
    }
    let waited = Clock::SYSTEM.since(started);
    assert!(waited >= HEAD_TIME && waited < HEAD_TIME * 2, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_has_its_time_and_a_stream_has_any() {
    let fixture = Fixture::new();
    let mut slow = fixture.waiting(1, "/slow").await.remove(0);
    assert_eq!(slow.closed_after().await.as_secs(), REQUEST_TIME.as_secs() - 1);
    let mut stream = fixture.connect();
    assert_eq!(stream.get("/stream").await.0, 200);
    let later = tokio::time::timeout(IDLE_TIME * 60, stream.closed_after()).await;
    assert!(later.is_err(), "a stream was closed after {later:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_its_client_does_not_read_is_closed() {
    let fixture = Fixture::new();
    let mut client = fixture.connect();
    assert_eq!(client.get("/endless").await.0, 200);
    tokio::time::sleep(WRITE_TIME * 2).await;
    let mut rest = Vec::new();
    let _ = client.0.read_to_end(&mut rest).await;
    assert!(rest.len() <= WINDOW, "{} bytes came", rest.len());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_its_response_slowly_gets_all_of_it_and_may_then_idle() {
    let fixture = Fixture::new();
    let mut client = fixture.connect();
    let started = Clock::SYSTEM.now();
    client.send("/large").await;
    let (mut taken, mut part) = (0, [0; WINDOW]);
    while taken < LARGE {
        tokio::time::sleep(WRITE_TIME / 2).await;
        let count = client.0.read(&mut part).await.unwrap();
        assert_ne!(count, 0, "it was closed after {taken} bytes");
        taken += count;
    }
    assert!(Clock::SYSTEM.since(started) > IDLE_TIME * 2, "{:?}", Clock::SYSTEM.since(started));
    // Bytes in flight count as read.
    let rest = client.closed_after().await;
    assert!(rest > IDLE_TIME - WRITE_TIME && rest <= IDLE_TIME, "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_still_reads_its_response_keeps_its_slot() {
    let fixture = Fixture::new();
    let mut taking = fixture.connect();
    taking.send("/large").await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    let mut idle = fixture.connected(MAX_ANONYMOUS - 1, "/quick").await;
    assert_eq!(fixture.connect().get("/quick").await, quick());
    assert_eq!(idle.remove(0).closed_after().await.as_secs(), 0);
    assert_eq!(taking.body().await, (200, "x".repeat(LARGE)));
}

#[tokio::test(start_paused = true)]
async fn idle_connections_make_room_for_a_request() {
    let fixture = Fixture::new();
    let started = Clock::SYSTEM.now();
    let mut idle = fixture.connected(MAX_ANONYMOUS, "/quick").await;
    let silent: Vec<Client> = (0..MAX_ANONYMOUS).map(|_| fixture.connect()).collect();
    assert_eq!(fixture.connect().get("/quick").await, quick());
    assert_eq!(Clock::SYSTEM.since(started).as_secs(), 0);
    // The longest idle ones were closed.
    assert_eq!(idle.remove(0).closed_after().await.as_secs(), 0);
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_while_every_slot_is_taken_by_another() {
    let fixture = Fixture::new();
    let mut busy = fixture.waiting(MAX_ANONYMOUS, "/slow").await;
    let started = Clock::SYSTEM.now();
    let mut last = fixture.waiting(1, "/quick").await.remove(0);
    tokio::time::sleep(REQUEST_TIME / 2).await;
    fixture.go_on.notify_one();
    // Without a waiting client, the served one would keep its slot for its next request.
    assert_eq!(last.body().await, quick());
    assert_eq!(Clock::SYSTEM.since(started).as_secs(), REQUEST_TIME.as_secs() / 2);
    let mut served = 0;
    for client in &mut busy {
        served += usize::from(client.response().await.code == 200);
    }
    assert_eq!(served, 1);
}

#[tokio::test(start_paused = true)]
async fn known_connections_take_no_slot_of_anonymous_ones() {
    let fixture = Fixture::new();
    let streams = fixture.connected(MAX_KNOWN, "/stream").await;
    assert_eq!(fixture.connected(MAX_ANONYMOUS, "/quick").await.len(), MAX_ANONYMOUS);
    // A further one gets no slot until another is idle or ends.
    assert_eq!(fixture.connect().get("/known").await, (200, "false".to_owned()));
    drop(streams);
    assert_eq!(fixture.connect().get("/known").await, (200, "true".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn one_token_leaves_slots_to_every_other() {
    let fixture = Fixture::new();
    // As many as it is given, until there is no more for it.
    let streams = async |token: u64| {
        let mut streams = Vec::new();
        loop {
            let mut client = fixture.connect();
            if client.get(&format!("/stream/{token}")).await.0 != 200 {
                return streams;
            }
            streams.push(client);
        }
    };
    let (first, second, third) = (streams(1).await, streams(2).await, streams(3).await);
    assert_eq!([first.len(), second.len(), third.len()], [MAX_KNOWN / 2, MAX_KNOWN / 4, MAX_KNOWN / 8]);
    // A slot that one token frees is free for the others.
    drop(first);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(streams(3).await.len() > MAX_KNOWN / 8);
    drop((second, third));
}

#[tokio::test(start_paused = true)]
async fn anonymous_clients_that_read_no_response_leave_room_for_others() {
    let fixture = Fixture::new();
    let deaf = fixture.waiting(160, "/large").await;
    let started = Clock::SYSTEM.now();
    assert_eq!(fixture.connect().get("/quick").await, quick());
    assert!(Clock::SYSTEM.since(started) <= Duration::from_secs(3), "{:?}", Clock::SYSTEM.since(started));
    drop(deaf);
}

#[tokio::test]
async fn the_send_buffer_of_a_connection_is_small() {
    let mut listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept_one().await.unwrap();
    // The system reserves as much again for its own use.
    let size = rustix::net::sockopt::socket_send_buffer_size(&stream).unwrap();
    assert!(size <= 2 * SEND_BUFFER, "{size}");
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn a_known_connection_takes_the_slot_of_the_longest_idle_one() {
    let fixture = Fixture::new();
    let mut known = fixture.connected(MAX_KNOWN, "/known").await;
    assert_eq!(fixture.connect().get("/known").await, (200, "true".to_owned()));
    assert_eq!(known[0].closed_after().await.as_secs(), 0);
    assert_eq!(known[1].get("/quick").await, quick());
}

#[tokio::test(start_paused = true)]
async fn delayed_connections_take_no_slot_of_anonymous_ones() {
    let fixture = Fixture::new();
    let _slowed = fixture.waiting(MAX_ANONYMOUS, "/slowed").await;
    let _more = fixture.waiting(MAX_ANONYMOUS, "/slowed").await;
    assert_eq!(fixture.connected(MAX_ANONYMOUS, "/quick").await.len(), MAX_ANONYMOUS);
}

#[tokio::test(start_paused = true)]
async fn a_panic_gets_a_response_and_closes_nothing_else() {
    let fixture = Fixture::new();
    let mut other = fixture.connected(1, "/quick").await.remove(0);
    let mut client = fixture.connect();
    assert_eq!(client.get("/panic").await.0, 500);
    assert_eq!(client.closed_after().await.as_secs(), 0);
    assert_eq!(other.get("/quick").await, quick());
}

#[tokio::test(start_paused = true)]
async fn at_the_end_running_requests_get_responses_and_other_connections_are_closed() {
    let fixture = Fixture::new();
    let mut idle = fixture.connected(1, "/quick").await.remove(0);
    let mut stream = fixture.connected(1, "/stream").await.remove(0);
    let mut slow = fixture.waiting(1, "/slow").await.remove(0);
    let mut stuck = fixture.waiting(1, "/slow").await.remove(0);
    let started = Clock::SYSTEM.now();
    fixture.server.stop.cancel();
    assert_eq!(idle.closed_after().await.as_secs(), 0);
    fixture.go_on.notify_one();
    assert_eq!(slow.body().await, (200, "slow".to_owned()));
    assert_eq!(slow.closed_after().await.as_secs(), 0);
    fixture.server.task.await.unwrap();
    assert!(Clock::SYSTEM.since(started) <= REQUEST_TIME, "{:?}", Clock::SYSTEM.since(started));
    assert_eq!((stream.closed_after().await.as_secs(), stuck.response().await.code), (0, 0));
}
