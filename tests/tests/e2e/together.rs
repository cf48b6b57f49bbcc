//! The example of `docs/agents-together.md`, as written: two agents plan, find help and delegate.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

const DOCUMENT: &str = include_str!("../../../docs/agents-together.md");

/// The block of code that begins so.
fn block(begin: &str) -> &'static str {
    let (_, rest) = DOCUMENT.split_once(begin).unwrap();
    rest.split("```").next().unwrap()
}

/// Record of calls and messages, without ids.
struct Transcript {
    text: String,
    ids: Vec<String>,
}

impl Transcript {
    fn line(&mut self, line: &str) {
        let line = self.ids.iter().fold(line.to_owned(), |line, id| line.replace(id, "…"));
        self.text.push_str(&line);
        self.text.push('\n');
    }

    fn sent(&mut self, from: &str, to: &str, message: &Message, fields: &[&str]) {
        let body = message.body();
        self.ids.extend(body["taskId"].as_str().map(str::to_owned));
        let shown: Vec<String> = fields.iter().map(|field| format!("{field}: {}", body[field])).collect();
        let kind = message.kind().rsplit('.').next().unwrap_or_default();
        self.line(&format!("{from} → {to}: {kind} {{{}}}", shown.join(", ")));
    }

    fn called(&mut self, agent: &str, tool: &str, arguments: &Value, reply: &Message) -> String {
        let content = reply.success();
        self.line(&format!("{agent} calls {tool} {}", readable(&arguments.to_string())));
        for line in readable(&content).lines() {
            // A time follows.
            let (before, after) = line.split_once("Next fire: ").unwrap_or((line, ""));
            let cut = if after.is_empty() { "" } else { "Next fire: …" };
            self.line(&format!("    {before}{cut}"));
        }
        content
    }
}

/// A text; in lines, if it is JSON that is too long for one.
fn readable(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) if text.len() > 90 => format!("{value:#}"),
        _ => text.to_owned(),
    }
}

/// The message of this type that a client gets.
async fn message(client: &Client, kind: &str) -> Message {
    eventually(kind, async || client.caught_up().await.into_iter().find(|message| message.kind() == kind)).await
}

#[tokio::test]
async fn two_agents_plan_find_help_delegate_and_report() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, block("```toml\n")).await;
    let [ana, bob, worker] = [Client::connect(&site).await, Client::connect(&site).await, Client::connect(&site).await];
    for topic in ["scheduled.task.ana", "subagent.result.ana"] {
        ana.bind(topic).await;
    }
    bob.bind("agent.task.Bob").await;
    worker.bind("subagent.task.helpers").await;
    let mut transcript = Transcript { text: String::new(), ids: Vec::new() };
    let call = async |transcript: &mut Transcript, tool: &str, arguments: Value| {
        let reply = ana.exchange(&ana.request(tool, &arguments).by("ana")).await;
        transcript.called("ana", tool, &arguments, &reply)
    };

    let card = json!({"agentName": "Bob", "description": "Adds numbers", "isDeregistering": false,
        "skills": [{"id": "sum", "name": "Sum", "description": "Adds the numbers of an order"}]});
    eventually("Bob is known", async || {
        let announcement =
            bob.raw(card.to_string()).on("discovery.announce").of_type("RockBot.A2A.AgentCard").by("Bob");
        bob.send(&announcement).await;
        let known = ana.exchange(&ana.request("list_known_agents", &json!({})).by("ana")).await.content();
        known.contains("Bob").then_some(())
    })
    .await;
    transcript.line("Bob → everybody: AgentCard {agentName: \"Bob\", skills: [\"sum\"]}");

    let task = json!({"name": "report", "cron": "* * * * * *", "description": "Report the total", "run_once": true});
    call(&mut transcript, "schedule_task", task).await;
    let due = message(&ana, "RockBot.Host.ScheduledTaskMessage").await;
    transcript.sent("toolbus", "ana", &due, &["taskName", "description"]);

    let found = call(&mut transcript, "search_known_services", json!({"query": "add numbers"})).await;
    let found: Value = serde_json::from_str(&found).unwrap();
    let input = json!({"agent_name": found["results"][0]["id"], "skill": "sum", "message": "12 and 30", "wait": true});
    let invoked = async { ana.exchange(&ana.request("invoke_agent", &input).by("ana")).await };
    let worked = async {
        let task = message(&bob, "RockBot.A2A.AgentTaskRequest").await;
        let numbers = task.body()["message"]["parts"][0]["text"].as_str().unwrap().to_owned();
        let total: u32 = numbers.split(" and ").map(|number| number.parse::<u32>().unwrap()).sum();
        let id = task.body()["taskId"].as_str().unwrap().to_owned();
        let outcome = json!({"role": "agent", "parts": [{"kind": "text", "text": total.to_string()}]});
        let result = bob.raw(json!({"taskId": id, "state": 3, "message": outcome}).to_string());
        let result = result.on(task.properties.reply_to().clone().unwrap().as_str()).by("Bob");
        let result = result.of_type("RockBot.A2A.AgentTaskResult");
        bob.send(&result.with(|properties| properties.with_correlation_id(id.as_str().into()))).await;
        task
    };
    let (reply, task) = tokio::join!(invoked, worked);
    transcript.sent("toolbus", "Bob", &task, &["skill"]);
    let total = transcript.called("ana", "invoke_agent", &input, &reply);

    let steps = json!([
        {"id": "total", "tool": "echo", "params": {"text": total}},
        {"id": "line", "tool": "echo", "params": {"text": "The total is {{total}}."},
            "when": [{"value": "total", "not_equals": ""}]},
    ]);
    let definitions = json!({"definitions": [{"description": "write the report", "steps": steps}]});
    let written = call(&mut transcript, "spawn_wisps", definitions).await;
    let written: Value = serde_json::from_str(&written).unwrap();
    let report = written["pipelines"][0]["output"].as_str().unwrap().to_owned();

    let checked = json!({"description": format!("Check: 12 and 30. {report}")});
    let reply = ana.exchange(&ana.request("spawn_subagent", &checked).by("ana")).await;
    let task = message(&worker, "Toolbus.SubagentTaskMessage").await;
    transcript.sent("toolbus", "worker", &task, &["description"]);
    transcript.called("ana", "spawn_subagent", &checked, &reply);
    let is_right = task.body()["description"].as_str().unwrap().ends_with("The total is 42.");
    let output = if is_right { "It is right." } else { "It is wrong." };
    let body = json!({"taskId": task.body()["taskId"], "output": output, "isSuccess": true});
    let reported = worker.raw(body.to_string()).on("subagent.report").by("worker");
    worker.send(&reported.of_type("RockBot.Host.SubagentResultMessage")).await;
    let result = message(&ana, "RockBot.Host.SubagentResultMessage").await;
    transcript.sent("toolbus", "ana", &result, &["output"]);
    transcript.line(&format!("ana reports: {report} {}", result.body()["output"].as_str().unwrap()));

    assert!(transcript.text == block("left out.\n\n```\n"), "the document differs:\n{}", transcript.text);
    daemon.stop(&site).await;
}
