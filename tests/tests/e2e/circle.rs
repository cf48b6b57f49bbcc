//! Two daemons that pass calls on to each other, over RabbitMQ.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

/// A daemon that has tools of its own, and those of the other one. Each may use all that the other one has. Without
/// `written`, the other one lists them.
fn daemon(own: &str, other: &str, tools: &str, written: &[&str]) -> String {
    let written: String = written
        .iter()
        .map(|name| {
            format!("[toolsets.{other}.tools.\"{name}\"]\ndescription = \"Goes round\"\neffect = \"read-only\"\n")
        })
        .collect();
    format!(
        "[bus]\nname = \"{own}\"\n[invoke]\ntopics = [\"tool.invoke.{own}\"]\n[identity]\ntrust_headers = true\n\
         [tools]\n{tools}\n[agents.ana]\ntoolsets = [\"{other}\"]\n[agents.{other}]\ntoolsets = [\"{other}\"]\n\
         [toolsets.{other}]\nkind = \"remote\"\ntopic = \"tool.invoke.{other}\"\n{written}"
    )
}

/// The names of the tools that an agent has at a daemon.
async fn names(client: &Client, daemon: &str) -> Vec<String> {
    let list = client.raw("{}").on(&format!("tool.list.{daemon}")).by("ana").of_type("Toolbus.ToolListRequest");
    let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
    client.exchange(&list).await.body()["tools"].as_array().unwrap().iter().map(name).collect()
}

/// Has both daemons list each other's tools again, and waits until they do: earlier lists are learnt by then.
async fn list_again(client: &Client, requests: &Client) {
    let count = |topic: &str| requests.received().iter().filter(|message| message.routing_key == topic).count();
    for (lister, listed) in [("east", "west"), ("west", "east")] {
        let topic = format!("tool.list.{listed}");
        let before = count(&topic);
        let body = json!({"version": "x", "added": [], "removed": []}).to_string();
        client.send(&client.raw(body).on(&format!("tool.meta.tools.{lister}")).of_type("Toolbus.ToolsChanged")).await;
        eventually(&topic, async || (count(&topic) > before).then_some(())).await;
    }
}

#[tokio::test]
async fn two_daemons_that_list_each_others_tools_learn_only_the_tools_that_the_other_runs() {
    let site = BrokerNamespace::shared().await;
    let beside = site.beside();
    let east = Daemon::start(&site, &daemon("east", "west", "echo = true\ntime = false", &[])).await;
    let west = Daemon::start(&beside, &daemon("west", "east", "echo = false\ntime = true", &[])).await;
    let (client, requests) = (Client::connect(&site).await, Client::connect(&site).await);
    let is_ready = |set: &Value| set["phase"] == "ready";
    east.remote_set("the tools of west", is_ready).await;
    west.remote_set("the tools of east", is_ready).await;
    for topic in ["tool.list.east", "tool.list.west"] {
        requests.bind(topic).await;
    }
    for _ in 0..4 {
        list_again(&client, &requests).await;
        assert_eq!(names(&client, "east").await, ["echo", "west.convert_time", "west.current_time"]);
        assert_eq!(names(&client, "west").await, ["convert_time", "current_time", "east.echo"]);
    }
    let echo = client.request("east.echo", &json!({"text": "hi"})).on("tool.invoke.west").by("ana");
    assert_eq!(client.exchange(&echo).await.content(), "hi");
    east.stop(&site).await;
    west.stop(&beside).await;
}

#[tokio::test]
async fn a_call_that_goes_round_is_refused_by_the_fifth_daemon() {
    let site = BrokerNamespace::shared().await;
    let beside = site.beside();
    // Each daemon takes the beginning of the name away.
    let at_east = ["east.west.east.west.x", "east.west.x", "x"];
    let east = Daemon::start(&site, &daemon("east", "west", "", &at_east)).await;
    let west = Daemon::start(&beside, &daemon("west", "east", "", &["west.east.west.x", "west.x"])).await;
    let client = Client::connect(&site).await;
    let round = client.request("west.east.west.east.west.x", &json!({})).on("tool.invoke.east").by("ana");
    let reply = client.exchange(&round).await;
    assert_eq!(reply.code(), "not_allowed");
    insta::assert_snapshot!(reply.error(), @"Tool 'west.x' was not called: 4 daemons have passed the call on already, perhaps in a circle.");
    east.stop(&site).await;
    west.stop(&beside).await;
}
