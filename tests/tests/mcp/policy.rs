//! Absence of what a caller may not use, on every way to a server's tool.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_testing::patience::eventually;
use toolbus_testing::rabbit::RabbitNode;
use uuid::Uuid;

use crate::peer::{INVOKE, Known, MANAGE, REFRESH};
use crate::small::{Small, knowing, known};

const RULES: &str = r#"
[identity]
trust_headers = true
[agents.default]
[agents.free]
[agents.listed]
allowed_tools = ["read_note", "mcp_*"]
[agents.denied]
denied_tools = ["publish", "treasure"]
[agents.bound]
[[agents.bound.bindings]]
channel = "whatsapp"
account = "sales"
allowed_tools = ["read_note", "mcp_*"]
"#;

/// Tools that are hidden from a caller, and tools that are not there: server and tool. No name is near one that a
/// caller sees.
const HIDDEN: [[(&str, &str); 2]; 3] = [
    [("notes", "publish"), ("notes", "pubxish")],
    [("notes", "shred"), ("notes", "shrxd")],
    [("vault", "treasure"), ("vauxt", "treaxure")],
];

/// A caller, as it sends its requests.
struct Caller<'a> {
    client: &'a Client,
    sign: &'a dyn Fn(Request) -> Request,
}

fn servers(small: &Small) -> String {
    let notes = small.section("notes", &["read_note", "publish", "shred"], "denied_tools = [\"SHRED\"]");
    format!("{notes}{}", small.section("vault", &["treasure"], ""))
}

fn one_note() -> Known {
    Known::from([("notes".to_owned(), vec!["read_note".to_owned()])])
}

fn everything() -> Known {
    let owned = |tools: &[&str]| tools.iter().map(|tool| (*tool).to_owned()).collect::<Vec<_>>();
    Known::from([("notes".to_owned(), owned(&["publish", "read_note"])), ("vault".to_owned(), owned(&["treasure"]))])
}

impl Caller<'_> {
    fn message(&self, topic: &str, body: &Value) -> Request {
        (self.sign)(self.client.raw(body.to_string()).on(topic))
    }

    fn call(&self, topic: &str, tool: &str, arguments: &Value) -> Request {
        let id = Uuid::new_v4().simple().to_string();
        self.message(topic, &json!({"toolCallId": id, "toolName": tool, "arguments": arguments}))
    }

    /// Every way to call a tool of a server.
    fn ways(&self, server: &str, tool: &str, text: &str) -> [Request; 5] {
        let arguments = json!({"text": text});
        let inner = json!({"server_name": server, "tool_name": tool, "arguments": arguments});
        [
            self.call("tool.invoke", tool, &arguments),
            self.call("tool.invoke", tool, &arguments).header("rb-rb-mcp-server", server),
            self.call(INVOKE, tool, &arguments),
            self.call(INVOKE, tool, &arguments).header("rb-rb-mcp-server", server),
            self.call("tool.invoke", "mcp_invoke_tool", &inner),
        ]
    }

    /// Every way to a tool of a server, those that only describe it included.
    fn all_ways(&self, server: &str, tool: &str) -> Vec<Request> {
        let question = json!({"server_name": server, "tool_name": tool});
        let mut all = self.ways(server, tool, "").to_vec();
        all.push(self.call("tool.invoke", "mcp_get_service_details", &question));
        all.push(self.call("tool.invoke", "mcp_get_service_details", &json!({"server_name": server})));
        all.push(self.details(server));
        all
    }

    fn details(&self, server: &str) -> Request {
        let request = self.message(MANAGE, &json!({"serverName": server}));
        request.of_type("RockBot.Tools.Mcp.McpGetServiceDetailsRequest")
    }

    /// Checks what the caller is shown of servers, on each way: the same.
    async fn sees(&self, all: &Known) {
        let list = self.client.exchange(&self.message("tool.list", &json!({}))).await.body();
        let mut listed = Known::new();
        for tool in list["tools"].as_array().unwrap() {
            if let Some(server) = tool["source"].as_str().and_then(|source| source.strip_prefix("mcp:")) {
                listed.entry(server.to_owned()).or_default().push(tool["name"].as_str().unwrap().to_owned());
            }
        }
        listed.remove("management");
        listed.values_mut().for_each(|tools| tools.sort());
        assert_eq!(listed, *all, "tool.list");

        let services = self.client.exchange(&self.call("tool.invoke", "mcp_list_services", &json!({}))).await;
        let services: Value = serde_json::from_str(&services.content()).unwrap();
        let summed: Known = services.as_array().unwrap().iter().map(summed).collect();
        assert_eq!(summed, *all, "mcp_list_services");

        let mut managed = Known::new();
        let mut described = Known::new();
        for server in ["notes", "vault"] {
            let details = self.client.exchange(&self.details(server)).await.body();
            if details["error"].is_null() {
                managed.insert(server.to_owned(), names(&details["tools"]));
            }
            let call = self.call("tool.invoke", "mcp_get_service_details", &json!({"server_name": server}));
            if let Ok(tools) = serde_json::from_str::<Value>(&self.client.exchange(&call).await.content()) {
                described.insert(server.to_owned(), names(&tools));
            }
        }
        assert_eq!((&managed, &described), (all, all), "mcp.manage and mcp_get_service_details");
    }

    /// Checks that these are nowhere for the caller, and look like unknown ones.
    async fn lacks(&self, hidden: &[[(&str, &str); 2]]) {
        for [hidden, unknown] in hidden {
            let ways = self.all_ways(hidden.0, hidden.1).into_iter().zip(self.all_ways(unknown.0, unknown.1));
            for (way, (request, unknown_request)) in ways.enumerate() {
                let of_hidden = self.client.exchange(&request).await;
                let of_unknown = self.client.exchange(&unknown_request).await;
                let renamed = comparable(&of_hidden).replace(hidden.1, unknown.1).replace(hidden.0, unknown.0);
                assert_eq!(renamed, comparable(&of_unknown), "way {way} to {hidden:?}");
                assert!(way >= 5 || of_hidden.code() == "tool_not_found", "way {way} to {hidden:?}: {of_hidden:?}");
            }
        }
    }

    /// Calls a tool on every way, and gives the code of each reply; empty for a result.
    async fn codes(&self, server: &str, tool: &str, text: &str) -> Vec<String> {
        let mut codes = Vec::new();
        for way in self.ways(server, tool, text) {
            codes.push(self.client.exchange(&way).await.code());
        }
        codes
    }
}

/// A server with its tools, as summaries have it.
fn summed(server: &Value) -> (String, Vec<String>) {
    (server["serverName"].as_str().unwrap().to_owned(), serde_json::from_value(server["toolNames"].clone()).unwrap())
}

fn names(tools: &Value) -> Vec<String> {
    tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns the body of a reply without what differs from reply to reply.
fn comparable(reply: &Message) -> String {
    let mut body = reply.body();
    if let Some(id) = body.get_mut("toolCallId") {
        *id = Value::Null;
    }
    let is_time = |name: &str| name.ends_with("-ms");
    let headers: BTreeMap<_, _> = reply.headers.iter().filter(|(name, _)| !is_time(name)).collect();
    format!("{} {headers:?} {body}", reply.kind())
}

#[tokio::test]
async fn a_tool_denied_by_an_agent_a_binding_or_a_server_is_nowhere() {
    let small = Small::new();
    let (site, daemon, client) = knowing(&format!("{RULES}{}", servers(&small)), &["notes", "vault"]).await;
    for (agent, binding, all, hidden) in [
        ("free", None, everything(), &HIDDEN[1..2]),
        ("listed", None, one_note(), &HIDDEN[..]),
        ("denied", None, one_note(), &HIDDEN[..]),
        ("bound", None, everything(), &HIDDEN[1..2]),
        ("bound", Some("whatsapp:sales"), one_note(), &HIDDEN[..]),
        ("bound", Some("whatsapp:other"), Known::new(), &[]),
    ] {
        let sign = |request: Request| match binding {
            Some(binding) => request.by(agent).header("rb-rb-binding", binding),
            None => request.by(agent),
        };
        let caller = Caller { client: &client, sign: &sign };
        if binding == Some("whatsapp:other") {
            let lost = caller.codes("notes", "read_note", "lost").await;
            assert_eq!(lost, ["tool_not_found"; 5], "a binding that there is not");
            continue;
        }
        caller.sees(&all).await;
        caller.lacks(hidden).await;
        assert_eq!(caller.codes("NOTES", "read_note", agent).await, [""; 5], "{agent}");
    }
    let run: Vec<String> = small.calls();
    assert_eq!(run.len(), 5 * 5);
    assert!(run.iter().all(|call| call.starts_with("notes.read_note: ")), "{run:?}");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn an_index_shows_no_tool_that_its_agent_may_not_use() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    let daemon = Daemon::start(&site, &format!("{RULES}{}", servers(&small))).await;
    known(&daemon, &["notes", "vault"]).await;
    for (agent, all) in [("free", everything()), ("listed", one_note()), ("denied", one_note())] {
        let client = Client::connect(&site).await;
        client.bind(&format!("tool.meta.mcp.{agent}")).await;
        let request = client.raw("{}").on(REFRESH).by(agent).of_type("RockBot.Tools.Mcp.McpMetadataRefreshRequest");
        client.send(&request).await;
        let index = eventually("an index", async || client.received().pop()).await.body();
        let indexed: Known = index["servers"].as_array().unwrap().iter().map(summed).collect();
        assert_eq!(indexed, all, "{agent}");
    }
    daemon.stop(&site).await;
}

#[tokio::test]
async fn a_tool_or_source_that_an_operator_disables_is_nowhere_until_it_is_enabled() {
    let small = Small::new();
    let (site, daemon, client) = knowing(&format!("{RULES}{}", servers(&small)), &["notes", "vault"]).await;
    let caller = Caller { client: &client, sign: &|request| request.by("free") };
    let both = [["tool", "publish"], ["source", "mcp:vault"]];
    for [kind, name] in both {
        assert_eq!(daemon.operate(&["disable", kind, name]).await.code, 0);
    }
    caller.sees(&one_note()).await;
    caller.lacks(&HIDDEN).await;
    for [kind, name] in both {
        assert_eq!(daemon.operate(&["enable", kind, name]).await.code, 0);
    }
    caller.sees(&everything()).await;
    assert_eq!(caller.codes("vault", "treasure", "").await, [""; 5]);
    assert_eq!(small.calls().len(), 5);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn the_login_at_the_broker_decides_which_tools_are_shown() {
    let (site, small) = (BrokerNamespace::shared().await, Small::new());
    let logins = ["mcp-listed", "mcp-free"];
    let users = logins.map(|name| json!({"name": name, "password": "a password", "tags": []}));
    let all = |user| json!({"user": user, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"});
    let node = RabbitNode::shared().await;
    node.import(&json!({"users": users, "permissions": logins.map(all)}).to_string()).await;
    let users = "source = \"broker\"\nusers = { mcp-listed = \"listed\", mcp-free = \"free\" }";
    let rules = RULES.replace("trust_headers = true", users);
    let daemon = Daemon::start(&site, &format!("{rules}{}", servers(&small))).await;
    known(&daemon, &["notes", "vault"]).await;
    for (user, liar, all, hidden) in
        [("mcp-listed", "free", one_note(), &HIDDEN[..]), ("mcp-free", "listed", everything(), &HIDDEN[1..2])]
    {
        let client = Client::connect_as(&site, &node.url_of(user, "a password")).await;
        let sign = |request: Request| request.by(liar).with(|properties| properties.with_user_id(user.into()));
        let caller = Caller { client: &client, sign: &sign };
        caller.sees(&all).await;
        caller.lacks(hidden).await;
        assert_eq!(caller.codes("notes", "read_note", user).await, [""; 5], "{user}");
    }
    assert_eq!(small.calls().len(), 2 * 5);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn all_ways_to_a_tool_share_its_rate() {
    let small = Small::new();
    let rules = "[identity]\ntrust_headers = true\n[agents.ana]\n\
                 tool_rate_limits = { read_note = { rps = 0.0001, burst = 5 } }\n";
    let (site, daemon, client) = knowing(&format!("{rules}{}", servers(&small)), &["notes", "vault"]).await;
    let caller = Caller { client: &client, sign: &|request| request.by("ana") };
    assert_eq!(caller.codes("notes", "read_note", "in time").await, [""; 5]);
    assert_eq!(caller.codes("notes", "read_note", "too often").await, ["rate_limited"; 5]);
    assert_eq!(caller.codes("vault", "treasure", "another").await, [""; 5]);
    assert_eq!(small.calls().iter().filter(|call| call.contains("too often")).count(), 0);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn recipients_are_checked_on_every_way() {
    let small = Small::new();
    let rules = "[identity]\ntrust_headers = true\n[agents.ana]\noutbound_allowlist = { mail = [\"ana@example.com\"] }\n\
                 [outbound.mail]\ntools = [\"send_*\"]\nrecipients = [\"/text\"]\ncompare = \"email\"\n";
    let servers = small.section("mail", &["send_mail"], "");
    let (site, daemon, client) = knowing(&format!("{rules}{servers}"), &["mail"]).await;
    let caller = Caller { client: &client, sign: &|request| request.by("ana") };
    assert_eq!(caller.codes("mail", "send_mail", "ana@example.com").await, [""; 5]);
    assert_eq!(caller.codes("Mail", "send_mail", "eve@example.com").await, ["not_allowed"; 5]);
    assert_eq!(small.calls(), ["mail.send_mail: ana@example.com"; 5]);
    daemon.stop(&site).await;
}
