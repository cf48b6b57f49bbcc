//! Settings for an agent when it calls: its recipients, arguments that it does not choose, its own credentials.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::daemon::Daemon;

const TWO: &str = concat!(
    r#"{"type":"object","properties":{"id":{"type":"string"},"tenant":{"type":"string"}},"#,
    r#""required":["id","tenant"],"additionalProperties":false}"#
);
const MESSAGE: &str = concat!(
    r#"{"type":"object","properties":{"id":{"type":"string"},"to":{"type":"string"},"#,
    r#""cc":{"type":"array","items":{"type":"string"}}},"required":["id"]}"#
);

fn by(client: &Client, agent: &str, tool: &str, arguments: &Value) -> Request {
    client.request(tool, arguments).by(agent)
}

#[tokio::test]
async fn an_agent_addresses_only_permitted_recipients() {
    let backend = Backend::start().await;
    let rules = r#"
        [identity]
        trust_headers = true
        [outbound.whatsapp]
        tools = ["send_*"]
        recipients = ["/to", "/cc/*"]
        compare = "digits"
        [agents.ana]
        outbound_allowlist = { whatsapp = ["+57 300 111 2233", "573004445566"] }
        [[agents.ana.bindings]]
        channel = "whatsapp"
        account = "sales"
        outbound_allowlist = { whatsapp = ["+573007778899"] }
        [agents.bruno]
    "#;
    let rules = format!(
        "{rules}\n{}",
        backend.endpoint("send_message", "/work?id={id}", MESSAGE, "body = \"json\"\nmethod = \"POST\"")
    );
    let (site, daemon, client) = Daemon::with_client(&rules).await;
    let send = |agent: &str, id: &str, to: Value| {
        let mut arguments = json!({"id": id});
        arguments.as_object_mut().unwrap().extend(to.as_object().unwrap().clone());
        by(&client, agent, "send_message", &arguments)
    };
    let allowed = [
        send("ana", "1", json!({"to": "+573001112233"})),
        send("ana", "2", json!({"to": "(57) 300-111-2233", "cc": ["573004445566"]})),
        send("ana", "3", json!({"cc": ["+57.300.444.5566"]})),
        send("ana", "4", json!({"to": "573007778899"})).header("rb-binding", "whatsapp:sales"),
        send("bruno", "5", json!({"to": "anybody"})),
        send("bruno", "6", json!({})),
    ];
    for (number, request) in allowed.iter().enumerate() {
        assert_eq!(client.exchange(request).await.content(), format!("worked for {}", number + 1));
    }
    let refused = [
        send("ana", "no", json!({"to": "+573007778899"})),
        send("ana", "no", json!({"to": "+573001112233"})).header("rb-binding", "whatsapp:sales"),
        send("ana", "no", json!({"to": "+573001112233", "cc": ["+573004445566", "+15550100"]})),
        send("ana", "no", json!({"to": "+573001112233,+15550100"})),
        send("ana", "no", json!({})),
        send("ana", "no", json!({"cc": []})),
    ];
    let mut messages = Vec::new();
    for request in &refused {
        let mut body = client.exchange(request).await.body();
        assert_eq!(
            (&body["code"], &body["isRetryable"], &body["outcome"]),
            (&json!("not_allowed"), &json!(false), &json!("not_started"))
        );
        messages.push(body["message"].take().as_str().unwrap().to_owned());
    }
    insta::assert_snapshot!(messages.join("\n"), @"
    The recipient at '/to' is not in the list of those that this agent may address on whatsapp.
    The recipient at '/to' is not in the list of those that this agent may address on whatsapp.
    The recipient at '/cc/*' is not in the list of those that this agent may address on whatsapp.
    The value at '/to' cannot be compared with the list of those that this agent may address on whatsapp: expected one telephone number in digits, such as '+57 300 111 2233', or one WhatsApp id.
    The call names no recipient on whatsapp: expected one at '/to' or '/cc/*'.
    The call names no recipient on whatsapp: expected one at '/to' or '/cc/*'.
    ");
    assert_eq!((backend.count("no"), backend.total()), (0, allowed.len()));
    daemon.stop(&site).await;
}

#[tokio::test]
async fn arguments_that_are_set_reach_the_backend_and_are_neither_shown_nor_taken() {
    let backend = Backend::start().await;
    let rules = "[identity]\ntrust_headers = true\n[agents.ana]\narguments = { \"note*\" = { tenant = \"acme\" } }\n\
                 [agents.bruno]\n";
    let tool = backend.endpoint("notes", "/work?id={id}-{tenant}", TWO, "");
    let (site, daemon, client) = Daemon::with_client(&format!("{rules}{tool}")).await;
    let reply = client.exchange(&by(&client, "ana", "notes", &json!({"id": "a"}))).await;
    assert_eq!(reply.content(), "worked for a-acme");
    // The list hides set arguments; an agent without set ones must give them.
    let schema = async |agent: &str| {
        let list = client.exchange(&client.raw(r#"{"names":["notes"]}"#).on("tool.list").by(agent)).await.body();
        assert!(agent != "ana" || !list.to_string().contains("tenant") && !list.to_string().contains("acme"), "{list}");
        serde_json::from_str::<Value>(list["tools"][0]["parametersSchema"].as_str().unwrap()).unwrap()
    };
    assert_eq!(schema("ana").await["required"], json!(["id"]));
    assert_eq!(schema("bruno").await["required"], json!(["id", "tenant"]));
    let given = by(&client, "bruno", "notes", &json!({"id": "b", "tenant": "own"}));
    assert_eq!(client.exchange(&given).await.content(), "worked for b-own");

    let mut errors = Vec::new();
    for value in ["acme", "other"] {
        let reply = client.exchange(&by(&client, "ana", "notes", &json!({"id": "c", "tenant": value}))).await;
        assert_eq!(reply.code(), "invalid_arguments");
        errors.push(reply.error());
    }
    assert_eq!(errors[0], errors[1], "not even whether it was guessed");
    insta::assert_snapshot!(errors[0], @"The argument `tenant` is set by the operator. Leave it out.");
    assert_eq!(backend.total(), 2);
    daemon.stop(&site).await;
}

#[tokio::test]
async fn each_agent_reaches_the_backend_with_its_own_credentials_or_not_at_all() {
    let backend = Backend::start().await;
    let auths = [
        (
            "bearer",
            r#"{ type = "bearer", per_agent = { ana = { token = "of-ana" }, bruno = { token = "of-bruno" } } }"#,
        ),
        ("key", r#"{ type = "api_key", header = "X-Key", per_agent = { ana = { key = "key-of-ana" } } }"#),
    ];
    let tools = auths.map(|(name, auth)| backend.tool(name, "/work?id={id}", &format!("auth = {auth}")));
    let rules = "[identity]\ntrust_headers = true\nunknown = \"default\"\n[agents.ana]\n[agents.bruno]\n";
    let (site, daemon, client) = Daemon::with_client(&format!("{rules}{}", tools.concat())).await;
    let call =
        async |agent: &str, tool: &str, id: &str| client.exchange(&by(&client, agent, tool, &json!({"id": id}))).await;
    let seen = |id: &str, header: &str| {
        backend.headers(id).get(header).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    for (agent, tool, id, header, expected) in [
        ("ana", "bearer", "1", "authorization", "Bearer of-ana"),
        ("bruno", "bearer", "2", "authorization", "Bearer of-bruno"),
        ("ana", "bearer", "3", "authorization", "Bearer of-ana"),
        ("ana", "key", "4", "x-key", "key-of-ana"),
    ] {
        assert_eq!(call(agent, tool, id).await.content(), format!("worked for {id}"));
        assert_eq!(seen(id, header), expected, "{agent} calls {tool}");
    }
    let mut messages = Vec::new();
    for (agent, tool) in [("bruno", "key"), ("dora", "key"), ("dora", "bearer"), ("ANA", "bearer")] {
        let body = call(agent, tool, "none").await.body();
        assert_eq!((&body["isRetryable"], &body["outcome"]), (&json!(false), &json!("not_started")));
        messages.push(format!("{agent}: {}: {}", body["code"].as_str().unwrap(), body["message"].as_str().unwrap()));
    }
    insta::assert_snapshot!(messages.join("\n"), @"
    bruno: auth_required: Tool 'key' needs credentials of the agent that calls it, and has none for this one. Only an operator can add them.
    dora: auth_required: Tool 'key' needs credentials of the agent that calls it, and has none for this one. Only an operator can add them.
    dora: auth_required: Tool 'bearer' needs credentials of the agent that calls it, and has none for this one. Only an operator can add them.
    ANA: auth_required: Tool 'bearer' needs credentials of the agent that calls it, and has none for this one. Only an operator can add them.
    ");
    assert_eq!((backend.count("none"), backend.total()), (0, 4));
    assert!(!daemon.text().contains("of-ana") && !daemon.text().contains("of-bruno"), "{}", daemon.text());
    daemon.stop(&site).await;
}
