//! `tool.list`: an agent is shown the tools that it may call.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::message::Message;

const RULES: &str = r#"
[tools]
echo = true

[identity]
trust_headers = true

[agents.ana]
allowed_tools = ["echo", "fs.*"]
toolsets = ["fs"]

[[agents.ana.bindings]]
channel = "whatsapp"
account = "sales"
allowed_tools = ["echo"]

[agents.bruno]
allowed_tools = ["current_time", "work"]
profile = "subagent"

[agents.clara]
allowed_tools = "none"

[toolsets.fs]
kind = "rest"
endpoints = ["read", "write"]
"#;

/// Two plain tools of the backend's, and two of a tool set.
fn rules(backend: &Backend) -> String {
    let read_only = "effect = \"read-only\"";
    let tools = [
        backend.tool("work", "/work?id={id}", ""),
        backend.tool("read", "/work?id={id}", read_only),
        backend.tool("write", "/work?id={id}", "effect = \"effectful\""),
    ];
    format!("{RULES}{}", tools.concat())
}

fn list(client: &Client, agent: &str, body: &Value) -> Request {
    client.raw(body.to_string()).on("tool.list").by(agent)
}

async fn listed(client: &Client, agent: &str, body: &Value) -> Value {
    client.exchange(&list(client, agent, body)).await.body()
}

/// The names of a list in a format with names at the top.
fn names(list: &Value) -> Vec<&str> {
    list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_list_comes_in_each_format_with_the_same_version() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&rules(&backend)).await;
    let mut versions = BTreeSet::new();
    for (format, schema) in [
        ("registration", "/tools/0/parametersSchema"),
        ("openai", "/tools/0/function/parameters"),
        ("anthropic", "/tools/0/input_schema"),
        ("mcp", "/tools/0/inputSchema"),
    ] {
        let body = listed(&client, "ana", &json!({"format": format, "names": ["fs.read"]})).await;
        assert_eq!(body["agent"], "ana");
        assert!(body.pointer(schema).is_some_and(|schema| schema.to_string().contains("id")), "{format}: {body}");
        versions.insert(body["version"].as_str().unwrap().to_owned());
    }
    assert_eq!(versions.len(), 1, "a version is of the tools, not of how they are described: {versions:?}");
    let absent = listed(&client, "ana", &json!({})).await;
    assert_eq!(absent, listed(&client, "ana", &json!({"format": "registration"})).await, "the default");
    assert_eq!(names(&absent), ["echo", "fs.read", "fs.write"]);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn binding_and_profile_narrow_a_list_in_header_or_body_and_must_not_differ() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&rules(&backend)).await;
    let with = |header: &str, value: &str, body: Value| list(&client, "ana", &body).header(header, value);
    for request in [
        list(&client, "ana", &json!({"binding": "whatsapp:sales"})),
        with("rb-rb-binding", "whatsapp:sales", json!({})),
        with("rb-binding", "whatsapp:sales", json!({"binding": "whatsapp:sales"})),
    ] {
        assert_eq!(names(&client.exchange(&request).await.body()), ["echo"]);
    }
    for request in [
        list(&client, "ana", &json!({"profile": "scheduled"})),
        with("rb-rb-tool-profile", "scheduled", json!({"profile": "scheduled"})),
    ] {
        assert_eq!(names(&client.exchange(&request).await.body()), ["echo", "fs.read", "fs.write"]);
    }
    let mut errors = Vec::new();
    for request in [
        with("rb-binding", "whatsapp:sales", json!({"binding": "whatsapp:support"})),
        with("rb-tool-profile", "main", json!({"profile": "subagent"})),
    ] {
        let reply = client.exchange(&request).await;
        assert_eq!((reply.code().as_str(), reply.kind()), ("invalid_arguments", "RockBot.Tools.ToolError"));
        errors.push(reply.error());
    }
    insta::assert_snapshot!(errors.join("\n"), @"
    The request is not usable: its header and its body name different bindings; name one.
    The request is not usable: its header and its body name different profiles; name one.
    ");
    daemon.stop(&site).await;
}

#[tokio::test]
async fn names_choose_from_the_list_and_a_known_version_is_not_sent_again() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&rules(&backend)).await;
    let all = listed(&client, "ana", &json!({})).await;
    let llm_name = all["tools"][1]["llmName"].as_str().unwrap();
    for (requested, expected) in [
        (json!([]), vec!["echo", "fs.read", "fs.write"]),
        (json!(["echo", llm_name]), vec!["echo", "fs.read"]),
        (json!(["work", "current_time", "nothing", "fs.*", "ECHO"]), vec![]),
    ] {
        let some = listed(&client, "ana", &json!({"names": requested})).await;
        assert_eq!(names(&some), expected);
        assert_eq!((&some["version"], &some["notice"]), (&all["version"], &Value::Null), "the version is of all tools");
    }
    let known = listed(&client, "ana", &json!({"ifVersion": all["version"]})).await;
    assert_eq!(known, json!({"agent": "ana", "version": all["version"], "tools": [], "notModified": true}));
    let outdated = listed(&client, "ana", &json!({"ifVersion": "0123456789abcdef"})).await;
    assert_eq!(outdated, all);
    let of_bruno = listed(&client, "bruno", &json!({"ifVersion": all["version"]})).await;
    assert_eq!(names(&of_bruno), ["current_time", "work"]);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn an_empty_list_has_a_reason() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&rules(&backend)).await;
    assert_eq!(daemon.operate(&["disable", "agent", "bruno"]).await.code, 0);
    let mut notices = Vec::new();
    for (agent, body) in [
        ("dora", json!({})),
        ("not a name", json!({})),
        ("ana", json!({"profile": "nobody"})),
        ("ana", json!({"binding": "whatsapp:support"})),
        ("bruno", json!({})),
        ("clara", json!({})),
    ] {
        let body = listed(&client, agent, &body).await;
        assert_eq!(body["tools"], json!([]));
        notices.push(format!("{}: {}", body["agent"].as_str().unwrap(), body["notice"].as_str().unwrap()));
    }
    daemon.stop(&site).await;
    let bare = Daemon::start(&site, "[tools]\ntime = false\n").await;
    notices.push(listed(&client, "ana", &json!({})).await["notice"].as_str().unwrap().to_owned());
    insta::assert_snapshot!(notices.join("\n"), @"
    dora: This caller has no tools here: the daemon serves agents that its configuration names, and does not know this one.
    not a name: This caller has no tools here: the daemon serves agents that its configuration names, and does not know this one.
    ana: There is no profile of the name that the request gives; there are main, subagent, scheduled and a2a-synthesis.
    ana: This agent has no binding of the name that the request gives, which is written channel:account.
    bruno: An operator has switched this agent off.
    clara: The policy leaves this caller no tool. Ask an operator to look at `toolbus agents`.
    No tool is registered in this daemon.
    ");
    bare.stop(&site).await;
}

#[tokio::test]
async fn a_peer_requests_by_type_and_gets_the_reply_on_its_topic() {
    let backend = Backend::start().await;
    let (site, daemon, client) = Daemon::with_client(&rules(&backend)).await;
    client.bind("tool.result.ana").await;
    let typed = list(&client, "ana", &json!({})).of_type("Toolbus.ToolListRequest").reply_to("tool.result.ana");
    let reply = client.exchange(&typed).await;
    assert_eq!((reply.routing_key.as_str(), reply.exchange.as_str()), ("tool.result.ana", site.exchange.as_str()));
    assert_eq!(reply.body(), listed(&client, "ana", &json!({})).await, "as a plain client is");
    let shape = |reply: &Message| {
        let properties = &reply.properties;
        let headers = reply.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>();
        json!({"type": reply.kind(), "mode": *properties.delivery_mode(), "headers": headers})
    };
    insta::assert_json_snapshot!(shape(&reply), @r#"
    {
      "headers": [
        "rb-destination: ana",
        "rb-rb-content-trust: tool-output",
        "rb-source: toolbus"
      ],
      "mode": 2,
      "type": "Toolbus.ToolListResponse"
    }
    "#);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn listing_is_limited_where_a_rate_names_it() {
    let rules = "[identity]\ntrust_headers = true\n\
        [agents.ana]\ntool_rate_limits = { \"tool.list\" = { rps = 0.001, burst = 2 }, \"tool.hints\" = { rps = 0.001, burst = 1 } }\n\
        [agents.bob]\n";
    let (site, daemon, client) = Daemon::with_client(rules).await;
    for _ in 0..2 {
        assert_eq!(client.exchange(&list(&client, "ana", &json!({}))).await.kind(), "Toolbus.ToolListResponse");
    }
    let mut refused = client.exchange(&list(&client, "ana", &json!({}))).await.body();
    assert!(refused["retryAfterMs"].take().as_u64().is_some_and(|wait| (900_000..=1_000_000).contains(&wait)));
    refused["toolCallId"].take();
    insta::assert_json_snapshot!(refused, @r#"
    {
      "code": "rate_limited",
      "isRetryable": true,
      "message": "The tools were listed too often. Try again later.",
      "outcome": "not_started",
      "retryAfterMs": null,
      "toolCallId": null,
      "toolName": "tool.list"
    }
    "#);
    assert_eq!(client.exchange(&list(&client, "bob", &json!({}))).await.kind(), "Toolbus.ToolListResponse");
    let hint = |agent| client.raw(r#"{"text":"what time is it"}"#).on("tool.hints").by(agent);
    for (agent, code) in [("ana", ""), ("ana", "rate_limited"), ("bob", ""), ("bob", "")] {
        assert_eq!(client.exchange(&hint(agent)).await.code(), code, "{agent}: hints are counted apart from lists");
    }
    daemon.stop(&site).await;
}
