//! `identity.source = "broker"`: the login of a connection decides the caller, and no name in a message does.

use serde_json::{Value, json};
use tokio::sync::OnceCell;
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::{toolbus, toolbus_at, toolbus_in};
use toolbus_testing::patience::eventually;
use toolbus_testing::rabbit::RabbitNode;

use crate::recipe::{self, PASSWORD, RECIPE};

/// These have equal rights, so that the daemon alone distinguishes them.
const LOGINS: [&str; 6] = ["svc-ana", "svc-ana-2", "ana", "bruno", "carla", "front"];
static MADE: OnceCell<()> = OnceCell::const_new();

const RULES: &str = r#"
[identity]
source = "broker"
users = { svc-ana = "ana", svc-ana-2 = "ana" }
delegates = ["front"]
[toolsets.own]
kind = "rest"
scope = "session"
endpoints = ["counted"]
max_sessions = 1
[agents.ana]
allowed_tools = ["for_ana", "hold", "own.counted"]
toolsets = ["own"]
[agents.bruno]
allowed_tools = ["for_bruno", "hold"]
"#;
/// Log message when the daemon starts.
const REFUSED: &str =
    "requests without user_id are refused every tool, as are those of logins without a section in agents";

/// A daemon that knows `ana`, by two logins, and `bruno`.
struct Fixture {
    site: BrokerNamespace,
    backend: Backend,
    daemon: Daemon,
}

/// A connection with a login.
struct Login {
    client: Client,
    user: &'static str,
}

impl Fixture {
    async fn new() -> Self {
        let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
        let daemon = Daemon::start(&site, &format!("{RULES}{}", tools(&backend))).await;
        Self { site, backend, daemon }
    }

    async fn login(&self, user: &'static str) -> Login {
        Login { client: Client::connect_as(&self.site, &url_of(user).await).await, user }
    }

    /// No tool ran with these ids.
    fn assert_not_run(&self, ids: &[&str]) {
        for id in ids {
            assert_eq!(self.backend.count(id), 0, "{id}");
        }
    }
}

impl Login {
    /// Signs a request with the login, which the broker verifies.
    fn signed(&self, request: Request) -> Request {
        request.with(|properties| properties.with_user_id(self.user.into()))
    }

    fn message(&self, topic: &str, body: &Value) -> Request {
        Request { routing_key: topic.to_owned(), ..self.client.raw(body.to_string()) }
    }

    /// Messages that claim in every way to be from `ana`, and are not.
    fn lies(&self, topic: &str, body: &Value) -> [Request; 3] {
        let claimed = || self.message(topic, body).header("rb-source", "ana");
        [self.signed(claimed()), claimed(), self.message(topic, body)]
    }
}

async fn url_of(user: &str) -> String {
    let node = RabbitNode::shared().await;
    MADE.get_or_init(async || {
        let users = LOGINS.map(|name| json!({"name": name, "password": PASSWORD, "tags": []}));
        let all = |user| json!({"user": user, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"});
        node.import(&json!({"users": users, "permissions": LOGINS.map(all)}).to_string()).await;
    })
    .await;
    node.url_of(user, PASSWORD)
}

fn tools(backend: &Backend) -> String {
    let work = |name| backend.tool(name, "/work?id={id}", "");
    [work("for_ana"), work("for_bruno"), work("counted"), backend.tool("hold", "/gate?id={id}", "")].concat()
}

/// The names that a reply to `tool.list` has.
fn listed(reply: &Message) -> Vec<String> {
    let body = reply.body();
    body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_login_decides_which_tools_there_are_and_not_the_agent_named_in_the_message() {
    let fixture = Fixture::new().await;
    let (ana, bruno) = (vec!["for_ana", "hold", "own.counted"], vec!["for_bruno", "hold"]);
    for (case, (user, is_signed, source, tools)) in [
        ("svc-ana", true, None, &ana),
        ("svc-ana", true, Some("bruno"), &ana),
        ("svc-ana-2", true, None, &ana),
        ("bruno", true, None, &bruno),
        ("bruno", true, Some("ana"), &bruno),
        // The name belongs to other logins, so that a login of this name is not that agent.
        ("ana", true, Some("ana"), &vec![]),
        ("carla", true, Some("ana"), &vec![]),
        ("svc-ana", false, Some("ana"), &vec![]),
        ("bruno", false, Some("bruno"), &vec![]),
        ("carla", false, None, &vec![]),
        // A daemon that may speak for agents.
        ("front", true, Some("ana"), &ana),
        ("front", true, Some("bruno"), &bruno),
        ("front", true, Some("unknown:0::ana"), &vec![]),
        ("front", true, None, &vec![]),
        ("front", false, Some("ana"), &vec![]),
    ]
    .into_iter()
    .enumerate()
    {
        let caller = format!("{user}, signed: {is_signed}, as {source:?}");
        let login = fixture.login(user).await;
        let request = |request: Request| {
            let request = if is_signed { login.signed(request) } else { request };
            source.map_or(request.clone(), |source| request.header("rb-source", source))
        };
        for tool in ["for_ana", "for_bruno"] {
            let id = format!("{tool}-{case}");
            let reply = login.client.exchange(&request(login.client.request(tool, &json!({"id": id})))).await;
            let is_there = tools.contains(&tool);
            assert_eq!(reply.code(), if is_there { "" } else { "tool_not_found" }, "{tool} for {caller}");
            assert_eq!(fixture.backend.count(&id), usize::from(is_there), "{tool} for {caller}");
        }
        let list = login.client.exchange(&request(login.message("tool.list", &json!({})))).await;
        assert_eq!(listed(&list), *tools, "for {caller}");
    }
    fixture.daemon.stop(&fixture.site).await;
}

/// Configuration of the daemon that agents call: its one tool is the other daemon's.
const FRONT: &str = r#"
[invoke]
topics = ["tool.invoke.front"]
[identity]
source = "broker"
users = { svc-ana = "ana" }
[agents.ana]
toolsets = ["far"]
[agents.bruno]
toolsets = ["far"]
[toolsets.far]
kind = "remote"
topic = "tool.invoke"
[toolsets.far.tools.for_ana]
description = "Works for ana"
"#;

#[tokio::test]
async fn a_daemon_passes_calls_on_as_their_agents_where_its_login_may_speak_for_them() {
    let fixture = Fixture::new().await;
    let (url, prefix) = (url_of("front").await, format!("{}-front", fixture.site.prefix));
    let front = BrokerNamespace { url, prefix, ..fixture.site.clone() };
    let daemon = Daemon::start(&front, FRONT).await;
    for (user, code) in [("svc-ana", ""), ("bruno", "tool_not_found")] {
        let login = fixture.login(user).await;
        let request = login.client.request("far.for_ana", &json!({"id": user})).on("tool.invoke.front");
        let reply = login.client.exchange(&login.signed(request)).await;
        assert_eq!(
            (reply.code().as_str(), fixture.backend.count(user)),
            (code, usize::from(code.is_empty())),
            "{user}"
        );
    }
    daemon.stop(&front).await;
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn an_unknown_caller_is_shown_no_tool() {
    let fixture = Fixture::new().await;
    let login = fixture.login("svc-ana").await;
    let body = json!({"toolCallId": "1", "toolName": "for_ana", "arguments": {"id": "unsigned"}});
    let reply = login.client.exchange(&login.message("tool.invoke", &body).header("rb-source", "ana")).await;
    insta::assert_json_snapshot!(reply.body(), @r#"
    {
      "code": "tool_not_found",
      "isRetryable": false,
      "message": "Tool 'for_ana' is not registered.",
      "toolCallId": "1",
      "toolName": "for_ana"
    }
    "#);
    fixture.assert_not_run(&["unsigned"]);
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_reply_goes_to_no_topic_but_the_callers_own() {
    let fixture = Fixture::new().await;
    let (ana, bruno) = (fixture.login("svc-ana").await, fixture.login("bruno").await);
    bruno.client.bind("tool.result.#").await;
    let kinds = ["RockBot.Tools.ToolInvokeRequest", "plain"];
    let request = |address: &str, kind: &str| {
        let request = ana.client.request("for_ana", &json!({"id": "own"})).reply_to(address);
        request.with(|properties| properties.with_type(kind.into()))
    };
    for address in ["tool.result.ana", "tool.result.work.ana"] {
        for request in kinds.map(|kind| ana.signed(request(address, kind))) {
            ana.client.send(&request).await;
            let reply = bruno.client.reply(&request).await;
            assert_eq!((reply.content().as_str(), reply.routing_key.as_str()), ("worked for own", address));
        }
    }
    let before = (fixture.backend.total(), bruno.client.received().len());
    let refused = async |request: &Request, address: &str| {
        ana.client.send(request).await;
        let dead = fixture.site.take_dead_letter().await;
        assert_eq!((dead.header("rb-dead-reason"), dead.correlation_id()), ("reply_to_refused", &*request.correlation));
        assert_eq!((dead.header("rb-dead-reply-to"), dead.properties.user_id()), (address, &None));
    };
    let others = ["bruno", "ana.bruno", "svc-ana", "xana", "unknown"].map(|name| format!("tool.result.{name}"));
    for address in others.iter().map(String::as_str).chain(["tool.result", "agent.response.bruno"]) {
        for kind in kinds {
            refused(&ana.signed(request(address, kind)), address).await;
        }
    }
    for address in ["tool.result.ana", "tool.result.unknown", "tool.result"] {
        for kind in kinds {
            refused(&request(address, kind).header("rb-source", "ana"), address).await;
        }
    }
    assert_eq!((fixture.backend.total(), bruno.client.received().len()), before);

    let list = ana.signed(ana.message("tool.list", &json!({}))).reply_to("tool.result.bruno");
    ana.client.send(&list).await;
    let queue = format!("{}.control.dlq", fixture.site.prefix);
    let dead = eventually("a dead letter", async || fixture.site.take(&queue).await).await;
    assert_eq!(dead.header("rb-dead-reason"), "reply_to_refused");
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_call_is_cancelled_by_a_login_of_its_agent_alone() {
    let fixture = Fixture::new().await;
    let ana = fixture.login("svc-ana").await;
    let body = json!({"toolCallId": "call-1", "toolName": "hold", "arguments": {"id": "held"}});
    let call = ana.signed(ana.message("tool.invoke", &body));
    ana.client.send(&call).await;
    fixture.backend.wait_for("held").await;

    let id = json!({"toolCallId": "call-1"});
    for user in ["bruno", "ana", "carla"] {
        let login = fixture.login(user).await;
        for cancel in login.lies("tool.cancel", &id) {
            let reply = login.client.exchange(&cancel).await;
            assert_eq!(reply.body(), json!({"toolCallId": "call-1", "cancelled": false}), "by {user}");
        }
    }
    let unsigned = ana.client.exchange(&ana.message("tool.cancel", &id).header("rb-source", "ana")).await;
    assert_eq!(unsigned.body()["cancelled"], false, "its own login, which the message does not name");
    assert_eq!(ana.client.replies_to(&call.correlation), []);

    let second = fixture.login("svc-ana-2").await;
    let reply = second.client.exchange(&second.signed(second.message("tool.cancel", &id))).await;
    assert_eq!(reply.body(), json!({"toolCallId": "call-1", "cancelled": true}), "two logins are one agent");
    assert_eq!(ana.client.reply(&call).await.code(), "cancelled");
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_session_is_ended_by_a_login_of_its_agent_alone() {
    let fixture = Fixture::new().await;
    let ana = fixture.login("svc-ana").await;
    let call = async |session: &str| {
        let body = json!({"toolName": "own.counted", "arguments": {"id": "counted"}, "sessionId": session});
        ana.client.exchange(&ana.signed(ana.message("tool.invoke", &body))).await.code()
    };
    assert_eq!(call("first").await, "");
    assert_eq!(call("second").await, "overloaded", "there is room for one session");

    let end = json!({"sessionId": "first"});
    for user in ["bruno", "ana", "carla"] {
        let login = fixture.login(user).await;
        for end in login.lies("tool.session.end", &end) {
            login.client.send(&end).await;
        }
        // Obeyed in order: with its reply, what came before is done.
        login.client.exchange(&login.message("tool.cancel", &json!({"toolCallId": "any"}))).await;
        assert_eq!(call("second").await, "overloaded", "after {user}");
    }
    let second = fixture.login("svc-ana-2").await;
    second.client.send(&second.signed(second.message("tool.session.end", &end))).await;
    eventually("room for another session", async || call("second").await.is_empty().then_some(())).await;
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_warning_is_logged_when_callers_without_a_login_are_refused() {
    let (site, backend) = (BrokerNamespace::shared().await, Backend::start().await);
    let client = Client::connect(&site).await;
    let configurations = [
        (RULES.to_owned(), true),
        (RULES.replace("source = \"broker\"", "source = \"broker\"\nunknown = \"default\""), false),
        (RULES.replace("source = \"broker\"", "trust_headers = true"), false),
        ("[identity]\nsource = \"broker\"\n".to_owned(), false),
        ("[identity]\nsource = \"broker\"\nunknown = \"deny\"\n".to_owned(), true),
    ];
    for (rules, is_logged) in configurations {
        let daemon = Daemon::start(&site, &format!("{rules}{}", tools(&backend))).await;
        daemon.logged_times(REFUSED, usize::from(is_logged)).await;
        if rules.contains("broker") {
            let code = client.call("for_ana", &json!({"id": "any"})).await.code();
            assert_eq!(code, if is_logged { "tool_not_found" } else { "" }, "{rules}");
        }
        daemon.stop(&site).await;
    }
}

#[tokio::test]
async fn the_command_calls_as_the_login_that_it_has() {
    let fixture = Fixture::new().await;
    for (user, words, code) in [
        ("svc-ana", vec!["for_ana"], 0),
        ("bruno", vec!["for_bruno"], 0),
        ("bruno", vec!["for_ana", "--as", "ana"], 3),
        ("ana", vec!["for_ana"], 3),
    ] {
        let site = BrokerNamespace { url: url_of(user).await, ..fixture.site.clone() };
        let called = toolbus_at(&site, &[&["call"], &words[..], &["id=called"]].concat()).await;
        assert_eq!(called.code, code, "{user} {words:?}: {called:?}");
    }
    assert_eq!(fixture.backend.count("called"), 2);
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn the_first_configuration_with_a_broker_lets_its_next_command_work() {
    let mut site = BrokerNamespace::shared().await;
    site.url = url_of("carla").await;
    let folder = tempfile::tempdir().unwrap();
    let written = toolbus_in(folder.path(), &["init", "--yes", "--agent", "ana", "--bus-url", &site.url]).await;
    assert_eq!(written.code, 0, "{written:?}");
    let text = std::fs::read_to_string(folder.path().join("toolbus.toml")).unwrap();
    let daemon = Daemon::start(&site, &text).await;
    let file = folder.path().join("toolbus.toml");
    let call = async |more: &[&str]| {
        let site = site.arguments();
        let site = site.iter().map(String::as_str);
        let words = ["call", "current_time", "timezone=UTC", "--config", file.to_str().unwrap()];
        toolbus(&words.into_iter().chain(site).chain(more.iter().copied()).collect::<Vec<_>>()).await
    };
    let called = call(&[]).await;
    assert!(called.code == 0 && called.out.contains("UTC"), "{called:?}");
    let refused = call(&["--as", "bruno"]).await;
    assert!(refused.code == 2 && refused.err.contains("the login `carla` is the agent `ana`"), "{refused:?}");
    let stranger = url_of("bruno").await;
    let unlisted = call(&["--set", &format!("bus.url={stranger}")]).await;
    assert!(unlisted.code == 3 && unlisted.err.contains("the login `bruno` is the agent `bruno`"), "{unlisted:?}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn the_configuration_of_the_recipe_separates_its_agents() {
    let (fixture, backend) = (recipe::Fixture::new().await, Backend::start().await);
    let section = RECIPE.split("\n## ").find(|section| section.starts_with("The daemon's configuration")).unwrap();
    let written = section.split("```").nth(1).unwrap().strip_prefix("toml").unwrap();
    assert_eq!(written.trim_start(), include_str!("../../../config/rabbitmq.toml"));
    let url = "amqp://toolbus:BROKER-PASSWORD@127.0.0.1:5672/tools";
    assert!(written.contains(url), "{written}");
    let service = "https://weather.example/v1/current";
    assert!(written.contains(service), "{written}");
    let backend_url = format!("http://127.0.0.1:{}/work", backend.port());
    let configuration = written.replace(url, &fixture.site.url).replace(service, &backend_url);
    let daemon = Daemon::start(&fixture.site, &configuration).await;
    assert!(section.contains(REFUSED.split(", as").next().unwrap()));
    daemon.logged_times(REFUSED, 1).await;

    let arguments = json!({"city": "Quito"});
    for (user, agent, weather, time) in
        [("svc-ana", "ana", "", "tool_not_found"), ("svc-bruno", "bruno", "tool_not_found", "")]
    {
        let client = fixture.agent(user).await;
        let request = |tool: &str, arguments| {
            let request = client.request(tool, arguments).reply_to(&format!("tool.result.{agent}"));
            request.with(|properties| properties.with_user_id(user.into()))
        };
        let reply = client.exchange(&request("get_weather", &arguments)).await;
        assert_eq!((reply.code().as_str(), reply.exchange.as_str()), (weather, "rockbot"), "{user}");
        assert_eq!(client.exchange(&request("current_time", &json!({}))).await.code(), time, "{user}");
        let unsigned = client.call(if weather.is_empty() { "get_weather" } else { "current_time" }, &arguments).await;
        assert_eq!(unsigned.code(), "tool_not_found", "{user} without user_id");
    }
    let operator = BrokerNamespace { url: fixture.url("operator"), ..fixture.site.clone() };
    let called = toolbus_at(&operator, &["call", "get_weather", "city=Lima"]).await;
    assert_eq!((called.code, called.out.trim()), (0, "worked for Lima"), "{called:?}");
    assert_eq!(backend.total(), 2);
    daemon.stop(&fixture.site).await;
}
