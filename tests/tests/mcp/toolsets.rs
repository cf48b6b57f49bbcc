//! Tool sets that servers back: for each session one of its own, or one for all.

use serde_json::{Value, json};
use tempfile::TempDir;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;

use crate::peer::INVOKE;
use crate::small::{Small, is_running};

const AGENTS: &str = "[identity]\ntrust_headers = true\n[agents.ana]\ntoolsets = [\"desk\"]\n\
                      [agents.bruno]\ntoolsets = [\"desk\"]\n[agents.carla]\n[toolsets.desk]\nkind = \"mcp\"\nserver = \"Work\"\n";

/// A daemon with a tool set `desk` for each session.
struct Fixture {
    site: BrokerNamespace,
    daemon: Daemon,
    client: Client,
    /// Folder of the sessions' directories.
    desks: TempDir,
    _small: Small,
}

impl Fixture {
    async fn start(rule: &str) -> Self {
        let (site, small, desks) = (BrokerNamespace::shared().await, Small::new(), tempfile::tempdir().unwrap());
        let folder = desks.path().display();
        let directories = format!("cwd = \"{folder}/{{agent}}/{{session}}\"\nroots = [\"{folder}/{{agent}}\"]");
        let server = small.section_with(
            "Work",
            &["about"],
            &["--for", "{agent}", "{session} of {agent}"],
            &[("WHO", "{agent}"), ("WHICH", "{session}")],
            &directories,
        );
        let daemon = Daemon::start(&site, &format!("{AGENTS}scope = \"session\"\n{rule}\n{server}")).await;
        let client = Client::connect(&site).await;
        let fixture = Self { site, daemon, client, desks, _small: small };
        fixture.listed_by("ana", &["desk.about"]).await;
        fixture
    }

    /// Waits until the tools of the server are these for an agent.
    async fn listed_by(&self, agent: &str, expected: &[&str]) {
        eventually("the tools of the set", async || {
            let list = self.client.exchange(&self.client.raw("{}").on("tool.list").by(agent)).await.body();
            let of_server = |tool: &&Value| tool["source"] == "mcp:Work";
            let tools: Vec<Value> = list["tools"].as_array().unwrap().iter().filter(of_server).cloned().collect();
            tools.iter().map(|tool| tool["name"].as_str().unwrap()).eq(expected.iter().copied()).then_some(())
        })
        .await;
    }

    fn request(&self, agent: &str, session: &str) -> Request {
        self.call(agent, "desk.about", Some(session))
    }

    fn call(&self, agent: &str, tool: &str, session: Option<&str>) -> Request {
        let body = json!({"toolName": tool, "arguments": {}, "sessionId": session});
        self.client.raw(body.to_string()).by(agent)
    }

    /// Returns the result of `about` at the server of a session.
    async fn about(&self, agent: &str, session: &str) -> Value {
        parsed(&self.client.exchange(&self.request(agent, session)).await)
    }

    async fn end(&self, agent: &str, session: &str) {
        let end = self.client.raw(json!({"sessionId": session}).to_string()).on("tool.session.end").by(agent);
        self.client.send(&end).await;
    }

    async fn sessions(&self) -> u64 {
        let shown = self.daemon.operate(&["mcp", "show", "work", "--output", "json"]).await.json();
        shown["sessions"].as_u64().unwrap()
    }

    /// Result of `about` without the folder and process id of this run.
    fn shown(&self, about: &Value) -> Value {
        let text = about.to_string().replace(&self.desks.path().display().to_string(), "[desks]");
        let mut shown: Value = serde_json::from_str(&text).unwrap();
        shown["pid"] = "[pid]".into();
        shown
    }
}

fn parsed(reply: &Message) -> Value {
    assert_eq!(reply.code(), "", "{reply:?}");
    serde_json::from_str(&reply.content()).unwrap()
}

async fn gone(pid: &Value) {
    eventually("the end of a server", async || (!is_running(pid)).then_some(())).await;
}

#[tokio::test]
async fn the_tools_of_a_set_are_listed_before_any_session_and_are_no_plain_tools() {
    let fixture = Fixture::start("").await;
    assert_eq!(fixture.sessions().await, 0);
    eventually("the end of the server that listed them", async || {
        let shown = fixture.daemon.operate(&["mcp", "show", "work", "--output", "json"]).await.json();
        shown["pid"].is_null().then_some(())
    })
    .await;
    fixture.listed_by("carla", &[]).await;
    for (agent, tool, session, code) in [
        ("ana", "about", Some("s"), "tool_not_found"),
        ("carla", "about", Some("s"), "tool_not_found"),
        ("carla", "desk.about", Some("s"), "tool_not_found"),
        ("ana", "desk.about", None, "invalid_arguments"),
    ] {
        let reply = fixture.client.exchange(&fixture.call(agent, tool, session)).await;
        assert_eq!(reply.code(), code, "{agent} {tool} {session:?}: {reply:?}");
    }
    assert_eq!(fixture.sessions().await, 0);
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn each_session_has_a_server_of_its_own_that_knows_whose_it_is() {
    let fixture = Fixture::start("").await;
    let first = fixture.about("ana", "one").await;
    insta::assert_json_snapshot!(fixture.shown(&first), @r#"
    {
      "arguments": [
        "--for",
        "ana",
        "one of ana"
      ],
      "asked": 1,
      "cwd": "[desks]/ana/one",
      "environment": {
        "LC_CTYPE": "C.UTF-8",
        "WHICH": "one",
        "WHO": "ana"
      },
      "pid": "[pid]",
      "roots": [
        "file://[desks]/ana"
      ]
    }
    "#);
    let again = fixture.about("ana", "one").await;
    let other = fixture.about("ana", "two").await;
    let others = fixture.about("bruno", "one").await;
    assert_eq!((&again["pid"], &again["asked"]), (&first["pid"], &json!(2)));
    for (about, of_agent, which) in [(&other, "ana", "two"), (&others, "bruno", "one")] {
        assert_ne!(about["pid"], first["pid"]);
        assert_eq!(about["asked"], 1);
        assert_eq!(about["arguments"], json!(["--for", of_agent, format!("{which} of {of_agent}")]));
        assert_eq!((&about["environment"]["WHO"], &about["environment"]["WHICH"]), (&json!(of_agent), &json!(which)));
        let desk = fixture.desks.path().join(of_agent);
        assert_eq!(about["cwd"], json!(desk.join(which)));
        assert_eq!(about["roots"], json!([format!("file://{}", desk.display())]));
    }
    assert_eq!(fixture.sessions().await, 3);
    fixture.daemon.stop(&fixture.site).await;
    for about in [first, other, others] {
        assert!(!is_running(&about["pid"]), "left behind");
    }
}

#[tokio::test]
async fn the_server_of_a_session_ends_with_it_and_the_next_begins_anew() {
    let fixture = Fixture::start("").await;
    let (first, other) = (fixture.about("ana", "one").await, fixture.about("ana", "two").await);
    fixture.end("bruno", "one").await;
    fixture.end("ana", "one").await;
    gone(&first["pid"]).await;
    let next = fixture.about("ana", "one").await;
    assert_ne!(next["pid"], first["pid"]);
    assert_eq!((&next["asked"], &fixture.about("ana", "two").await["asked"]), (&json!(1), &json!(2)));
    assert!(is_running(&other["pid"]));
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn the_server_of_an_idle_session_ends() {
    let fixture = Fixture::start("idle_timeout = \"1s\"").await;
    let first = fixture.about("ana", "one").await;
    gone(&first["pid"]).await;
    eventually("no session", async || (fixture.sessions().await == 0).then_some(())).await;
    assert_eq!(fixture.about("ana", "one").await["asked"], 1);
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_server_of_a_set_is_reached_by_its_name_only_by_callers_that_have_the_set() {
    let fixture = Fixture::start("").await;
    let first = fixture.about("ana", "one").await;
    let named = |agent: &str, session: Option<&str>| {
        let call = || fixture.call(agent, "about", session);
        [call().header("rb-rb-mcp-server", "work"), call().on(INVOKE).header("rb-rb-mcp-server", "WORK")]
    };
    for request in named("ana", Some("one")) {
        assert_eq!(parsed(&fixture.client.exchange(&request).await)["pid"], first["pid"]);
    }
    let inner = json!({"server_name": "work", "tool_name": "about", "arguments": {}});
    let body = json!({"toolName": "mcp_invoke_tool", "arguments": inner, "sessionId": "one"});
    let invoke = |agent: &str| fixture.client.raw(body.to_string()).by(agent);
    let inside = parsed(&fixture.client.exchange(&invoke("ana")).await);
    assert_eq!((&inside["pid"], &inside["asked"]), (&first["pid"], &json!(4)));

    for request in named("ana", None) {
        assert_eq!(fixture.client.exchange(&request).await.code(), "invalid_arguments", "it needs a session");
    }
    for request in named("carla", Some("one")).into_iter().chain([invoke("carla")]) {
        let reply = fixture.client.exchange(&request).await;
        let error = reply.error().to_lowercase();
        assert!(error.starts_with("unknown mcp server 'work'"), "{reply:?}");
    }
    assert_eq!(fixture.sessions().await, 1);
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn the_servers_of_sessions_end_with_a_daemon_that_is_killed() {
    let fixture = Fixture::start("").await;
    let abouts = [fixture.about("ana", "one").await, fixture.about("bruno", "one").await];
    let mut daemon = fixture.daemon;
    daemon.signal("KILL").await;
    daemon.ended().await;
    for about in &abouts {
        gone(&about["pid"]).await;
    }
}

#[tokio::test]
async fn a_shared_set_has_one_server_for_every_caller_and_needs_no_session() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    let server = small.section("Work", &["about"], "");
    let daemon = Daemon::start(&site, &format!("{AGENTS}{server}")).await;
    let fixture = Fixture {
        client: Client::connect(&site).await,
        site,
        daemon,
        desks: tempfile::tempdir().unwrap(),
        _small: small,
    };
    fixture.listed_by("ana", &["desk.about"]).await;
    fixture.listed_by("carla", &[]).await;
    let first = parsed(&fixture.client.exchange(&fixture.call("ana", "desk.about", None)).await);
    let second = fixture.about("bruno", "any").await;
    assert_eq!((&second["pid"], &second["asked"]), (&first["pid"], &json!(2)));
    let plain = fixture.client.exchange(&fixture.call("ana", "about", None)).await;
    assert_eq!(plain.code(), "tool_not_found");
    fixture.daemon.stop(&fixture.site).await;
    assert!(!is_running(&first["pid"]), "left behind");
}
