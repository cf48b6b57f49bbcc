//! Working memory over the bus: each caller has its own, in every kind of store.

use serde_json::{Value, json};
use toolbus_e2e::client::Client;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;
use toolbus_testing::redis::RedisServer;

const SAVE: &str = "save_to_working_memory";
const GET: &str = "get_from_working_memory";
const LIST: &str = "list_working_memory";
const SEARCH: &str = "search_working_memory";
const DELETE: &str = "delete_from_working_memory";

const RULES: &str = r#"
[identity]
trust_headers = true
unknown = "default"
[agents.ana]
[agents.bruno]
[tools]
echo = true
[memory]
max_entries_per_namespace = 3
"#;

/// A caller in a session.
struct Agent<'a> {
    client: &'a Client,
    name: Option<&'a str>,
    session: &'a str,
}

impl Agent<'_> {
    async fn call(&self, tool: &str, arguments: Value) -> Message {
        let body = json!({"toolName": tool, "arguments": arguments, "sessionId": self.session});
        let request = self.client.raw(body.to_string());
        let request = match self.name {
            Some(name) => request.by(name),
            None => request,
        };
        self.client.exchange(&request).await
    }

    /// The result of a tool that succeeds.
    async fn text(&self, tool: &str, arguments: Value) -> String {
        self.call(tool, arguments).await.success()
    }

    /// The result of a tool that does not.
    async fn error(&self, tool: &str, arguments: Value) -> String {
        let reply = self.call(tool, arguments).await;
        assert_eq!((reply.code().as_str(), &reply.body()["isError"]), ("", &json!(true)), "{reply:?}");
        reply.content()
    }
}

#[tokio::test]
async fn no_agent_reads_lists_finds_replaces_or_deletes_entries_of_another() {
    let (site, daemon, client) = Daemon::with_client(RULES).await;
    let agent = |name| Agent { client: &client, name: Some(name), session: "s1" };
    let ana = agent("ana");
    let saved = ana.text(SAVE, json!({"key": "plan", "value": "ana's secret"})).await;
    assert_eq!(saved, "Saved `session/s1/plan`: 12 characters, for 20 minutes.");
    for other in ["bruno", "eve"].map(agent) {
        let absent = other.error(GET, json!({"key": "absent"})).await;
        let of_ana = other.error(GET, json!({"key": "plan"})).await;
        assert_eq!(of_ana, absent.replace("absent", "plan"), "a key of another agent is as one that is not there");
        for key in ["session/s1/plan", "ana/session/s1/plan", "../ana/session/s1/plan", "SESSION/S1/PLAN"] {
            other.error(GET, json!({"key": key})).await;
        }
        for prefix in [json!({}), json!({"prefix": "/"}), json!({"prefix": "session/"}), json!({"prefix": "ana/"})] {
            assert!(other.text(LIST, prefix).await.starts_with("There are no entries"));
        }
        let found = other.text(SEARCH, json!({"query": "secret plan ana", "prefix": "/"})).await;
        assert!(found.starts_with("No entry matches."), "{found}");
        assert_eq!(other.text(DELETE, json!({"key": "plan"})).await, "There is no entry `session/s1/plan`.");
        other.text(SAVE, json!({"key": "plan", "value": "another plan"})).await;
        assert_eq!(ana.text(GET, json!({"key": "plan"})).await, "ana's secret");
        assert_eq!(other.text(DELETE, json!({"key": "plan"})).await, "Deleted `session/s1/plan`.");
    }
    assert_eq!(ana.text(LIST, json!({"prefix": "/"})).await.lines().count(), 1);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn what_one_agent_has_takes_no_room_of_another_and_what_does_not_fit_is_an_error() {
    let (site, daemon, client) = Daemon::with_client(RULES).await;
    let agent = |name, session| Agent { client: &client, name: Some(name), session };
    for (name, session) in [("ana", "s1"), ("bruno", "s1"), ("ana", "patrol/mail")] {
        let agent = agent(name, session);
        for key in ["one", "two", "three", "one"] {
            agent.text(SAVE, json!({"key": key, "value": "x"})).await;
        }
        let error = agent.error(SAVE, json!({"key": "four", "value": "x"})).await;
        assert!(error.starts_with("Nothing was saved: the namespace") && error.contains("room for 3"), "{error}");
        agent.error(GET, json!({"key": "four"})).await;
    }
    assert_eq!(agent("ana", "other").text(LIST, json!({"prefix": "/"})).await.lines().count(), 6);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn entries_in_a_file_outlive_the_daemon() {
    let (site, daemon, client) = Daemon::with_client(&format!("{RULES}[store]\nurl = \"sqlite:toolbus.db\"\n")).await;
    let ana = Agent { client: &client, name: Some("ana"), session: "s1" };
    ana.text(SAVE, json!({"key": "plan", "value": "rain in Oslo", "tags": ["trip"]})).await;
    assert_eq!(ana.text(SEARCH, json!({"query": "oslo"})).await.matches("session/s1/plan").count(), 1);
    let daemon = daemon.killed().await;
    assert_eq!(ana.text(GET, json!({"key": "plan"})).await, "rain in Oslo");
    assert_eq!(ana.text(SEARCH, json!({"query": "oslo", "tags": ["trip"]})).await.matches("plan").count(), 1);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_removed_file_of_the_store_is_reported_until_it_is_back() {
    let site = BrokerNamespace::shared().await;
    let daemon = Daemon::start(&site, &format!("{RULES}[store]\nurl = \"sqlite:toolbus.db\"\n")).await;
    for (name, of) in [("toolbus.db-memory", "working memory"), ("toolbus.db", "ledger")] {
        let [file, other] = [name, "moved"].map(|name| daemon.folder().join(name));
        std::fs::rename(&file, &other).unwrap();
        let blocker = daemon.blocked_by("store_away").await;
        let expected = format!("{of}: the store failed: the file ");
        assert!(blocker["detail"].as_str().unwrap().starts_with(&expected), "{blocker}");
        std::fs::rename(&other, &file).unwrap();
        daemon.wait_until_ready().await;
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_store_that_is_away_fails_the_tools_of_memory_as_retryable_and_nothing_else() {
    let redis = RedisServer::start().await;
    let (site, daemon, client) = Daemon::with_client(&format!("{RULES}[store]\nurl = \"{}\"\n", redis.url())).await;
    let ana = Agent { client: &client, name: Some("ana"), session: "s1" };
    ana.text(SAVE, json!({"key": "plan", "value": "kept"})).await;
    redis.kill();
    daemon.blocked_by("store_away").await;
    for (tool, arguments) in [
        (SAVE, json!({"key": "plan", "value": "x"})),
        (GET, json!({"key": "plan"})),
        (LIST, json!({})),
        (SEARCH, json!({"query": "kept"})),
        (DELETE, json!({"key": "plan"})),
    ] {
        let reply = ana.call(tool, arguments).await;
        assert_eq!((reply.code().as_str(), &reply.body()["isRetryable"]), ("execution_failed", &json!(true)));
        let message = reply.body()["message"].as_str().unwrap().to_owned();
        let changes = [SAVE, DELETE].contains(&tool);
        let hint = if changes { " It may have had its effect: calling again may repeat that." } else { "" };
        assert_eq!(message, format!("Working memory cannot be reached now. Try again later.{hint}"));
    }
    assert_eq!(ana.text("echo", json!({"text": "still here"})).await, "still here");
    redis.restart().await;
    daemon.wait_until_ready().await;
    eventually("the entry", async || {
        let reply = ana.call(GET, json!({"key": "plan"})).await;
        (reply.code().is_empty() && reply.content() == "kept").then_some(())
    })
    .await;
    daemon.stop(&site).await;
}
