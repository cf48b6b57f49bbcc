//! A daemon that passes calls on to another one, over RabbitMQ.

use serde_json::json;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;

/// What runs the tools: only those of agents whose rules it knows.
const LAB: &str = r#"
[invoke]
topics = ["tool.invoke.lab"]
[tools]
echo = true
[identity]
trust_headers = true
[agents.ana]
allowed_tools = ["echo"]
[agents.bob]
allowed_tools = ["get_*"]
"#;

/// What the agents call.
const FRONT: &str = r#"
[identity]
trust_headers = true
[agents.ana]
toolsets = ["lab"]
[agents.bob]
toolsets = ["lab"]
[toolsets.lab]
kind = "remote"
topic = "tool.invoke.lab"
[toolsets.lab.tools.echo]
description = "Answers with its text"
parameters = '{"type": "object", "properties": {"text": {"type": "string"}}}'
effect = "read-only"
"#;

#[tokio::test]
async fn a_call_runs_at_another_daemon_as_the_agent_that_made_it() {
    let site = BrokerNamespace::shared().await;
    let elsewhere = site.beside();
    let (front, back) = (Daemon::start(&site, FRONT).await, Daemon::start(&elsewhere, LAB).await);
    let client = Client::connect(&site).await;
    let call = |agent: &str| client.request("lab.echo", &json!({"text": "hi"})).by(agent);
    let answer = client.exchange(&call("ana")).await;
    assert_eq!(answer.content(), "hi");
    assert_eq!(answer.body()["toolName"], "lab.echo");
    let refused = client.exchange(&call("bob")).await;
    assert_eq!(refused.code(), "tool_not_found", "the other daemon has rules of its own");
    let wrong = client.exchange(&client.request("lab.echo", &json!({"text": 7})).by("ana")).await;
    assert_eq!(wrong.code(), "invalid_arguments");
    back.stop(&elsewhere).await;
    front.stop(&site).await;
}

#[tokio::test]
async fn a_call_in_a_circle_of_daemons_is_refused() {
    let site = BrokerNamespace::shared().await;
    let circle = |topic: &str, next: &str| {
        format!(
            "[invoke]\ntopics = [\"{topic}\"]\n[identity]\ntrust_headers = true\n[agents.ana]\ntoolsets = [\"next\"]\n\
             [toolsets.next]\nkind = \"remote\"\nprefix = \"next\"\ntopic = \"{next}\"\n\
             [toolsets.next.tools.\"next.x\"]\ndescription = \"Goes round\"\neffect = \"read-only\"\n\
             [toolsets.next.tools.x]\ndescription = \"Goes round\"\neffect = \"read-only\"\n"
        )
    };
    let elsewhere = site.beside();
    let one = Daemon::start(&site, &circle("tool.invoke", "tool.invoke.lab")).await;
    let other = Daemon::start(&elsewhere, &circle("tool.invoke.lab", "tool.invoke")).await;
    let client = Client::connect(&site).await;
    let far = client.request("next.next.x", &json!({})).by("ana");
    let answer = client.exchange(&far).await;
    assert_eq!(answer.code(), "tool_not_found", "the name has one part less at each daemon");
    let answer = client.exchange(&client.request("next.x", &json!({})).by("ana").header("rb-hops", "4")).await;
    assert_eq!(answer.code(), "not_allowed");
    insta::assert_snapshot!(answer.body()["message"].as_str().unwrap(), @"Tool 'next.x' was not called: 4 daemons have passed the call on already, perhaps in a circle.");
    one.stop(&site).await;
    other.stop(&elsewhere).await;
}

#[tokio::test]
async fn a_daemon_that_is_away_is_told_without_its_topic() {
    let site = BrokerNamespace::shared().await;
    let front = Daemon::start(&site, FRONT).await;
    let client = Client::connect(&site).await;
    let answer = client.exchange(&client.request("lab.echo", &json!({"text": "hi"})).by("ana")).await;
    assert_eq!((answer.code().as_str(), &answer.body()["isRetryable"]), ("execution_failed", &json!(true)));
    insta::assert_snapshot!(answer.body()["message"].as_str().unwrap(), @"Tool 'lab.echo' was not called: no daemon takes its calls now.");
    front.stop(&site).await;
}
