//! HTTP servers that mean harm.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use toolbus_testing::patience::{at_most, eventually};

use crate::fixture::{Fixture, python};

/// The server of every way, and an address to which no request may be led.
pub(crate) struct Remote {
    _server: Child,
    port: String,
    elsewhere: TcpListener,
}

impl Remote {
    pub(crate) async fn start() -> Self {
        let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
        elsewhere.set_nonblocking(true).unwrap();
        let mut server = Command::new("python3")
            .arg(python("hostile_http.py"))
            .arg(elsewhere.local_addr().unwrap().port().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        let port = lines.next_line().await.unwrap().unwrap();
        Self { _server: server, port, elsewhere }
    }

    pub(crate) fn section(&self, name: &str, way: &str, keys: &str) -> String {
        let port = &self.port;
        format!("[mcp.servers.\"{name}\"]\nurl = \"http://127.0.0.1:{port}/{way}\"\n{keys}\n")
    }

    /// The errors of these servers, which all have one, as `/status` shows them.
    async fn errors(&self, fixture: &Fixture, ways: &[&str]) -> String {
        let mut lines = Vec::new();
        for way in ways {
            let error = eventually(&format!("an error of {way}"), async || {
                let (_, status) = fixture.daemon.get("/status").await?;
                let server = status["mcp"].as_array()?.iter().find(|server| server["name"] == *way)?.clone();
                let is_settled = ["waiting", "parked", "auth-required"].iter().any(|phase| server["phase"] == *phase);
                is_settled.then(|| server["lastError"].as_str().map(str::to_owned))?
            })
            .await;
            let elsewhere = self.elsewhere.local_addr().unwrap().port().to_string();
            lines.push(format!("{way}: {}", error.replace(&self.port, "PORT").replace(&elsewhere, "ELSEWHERE")));
        }
        lines.join("\n")
    }

    fn led_no_request_elsewhere(&self) -> bool {
        self.elsewhere.accept().is_err()
    }
}

/// A daemon with one hostile server of this way.
async fn besieged(way: &str, keys: &str) -> (Remote, Fixture) {
    let (remote, fixture) = (Remote::start().await, Fixture::quiet("").await);
    fixture.add(&remote.section("hostile", way, keys)).await;
    fixture.neighbour_serves().await;
    (remote, fixture)
}

#[tokio::test]
async fn servers_that_refuse_for_ever_are_tried_seldom_and_shown() {
    let ways =
        ["redirect", "sse-elsewhere", "sse-flood", "drop", "garbage", "500", "404", "401", "403", "200", "lying"];
    let (remote, fixture) = (Remote::start().await, Fixture::quiet("").await);
    let kind = |way: &str| if way.starts_with("sse") { "type = \"sse\"" } else { "" };
    fixture.add(&ways.map(|way| remote.section(way, way, kind(way))).concat()).await;
    fixture.neighbour_serves().await;
    let errors = remote.errors(&fixture, &ways).await;
    insta::assert_snapshot!(errors, @"
    redirect: the MCP server at http://127.0.0.1:PORT answered HTTP 307; redirects are not followed: configure the address that it redirects to, http://127.0.0.1:ELSEWHERE/mcp
    sse-elsewhere: the MCP server at http://127.0.0.1:PORT wants messages posted to another server, which is refused
    sse-flood: the MCP server at http://127.0.0.1:PORT sent an event of more than 16777216 bytes
    drop: the connection to the MCP server at http://127.0.0.1:PORT ended before the answer was complete
    garbage: `initialize` could not be sent: the MCP server at http://127.0.0.1:PORT answered JSON that is no answer to the request
    500: the MCP server at http://127.0.0.1:PORT answered HTTP 500; see the log of that server
    404: the MCP server at http://127.0.0.1:PORT answered HTTP 404; check the path of its URL, and its transport
    401: the MCP server at http://127.0.0.1:PORT answered HTTP 401; it asks for a credential and none is configured: configure one
    403: the MCP server at http://127.0.0.1:PORT answered HTTP 403; it asks for a credential and none is configured: configure one
    200: `initialize` could not be sent: the MCP server at http://127.0.0.1:PORT answered JSON that is no answer to the request
    lying: `initialize` could not be sent: the MCP server at http://127.0.0.1:PORT named an unusable session
    ");
    fixture.seen_of("401", "auth-required", "").await;
    assert!(remote.led_no_request_elsewhere());
    fixture.end().await;
}

#[tokio::test]
async fn a_call_follows_no_redirect() {
    let (remote, fixture) = besieged("redirect-late", "").await;
    fixture.seen("ready", "").await;
    let reply = fixture.strike().await;
    insta::assert_snapshot!(format!("{}: {}", reply.code(), reply.error()), @"execution_failed: The MCP server of tool 'strike' refused the request. Only an operator can mend this. Whether it had its effect is not known: find out before calling again.");
    assert!(remote.led_no_request_elsewhere());
    fixture.end().await;
}

#[tokio::test]
async fn responses_that_are_huge_or_cut_are_refused_at_once() {
    let mut results = Vec::new();
    for way in ["huge", "cut"] {
        let (_remote, fixture) = besieged(way, "").await;
        fixture.seen("ready", "").await;
        let started = Instant::now();
        let reply = fixture.strike().await;
        assert!(started.elapsed() < at_most(Duration::from_secs(20)), "{:?}", started.elapsed());
        results.push(format!("{way}: {}: {}", reply.code(), reply.error()));
        fixture.neighbour_serves().await;
        fixture.end().await;
    }
    insta::assert_snapshot!(results.join("\n"), @r"
    huge: execution_failed: Tool 'strike' failed: its server sent an event of more than 16777216 bytes. Ask for less. Whether it had its effect is not known: find out before calling again.
    cut: execution_failed: The MCP server of tool 'strike' went away before it answered. It may have had its effect: calling again may repeat that.
    ");
}

#[tokio::test]
async fn a_flood_of_events_ends_with_the_call() {
    let (_remote, fixture) = besieged("flood", "tool_timeout = \"2s\"").await;
    fixture.seen("ready", "").await;
    let reply = fixture.strike_beside_neighbour(json!({})).await;
    assert_eq!(reply.code(), "timeout", "{:?}", reply.body());
    fixture.end().await;
}

#[tokio::test]
async fn a_server_that_forgets_every_session_delays_no_other_call() {
    let (_remote, fixture) = besieged("forgetful", "tool_timeout = \"2s\"").await;
    let before = fixture.processor_seconds();
    fixture.neighbour_serves().await;
    assert!(fixture.processor_seconds() - before < 2.0);
    fixture.end().await;
}
