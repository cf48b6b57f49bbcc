//! SIGHUP: what a running daemon takes from a changed configuration, and what it keeps.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_testing::patience::eventually;

/// Log message for a configuration that is not taken.
const REFUSED: &str = "reload: refused; everything stays as it was";
/// Reloads under load.
const RELOADS: usize = 20;
/// Calls that have no reply yet, during these.
const UNDER_WAY: usize = 50;

fn rules(of_ana: &str, tools: &str) -> String {
    format!("[tools]\necho = true\n[identity]\ntrust_headers = true\n[agents.ana]\n{of_ana}\n{tools}")
}

fn work(client: &Client, tool: &str, id: &str) -> Request {
    client.request(tool, &json!({"id": id})).by("ana")
}

async fn pong(client: &Client) -> serde_json::Value {
    client.exchange(&client.raw("{}").on("tool.ping")).await.body()
}

#[tokio::test]
async fn a_reload_takes_over_policy_limits_and_endpoints() {
    let backend = Backend::start().await;
    let work_tool = backend.tool("work", "/work?id={id}", "");
    let (site, daemon, client) = Daemon::with_client(&rules("allowed_tools = [\"echo\"]", &work_tool)).await;
    let digest = pong(&client).await["configDigest"].clone();
    assert_eq!(client.exchange(&work(&client, "work", "early")).await.code(), "tool_not_found");

    let line = daemon.reload(&rules("allowed_tools = [\"work\"]", &work_tool)).await;
    assert_eq!((line["message"].as_str(), &line["tools"]), (Some("reload: done"), &json!(4)));
    assert_eq!(client.exchange(&work(&client, "work", "policy")).await.content(), "worked for policy");
    let echo = client.request("echo", &json!({"text": "x"})).by("ana");
    assert_eq!(client.exchange(&echo).await.code(), "tool_not_found");
    assert_ne!(pong(&client).await["configDigest"], digest, "a ping shows which configuration runs");

    let limited = "tool_rate_limits = { work = { rps = 0.001, burst = 1 } }";
    daemon.reload(&rules(limited, &work_tool)).await;
    assert_eq!(client.exchange(&work(&client, "work", "first")).await.content(), "worked for first");
    assert_eq!(client.exchange(&work(&client, "work", "second")).await.code(), "rate_limited");
    // Reloading forgives nothing.
    daemon.reload(&rules(limited, &work_tool)).await;
    assert_eq!(client.exchange(&work(&client, "work", "third")).await.code(), "rate_limited");

    let moved = [backend.tool("work", "/work?id=moved-{id}", ""), backend.tool("other", "/work?id=other-{id}", "")];
    let moved = moved.concat();
    daemon.reload(&rules("", &moved)).await;
    assert_eq!(client.exchange(&work(&client, "work", "1")).await.content(), "worked for moved-1");
    assert_eq!(client.exchange(&work(&client, "other", "1")).await.content(), "worked for other-1");
    let digest = pong(&client).await["configDigest"].clone();
    let daemon = daemon.restarted().await;
    assert_eq!(pong(&client).await["configDigest"], digest, "as of a replica that started with it");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_wrong_file_changes_nothing_and_every_mistake_is_reported_once() {
    let backend = Backend::start().await;
    let right = rules("allowed_tools = [\"work\"]", &backend.tool("work", "/work?id={id}", ""));
    let (site, daemon, client) = Daemon::with_client(&right).await;
    let before = pong(&client).await["configDigest"].clone();
    let mistakes = "toolsets = [\"nowhere\"]\nallowed_tols = [\"echo\"]\nmax_in_flight = 0\n";
    let wrong = rules(mistakes, &backend.tool("work", "/work?id={id}", "timeout = \"never\""));
    let line = daemon.reload(&wrong).await;
    assert_eq!((line["message"].as_str(), line["level"].as_str()), (Some(REFUSED), Some("ERROR")));
    let error = line["error"].as_str().unwrap();
    for mistake in ["nowhere", "allowed_tols", "agents.ana.max_in_flight", "rest.endpoints[0].timeout"] {
        assert_eq!(error.matches(mistake).count(), 1, "{mistake} in {error}");
        assert_eq!(daemon.text().matches(mistake).count(), 1, "{mistake} in {}", daemon.text());
    }
    for broken in ["[agents", "[profiles.main]\nallowed_sources = [\"*\"]\n"] {
        assert_eq!(daemon.reload(broken).await["message"], REFUSED, "{broken}");
    }
    assert_eq!(client.exchange(&work(&client, "work", "still")).await.content(), "worked for still");
    assert_eq!(pong(&client).await["configDigest"], before);
    assert_eq!(daemon.reload(&right).await["message"], "reload: done", "a mistake that was mended");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_call_under_way_keeps_the_tool_that_it_began_with() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&rules("", &backend.tool("hold", "/gate?id={id}", ""))).await;
    let held = work(&client, "hold", "held");
    client.send(&held).await;
    backend.wait_for("held").await;
    daemon.reload(&rules("allowed_tools = [\"echo\"]", "")).await;
    assert_eq!(client.exchange(&work(&client, "hold", "late")).await.code(), "tool_not_found");
    backend.open();
    assert_eq!(client.reply(&held).await.content(), "passed held");
    assert_eq!(backend.count("late"), 0);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn sections_that_need_a_restart_are_named() {
    let (site, daemon, client) = Daemon::with_client("[tools]\necho = true\n").await;
    let changed = "[tools]\necho = false\nrequired = [\"current_time\"]\n[invoke]\nmax_in_flight = 7\n[daemon]\n\
                   socket = \"other.sock\"\n[store]\nurl = \"sqlite:x.db\"\n[ledger]\nttl = \"1h\"\n[audit]\nfile = \"audit.jsonl\"\n\
                   [telemetry]\nlog = \"debug\"\n[bus]\nname = \"other\"\n";
    daemon.reload(changed).await;
    let waiting = daemon.logged("reload: this section has changed, and waits for a restart");
    let sections: Vec<_> = waiting.iter().map(|line| line["section"].as_str().unwrap()).collect();
    let expected = ["bus", "invoke", "daemon", "telemetry", "store", "ledger", "audit", "tools.required"];
    assert_eq!(sections, expected);
    // What can change has changed, and nothing else.
    let reply = client.exchange(&client.request("echo", &json!({"text": "x"}))).await;
    assert_eq!((reply.code().as_str(), reply.header("rb-source")), ("tool_not_found", "toolbus"));
    assert!(!daemon.folder().join("audit.jsonl").exists());
    // They wait on, and are named again.
    daemon.reload(changed).await;
    let waiting = daemon.logged("reload: this section has changed, and waits for a restart");
    assert_eq!(waiting.len(), 2 * expected.len());
    daemon.stop(&site).await;
}

#[tokio::test]
async fn how_callers_are_identified_changes_with_a_restart_alone() {
    let (site, daemon, client) = Daemon::with_client("[tools]\necho = true\n").await;
    // Rules that would be checked for verified callers, and then hold for any caller that claims to be one.
    for identity in ["source = \"broker\"", "agent = \"ana\""] {
        let rules = format!("[tools]\necho = true\n[identity]\n{identity}\n[agents.ana]\nallowed_tools = [\"echo\"]\n");
        let line = daemon.reload(&rules).await;
        assert_eq!(line["message"], REFUSED);
        assert!(line["error"].as_str().unwrap().contains("identity.source"), "{line}");
        assert_eq!(client.call("echo", &json!({"text": "as before"})).await.content(), "as before");
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_layer_that_loses_the_agents_opens_nothing_until_that_is_written() {
    let tools = "[tools]\necho = true\n";
    let agents = "[identity]\ntrust_headers = true\n[agents.ana]\nallowed_tools = [\"echo\"]\n";
    let (site, daemon, client) = Daemon::with_client(&format!("{tools}{agents}")).await;
    let by_stranger = async || {
        let request = client.request("current_time", &json!({})).by("stranger");
        client.exchange(&request).await.code()
    };
    assert_eq!(by_stranger().await, "tool_not_found");
    for lost in ["", tools, "[agents.default]\nmax_in_flight = 3\n"] {
        let line = daemon.reload(lost).await;
        assert_eq!(line["message"], REFUSED, "{lost:?}");
        let error = line["error"].as_str().unwrap();
        assert!(
            error.contains("the sections of agents are gone (ana)") && error.contains("identity.unknown"),
            "{error}"
        );
        assert_eq!(by_stranger().await, "tool_not_found", "{lost:?}");
        let check = daemon.operate(&["check", "--config", "site.toml", "--config", "more.toml"]).await;
        assert_eq!(check.code, 0, "by itself it is in order: {check:?}");
        let arguments = ["check", "--config", "site.toml", "--config", "more.toml", "--socket", "toolbus.sock"];
        let check = daemon.operate(&arguments).await;
        assert_eq!(check.code, 2, "{check:?}");
        assert!(check.err.contains(error), "{check:?}");
    }
    assert_eq!(daemon.reload("[identity]\nunknown = \"default\"\n").await["message"], "reload: done");
    assert_eq!(by_stranger().await, "");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn no_call_is_lost_while_the_configuration_is_reloaded_over_and_over() {
    let backend = Backend::start().await;
    let versions = [
        rules("", &backend.tool("work", "/work?id={id}", "")),
        rules(
            "allowed_tools = [\"work\"]\nmax_in_flight = 9",
            &backend.tool("work", "/work?id={id}", "timeout = \"9s\""),
        ),
    ];
    let (site, daemon, client) = Daemon::with_client(&versions[0]).await;
    let stop = AtomicBool::new(false);
    let calling = async {
        let mut sent = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let request = work(&client, "work", &format!("call-{}", sent.len()));
            client.send(&request).await;
            sent.push(request);
            // No more are under way than a few replicas of an agent have.
            if let Some(earlier) = sent.len().checked_sub(UNDER_WAY) {
                client.reply(&sent[earlier]).await;
            }
        }
        sent
    };
    let reloading = async {
        for round in 0..RELOADS {
            assert_eq!(daemon.reload(&versions[(round + 1) % 2]).await["message"], "reload: done");
        }
        stop.store(true, Ordering::Relaxed);
    };
    let (sent, ()) = tokio::join!(calling, reloading);
    assert!(sent.len() > RELOADS, "{} calls", sent.len());
    eventually("every reply", async || (client.received().len() >= sent.len()).then_some(())).await;
    for (number, request) in sent.iter().enumerate() {
        let replies = client.replies_to(&request.correlation);
        let contents: Vec<_> = replies.iter().map(|reply| reply.content()).collect();
        assert_eq!(contents, [format!("worked for call-{number}")], "{replies:?}");
    }
    assert_eq!(backend.total(), sent.len(), "each ran once");
    daemon.stop(&site).await;
}
