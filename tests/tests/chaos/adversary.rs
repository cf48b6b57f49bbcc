//! Everything that a caller can send to get at what is not its own, and what it gets instead.
//!
//! Each line of the tables in this folder is a rule: what is tried, how it is sent, and what must come of it. After every
//! line, no backend of a hidden tool was ever reached.

mod arguments;
mod bodies;
mod brokered;
pub(crate) mod fixture;
mod headers;
mod names;
mod requests;
pub(crate) mod row;

use serde_json::json;
use toolbus_e2e::backend::Backend;

use self::fixture::{Fixture, tool};
use self::row::{Row, call};

/// Tools that no line of the table may reach, by their ids at the backend.
const HIDDEN: [&str; 9] = [
    "transfer_money",
    "get_weathers",
    "open",
    "remove",
    "cancel_scheduled_task",
    "mcp_register_server",
    "mcp_unregister_server",
    "files_list_7e7aa1357fe7",
    "bruno",
];

/// Rules: `ana` has few tools, `bruno` all, `sub` those of the profile `subagent`, `free` those of the one it names.
const POLICY: &str = r#"
[invoke]
default_timeout = "110s"
[identity]
trust_headers = true
[agents.ana]
allowed_tools = ["get_weather", "lookup", "read_note", "send_message", "hold", "files.*", "desk.*", "vault_open_*"]
denied_tools = ["files.remove"]
toolsets = ["files", "desk"]
arguments = { read_note = { folder = "ana" } }
outbound_allowlist = { whatsapp = ["+57 300 111 2233"] }
tool_rate_limits = { "files.stamp" = { rps = 0.0001, burst = 1 } }
[[agents.ana.bindings]]
channel = "whatsapp"
account = "sales"
allowed_tools = ["get_weather"]
[agents.bruno]
toolsets = ["files", "desk", "cellar", "jobs"]
[[agents.bruno.bindings]]
channel = "whatsapp"
account = "treasury"
[agents.sub]
profile = "subagent"
toolsets = ["jobs"]
[agents.free]
toolsets = ["jobs"]
[outbound.whatsapp]
tools = ["send_message"]
recipients = ["/to", "/cc/*"]
compare = "digits"
[toolsets.files]
kind = "rest"
endpoints = ["list", "stamp", "remove"]
[toolsets.desk]
kind = "rest"
scope = "session"
endpoints = ["keep"]
[toolsets.cellar]
prefix = "vault"
kind = "rest"
endpoints = ["open"]
[toolsets.jobs]
kind = "rest"
endpoints = ["mcp_unregister_server"]
"#;

fn configuration(backend: &Backend) -> String {
    let visible = ["get_weather", "lookup", "list", "stamp", "vault_open_717aca2af203"];
    let hidden = HIDDEN.into_iter().filter(|hidden| *hidden != "bruno");
    let mut tools: Vec<_> = visible.into_iter().chain(hidden).map(|name| tool(backend, name)).collect();
    let note =
        r#"{"type":"object","properties":{"folder":{"type":"string"},"note":{"type":"string"}},"required":["folder"]}"#;
    tools.push(backend.endpoint("read_note", "/weather/{folder}", note, ""));
    let anything = r#"{"type":"object"}"#;
    tools.push(backend.endpoint(
        "send_message",
        "/weather/send_message",
        anything,
        "method = \"POST\"\nbody = \"json\"",
    ));
    tools.extend(["hold", "keep"].map(|name| backend.tool(name, "/gate?id={id}", "timeout = \"100s\"")));
    format!("{POLICY}{}", tools.concat())
}

#[tokio::test]
async fn no_message_reaches_a_tool_that_its_sender_may_not_use() {
    let fixture = Fixture::start(configuration, &HIDDEN).await;
    let (client, site) = (&fixture.client, &fixture.site);
    let body = json!({"toolCallId": "call-of-ana", "toolName": "hold", "arguments": {"id": "held"}});
    let held = row::raw(body.to_string()).request(client, site);
    let body = json!({"toolName": "desk.keep", "arguments": {"id": "kept"}, "sessionId": "session-of-ana"});
    let kept = row::raw(body.to_string()).request(client, site);
    for (request, id) in [(&held, "held"), (&kept, "kept")] {
        client.send(request).await;
        fixture.backend.wait_for(id).await;
    }
    let rows: Vec<Row> = names::rows()
        .into_iter()
        .chain(bodies::rows())
        .chain(headers::rows())
        .chain(arguments::rows())
        .chain(requests::rows())
        .collect();
    assert!(rows.len() >= 400, "{} rows: the table was not read whole", rows.len());
    fixture.check(&rows).await;

    // No message has ended ana's call or session.
    fixture.backend.open();
    for (request, content) in [(&held, "passed held"), (&kept, "passed kept")] {
        assert_eq!(client.reply(request).await.content(), content);
    }
    // And the tools were there all the time, for agents that may use them.
    let others = [
        ("transfer_money", "bruno"),
        ("get_weathers", "bruno"),
        ("vault.open", "bruno"),
        ("files.remove", "bruno"),
        ("files_list_7e7aa1357fe7", "bruno"),
        ("cancel_scheduled_task", "free"),
        ("mcp_register_server", "free"),
        ("jobs.mcp_unregister_server", "free"),
    ];
    for (name, agent) in others {
        let reply = client.exchange(&call(name).by(agent).request(client, site)).await;
        assert!(reply.content().contains("clear"), "{name}: {:?}", reply.body());
    }
    for hidden in HIDDEN.into_iter().filter(|hidden| *hidden != "bruno") {
        assert_eq!(fixture.backend.count(hidden), 1, "{hidden}");
    }
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn under_header_identity_a_name_is_believed() {
    let fixture = Fixture::start(configuration, &HIDDEN).await;
    // The accepted risk: on a trusted bus, a message under an agent's name is the agent's.
    let as_bruno = call("transfer_money").by("bruno").request(&fixture.client, &fixture.site);
    assert_eq!(fixture.client.exchange(&as_bruno).await.code(), "");
    assert_eq!(fixture.backend.count("transfer_money"), 1);
    fixture.daemon.stop(&fixture.site).await;
}
