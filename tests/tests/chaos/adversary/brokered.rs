//! Where the broker names the sender, nothing in a message does.

use serde_json::json;
use toolbus_e2e::backend::Backend;

use super::fixture::{Fixture, tool};
use super::row::{Back, NO_ADDRESS, NOT_FOUND, Row, Sent, call, raw, row};

/// The login of these tests is the agent `ana`; `bruno` has the hidden tool.
fn configuration(backend: &Backend) -> String {
    let policy = r#"
[identity]
source = "broker"
users = { guest = "ana" }
[agents.ana]
allowed_tools = ["get_weather"]
[agents.bruno]
"#;
    format!("{policy}{}{}", tool(backend, "get_weather"), tool(backend, "transfer_money"))
}

fn ana(sent: Sent) -> Sent {
    sent.bare().with_user("guest")
}

fn rows() -> Vec<Row> {
    let visible = || ana(call("get_weather"));
    let hidden = || ana(call("transfer_money"));
    let peer = |address: &str| visible().of_type("RockBot.Tools.ToolInvokeRequest").reply_to(address);
    let cancel = |id: &str| raw(json!({"toolCallId": id}).to_string()).on("tool.cancel");
    vec![
        row("a visible tool", visible(), Back::Runs("get_weather")),
        row("a hidden tool", hidden(), NOT_FOUND),
        row("a hidden tool, under the name of the agent that has it", hidden().by("bruno"), NOT_FOUND),
        row("a visible tool, under another name", visible().by("bruno"), Back::Runs("get_weather")),
        row("a name that the broker does not vouch for", call("get_weather").by("ana"), NOT_FOUND),
        row("the name of the agent that has it, not vouched for", call("transfer_money").by("bruno"), NOT_FOUND),
        row("the login as a name", call("get_weather").by("guest"), NOT_FOUND),
        row("nobody", call("get_weather").bare(), NOT_FOUND),
        row("another agent's topic", peer("tool.result.bruno"), NO_ADDRESS),
        row("another agent's topic that begins with one's own", peer("tool.result.ana.bruno"), NO_ADDRESS),
        row("a topic that ends like one's own", peer("tool.result.bruno-ana"), NO_ADDRESS),
        row("one's own topic in another case", peer("tool.result.ANA"), NO_ADDRESS),
        row("the topic of everybody", peer("tool.result"), NO_ADDRESS),
        row("another agent's topic, by a plain client", visible().reply_to("tool.result.bruno"), NO_ADDRESS),
        row("another agent's topic of agents", peer("agent.response.bruno"), NO_ADDRESS),
        row("another agent's topic, under its name", peer("tool.result.bruno").by("bruno"), NO_ADDRESS),
        row("a topic of an unknown caller's", call("get_weather").by("ana").reply_to("tool.result.ana"), NO_ADDRESS),
        row(
            "a list to another agent's topic",
            ana(raw("{}").on("tool.list")).reply_to("tool.result.bruno"),
            NO_ADDRESS,
        ),
        row(
            "a list under another name",
            ana(raw("{}").on("tool.list")).by("bruno"),
            Back::Lists(&["get_weather", "hold"]),
        ),
        row("a list for nobody", raw("{}").on("tool.list").by("bruno"), Back::Lists(&[])),
        row(
            "cancelling under the name of the agent whose call it is",
            cancel("call-of-ana").by("ana"),
            Back::Body(json!({"toolCallId": "call-of-ana", "cancelled": false})),
        ),
    ]
}

#[tokio::test]
async fn where_the_broker_names_the_sender_no_message_names_another() {
    let hold = |backend: &Backend| backend.tool("hold", "/gate?id={id}", "timeout = \"100s\"");
    let with_hold = |backend: &Backend| {
        configuration(backend).replace(r#"["get_weather"]"#, r#"["get_weather", "hold"]"#) + &hold(backend)
    };
    let fixture = Fixture::start(with_hold, &["transfer_money"]).await;
    let body = json!({"toolCallId": "call-of-ana", "toolName": "hold", "arguments": {"id": "held"}});
    let held = ana(raw(body.to_string())).request(&fixture.client, &fixture.site);
    fixture.client.send(&held).await;
    fixture.backend.wait_for("held").await;
    fixture.check(&rows()).await;
    fixture.backend.open();
    assert_eq!(fixture.client.reply(&held).await.content(), "passed held");
    fixture.daemon.stop(&fixture.site).await;
}
