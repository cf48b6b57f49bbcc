#![expect(clippy::disallowed_methods, reason = "tasks of a test end with its runtime")]

pub(crate) mod auth;
mod connections;
mod harness;
mod held;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::breaker::Breakers;
use toolbus_core::bus::BusState;
use toolbus_core::caller::Identity;
use toolbus_core::events::Discard;
use toolbus_core::ledger::{Ledger as _, LedgerLimits};
use toolbus_core::policy::{Capacity, Policy, PolicyHandle};
use toolbus_core::registry::Registry;
use toolbus_core::tool::{Tool, ToolDescriptor, ToolOutput};
use toolbus_mcp_client::status::{HiddenTool, PhaseName, ServerStatus};
use toolbus_sandbox::Level;
use toolbus_scripts::runner::RunnerStatus;
use toolbus_store::SqliteLedger;
use toolbus_testing::patience::at_most;

use super::admin::DaemonAdmin;
use super::admin::client::{ProbeError, probe};
use super::slots::{HEAD_TIME, MAX_ANONYMOUS};
use super::{
    Blocker, Build, Health, HealthSources, HeardDaemons, HttpAuth, HttpServer, HttpState, ListenError, McpAdmin,
    NoServers, ScriptStatus, SharedState,
};
use crate::config::Config;

const PATIENCE: Duration = Duration::from_secs(10);

/// One MCP server, whose status has details that only operators may see.
struct Servers;

impl McpAdmin for Servers {
    fn status(&self) -> Vec<ServerStatus> {
        vec![ServerStatus {
            phase: PhaseName::Waiting,
            restarts: 3,
            last_error: Some("tried http://ana:hunter2@host/mcp twice".to_owned()),
            ..example("files")
        }]
    }

    fn restart(&self, _: &str) -> bool {
        false
    }
}

/// A server that serves, as tests need one.
pub(crate) fn example(name: &str) -> ServerStatus {
    ServerStatus {
        name: name.to_owned(),
        transport: "stdio".to_owned(),
        phase: PhaseName::Ready,
        last_error: None,
        protocol_version: Some("2025-11-25".to_owned()),
        implementation: Some("example 1.0".to_owned()),
        tools: vec!["read_file".to_owned(), "write_file".to_owned()],
        hidden: vec![HiddenTool { name: "move_file".to_owned(), reason: "denied by deniedTools".to_owned() }],
        shadowed: Vec::new(),
        shadowed_total: 0,
        suspect: Vec::new(),
        suspect_total: 0,
        cleaned: Vec::new(),
        cleaned_total: 0,
        pid: Some(4242),
        restarts: 0,
        ready_seconds: Some(3_725),
        in_flight: 1,
        latency_us: Some(1_234),
        stderr: vec!["listening".to_owned()],
        origin: "configuration".to_owned(),
        toolset: None,
        sessions: 0,
    }
}

/// A daemon with these tools and nothing else.
pub(super) fn sources(bus: watch::Receiver<BusState>, registry: Registry) -> HealthSources {
    let capacity = Capacity { max_in_flight: 1, max_waiting: 1 };
    HealthSources {
        bus,
        shared: watch::channel(SharedState::default()).1,
        other_daemons: watch::channel(HeardDaemons::default()).1,
        store_files: watch::channel(Vec::new()).1,
        policy: PolicyHandle::new(registry, Identity::default(), Policy::default(), capacity),
        load: Arc::default(),
        breakers: Breakers::new(Clock::SYSTEM),
        servers: Arc::new(NoServers),
        remote: Box::new(Vec::new),
        scripts: Box::new(|| None),
        required_tools: Vec::new(),
        required_servers: Vec::new(),
        build: Build { version: "1.2.3".into(), commit: "abc1234".into() },
        clock: Clock::SYSTEM,
    }
}

/// A state with neither admin API nor MCP server.
pub(super) fn http_state(health: Arc<Health>) -> HttpState {
    let auth = HttpAuth::new(&Config::default(), Arc::new(Discard), CancellationToken::new());
    HttpState {
        health,
        metrics: None,
        admin: None,
        console: None,
        auth,
        mcp: Router::new(),
        redactor: Default::default(),
    }
}

/// A server on a free port, and its sources of data.
struct Fixture {
    address: SocketAddr,
    bus: watch::Sender<BusState>,
    files: watch::Sender<Vec<String>>,
    registry: Registry,
    health: Arc<Health>,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

impl Fixture {
    async fn new(required: &[&str]) -> Self {
        let (bus, state) = watch::channel(good());
        let (files, store_files) = watch::channel(Vec::new());
        let registry = Registry::new();
        let required_tools = required.iter().map(|name| (*name).to_owned()).collect();
        let sources = sources(state, registry.clone());
        let sources = HealthSources { required_tools, store_files, servers: Arc::new(Servers), ..sources };
        let health = Arc::new(Health::new(sources));
        let server = HttpServer::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let (address, stop) = (server.address(), CancellationToken::new());
        let server = tokio::spawn(server.run(http_state(Arc::clone(&health)), Handle::current(), stop.clone()));
        Self { address, bus, files, registry, health, stop, server }
    }

    fn register(&self, name: &str) {
        self.registry.register(Tool::new(ToolDescriptor::new(name, "test", "local"), ToolOutput::default())).unwrap();
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let (code, body) = probe(self.address, path, PATIENCE).await.unwrap();
        (code, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    /// Sends a request, the last one of its connection, and reads the response to its end.
    async fn raw(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        stream.write_all(request.as_bytes()).await.unwrap();
        read_all(&mut stream).await
    }
}

/// Reads the server's output until the connection is closed, in whatever way.
async fn read_all(stream: &mut TcpStream) -> String {
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    String::from_utf8(response).unwrap()
}

fn good() -> BusState {
    BusState { connected: true, consumers: vec![("toolbus.invoke".to_owned(), true)], ..BusState::default() }
}

#[tokio::test]
async fn a_daemon_that_takes_requests_is_ready() {
    let fixture = Fixture::new(&["echo"]).await;
    fixture.register("echo");
    assert_eq!(fixture.get("/readyz").await, (200, json!({"ready": true, "blockedBy": []})));
}

#[tokio::test]
async fn disabled_metrics_name_the_key_that_enables_them() {
    let off = "Metrics are off. Set http.metrics to true, and restart the daemon.\n";
    assert_eq!(Fixture::new(&[]).await.get("/metrics").await, (404, json!(off)));
}

#[tokio::test]
async fn everything_that_blocks_is_named() {
    let fixture = Fixture::new(&["get_weather", "echo"]).await;
    fixture.register("echo");
    fixture.health.start_draining();
    fixture.bus.send_replace(BusState {
        connected: false,
        blocked: Some("low on disk".to_owned()),
        consumers: vec![("toolbus.invoke".to_owned(), false), ("toolbus.control".to_owned(), true)],
        last_error: Some("amqp://guest:secret@10.0.0.1:5672 refused".to_owned()),
        fatal: Some("queue `q` has other arguments".to_owned()),
        ..BusState::default()
    });
    let blocked_by = json!([
        {"reason": "draining"},
        {"reason": "misconfigured", "detail": "queue `q` has other arguments"},
        {"reason": "disconnected", "detail": "amqp://…@10.0.0.1:5672 refused"},
        {"reason": "broker_blocked", "detail": "low on disk"},
        {"reason": "consumer_not_confirmed", "queue": "toolbus.invoke"},
        {"reason": "tool_missing", "tool": "get_weather"},
    ]);
    assert_eq!(fixture.get("/readyz").await, (503, json!({"ready": false, "blockedBy": blocked_by})));
}

#[tokio::test]
async fn each_cause_alone_takes_readiness_away_and_its_end_brings_it_back() {
    let fixture = Fixture::new(&[]).await;
    let unconfirmed = vec![("toolbus.invoke".to_owned(), true), ("toolbus.control".to_owned(), false)];
    for (state, reason) in [
        (BusState { connected: false, ..good() }, "disconnected"),
        (BusState { blocked: Some("memory".to_owned()), ..good() }, "broker_blocked"),
        (BusState { consumers: Vec::new(), ..good() }, "no_consumer"),
        (BusState { consumers: unconfirmed, ..good() }, "consumer_not_confirmed"),
        (BusState { fatal: Some("stop".to_owned()), ..good() }, "misconfigured"),
    ] {
        fixture.bus.send_replace(state);
        let (code, body) = fixture.get("/readyz").await;
        assert_eq!((code, &body["blockedBy"][0]["reason"]), (503, &json!(reason)));
        fixture.bus.send_replace(good());
        assert_eq!(fixture.get("/readyz").await.0, 200, "{reason}");
    }
    fixture.health.start_draining();
    assert_eq!(fixture.get("/readyz").await.0, 503);
}

#[tokio::test]
async fn a_file_of_the_store_that_cannot_be_written_takes_readiness_away() {
    let fixture = Fixture::new(&[]).await;
    assert!(fixture.health.readiness().ready);
    fixture.files.send_replace(vec!["working memory: the disk is full".to_owned()]);
    let blocker = Blocker::StoreAway { detail: "working memory: the disk is full".to_owned() };
    assert_eq!(fixture.health.readiness().blocked_by, [blocker]);
    fixture.files.send_replace(Vec::new());
    assert!(fixture.health.readiness().ready);
}

#[tokio::test]
async fn the_folder_of_a_store_file_is_shown_to_operators_alone() {
    let fixture = Fixture::new(&[]).await;
    let folder = tempfile::Builder::new().prefix("own folder").tempdir().unwrap();
    let path = folder.path().join("toolbus.db");
    let limits = LedgerLimits { max_entries: 10, max_bytes: 10_000 };
    let ledger = SqliteLedger::open(&path, limits, Clock::SYSTEM).unwrap();
    std::fs::remove_file(&path).unwrap();
    fixture.files.send_replace(vec![format!("ledger: {}", ledger.check().await.unwrap_err())]);
    let detail = "ledger: the store failed: the file `toolbus.db` was removed or replaced";
    let blocked_by = json!([{"reason": "store_away", "detail": detail}]);
    assert_eq!(fixture.get("/readyz").await, (503, json!({"ready": false, "blockedBy": blocked_by})));
    let (admin, _reloads) = DaemonAdmin::new(Arc::clone(&fixture.health), &[], &Config::default());
    let whole = detail.replace("toolbus.db", path.to_str().unwrap());
    assert_eq!(admin.status().blocked_by, [Blocker::StoreAway { detail: whole }]);
}

#[tokio::test]
async fn a_required_tool_that_goes_away_takes_readiness_with_it() {
    let fixture = Fixture::new(&["echo"]).await;
    assert_eq!(fixture.get("/readyz").await.0, 503);
    fixture.register("echo");
    assert_eq!(fixture.get("/readyz").await.0, 200);
    fixture.registry.unregister("echo");
    assert_eq!(fixture.get("/readyz").await.0, 503);
}

#[tokio::test]
async fn a_bus_that_has_ended_is_never_ready() {
    let Fixture { address, bus, stop, .. } = Fixture::new(&[]).await;
    drop(bus);
    let (code, body) = probe(address, "/readyz", PATIENCE).await.unwrap();
    assert_eq!((code, body.as_str()), (503, r#"{"ready":false,"blockedBy":[{"reason":"bus_closed"}]}"#));
    stop.cancel();
}

#[tokio::test]
async fn the_process_is_alive_whatever_the_broker_does() {
    let fixture = Fixture::new(&["missing"]).await;
    fixture.bus.send_replace(BusState::default());
    for path in ["/healthz", "/livez"] {
        assert_eq!(fixture.get(path).await, (200, json!("ok\n")));
    }
}

#[tokio::test]
async fn the_status_has_build_broker_and_counts() {
    let fixture = Fixture::new(&[]).await;
    fixture.register("a");
    fixture.register("b");
    fixture.bus.send_replace(BusState {
        reconnects: 3,
        last_error: Some("lost amqp://u:secret@host".to_owned()),
        ..good()
    });
    let (code, mut body) = fixture.get("/status").await;
    assert_eq!(code, 200);
    assert!(body["uptimeSeconds"].take().as_u64().unwrap() < 60);
    let expected = json!({
        "build": {"version": "1.2.3", "commit": "abc1234"},
        "uptimeSeconds": null,
        "ready": true,
        "draining": false,
        "broker": {
            "connected": true,
            "blocked": null,
            "reconnects": 3,
            "lastError": "lost amqp://…@host",
            "consumers": [{"queue": "toolbus.invoke", "confirmed": true}],
        },
        "counts": {"tools": 2, "heldBack": 0, "inFlight": 0, "waiting": 0},
        "mcp": [{
            "name": "files", "phase": "waiting", "restarts": 3, "suspect": 0, "shadowed": 0,
            "lastError": "tried http://…@host/mcp twice"
        }],
        "breakers": [],
        "mcpProblems": [],
    });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn the_status_has_the_runner_of_scripts() {
    let (_bus, state) = watch::channel(good());
    // Two scripts wait, and one runs.
    let scripts = || {
        let python = Some("3.13.1".to_owned());
        let runner = RunnerStatus {
            runner: "sandbox",
            level: Some(Level::NoNamespaces),
            layers: vec!["landlock", "seccomp"],
            python,
            warm: 4,
            mode: Some("fork"),
        };
        Some(ScriptStatus { runner, running: 1, waiting: 2, sessions: 3 })
    };
    let health = Health::new(HealthSources { scripts: Box::new(scripts), ..sources(state, Registry::new()) });
    let status = serde_json::to_value(health.status()).unwrap();
    let expected = json!({
        "runner": "sandbox", "level": "no-namespaces", "layers": ["landlock", "seccomp"], "python": "3.13.1", "warm": 4,
        "mode": "fork", "running": 1, "waiting": 2, "sessions": 3
    });
    assert_eq!(status["script"], expected);
}

#[tokio::test]
async fn another_host_is_refused_on_every_path() {
    let fixture = Fixture::new(&[]).await;
    for path in ["/healthz", "/livez", "/readyz", "/status", "/nothing"] {
        let response = fixture.raw(&format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n")).await;
        assert!(response.starts_with("HTTP/1.1 421 "), "{path}: {response}");
        assert!(!response.contains("toolbus.invoke") && response.contains("localhost"), "{response}");
    }
    let response = fixture.raw("GET /status HTTP/1.1\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 421 "), "{response}");
}

#[tokio::test]
async fn only_reading_is_possible() {
    let fixture = Fixture::new(&[]).await;
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let response = fixture.raw(&format!("{method} /status HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
        assert!(response.starts_with("HTTP/1.1 405 "), "{method}: {response}");
    }
    let head = fixture.raw("HEAD /status HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(head.contains("cache-control: no-store"), "{head}");
    assert_eq!(fixture.get("/policy").await.0, 404);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let fixture = Fixture::new(&[]).await;
    let large = format!("GET /status HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    let response = fixture.raw(&large).await;
    assert!(response.is_empty() || response.starts_with("HTTP/1.1 431 "), "{response}");
    let many = "X: y\r\n".repeat(100);
    let response = fixture.raw(&format!("GET /status HTTP/1.1\r\nHost: localhost\r\n{many}\r\n")).await;
    assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
    assert_eq!(fixture.get("/livez").await.0, 200);
}

#[tokio::test]
async fn silent_clients_are_closed_and_do_not_block_others_for_long() {
    let fixture = Fixture::new(&[]).await;
    let mut silent = Vec::new();
    for _ in 0..MAX_ANONYMOUS * 2 {
        silent.push(TcpStream::connect(fixture.address).await.unwrap());
    }
    let (code, _) = probe(fixture.address, "/livez", PATIENCE).await.unwrap();
    assert_eq!(code, 200);
    for mut stream in silent {
        let closed = tokio::time::timeout(PATIENCE + HEAD_TIME, read_all(&mut stream)).await;
        assert!(closed.is_ok(), "still open");
    }
}

#[tokio::test]
async fn a_stopped_server_closes_its_port_and_ends() {
    let fixture = Fixture::new(&[]).await;
    let idle = TcpStream::connect(fixture.address).await.unwrap();
    assert_eq!(fixture.get("/livez").await.0, 200);
    fixture.stop.cancel();
    tokio::time::timeout(PATIENCE, fixture.server).await.unwrap().unwrap();
    assert!(matches!(probe(fixture.address, "/livez", PATIENCE).await, Err(ProbeError::Unreachable { .. })));
    drop(idle);
}

#[tokio::test]
async fn a_port_in_use_is_reported_with_the_key_to_change() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let error = HttpServer::bind(address).await.unwrap_err();
    assert!(matches!(error, ListenError::PortInUse(_)));
    assert_eq!(
        error.to_string(),
        format!(
            "cannot listen on {address}: the port is in use. End the other program, or set http.listen to another port"
        )
    );
    let error = HttpServer::bind(SocketAddr::from(([203, 0, 113, 1], 0))).await.unwrap_err();
    assert!(matches!(error, ListenError::NoSuchAddress(_)) && error.to_string().contains("http.listen"), "{error}");
}

#[tokio::test]
async fn a_probe_distinguishes_silent_peers_from_those_of_other_protocols() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let error = probe(address, "/readyz", Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(error, ProbeError::TimedOut(_)), "{error}");
    let impostor = tokio::spawn(async move {
        let (mut stream, _) = silent.accept().await.unwrap();
        let (mut other, _) = silent.accept().await.unwrap();
        drop(stream.shutdown().await);
        other.write_all(b"AMQP\0\0\x09\x01\r\n\r\n").await.unwrap();
        other.shutdown().await.unwrap();
        // Reads what the client sent, so that closing does not look like a failure.
        read_all(&mut other).await
    });
    let error = probe(address, "/readyz", PATIENCE).await.unwrap_err();
    assert!(matches!(error, ProbeError::NotHttp(_)), "{error}");
    impostor.await.unwrap();
}

#[tokio::test]
async fn connections_that_send_half_a_head_or_read_nothing_take_no_slot_of_a_probe() {
    let fixture = Fixture::new(&[]).await;
    let unread = "GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000);
    let mut held = Vec::new();
    for sent in ["", "GET /livez HTTP/1.1\r\n", &unread, "GET /none HTTP/1.1\r\n"].into_iter().cycle().take(600) {
        let mut stream = TcpStream::connect(fixture.address).await.unwrap();
        // A connection that was closed already makes room as well.
        let _ = stream.write_all(sent.as_bytes()).await;
        held.push(stream);
    }
    for _ in 0..16 {
        assert_eq!(probe(fixture.address, "/livez", at_most(Duration::from_millis(100))).await.unwrap().0, 200);
    }
}

#[tokio::test]
async fn a_server_on_every_address_is_probed_on_loopback() {
    let Fixture { health, stop, .. } = Fixture::new(&[]).await;
    let server = HttpServer::bind(SocketAddr::from(([0, 0, 0, 0], 0))).await.unwrap();
    let address = server.address();
    let running = tokio::spawn(server.run(http_state(health), Handle::current(), stop.clone()));
    assert_eq!(probe(address, "/livez", PATIENCE).await.unwrap().0, 200);
    stop.cancel();
    running.await.unwrap();
}
