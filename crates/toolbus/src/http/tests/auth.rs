//! The table of admitted clients, and that refused ones delay no other.

#![expect(clippy::disallowed_methods, reason = "tasks of a test end with its runtime")]

use std::convert::Infallible;

use axum::Extension;
use axum::body::Body;
use axum::routing::any;
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::watch;
use toolbus_core::Clock;
use toolbus_core::audit::{ArgumentsHash, Audit, AuditEvent, AuditRecord};
use toolbus_core::bus::BusState;
use toolbus_core::caller::AgentName;
use toolbus_core::registry::Registry;
use toolbus_mcp_server::Principal;

use super::harness::{Client, Server, TestResponse};
use super::*;
use crate::config::http::{AgentTokens, Open};
use crate::config::{HttpConfig, Secret};
use crate::http::refusal::PENALTY;
use crate::http::slots::{GRACE, MAX_ANONYMOUS, MAX_GUESTS, MAX_SLOWED};
use crate::http::tests::http_state;
use crate::http::{Health, HttpState, listeners};

const TOKEN: &str = "s3cret-of-ana-1234";

/// Keeps records for tests.
#[derive(Default)]
pub(crate) struct Kept(pub(crate) Mutex<Vec<AuditRecord>>);

impl Audit for Kept {
    fn record(&self, record: AuditRecord) {
        self.0.lock().push(record);
    }

    fn hash(&self, _: &Map<String, Value>) -> Option<ArgumentsHash> {
        None
    }
}

/// A server whose MCP routes respond with the agent and the size of the body.
struct Fixture {
    server: Server,
    auth: Arc<HttpAuth>,
    audit: Arc<Kept>,
}

fn config(lines: &str) -> HttpConfig {
    let mut config: HttpConfig = serde_json::from_value(serde_json::json!({"tokens": {"ana": TOKEN}})).unwrap();
    match lines {
        "open" => config.open = Open::Local,
        "closed" => config.tokens.clear(),
        "small" => config.max_body = "4KiB".parse().ok(),
        "named" => {
            config.allowed_hosts.push("toolbus.example.com".to_owned());
            config.allowed_origins.push("https://app.example.com".to_owned());
        }
        _ => {}
    }
    config
}

impl Fixture {
    fn new(lines: &str) -> Self {
        let audit = Arc::new(Kept::default());
        let stop = CancellationToken::new();
        let config = Config { http: config(lines), ..Config::default() };
        let auth = HttpAuth::new(&config, Arc::clone(&audit) as Arc<dyn Audit>, stop);
        let describe = async |Extension(principal): Extension<Principal>, body: axum::body::Bytes| {
            let who = principal.agent.map_or("anybody".to_owned(), |agent| agent.to_string());
            format!("{who} {}", body.len())
        };
        let (_, state) = watch::channel(BusState::default());
        let health = Health::new(sources(state, Registry::new()));
        let first = || futures_util::stream::iter([Ok::<_, Infallible>("x")]);
        let quiet = async move || Body::from_stream(first().chain(futures_util::stream::pending()));
        let mcp = Router::new().route("/", any(describe)).route("/stream", any(quiet));
        let state = HttpState { auth: Arc::clone(&auth), mcp, ..http_state(Arc::new(health)) };
        Self { server: Server::start(listeners::router(state)), auth, audit }
    }

    /// The response to a request that has these lines in its head.
    async fn request(&self, line: &str, head: &[&str], body: &str) -> TestResponse {
        let mut client = self.server.connect();
        client.request(line, head, body).await
    }

    async fn with(&self, head: &[&str]) -> TestResponse {
        self.request("POST /mcp", head, "").await
    }
}

impl Client {
    async fn request(&mut self, line: &str, head: &[&str], body: &str) -> TestResponse {
        let host = if head.iter().any(|line| line.starts_with("Host:")) { "" } else { "Host: localhost\r\n" };
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let head: String = head.iter().map(|line| format!("{line}\r\n")).collect();
        self.write(&format!("{line} HTTP/1.1\r\n{host}{length}{head}\r\n{body}")).await;
        self.response().await
    }
}

fn token() -> String {
    format!("Authorization: Bearer {TOKEN}")
}

fn wrong() -> &'static str {
    "Authorization: Bearer not-the-right-one"
}

/// Message of an error, for an MCP client.
fn message(response: &TestResponse) -> String {
    let body: Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!((&body["jsonrpc"], &body["error"]["code"], body.get("id")), (&"2.0".into(), &(-32000).into(), None));
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_token_admits_its_agent() {
    let fixture = Fixture::new("");
    let response = fixture.with(&[&token()]).await;
    assert_eq!((response.code, response.body.as_str()), (200, "ana 0"));
    let response = fixture.request("POST /mcp", &[&token()], "four").await;
    assert_eq!((response.code, response.body.as_str()), (200, "ana 4"));
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_token_is_refused_at_once_and_may_be_repeated_on_its_connection() {
    let fixture = Fixture::new("");
    let started = Clock::SYSTEM.now();
    let mut client = fixture.server.connect();
    for head in [&[][..], &["Authorization: Basic YTpi"], &[&token(), &token()], &["Authorization: Bearer"]] {
        let response = client.request("POST /mcp", head, "{}").await;
        assert_eq!(response.code, 401, "{head:?}");
        assert!(response.head.contains("www-authenticate: bearer\r\n"), "{response:?}");
        assert!(message(&response).contains("`Authorization"), "{response:?}");
    }
    assert_eq!(client.request("POST /mcp", &[&token()], "{}").await.code, 200);
    assert_eq!(Clock::SYSTEM.since(started), Duration::ZERO);
    assert!(fixture.audit.0.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_wrong_token_is_refused_late_recorded_and_ends_its_connection() {
    let fixture = Fixture::new("");
    let started = Clock::SYSTEM.now();
    let mut client = fixture.server.connect();
    let response = client.request("POST /mcp", &[wrong()], "{}").await;
    assert_eq!((response.code, Clock::SYSTEM.since(started)), (401, PENALTY));
    assert!(response.head.contains("www-authenticate: bearer error=\"invalid_token\""), "{response:?}");
    assert!(message(&response).contains("http.tokens"));
    assert_eq!(client.closed_after().await, Duration::ZERO);
    let records = fixture.audit.0.lock();
    let recorded: Vec<_> = records.iter().map(|record| (record.event, record.remote, record.left_out)).collect();
    assert_eq!(recorded, [(AuditEvent::RefusedEntry, "192.0.2.7".parse().ok(), None)]);
    assert!(!format!("{records:?}").contains("not-the-right-one"));
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_wrong_tokens_delays_no_right_one_and_leaves_few_records() {
    let fixture = Fixture::new("");
    let started = Clock::SYSTEM.now();
    let mut flood = Vec::new();
    for _ in 0..1000 {
        let mut client = fixture.server.connect();
        flood.push(tokio::spawn(async move { client.request("POST /mcp", &[wrong()], "").await.code }));
    }
    for _ in 0..100 {
        assert_eq!(fixture.with(&[&token()]).await.code, 200);
    }
    assert_eq!(Clock::SYSTEM.since(started), Duration::ZERO);
    let mut codes = [0, 0];
    for attempt in flood {
        match attempt.await.unwrap() {
            401 => codes[0] += 1,
            429 => codes[1] += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!(codes, [MAX_SLOWED, 1000 - MAX_SLOWED]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let left_out: Vec<_> = fixture.audit.0.lock().iter().map(|record| record.left_out).collect();
    assert_eq!(left_out, [None, Some(999)]);
    // A later one is a first one again.
    assert_eq!(fixture.with(&[wrong()]).await.code, 401);
    assert_eq!(fixture.audit.0.lock().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_token_gets_in_while_anonymous_clients_hold_all_their_slots() {
    let fixture = Fixture::new("");
    let _silent: Vec<Client> = (0..MAX_ANONYMOUS * 4).map(|_| fixture.server.connect()).collect();
    let started = Clock::SYSTEM.now();
    assert_eq!(fixture.with(&[&token()]).await.code, 200);
    // Each of them gets its grace alone.
    let waited = Clock::SYSTEM.since(started);
    assert!(waited <= GRACE * 4 + Duration::from_millis(100), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn an_open_server_admits_clients_without_a_token_and_refuses_a_wrong_one() {
    let fixture = Fixture::new("open");
    assert_eq!(fixture.with(&[]).await.body, "anybody 0");
    assert_eq!(fixture.with(&[&token()]).await.body, "ana 0");
    assert_eq!(fixture.with(&[wrong()]).await.code, 401);
}

#[tokio::test(start_paused = true)]
async fn a_closed_server_is_not_found() {
    let fixture = Fixture::new("closed");
    for head in [&[][..], &["Authorization: Bearer s3cret-of-ana-1234"]] {
        let response = fixture.with(head).await;
        assert!(response.code == 404 && message(&response).contains("http.tokens"), "{response:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_change_at_once() {
    let fixture = Fixture::new("");
    let mut client = fixture.server.connect();
    assert_eq!(client.request("POST /mcp", &[&token()], "").await.code, 200);
    let mut next = config("");
    next.tokens.clear();
    let bea = AgentTokens::One(Secret::new("another-secret-of-bea"));
    next.tokens.insert(AgentName::parse("bea").unwrap(), bea);
    fixture.auth.replace(&next);
    assert_eq!(fixture.with(&["Authorization: Bearer another-secret-of-bea"]).await.body, "bea 0");
    assert_eq!(client.request("POST /mcp", &[&token()], "").await.code, 401);
    for (lines, expected) in [("closed", 404), ("open", 200), ("closed", 404)] {
        fixture.auth.replace(&config(lines));
        assert_eq!(fixture.with(&[]).await.code, expected, "{lines}");
    }
}

#[tokio::test(start_paused = true)]
async fn clients_without_a_token_take_no_slot_of_those_with_one() {
    let fixture = Fixture::new("open");
    let mut streams = Vec::new();
    for _ in 0..MAX_GUESTS {
        let mut client = fixture.server.connect();
        assert_eq!(client.request("GET /mcp/stream", &[], "").await.code, 200);
        streams.push(client);
    }
    let response = fixture.with(&[]).await;
    assert!(response.code == 503 && message(&response).contains("too many connections"), "{response:?}");
    assert_eq!(fixture.with(&[&token()]).await.body, "ana 0");
    streams.pop();
    assert_eq!(fixture.with(&[]).await.body, "anybody 0");
}

#[tokio::test(start_paused = true)]
async fn a_token_in_the_url_is_refused_with_the_next_step() {
    let fixture = Fixture::new("");
    for query in ["token=x", "a=1&access_token=x", "API_KEY", "Authorization=Bearer%20x"] {
        let response = fixture.request(&format!("POST /mcp?{query}"), &[&token()], "").await;
        assert!(response.code == 400 && message(&response).contains("in the URL"), "{query}: {response:?}");
    }
    assert_eq!(fixture.request("POST /mcp?session=1", &[&token()], "").await.code, 200);
}

#[tokio::test(start_paused = true)]
async fn other_hosts_and_pages_are_refused() {
    let fixture = Fixture::new("named");
    let table = [
        (&["Host: localhost"][..], 200),
        (&["Host: 127.0.0.1:8471"], 200),
        (&["Host: toolbus.example.com"], 200),
        (&["Host: evil.example"], 421),
        (&["Host: localhost", "Host: localhost"], 421),
        (&["Host: localhost", "Origin: http://localhost:6274"], 200),
        (&["Host: localhost", "Origin: https://app.example.com"], 200),
        (&["Host: localhost", "Origin: http://evil.example"], 403),
        (&["Host: evil.example", "Origin: http://evil.example"], 421),
        (&["Host: localhost", "Origin: null"], 403),
    ];
    for (head, expected) in table {
        let with_token: Vec<&str> = head.iter().copied().chain(["Authorization: Bearer s3cret-of-ana-1234"]).collect();
        let response = fixture.with(&with_token).await;
        assert_eq!(response.code, expected, "{head:?}: {response:?}");
        if expected == 403 {
            assert!(message(&response).contains("http.allowed_origins"), "{response:?}");
        }
        if expected == 421 {
            assert!(message(&response).contains("http.allowed_hosts"), "{response:?}");
        }
    }
    let elsewhere = fixture.request("GET /mcpx", &["Host: evil.example"], "").await;
    assert!(elsewhere.code == 421 && elsewhere.body.starts_with("this server"), "{elsewhere:?}");
}

#[tokio::test(start_paused = true)]
async fn a_preflight_response_states_what_an_allowed_page_may_send_and_read() {
    let fixture = Fixture::new("");
    let preflight = ["Origin: http://localhost:6274", "Access-Control-Request-Method: POST"];
    let wanted = "Access-Control-Request-Headers: authorization,mcp-protocol-version";
    let response = fixture.request("OPTIONS /mcp", &[preflight[0], preflight[1], wanted], "").await;
    assert_eq!(response.code, 204);
    for line in [
        "access-control-allow-origin: http://localhost:6274\r\n",
        "access-control-allow-methods: get, post, delete, options\r\n",
        "access-control-allow-headers: authorization,mcp-protocol-version\r\n",
        "vary: origin\r\n",
    ] {
        assert!(response.head.contains(line), "{line}: {}", response.head);
    }
    for head in [&[preflight[0], &token()][..], &[preflight[0]]] {
        let response = fixture.with(head).await;
        assert!(response.head.contains("access-control-allow-origin: http://localhost:6274\r\n"), "{response:?}");
        assert!(response.head.contains("access-control-expose-headers: mcp-session-id"), "{response:?}");
    }
    let response = fixture.request("OPTIONS /mcp", &["Origin: http://evil.example", preflight[1]], "").await;
    assert!(response.code == 403 && !response.head.contains("access-control"), "{response:?}");
    let response = fixture.with(&[&token()]).await;
    assert!(!response.head.contains("access-control"), "{response:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_is_read_up_to_its_bound_with_or_without_a_declared_length() {
    let fixture = Fixture::new("small");
    let fits = "x".repeat(4096);
    assert_eq!(fixture.request("POST /mcp", &[&token()], &fits).await.body, "ana 4096");
    let refused = fixture.request("POST /mcp", &[&token()], &format!("{fits}x")).await;
    assert!(refused.code == 413 && refused.body.contains("http.max_body"), "{refused:?}");
    let chunk = format!("400\r\n{}\r\n", "x".repeat(0x400));
    let chunked = |count| format!("{}0\r\n\r\n", chunk.repeat(count));
    for (count, expected) in [(4, 200), (5, 413)] {
        let mut client = fixture.server.connect();
        let head =
            format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{}\r\nTransfer-Encoding: chunked\r\n\r\n", token());
        client.write(&format!("{head}{}", chunked(count))).await;
        let response = client.response().await;
        assert_eq!(response.code, expected, "{response:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_body_times_out() {
    let fixture = Fixture::new("");
    let mut client = fixture.server.connect();
    let started = Clock::SYSTEM.now();
    let response = client.request("POST /mcp", &[&token(), "Content-Length: 100"], "").await;
    assert_eq!(response.code, 408);
    assert_eq!(Clock::SYSTEM.since(started).as_secs(), 10);
    assert_eq!(client.closed_after().await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn no_body_is_read_before_the_token_is_right() {
    let fixture = Fixture::new("");
    let mut client = fixture.server.connect();
    let started = Clock::SYSTEM.now();
    let response = client.request("POST /mcp", &["Content-Length: 100000000"], "").await;
    assert_eq!((response.code, Clock::SYSTEM.since(started).as_secs()), (401, 0));
}

#[tokio::test(start_paused = true)]
async fn anonymous_clients_that_announce_bodies_and_send_none_block_no_other() {
    let fixture = Fixture::new("");
    let mut waiting: Vec<Client> = (0..MAX_ANONYMOUS * 4).map(|_| fixture.server.connect()).collect();
    for client in &mut waiting {
        client.write("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n").await;
    }
    let started = Clock::SYSTEM.now();
    assert_eq!(fixture.with(&[&token()]).await.code, 200);
    assert!(Clock::SYSTEM.since(started) < PENALTY, "{:?}", Clock::SYSTEM.since(started));
}

#[tokio::test(start_paused = true)]
async fn large_bodies_together_are_bounded_and_small_ones_always_pass() {
    let fixture = Fixture::new("");
    let large = 3_900_000;
    let mut begun = Vec::new();
    for _ in 0..20 {
        let mut client = fixture.server.connect();
        let length = format!("Content-Length: {}", large + 1);
        begun.push(tokio::spawn(async move {
            // All but the last byte.
            client.write(&format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{}\r\n{length}\r\n\r\n", token())).await;
            tokio::io::AsyncWriteExt::write_all(&mut client.0, "x".repeat(large).as_bytes()).await.ok();
            client.response().await.code
        }));
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(fixture.request("POST /mcp", &[&token()], &"x".repeat(1000)).await.code, 200);
    let mut codes = Vec::new();
    for client in begun {
        codes.push(client.await.unwrap());
    }
    codes.sort_unstable();
    assert_eq!((codes[0], codes[19]), (408, 503), "{codes:?}");
}
