//! Other agents over the bus: they announce themselves, get tasks from those that may give them, and return results.

use serde_json::{Value, json};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

const RULES: &str = r#"
[identity]
trust_headers = true
[agents.ana]
allowed_agents = ["Bob"]
[agents.bruno]
[tools]
echo = true
[a2a]
announce = ["echo"]
"#;

/// A message of an agent.
fn message(client: &Client, agent: &str, kind: &str, topic: &str, body: &Value) -> Request {
    client.raw(body.to_string()).on(topic).of_type(&format!("RockBot.A2A.{kind}")).by(agent)
}

/// The first message of this type.
async fn first(client: &Client, kind: &str) -> Message {
    let kind = format!("RockBot.A2A.{kind}");
    eventually("a message between agents", async || {
        client.caught_up().await.into_iter().find(|message| message.kind() == kind)
    })
    .await
}

#[tokio::test]
async fn an_agent_announces_itself_gets_a_task_and_its_result_reaches_the_agent_that_gave_it() {
    let (site, daemon, client) = Daemon::with_client(RULES).await;
    for topic in ["agent.task.Bob", "agent.response.ana"] {
        client.bind(topic).await;
    }
    let card = json!({"agentName": "Bob", "skills": [{"id": "sum", "name": "Sum"}], "isDeregistering": false});
    eventually("the agent is known", async || {
        client.send(&message(&client, "Bob", "AgentCard", "discovery.announce", &card)).await;
        let known = client.text("ana", "list_known_agents", &json!({})).await;
        known.contains(r#""agentName":"Bob""#).then_some(())
    })
    .await;
    assert_eq!(client.text("bruno", "list_known_agents", &json!({})).await, "No agents have announced themselves yet.");

    let add = json!({"agent_name": "bob", "skill": "sum", "message": "Add 1 and 2"});
    let dispatched = client.text("ana", "invoke_agent", &add).await;
    let task = first(&client, "AgentTaskRequest").await;
    let id = task.body()["taskId"].as_str().unwrap().to_owned();
    assert!(dispatched.contains(&format!("task_id: {id}.")), "{dispatched}");
    assert_eq!(task.header("rb-rb-on-behalf-of"), "ana");
    let result =
        json!({"taskId": id, "state": 3, "message": {"role": "agent", "parts": [{"kind": "text", "text": "3"}]}});
    let reply_to = task.properties.reply_to().clone().unwrap();
    for by in ["Eve", "Bob"] {
        let reply = message(&client, by, "AgentTaskResult", reply_to.as_str(), &result);
        client.send(&reply.with(|properties| properties.with_correlation_id(id.as_str().into()))).await;
    }
    let result = first(&client, "AgentTaskResult").await;
    assert_eq!(result.body()["message"]["parts"][0]["text"], "3");
    assert_eq!((result.header("rb-rb-tool-profile"), result.header("rb-destination")), ("a2a-synthesis", "ana"));
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_result_for_a_call_that_waits_outlives_the_daemon_that_is_killed_meanwhile() {
    let rules = format!("{RULES}[[a2a.agents]]\nname = \"Bob\"\n[store]\nurl = \"sqlite:toolbus.db\"\n");
    let (site, daemon, client) = Daemon::with_client(&rules).await;
    for topic in ["agent.task.Bob", "agent.response.ana"] {
        client.bind(topic).await;
    }
    let add = json!({"agent_name": "Bob", "skill": "sum", "message": "Add 1 and 2", "wait": true});
    client.send(&client.request("invoke_agent", &add).by("ana")).await;
    let task = first(&client, "AgentTaskRequest").await;
    let id = task.body()["taskId"].as_str().unwrap().to_owned();
    let daemon = daemon.killed().await;
    let result =
        json!({"taskId": id, "state": 3, "message": {"role": "agent", "parts": [{"kind": "text", "text": "3"}]}});
    let reply_to = task.properties.reply_to().clone().unwrap();
    let reply = message(&client, "Bob", "AgentTaskResult", reply_to.as_str(), &result);
    client.send(&reply.with(|properties| properties.with_correlation_id(id.as_str().into()))).await;
    let task_result = first(&client, "AgentTaskResult").await;
    assert_eq!((&task_result.body()["taskId"], task_result.header("rb-destination")), (&json!(id), "ana"));
    let shown = client.text("ana", "get_agent_task", &json!({"task_id": id})).await;
    assert!(shown.contains(r#""state":"completed""#) && shown.contains(r#""result":"3""#), "{shown}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn the_daemon_is_an_agent_whose_skills_are_its_tools() {
    let site = BrokerNamespace::shared().await;
    let client = Client::connect(&site).await;
    for topic in ["discovery.announce", "agent.response.ana"] {
        client.bind(topic).await;
    }
    let daemon = Daemon::start(&site, RULES).await;
    let card = first(&client, "AgentCard").await.body();
    let skills: Vec<&str> = card["skills"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(skills, ["echo"]);
    let name = card["agentName"].as_str().unwrap();
    let hello = json!({"role": "user", "parts": [{"kind": "text", "text": "hello"}]});
    let task = json!({"taskId": "t1", "skill": "echo", "message": hello});
    let request = message(&client, "ana", "AgentTaskRequest", &format!("agent.task.{name}"), &task);
    client.send(&request.reply_to("agent.response.ana")).await;
    let result = first(&client, "AgentTaskResult").await;
    assert_eq!((&result.body()["taskId"], &result.body()["state"]), (&json!("t1"), &json!(3)));
    assert_eq!(result.body()["message"]["parts"][0]["text"], "hello");
    daemon.stop(&site).await;
}
