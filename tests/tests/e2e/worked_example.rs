//! The worked example of `docs/policy.md`, as written, and more of it in `worked_example.md`: the configuration, what every
//! command prints, and what becomes of every call.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Uri, header};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinSet;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::binary;
use toolbus_testing::patience::eventually;
use toolbus_testing::rabbit::RabbitNode;

const DOCUMENT: &str = include_str!("../../../docs/policy.md");
/// Content that the document leaves out.
const MORE: &str = include_str!("worked_example.md");
const CONFIGURATION: &str = include_str!("../../../config/agents.toml");
/// Address of the backend in the configuration.
const BACKEND: &str = "127.0.0.1:9000";
const PASSWORD: &str = "a-password-of-the-tests";
/// Every login of the tables.
const LOGINS: [&str; 5] = ["svc-sales", "svc-assistant", "svc-ops", "svc-guest", "sales"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The blocks of code in this language.
fn blocks(language: &str) -> Vec<&'static str> {
    let start = format!("\n```{language}\n");
    let after = [DOCUMENT, MORE].into_iter().flat_map(|document| document.split(start.as_str()).skip(1));
    after.map(|rest| rest.split("\n```").next().unwrap()).collect()
}

/// The rows of the tables below this heading, those of the document first.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let start = format!("\n### {heading}\n");
    let sections = [DOCUMENT, MORE].map(|document| document.split_once(start.as_str()).unwrap().1);
    let lines = sections
        .into_iter()
        .flat_map(|section| section.split("\n#").next().unwrap().lines().filter(|line| line.starts_with('|')).skip(2));
    lines.map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// Returns the content of a cell that is all code.
fn code(cell: &str) -> &str {
    cell.trim_matches('`')
}

/// Runs a line of a shell in the folder of the document; returns what a terminal would show.
async fn run(line: &str) -> (Option<i32>, String) {
    let folder = binary().parent().unwrap().display().to_string();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{line} 2>&1")).current_dir(root()).env_clear().stdin(Stdio::null());
    let output = shell.env("PATH", format!("{folder}:/usr/bin:/bin")).output().await.unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// The secrets of the document, by the variables that hold them.
fn secrets() -> Vec<(&'static str, &'static str)> {
    let lines = blocks("sh").into_iter().flat_map(str::lines);
    lines.filter_map(|line| line.strip_prefix("export ")?.split_once('=')).collect()
}

/// A backend that returns its request and the name of the credential that it came with, because a response that repeats
/// a secret is changed by the daemon.
async fn backend() -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let echo = async |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
        let sent = headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap());
        let known = secrets().into_iter().find(|(_, token)| sent == Some(&format!("Bearer {token}")));
        let credential = sent.map(|_| format!("with {}", known.map_or("another credential", |(name, _)| name)));
        let parts = [Some(format!("{method} {uri}")), credential, Some(String::from_utf8(body.to_vec()).unwrap())];
        parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    };
    let mut server = JoinSet::new();
    server.spawn(async move { drop(axum::serve(listener, Router::new().fallback(echo)).await) });
    (address, server)
}

/// Makes the logins of the tables, which may do everything: what is tested is the daemon, and not the broker.
async fn make_logins() {
    let user = |name: &&str| json!({"name": name, "password": PASSWORD, "tags": []});
    let permission = |name: &&str| json!({"user": name, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"});
    let definitions = json!({
        "users": LOGINS.iter().map(user).collect::<Vec<_>>(),
        "permissions": LOGINS.iter().map(permission).collect::<Vec<_>>(),
    });
    RabbitNode::shared().await.import(&definitions.to_string()).await;
}

/// The daemon of the example, and all its callers.
struct Fixture {
    site: BrokerNamespace,
    daemon: Daemon,
    clients: Vec<(&'static str, Client)>,
    _backend: JoinSet<()>,
}

impl Fixture {
    async fn new() -> Self {
        make_logins().await;
        let (site, (address, server)) = (BrokerNamespace::shared().await, backend().await);
        let configuration = CONFIGURATION.replace(BACKEND, &address);
        let mut environment = secrets();
        environment.push(("TOOLBUS__BUS__URL", &site.url));
        let daemon = Daemon::launch(&site, &configuration, &environment).await;
        daemon.wait_until_ready().await;
        let mut clients = Vec::new();
        for login in LOGINS {
            let url = RabbitNode::shared().await.url_of(login, PASSWORD);
            clients.push((login, Client::connect_as(&site, &url).await));
        }
        Self { site, daemon, clients, _backend: server }
    }

    /// Makes the call of a row: login, tool, arguments, header.
    async fn call(&self, row: &[String]) -> Message {
        let [login, tool, arguments, header, ..] = row else { panic!("a row of fewer cells: {row:?}") };
        let (name, is_nameless) = match login.strip_suffix(", without `user_id`") {
            Some(name) => (code(name), true),
            None => (code(login), false),
        };
        let (login, client) = self.clients.iter().find(|(login, _)| *login == name).unwrap();
        let arguments: Value = serde_json::from_str(code(arguments)).unwrap();
        let mut request = client.request(code(tool), &arguments);
        if !is_nameless {
            request = request.with(|properties| properties.with_user_id((*login).into()));
        }
        if let Some((name, value)) = code(header).split_once(": ") {
            request = request.header(name, value);
        }
        client.exchange(&request).await
    }
}

#[test]
fn the_document_shows_the_agents_of_the_configuration_that_ships() {
    let (before, _) = CONFIGURATION.split_once("[[rest.endpoints]]").unwrap();
    let agents = &before[before.find("[bus]").unwrap()..];
    assert!(DOCUMENT.contains(&format!("\n```\n{}\n```\n", agents.trim_end())), "{agents}");
}

#[tokio::test]
async fn every_command_of_the_document_prints_the_documented_output() {
    let exports = blocks("sh").concat().replace('\n', "; ");
    let shown = blocks("console");
    assert!(shown.len() >= 10, "{} blocks: the document was not read whole", shown.len());
    for block in shown {
        let (command, expected) = block.split_once('\n').unwrap();
        let (code, printed) = run(&format!("{exports}; {}", command.strip_prefix("$ ").unwrap())).await;
        assert_eq!(printed.trim_end_matches('\n'), expected, "{command}");
        assert_eq!(code, Some(i32::from(expected.contains("\nrefused at "))), "{command}");
    }
}

#[tokio::test]
async fn every_call_of_the_document_gets_the_documented_reply() {
    let fixture = Fixture::new().await;
    let (run, refused) = (rows("Calls that are run"), rows("Calls that are refused"));
    assert!(run.len() >= 8 && refused.len() >= 20, "the tables were not read whole: {}, {}", run.len(), refused.len());
    let mut differing = Vec::new();
    for row in &run {
        let reply = fixture.call(row).await;
        if reply.content() != code(&row[4]) {
            differing.push(format!("{row:?}: {}", reply.body()));
        }
    }
    for row in &refused {
        let reply = fixture.call(row).await;
        if (reply.code().as_str(), &reply.error()) != (code(&row[4]), &row[5]) {
            differing.push(format!("{row:?}: {}", reply.body()));
        }
    }
    assert!(differing.is_empty(), "{differing:#?}");
    let records = async || (fixture.daemon.logged("a call was refused").len() == refused.len()).then_some(());
    eventually("a record of every refusal", records).await;

    let (_, assistant) = &fixture.clients[1];
    let list = assistant
        .raw(json!({"names": ["calendar.list_events"]}).to_string())
        .with(|properties| properties.with_user_id(LOGINS[1].into()));
    let listed = assistant.exchange(&Request { routing_key: "tool.list".to_owned(), ..list }).await.body();
    let schema = listed["tools"][0]["parametersSchema"].as_str().unwrap();
    assert!(schema.contains("day") && !schema.contains("owner"), "what is set for the agent is not shown: {listed}");
    fixture.daemon.stop(&fixture.site).await;
}
