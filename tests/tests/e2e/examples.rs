//! Every example of every guide and description works as it is written.

use std::path::Path;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::interpreter;
use toolbus_testing::patience::eventually;

/// Id of a task, as guides write it.
const SOME_TASK: &str = "1f0c…";
/// A task that is looked at and cancelled, and has no result.
const GIVEN_UP: &str = "Count the frogs.";
/// The host that the guides of the web name, for which the test has a server.
const SOME_HOST: &str = "https://docs.rs";

/// A call as a guide writes it: `tool` with `{…}`.
#[derive(Debug)]
struct Example {
    tool: String,
    arguments: String,
}

/// The examples of a text. What looks like arguments without a tool before it is a mistake.
fn examples(text: &str) -> Vec<Example> {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let parts: Vec<&str> = line.split('`').collect();
    let spans =
        parts.iter().enumerate().filter(|(index, part)| index % 2 == 1 && (part.starts_with("{\"") || **part == "{}"));
    let example = |(index, part): (usize, &&str)| {
        assert_eq!(parts[index - 1], " with ", "an example without its tool: {part}");
        Example { tool: parts[index - 2].to_owned(), arguments: (*part).to_owned() }
    };
    spans.map(example).collect()
}

/// A server with a search engine, and pages everywhere else.
async fn web_server() -> (u16, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let size = stream.read(&mut request).await.unwrap_or_default();
            let is_search = request[..size].starts_with(b"GET /search");
            let results = (0..3).map(|number| json!({"title": "Frogs", "url": format!("http://127.0.0.1:{port}/{number}"), "content": "green"}));
            let (kind, body) = match is_search {
                true => ("application/json", json!({"results": results.collect::<Vec<_>>()}).to_string()),
                false => ("text/html", "<title>Frogs</title><main><p>They are green.</p></main>".to_owned()),
            };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    (port, serving)
}

fn rules(port: u16, list: &Path) -> String {
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/mcp_small.py");
    format!(
        r#"
[identity]
trust_headers = true
[agents.ana]
allowed_agents = ["ResearchAgent"]
[agents.worker]
profile = "subagent"
[agents.ResearchAgent]
[memory]
[schedule]
[guides]
[pipelines]
[a2a]
[subagents.pools]
thinkers = ["worker"]
[web]
[[web.search]]
provider = "searxng"
url = "http://127.0.0.1:{port}/search"
[egress]
allow_hosts = ["127.0.0.1:{port}"]
[script]
runner = "local"
local = {{ i_understand = true }}
[mcp]
required = ["github"]
[mcp.servers.github]
command = {:?}
args = [{server:?}, "github", "unused"]
env = {{ LIST = {list:?} }}
"#,
        interpreter()
    )
}

/// Runs examples as an agent that is in all roles that guides speak of.
struct Reader {
    client: Client,
    page: String,
}

impl Reader {
    /// The id of a task that was given a moment ago.
    async fn task(&self, tool: &str) -> String {
        let given = match tool {
            "get_agent_task" | "cancel_agent_task" => {
                let order = json!({"agent_name": "ResearchAgent", "skill": "research", "message": GIVEN_UP});
                self.client.text("ana", "invoke_agent", &order).await
            }
            _ => self.client.text("ana", "spawn_subagent", &json!({"description": GIVEN_UP})).await,
        };
        let (_, id) = given.split_once("task_id: ").unwrap_or_else(|| panic!("{given}"));
        id.split(['.', ' ']).next().unwrap().to_owned()
    }

    async fn run(&self, Example { tool, arguments }: &Example) {
        let mut arguments = arguments.replace(SOME_HOST, &self.page);
        let is_of_task = arguments.contains(SOME_TASK);
        let id = if is_of_task { self.task(tool).await } else { String::new() };
        arguments = arguments.replace(SOME_TASK, &id);
        let arguments: Value = serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
        let agent = if is_of_task && tool.starts_with("whiteboard") { "worker" } else { "ana" };
        let text = self.client.text(agent, tool, &arguments).await;
        if tool == "spawn_wisps" {
            let ended: Value = serde_json::from_str(&text).unwrap();
            for pipeline in ended["pipelines"].as_array().unwrap() {
                assert!(pipeline["steps"].as_array().unwrap().iter().all(|step| step["outcome"] == "ok"), "{text}");
            }
        }
        if is_of_task && agent == "worker" {
            // An agent gives five tasks at a time.
            self.client.text("ana", "cancel_subagent", &json!({"task_id": id})).await;
        }
    }

    /// Replies to every task for the other agent but those given up, until the test ends.
    async fn research(&self) {
        let mut replied = 0;
        loop {
            let tasks = self.client.caught_up().await;
            let is_for_other = |message: &&Message| {
                message.kind() == "RockBot.A2A.AgentTaskRequest" && !message.body().to_string().contains(GIVEN_UP)
            };
            let tasks: Vec<_> = tasks.iter().filter(is_for_other).collect();
            for task in tasks.iter().skip(replied) {
                let id = task.body()["taskId"].as_str().unwrap().to_owned();
                let message = json!({"role": "agent", "parts": [{"kind": "text", "text": "Three."}]});
                let result = json!({"taskId": id, "state": 3, "message": message});
                let reply_to = task.properties.reply_to().clone().unwrap();
                let reply =
                    self.client.raw(result.to_string()).on(reply_to.as_str()).of_type("RockBot.A2A.AgentTaskResult");
                self.client
                    .send(
                        &reply
                            .by("ResearchAgent")
                            .with(|properties| properties.with_correlation_id(id.as_str().into())),
                    )
                    .await;
            }
            replied = tasks.len();
        }
    }
}

#[tokio::test]
async fn every_example_of_every_guide_and_description_works() {
    let (site, (port, _serving)) = (BrokerNamespace::shared().await, web_server().await);
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list.json");
    std::fs::write(&list, json!([{"name": "create_issue", "inputSchema": {"type": "object"}}]).to_string()).unwrap();
    let path = std::env::var("PATH").unwrap();
    let daemon = Daemon::launch(&site, &rules(port, &list), &[("PATH", &path)]).await;
    daemon.wait_until_ready().await;
    let reader = Reader { client: Client::connect(&site).await, page: format!("http://127.0.0.1:{port}") };
    let research = Reader { client: Client::connect(&site).await, page: String::new() };
    for topic in ["subagent.task.thinkers", "subagent.result.ana", "agent.response.ana"] {
        reader.client.bind(topic).await;
    }
    for topic in ["agent.task.ResearchAgent", "agent.task.cancel.ResearchAgent"] {
        research.client.bind(topic).await;
    }
    let card = json!({"agentName": "ResearchAgent", "skills": [{"id": "research", "name": "Research"}], "isDeregistering": false});
    eventually("the agent is known", async || {
        let announced = research.client.raw(card.to_string()).on("discovery.announce").of_type("RockBot.A2A.AgentCard");
        research.client.send(&announced.by("ResearchAgent")).await;
        reader.client.text("ana", "list_known_agents", &json!({})).await.contains("ResearchAgent").then_some(())
    })
    .await;

    let guides = reader.client.text("ana", "list_tool_guides", &json!({})).await;
    let names: Vec<&str> = guides.lines().map(|line| line.split('`').nth(1).unwrap()).collect();
    let mut all = Vec::new();
    for name in &names {
        let found = examples(&reader.client.text("ana", "get_tool_guide", &json!({"name": name})).await);
        assert!(!found.is_empty(), "{name} has no example");
        all.extend(found);
    }
    let request = reader.client.raw(json!({"format": "registration"}).to_string()).on("tool.list").by("ana");
    let listed = reader.client.exchange(&request).await.body();
    for tool in listed["tools"].as_array().unwrap() {
        let [about, schema] =
            [&tool["description"], &tool["parametersSchema"]].map(|text| text.as_str().unwrap().to_owned());
        all.extend(examples(&about));
        all.extend(of_schema(tool["name"].as_str().unwrap(), &serde_json::from_str(&schema).unwrap()));
    }
    let reading = async {
        for example in &all {
            reader.run(example).await;
        }
    };
    tokio::select! {
        () = reading => {}
        () = research.research() => {}
    }
    daemon.stop(&site).await;
}

/// Calls with what the descriptions of arguments give as examples of a cron expression or a condition.
fn of_schema(tool: &str, schema: &Value) -> Vec<Example> {
    let mut texts = Vec::new();
    descriptions(schema, &mut texts);
    let spans = texts.iter().flat_map(|text| text.split('`').skip(1).step_by(2)).map(str::to_owned);
    let example = |span: String| {
        let arguments = if tool == "schedule_task" && span.split(' ').count() == 5 {
            json!({"name": "example", "cron": span, "description": "An example."})
        } else if tool == "spawn_wisps" && span.starts_with("{\"") {
            let steps = json!([
                {"id": "find", "tool": "get_from_working_memory", "params": {"key": "counted"}},
                {"id": "then", "tool": "current_time", "when": [serde_json::from_str::<Value>(&span).unwrap()]},
            ]);
            let save = json!({"id": "save", "tool": "save_to_working_memory", "params": {"key": "counted", "value": "{\"count\": 1}"}});
            let steps: Vec<Value> = std::iter::once(save).chain(steps.as_array().unwrap().iter().cloned()).collect();
            json!({"definitions": [{"description": "an example", "steps": steps}]})
        } else {
            assert!(!span.starts_with("{\"") || span.contains('…'), "{tool}: no test runs the example {span}");
            return None;
        };
        Some(Example { tool: tool.to_owned(), arguments: arguments.to_string() })
    };
    spans.filter_map(example).collect()
}

fn descriptions(schema: &Value, texts: &mut Vec<String>) {
    match schema {
        Value::Array(parts) => parts.iter().for_each(|part| descriptions(part, texts)),
        Value::Object(fields) => {
            texts.extend(fields.get("description").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| descriptions(field, texts));
        }
        _ => {}
    }
}
