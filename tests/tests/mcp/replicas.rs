//! Daemons on the same queues that share a Redis server: each change at one reaches the others, and nothing that was
//! disabled is enabled because the server is away or has forgotten.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::{at_most, eventually};
use toolbus_testing::redis::{PASSWORD, RedisServer};

use crate::small::{PROGRAM, Small, known, python};

/// Time within which a change reaches the other replicas.
const SPREAD: Duration = Duration::from_secs(2);

/// A configuration with this server as the store, and registering allowed.
fn sharing(redis: &RedisServer, more: &str) -> String {
    let command = json!([python(), PROGRAM, "*", "*", "*"]);
    format!(
        "[tools]\necho = true\n[identity]\ntrust_headers = true\n[agents.ana]\n[agents.bruno]\n\
         [store]\nurl = \"{}\"\n[mcp]\nregister = {{ enabled = true, commands = [{command}] }}\n{more}",
        redis.url()
    )
}

/// Two daemons of one configuration, and the server that they share.
async fn replicas() -> (BrokerNamespace, RedisServer, [Daemon; 2]) {
    let (site, redis) = (BrokerNamespace::shared().await, RedisServer::start().await);
    let config = sharing(&redis, "");
    let daemons = [Daemon::start(&site, &config).await, Daemon::start(&site, &config).await];
    (site, redis, daemons)
}

/// Whether a replica would run ana's call of `echo`.
async fn is_enabled(daemon: &Daemon) -> bool {
    match daemon.operate(&["explain", "ana", "echo", "text=x"]).await.code {
        0 => true,
        1 => false,
        code => panic!("explain ended with {code}"),
    }
}

async fn switch(daemon: &Daemon, what: &str) {
    let run = daemon.operate(&[what, "tool", "echo"]).await;
    assert_eq!(run.code, 0, "{run:?}");
}

/// Waits until a replica has `echo` enabled or disabled, in the time that it may take.
async fn spread(daemon: &Daemon, is_on: bool) {
    let started = Instant::now();
    eventually("the change to reach the other replica", async || (is_enabled(daemon).await == is_on).then_some(()))
        .await;
    assert!(started.elapsed() < at_most(SPREAD), "it took {:?}", started.elapsed());
}

async fn code(client: &Client, tool: &str, arguments: &Value) -> String {
    client.exchange(&client.request(tool, arguments).by("ana")).await.code()
}

#[tokio::test]
async fn a_tool_disabled_at_one_replica_is_disabled_at_the_other_and_enabled_again() {
    let (site, _redis, [one, other]) = replicas().await;
    let client = Client::connect(&site).await;
    for _ in 0..2 {
        switch(&one, "disable").await;
        spread(&other, false).await;
        for _ in 0..10 {
            assert_eq!(code(&client, "echo", &json!({"text": "x"})).await, "tool_not_found");
        }
        switch(&other, "enable").await;
        spread(&one, true).await;
    }
    for _ in 0..10 {
        assert_eq!(code(&client, "echo", &json!({"text": "x"})).await, "");
    }
    one.end().await;
    other.stop(&site).await;
}

#[tokio::test]
async fn a_server_registered_at_one_replica_is_reached_at_both_until_it_is_unregistered() {
    let (site, _redis, [one, other]) = replicas().await;
    let client = Client::connect(&site).await;
    let arguments = json!({"server_name": "mine", "command": python(), "arguments": [PROGRAM, "mine", "about", "x"]});
    let register = client.request("mcp_register_server", &arguments).by("ana");
    let reply = client.exchange(&register).await;
    assert!(reply.content().starts_with("Server 'mine' registered successfully."), "{reply:?}");
    let has_server = async |daemon: &Daemon| {
        let listed = daemon.operate(&["mcp", "list", "--output", "json"]).await;
        let listed: Value = serde_json::from_str(&listed.out).ok()?;
        let servers = listed["servers"].as_array()?;
        Some(servers.iter().any(|server| server["name"] == "mine" && !server["tools"].as_array().unwrap().is_empty()))
    };
    for daemon in [&one, &other] {
        eventually("the server at each replica", async || (has_server(daemon).await == Some(true)).then_some(())).await;
    }
    let mut processes = BTreeSet::new();
    for _ in 0..40 {
        let reply = client.exchange(&client.request("about", &json!({})).by("bruno")).await;
        assert_eq!(reply.code(), "", "{reply:?}");
        let about: Value = serde_json::from_str(&reply.content()).unwrap();
        processes.insert(about["pid"].as_u64().unwrap());
    }
    assert_eq!(processes.len(), 2, "each replica has called a server of its own");

    let taken = client.exchange(&client.request("mcp_register_server", &arguments).by("bruno")).await;
    assert_eq!(taken.body()["isError"], true, "{taken:?}");
    let unregister = client.request("mcp_unregister_server", &json!({"server_name": "mine"})).by("ana");
    assert_eq!(client.exchange(&unregister).await.body()["isError"], false);
    for daemon in [&one, &other] {
        eventually("its end at each replica", async || (has_server(daemon).await == Some(false)).then_some(())).await;
    }
    for _ in 0..10 {
        assert_eq!(code(&client, "about", &json!({})).await, "tool_not_found");
    }
    one.end().await;
    other.stop(&site).await;
}

#[tokio::test]
async fn an_unreachable_store_is_reported_once_changes_nothing_and_is_read_again() {
    let (site, redis, [one, other]) = replicas().await;
    switch(&one, "disable").await;
    spread(&other, false).await;
    redis.kill();
    for daemon in [&one, &other] {
        let blocked = daemon.blocked_by("store_away").await;
        let detail = blocked["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("it could not be reached at {}", redis.address())), "{detail}");
        assert!(!is_enabled(daemon).await);
    }
    // Switching on is refused, and off holds at once.
    assert_ne!(one.operate(&["enable", "tool", "echo"]).await.code, 0);
    assert_ne!(other.operate(&["disable", "tool", "current_time"]).await.code, 0);
    redis.restart().await;
    for daemon in [&one, &other] {
        daemon.wait_until_ready().await;
        daemon.logged_times("the store is away: what was disabled stays so", 1).await;
        daemon.logged_times("the store is there again", 1).await;
        assert!(!daemon.text().contains(PASSWORD), "{}", daemon.text());
    }
    let client = Client::connect(&site).await;
    eventually("what was disabled meanwhile to reach the other replica", async || {
        let listed = one.operate(&["agents", "--output", "json"]).await;
        listed.out.contains("current_time").then_some(())
    })
    .await;
    for _ in 0..10 {
        assert_eq!(code(&client, "current_time", &json!({})).await, "tool_not_found");
    }
    one.end().await;
    other.stop(&site).await;
}

#[tokio::test]
async fn a_store_that_has_lost_its_data_enables_nothing() {
    let (site, redis, [one, other]) = replicas().await;
    switch(&one, "disable").await;
    spread(&other, false).await;
    redis.command("FLUSHALL").await;
    eventually("the loss to be noticed", async || {
        let message = "the store has lost what it had; writing what is known here";
        (!one.logged(message).is_empty() && !other.logged(message).is_empty()).then_some(())
    })
    .await;
    let third = Daemon::start(&site, &sharing(&redis, "")).await;
    for daemon in [&one, &other, &third] {
        assert!(!is_enabled(daemon).await);
    }
    one.end().await;
    other.end().await;
    third.stop(&site).await;
}

#[tokio::test]
async fn a_replica_that_starts_without_its_store_waits_and_takes_no_call() {
    let (site, redis) = (BrokerNamespace::shared().await, RedisServer::start().await);
    let config = sharing(&redis, "");
    let first = Daemon::start(&site, &config).await;
    switch(&first, "disable").await;
    first.end().await;
    redis.kill();
    let daemon = Daemon::launch(&site, &config, &[]).await;
    daemon.blocked_by("store_away").await;
    daemon.blocked_by("no_consumer").await;
    daemon.logged_times("waiting for the store: no call is taken before", 1).await;
    let client = Client::connect(&site).await;
    let request = client.request("echo", &json!({"text": "x"})).by("ana");
    client.send(&request).await;
    redis.restart().await;
    daemon.wait_until_ready().await;
    assert_eq!(client.reply(&request).await.code(), "tool_not_found", "it is known what was disabled");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_replica_with_another_configuration_is_reported_until_it_ends() {
    let (site, redis) = (BrokerNamespace::shared().await, RedisServer::start().await);
    let (one, same) = (sharing(&redis, "[bus]\nname = \"one\"\n"), sharing(&redis, "[bus]\nname = \"same\"\n"));
    let other = sharing(&redis, "[bus]\nname = \"other\"\n[invoke]\nmax_in_flight = 7\n");
    let (one, same) = (Daemon::start(&site, &one).await, Daemon::start(&site, &same).await);
    let differing = async |daemon: &Daemon| {
        let (_, status) = daemon.get("/status").await?;
        let replicas = status["replicas"].as_array()?.clone();
        let differing = replicas.iter().filter(|replica| replica["differs"] == true);
        let named: Vec<String> = differing.map(|replica| replica["name"].as_str().unwrap().to_owned()).collect();
        Some((replicas.len(), named))
    };
    eventually("two replicas", async || (differing(&one).await? == (2, Vec::new())).then_some(())).await;
    let other = Daemon::start(&site, &other).await;
    eventually("another one", async || (differing(&one).await? == (3, vec!["other".to_owned()])).then_some(())).await;
    let both = vec!["one".to_owned(), "same".to_owned()];
    eventually("the other two", async || (differing(&other).await? == (3, both.clone())).then_some(())).await;
    let shown = one.operate(&["status"]).await.out;
    assert!(shown.contains("with another configuration"), "{shown}");
    other.end().await;
    eventually("its end", async || (differing(&one).await? == (2, Vec::new())).then_some(())).await;
    one.logged_times("a replica runs with another configuration", 1).await;
    one.end().await;
    same.stop(&site).await;
}

#[tokio::test]
async fn the_daemons_that_run_calls_reply_to_lists_and_pings() {
    let (site, redis, small) = (BrokerNamespace::shared().await, RedisServer::start().await, Small::new());
    let with_roles = |roles: &str, more: &str| sharing(&redis, &format!("[daemon]\nroles = [{roles}]\n{more}"));
    let bridge = with_roles("\"mcp\"", &small.section("till", &["pay"], ""));
    let bridge = Daemon::start(&site, &bridge).await;
    let control = format!("{}.control", site.prefix);
    assert_eq!(site.consumers(&control).await, None, "there is no such queue yet");
    let caller = Daemon::start(&site, &with_roles("\"invoke\"", "")).await;
    assert_eq!(site.consumers(&control).await, Some(1));
    bridge.end().await;
    caller.stop(&site).await;
}

/// Callers of an update, each with one call at a time.
const CALLERS: usize = 16;
/// Replies that have to come between two steps of an update.
const BETWEEN: usize = 100;

#[tokio::test]
async fn an_update_of_one_replica_after_the_other_loses_no_call_and_runs_none_twice() {
    let (site, redis, small) = (BrokerNamespace::shared().await, RedisServer::start().await, Small::new());
    let config = sharing(&redis, &small.section("till", &["pay"], ""));
    let (one, other) = (Daemon::start(&site, &config).await, Daemon::start(&site, &config).await);
    for daemon in [&one, &other] {
        known(daemon, &["till"]).await;
    }
    let (is_over, replied) = (AtomicBool::new(false), AtomicUsize::new(0));
    let calling = async |caller: usize| {
        let client = Client::connect(&site).await;
        let mut sent = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let text = format!("{caller}-{}", sent.len());
            let reply = client.exchange(&client.request("pay", &json!({"text": text})).by("ana")).await;
            assert_eq!(reply.code(), "", "{reply:?}");
            assert_eq!(reply.content(), format!("till.pay: {text}"));
            replied.fetch_add(1, Ordering::Relaxed);
            sent.push(reply.content());
        }
        sent
    };
    let progress = async || {
        let goal = replied.load(Ordering::Relaxed) + BETWEEN;
        eventually("replies", async || (replied.load(Ordering::Relaxed) >= goal).then_some(())).await;
    };
    let updating = async {
        progress().await;
        let one = one.restarted().await;
        known(&one, &["till"]).await;
        progress().await;
        let other = other.restarted().await;
        known(&other, &["till"]).await;
        progress().await;
        is_over.store(true, Ordering::Relaxed);
        (one, other)
    };
    let (sent, (one, other)) = tokio::join!(join_all((0..CALLERS).map(calling)), updating);
    let mut sent = sent.concat();
    let mut run = small.calls();
    sent.sort();
    run.sort();
    assert_eq!(run, sent, "each call ran once");
    one.end().await;
    other.stop(&site).await;
}
