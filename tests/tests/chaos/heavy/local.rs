//! Work that agents give the daemon themselves.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;

use super::neighbour::{LATE, others_go_on, replies};
use super::{MIB, RULES};
use crate::turn;

/// Shortest time of an attack.
const ATTACK: Duration = Duration::from_secs(2);

/// A pipeline that writes 15 MiB in 50 steps.
fn pipeline(client: &Client) -> Request {
    let first = json!({"id": "s0", "tool": "echo", "params": {"text": "x".repeat(300 * 1024)}});
    let more = (1..50).map(|step| json!({"id": format!("s{step}"), "tool": "echo", "params": {"text": "{{s0}}"}}));
    let steps: Vec<Value> = std::iter::once(first).chain(more).collect();
    let definitions = json!([{"description": "large", "steps": steps}]);
    client.request("spawn_wisps", &json!({ "definitions": definitions })).by("ana")
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelines_that_write_fifteen_mebibytes_each_hold_no_other_agent_up() {
    let _turn = turn().await;
    let (site, daemon, client) = Daemon::with_client(RULES).await;
    for count in [1, 8, 24] {
        let requests: Vec<_> = (0..count).map(|_| pipeline(&client)).collect();
        let attack = replies(&client, &requests, &LATE);
        let replies = others_go_on(&format!("{count} pipelines"), &site, &daemon, attack).await;
        assert!(replies.iter().any(|reply| reply.code().is_empty()));
    }
    daemon.stop(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_of_a_mebibyte_and_texts_in_working_memory_hold_no_other_agent_up() {
    let _turn = turn().await;
    let (site, daemon, client) = Daemon::with_client(RULES).await;
    let text = "word \u{e9} ".repeat(90 * 1024);
    let saved = |number: usize| {
        let arguments = json!({"key": format!("text{}", number % 20), "value": text});
        client.request("save_to_working_memory", &arguments).by("ana")
    };
    let requests: Vec<_> = (0..60).map(saved).collect();
    others_go_on("large arguments", &site, &daemon, replies(&client, &requests, &LATE)).await;
    let read = |number: usize| {
        let arguments = json!({"key": format!("text{}", number % 20), "offset": 300_000, "limit": 200_000});
        client.request("get_from_working_memory", &arguments).by("ana")
    };
    let search = |_| client.request("search_working_memory", &json!({"query": "word"})).by("ana");
    let requests: Vec<_> = (0..60).map(read).chain((0..20).map(search)).collect();
    others_go_on("working memory", &site, &daemon, replies(&client, &requests, &LATE)).await;
    daemon.stop(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_of_scripts_hold_no_other_agent_up() {
    let _turn = turn().await;
    let site = BrokerNamespace::shared().await;
    let script = "[script]\nrunner = \"local\"\nlocal = { i_understand = true }\nmax_output = \"32MiB\"\n";
    let path = std::env::var("PATH").unwrap();
    let daemon = Daemon::launch(&site, &format!("{RULES}{script}"), &[("PATH", &path)]).await;
    daemon.wait_until_ready().await;
    let client = Client::connect(&site).await;
    let source = format!("print('line of \\x1b[1m text\\n' * {})", 20 * MIB / 20);
    let requests: Vec<_> =
        (0..6).map(|_| client.request("execute_python_script", &json!({"script": source})).by("ana")).collect();
    others_go_on("scripts", &site, &daemon, replies(&client, &requests, &LATE)).await;
    daemon.stop(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_read_nothing_do_not_block_the_probes() {
    let _turn = turn().await;
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, RULES).await;
    let requests = "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2000);
    let unread = async |sent: &[u8]| {
        let began = Instant::now();
        while began.elapsed() < ATTACK {
            let mut stream = TcpStream::connect(daemon.listen()).await.unwrap();
            // Until the daemon closes the connection, or takes nothing more.
            let _ = tokio::time::timeout(ATTACK / 2, async { while stream.write_all(sent).await.is_ok() {} }).await;
        }
    };
    let kinds: [&[u8]; 2] = [requests.as_bytes(), &requests.as_bytes()[..30]];
    let attack = join_all(kinds.into_iter().cycle().take(160).map(unread));
    others_go_on("160 connections", &site, &daemon, attack).await;
    daemon.stop(&site).await;
}
