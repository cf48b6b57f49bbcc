//! `tool.meta.tools.{agent}`: which agents are notified of a change of their tools, and how often.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

const TOKEN: &str = "a-token-of-the-tests";

/// Two agents with a section, and all others; `ana` is what ana may use.
fn rules(ana: &str) -> String {
    format!(
        "[http]\nadmin_token = {TOKEN:?}\n[tools]\necho = true\n[identity]\ntrust_headers = true\nunknown = \"default\"\n\
         [agents.default]\nallowed_tools = [\"convert_time\"]\n\
         [agents.ana]\nallowed_tools = {ana}\n[agents.bruno]\nallowed_tools = [\"current_time\"]\n"
    )
}

/// A client that receives the announcements for every agent.
async fn listener(site: &BrokerNamespace) -> Client {
    let client = Client::connect(site).await;
    client.bind("tool.meta.tools.#").await;
    client
}

fn announcements(client: &Client) -> Vec<Message> {
    let mut messages = client.received();
    messages.retain(|message| message.routing_key.starts_with("tool.meta.tools."));
    messages
}

/// Waits until as many messages have come as are expected, those of one change in any order.
async fn heard(client: &Client, expected: &[Value]) {
    let count = expected.len();
    let messages = eventually(&format!("{count} messages"), async || {
        let messages = announcements(client);
        (messages.len() >= count).then_some(messages)
    })
    .await;
    let announced = messages.iter().map(|message| {
        let body = message.body();
        let agent = message.routing_key.trim_start_matches("tool.meta.tools.");
        assert_eq!((message.kind(), message.header("rb-destination")), ("Toolbus.ToolsChanged", agent));
        json!([agent, body["added"], body["removed"]])
    });
    let sorted = |mut agents: Vec<Value>| {
        agents.sort_by_key(Value::to_string);
        agents
    };
    assert_eq!(sorted(announced.collect()), sorted(expected.to_vec()));
}

/// Ends the daemon, and checks that it announced nothing else.
async fn ended(daemon: Daemon, site: &BrokerNamespace, client: &Client, expected: &[Value]) {
    daemon.stop(site).await;
    client.caught_up().await;
    heard(client, expected).await;
}

async fn version(client: &Client, agent: &str) -> Value {
    client.exchange(&client.raw("{}").on("tool.list").by(agent)).await.body()["version"].clone()
}

/// Switches a tool off or on, faster than the command does.
async fn switch(daemon: &Daemon, tool: &str, off: bool) {
    let url = format!("http://{}/v1/disabled/tool/{tool}", daemon.listen());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = if off { client.put(url) } else { client.delete(url) };
    let response = request.bearer_auth(TOKEN).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200, "{}", response.text().await.unwrap());
}

#[tokio::test]
async fn a_change_is_announced_to_exactly_the_agents_whose_tools_it_changes() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, &rules(r#"["echo"]"#)).await;
    let client = listener(&site).await;

    // A tool that one agent has.
    assert_eq!(daemon.operate(&["disable", "tool", "echo"]).await.code, 0);
    let mut expected = vec![json!(["ana", [], ["echo"]])];
    heard(&client, &expected).await;
    assert_eq!(daemon.operate(&["enable", "tool", "echo"]).await.code, 0);
    expected.push(json!(["ana", ["echo"], []]));
    heard(&client, &expected).await;

    daemon.reload(&rules(r#"["current_time"]"#)).await;
    expected.push(json!(["ana", ["current_time"], ["echo"]]));
    heard(&client, &expected).await;
    let message = announcements(&client).remove(2);
    assert_eq!(message.body()["version"], version(&client, "ana").await, "the version is that of the list");
    insta::assert_json_snapshot!(message.headers, @r#"
    {
      "rb-destination": "ana",
      "rb-rb-content-trust": "system",
      "rb-source": "toolbus"
    }
    "#);

    // One that neither has, and one that both have.
    assert_eq!(daemon.operate(&["disable", "tool", "convert_time"]).await.code, 0);
    assert_eq!(daemon.operate(&["disable", "tool", "current_time"]).await.code, 0);
    expected.extend([json!(["ana", [], ["current_time"]]), json!(["bruno", [], ["current_time"]])]);
    heard(&client, &expected).await;

    assert_eq!(daemon.operate(&["enable", "tool", "current_time"]).await.code, 0);
    expected.extend([json!(["ana", ["current_time"], []]), json!(["bruno", ["current_time"], []])]);
    heard(&client, &expected).await;

    assert_eq!(daemon.operate(&["disable", "agent", "bruno"]).await.code, 0);
    expected.push(json!(["bruno", [], ["current_time"]]));
    heard(&client, &expected).await;
    ended(daemon, &site, &client, &expected).await;
}

#[tokio::test]
async fn changes_that_come_together_are_announced_once_and_those_that_cancel_out_not_at_all() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, &rules("[]")).await;
    let client = listener(&site).await;
    tokio::join!(
        switch(&daemon, "echo", true),
        switch(&daemon, "current_time", true),
        switch(&daemon, "convert_time", true)
    );
    let mut expected =
        vec![json!(["ana", [], ["convert_time", "current_time", "echo"]]), json!(["bruno", [], ["current_time"]])];
    heard(&client, &expected).await;

    switch(&daemon, "echo", false).await;
    switch(&daemon, "echo", true).await;
    switch(&daemon, "convert_time", false).await;
    expected.push(json!(["ana", ["convert_time"], []]));
    heard(&client, &expected).await;
    ended(daemon, &site, &client, &expected).await;
}

#[tokio::test]
async fn an_agent_without_a_section_is_notified_once_it_has_called() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, &rules("[]")).await;
    let client = listener(&site).await;
    assert_eq!(client.exchange(&client.request("echo", &json!({})).by("dora")).await.code(), "tool_not_found");
    // No agent that could be named.
    assert_eq!(client.call("echo", &json!({})).await.code(), "tool_not_found");
    assert_eq!(client.exchange(&client.request("echo", &json!({})).by("not a name")).await.code(), "tool_not_found");

    assert_eq!(daemon.operate(&["disable", "tool", "convert_time"]).await.code, 0);
    let mut expected = vec![json!(["ana", [], ["convert_time"]]), json!(["dora", [], ["convert_time"]])];
    heard(&client, &expected).await;

    // The first call of another comes between two changes: it knows what there was then.
    assert_eq!(client.exchange(&client.request("echo", &json!({})).by("emil")).await.code(), "tool_not_found");
    assert_eq!(daemon.operate(&["enable", "tool", "convert_time"]).await.code, 0);
    expected.extend(["ana", "dora", "emil"].map(|agent| json!([agent, ["convert_time"], []])));
    heard(&client, &expected).await;
    ended(daemon, &site, &client, &expected).await;
}
