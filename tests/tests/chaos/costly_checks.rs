//! Arguments and schemas that make a check cost as much as they can, and what others notice of it.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::MutexGuard;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::http::Connection;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::{at_most, eventually};

use crate::turn;

/// Values that are no texts: as many as a request has room for, and as many as 40 kB hold.
const WIDE: usize = 500_000;
const BRANCHED: usize = 20_000;
/// Branches of which each of the latter fits none.
const BRANCHES: usize = 400;
/// Longest response of `/livez` beside a check, on a machine with nothing else to do.
const LIVE: Duration = Duration::from_millis(100);
/// Longest call of another agent beside a check, on such a machine.
const CALL: Duration = Duration::from_millis(500);
/// Most memory that arguments of a mebibyte may cost, in KiB: half a million values, read once and copied once or twice.
const ARGUMENTS: u64 = 96 * 1024;
/// Time that calls have.
const LIMIT: Duration = Duration::from_secs(10);
/// Longest time that their replies come later than that, on such a machine.
const LATE: Duration = Duration::from_secs(1);
/// Tools with costly patterns, and letters that these are compared with: some 8 MiB for each tool, if all were kept.
const TOOLS: usize = 12;
const TEXT: usize = 400;
/// Most memory that they may cost, in KiB.
const SCHEMAS: u64 = 64 * 1024;
const RULES: &str = "[tools]\necho = true\n[identity]\ntrust_headers = true\n[agents.ana]\n[agents.bruno]\n";

struct Fixture {
    site: BrokerNamespace,
    daemon: Daemon,
    ana: Client,
    bruno: Client,
    _turn: MutexGuard<'static, ()>,
}

/// The longest waits of others.
#[derive(Debug, Default)]
struct Waits {
    live: Duration,
    call: Duration,
    count: usize,
}

impl Fixture {
    async fn start(more: &str) -> Self {
        let turn = turn().await;
        let site = BrokerNamespace::shared().await;
        let daemon = Daemon::start(&site, &format!("{RULES}{more}")).await;
        let (ana, bruno) = (Client::connect(&site).await, Client::connect(&site).await);
        let fixture = Self { site, daemon, ana, bruno, _turn: turn };
        // The first ones pay for what is made once.
        fixture.others(&mut Waits::default()).await;
        fixture
    }

    /// A daemon whose server has so many tools `match_N`, with costly patterns.
    async fn with_patterns(tools: usize) -> Self {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/hostile_mcp.py");
        let run = std::env::var("TOOLBUS_TEST_RUN").unwrap_or_default();
        let server = format!(
            "[mcp.servers.patterns]\ncommand = \"python3\"\nargs = [{program:?}, \"patterns\", \"{tools}\", \"-\"]\n\
             env = {{ TOOLBUS_TEST_RUN = {run:?} }}\n"
        );
        let fixture = Self::start(&server).await;
        let last = format!("match_{}", tools - 1);
        eventually("the tools of the server", async || {
            let list = fixture.ana.exchange(&fixture.ana.raw("{}").on("tool.list").by("ana")).await.body();
            list["tools"].as_array()?.iter().any(|tool| tool["name"] == *last).then_some(())
        })
        .await;
        fixture
    }

    /// A look at `/livez`, and a call of bruno's.
    async fn others(&self, waits: &mut Waits) {
        let began = Instant::now();
        let mut live = Connection::open(self.daemon.listen()).await;
        live.write("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        assert_eq!(live.response().await.code, 200);
        waits.live = waits.live.max(began.elapsed());
        let began = Instant::now();
        let echo = self.bruno.request("echo", &json!({"text": "well"})).by("bruno");
        assert_eq!(self.bruno.exchange(&echo).await.content(), "well");
        waits.call = waits.call.max(began.elapsed());
        waits.count += 1;
    }

    /// The only reply to ana's request, and its time; checks that others wait no longer than they may.
    async fn beside(&self, request: &Request) -> (Message, Duration) {
        let (began, mut waits) = (Instant::now(), Waits::default());
        self.ana.send(request).await;
        while self.ana.replies_to(&request.correlation).is_empty() {
            self.others(&mut waits).await;
        }
        let took = began.elapsed();
        println!("{took:?}; others: {waits:?}");
        assert!(waits.live < at_most(LIVE) && waits.call < at_most(CALL), "{waits:?}");
        self.ana.caught_up().await;
        let mut replies = self.ana.replies_to(&request.correlation);
        assert_eq!(replies.len(), 1);
        (replies.remove(0), took)
    }

    fn by_ana(&self, tool: &str, arguments: &Value) -> Request {
        self.ana.request(tool, arguments).by("ana")
    }
}

/// A tool that takes a list of these.
fn list_tool(backend: &Backend, name: &str, items: &Value) -> String {
    let schema = json!({"type": "object", "properties": {"list": {"type": "array", "items": items}}});
    backend.endpoint(name, &format!("/weather/{name}"), &schema.to_string(), "method = \"POST\"\nbody = \"json\"")
}

/// Letters without a period.
fn letters(count: usize) -> String {
    let mut state = 1_u64;
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if state >> 63 == 0 { 'a' } else { 'b' }
    };
    (0..count).map(|_| letter()).collect()
}

#[tokio::test]
async fn a_call_with_half_a_million_wrong_values_is_refused_with_the_first_and_delays_no_other_call() {
    let backend = Backend::start().await;
    let branches: Vec<Value> = (0..BRANCHES).map(|n| json!({"type": "string", "minLength": n})).collect();
    let tools = [
        list_tool(&backend, "texts", &json!({"type": "string"})),
        list_tool(&backend, "branches", &json!({"anyOf": branches})),
    ];
    let fixture = Fixture::start(&tools.concat()).await;
    for (tool, count) in [("texts", WIDE), ("branches", BRANCHED)] {
        assert_eq!(fixture.ana.exchange(&fixture.by_ana(tool, &json!({"list": ["x"]}))).await.code(), "");
        fixture.daemon.forget_peak();
        let before = fixture.daemon.peak();
        let request = fixture.by_ana(tool, &json!({"list": vec![1; count]}));
        let (reply, _) = fixture.beside(&request).await;
        let (grown, text) = (fixture.daemon.peak().saturating_sub(before), reply.error());
        println!("{tool}: {grown} KiB more than {before}");
        assert_eq!(reply.code(), "invalid_arguments");
        assert!(text.contains("/list/0: ") && text.ends_with("… and more") && text.len() < 10_000, "{text}");
        assert!(grown < ARGUMENTS, "{grown} KiB");
    }
    assert_eq!(backend.total(), 2, "nothing that does not fit was run");
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_long_text_and_costly_patterns_of_a_server_end_in_time_and_delay_no_other_call() {
    let fixture = Fixture::with_patterns(1).await;
    let connected = fixture.daemon.logged("connected to the broker").len();
    for length in [60_000, 200_000, 500_000] {
        let request = fixture.by_ana("match_0", &json!({"text": letters(length)}));
        let request = request.header("rb-timeout-ms", &LIMIT.as_millis().to_string());
        let (reply, took) = fixture.beside(&request).await;
        println!("{length}: {} {}", reply.code(), reply.error());
        assert!(["", "invalid_arguments", "timeout"].contains(&&*reply.code()), "{:?}", reply.body());
        assert!(took < LIMIT + at_most(LATE), "{took:?}");
    }
    assert_eq!(fixture.daemon.logged("connected to the broker").len(), connected);
    assert_eq!(fixture.daemon.logged("no connection to the broker"), [] as [Value; 0]);
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn compiled_schemas_of_many_tools_with_many_patterns_are_kept_by_size() {
    let fixture = Fixture::with_patterns(TOOLS).await;
    fixture.daemon.forget_peak();
    let before = fixture.daemon.peak();
    for tool in 0..TOOLS {
        let request = fixture.by_ana(&format!("match_{tool}"), &json!({"text": letters(TEXT)}));
        let (reply, _) = fixture.beside(&request).await;
        // A slow machine has no time to compile all patterns.
        assert!(reply.content() == "done" || reply.code() == "invalid_arguments", "{:?}", reply.body());
        println!("{tool}: {} KiB more than {before}", fixture.daemon.peak().saturating_sub(before));
    }
    let grown = fixture.daemon.peak().saturating_sub(before);
    assert!(grown < SCHEMAS, "{grown} KiB");
    fixture.daemon.stop(&fixture.site).await;
}
