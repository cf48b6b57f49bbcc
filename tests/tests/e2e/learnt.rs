//! A daemon that learns from another one which tools that has, over RabbitMQ.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

/// What the agents call.
const FRONT: &str = r#"
[bus]
name = "front"
[identity]
trust_headers = true
[agents.ana]
toolsets = ["lab"]
[agents.bob]
toolsets = ["lab"]
[agents.eve]
[toolsets.lab]
kind = "remote"
topic = "tool.invoke.lab"
"#;

/// What runs the tools. The daemon that agents call sees what `front` may use here; each agent may use what its section
/// says.
fn lab(tools: &str) -> String {
    format!(
        "[invoke]\ntopics = [\"tool.invoke.lab\"]\n[identity]\ntrust_headers = true\n[agents.front]\n\
         [agents.ana]\n[agents.bob]\nallowed_tools = [\"get_*\"]\n{tools}"
    )
}

/// The same broker and exchange, for a daemon with queues of its own.
fn elsewhere(site: &BrokerNamespace) -> BrokerNamespace {
    BrokerNamespace { prefix: format!("{}-lab", site.prefix), ..site.clone() }
}

/// The set, as `/status` shows it, once it is so.
async fn shown(daemon: &Daemon, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(what, async || {
        let (_, status) = daemon.get("/status").await?;
        Some(status["remote"][0].clone()).filter(|set| is_so(set))
    })
    .await
}

#[tokio::test]
async fn the_tools_of_another_daemon_are_learnt_when_it_comes_and_followed_when_they_change() {
    let site = BrokerNamespace::shared().await;
    let other = elsewhere(&site);
    let front = Daemon::start(&site, FRONT).await;
    let set = shown(&front, "a set without a daemon", |set| !set["lastError"].is_null()).await;
    assert_eq!((&set["name"], &set["phase"], &set["tools"]), (&json!("lab"), &json!("waiting"), &json!(0)));
    let client = Client::connect(&site).await;
    let echo = |agent: &str| client.request("lab.echo", &json!({"text": "hi"})).by(agent);
    let early = client.exchange(&echo("ana")).await;
    assert_eq!((early.code().as_str(), &early.body()["isRetryable"]), ("execution_failed", &json!(true)));
    assert_eq!(client.exchange(&echo("eve")).await.code(), "tool_not_found", "a set that the agent does not have");

    let back = Daemon::start(&other, &lab("[tools]\necho = true\ntime = false\n")).await;
    let set = shown(&front, "the tools of the other daemon", |set| set["phase"] == "ready").await;
    assert_eq!((&set["tools"], &set["lastError"]), (&json!(1), &Value::Null));
    assert_eq!(client.exchange(&echo("ana")).await.content(), "hi");
    assert_eq!(client.exchange(&echo("bob")).await.code(), "tool_not_found", "the other daemon has rules of its own");
    let wrong = client.exchange(&client.request("lab.echo", &json!({"text": 7})).by("ana")).await;
    assert_eq!(wrong.code(), "invalid_arguments");

    back.reload(&lab("[tools]\ntime = true\n")).await;
    shown(&front, "other tools", |set| set["tools"] == 2).await;
    assert_eq!(client.exchange(&echo("ana")).await.code(), "tool_not_found");
    let time = client.exchange(&client.request("lab.current_time", &json!({})).by("ana")).await;
    assert!(!time.content().is_empty());
    back.stop(&other).await;
    front.stop(&site).await;
}

#[tokio::test]
async fn a_daemon_that_comes_back_with_other_tools_is_learnt_anew() {
    let site = BrokerNamespace::shared().await;
    let other = elsewhere(&site);
    let back = Daemon::start(&other, &lab("[tools]\necho = true\ntime = false\n")).await;
    let front = Daemon::start(&site, FRONT).await;
    shown(&front, "the tools of the other daemon", |set| set["phase"] == "ready").await;
    back.stop(&other).await;
    let back = Daemon::start(&other, &lab("[tools]\ntime = true\n")).await;
    let client = Client::connect(&site).await;
    let echo = client.request("lab.echo", &json!({"text": "hi"})).by("ana");
    // The other daemon does not know the tool; which is a reason to ask it.
    assert_eq!(client.exchange(&echo).await.code(), "tool_not_found");
    shown(&front, "other tools", |set| set["tools"] == 2).await;
    back.stop(&other).await;
    front.stop(&site).await;
}
