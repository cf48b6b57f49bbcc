//! Things that a caller may not see and that are, to that caller, like things that do not exist: in every field,
//! property and header of a reply, and in the time that the reply takes.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::message::Message;
use toolbus_testing::patience::eventually;

use crate::adversary::fixture::{Fixture, tool};
use crate::adversary::row::{Sent, call, raw};
use crate::turn;

/// Calls of each kind whose times are compared.
const SAMPLES: usize = 300;

/// Tools that `ana` may not see; nor, as a sub-agent, the last two.
const HIDDEN: [&str; 9] = [
    "transfer_money",
    "get_weathers",
    "whatsapp_send",
    "open",
    "keep",
    "remove",
    "vault_open_717aca2af203",
    "cancel_scheduled_task",
    "mcp_unregister_server",
];

const POLICY: &str = r#"
[invoke]
default_timeout = "110s"
[identity]
trust_headers = true
[agents.ana]
allowed_tools = ["get_weather", "hold", "files.*", "cancel_*", "jobs.*"]
denied_tools = ["files.remove"]
toolsets = ["files", "jobs"]
tool_rate_limits = { "*" = { rps = 0.0001, burst = 1 } }
outbound_allowlist = { whatsapp = ["+573001112233"] }
[agents.bruno]
toolsets = ["vault", "desk"]
[outbound.whatsapp]
tools = ["whatsapp_send"]
recipients = ["/to"]
compare = "digits"
[toolsets.files]
kind = "rest"
endpoints = ["list", "remove"]
[toolsets.jobs]
kind = "rest"
endpoints = ["mcp_unregister_server"]
[toolsets.vault]
kind = "rest"
endpoints = ["open"]
[toolsets.desk]
kind = "rest"
scope = "session"
endpoints = ["keep"]
"#;

fn configuration(backend: &Backend) -> String {
    let names = ["get_weather", "list"].into_iter().chain(HIDDEN);
    let tools: String = names.map(|name| tool(backend, name)).collect();
    format!("{POLICY}{tools}{}", backend.tool("hold", "/gate?id={id}", "timeout = \"100s\""))
}

async fn fixture() -> Fixture {
    Fixture::start(configuration, &HIDDEN).await
}

/// A request for something that is hidden, and for something that is not there.
struct Pair {
    what: &'static str,
    hidden: &'static str,
    unknown: &'static str,
    make: fn(&str) -> Sent,
}

const fn pair(what: &'static str, hidden: &'static str, unknown: &'static str, make: fn(&str) -> Sent) -> Pair {
    Pair { what, hidden, unknown, make }
}

/// Each pair is equally long, and equally far from every name that the caller may see.
const CALLS: [Pair; 14] = [
    pair("a tool", "transfer_money", "transfer_monkey", call),
    pair("a tool near a visible one", "get_weathers", "get_weatherz", call),
    pair("a tool in another case", "TRANSFER_MONEY", "TRANSFER_MONKEY", call),
    pair("a tool near a hidden one", "transfer_mone", "transfer_monk", call),
    pair("a tool with arguments that are no JSON", "transfer_money", "transfer_monkey", |name| {
        raw(json!({"toolName": name, "arguments": "{"}).to_string())
    }),
    pair("a tool that addresses people", "whatsapp_send", "whatsapp_sent", |name| {
        raw(json!({"toolName": name, "arguments": {"to": "+573009998877"}}).to_string())
    }),
    pair("a tool of a set that is not bound", "vault.open", "vaulx.open", call),
    pair("a tool of a set that is not bound, bare", "open", "opem", call),
    pair("a tool by the name that models know", "vault_open_717aca2af203", "vault_open_717aca2af204", call),
    pair("a tool that needs a session", "desk.keep", "desx.keep", call),
    pair("a set without a tool", "vault.", "vaulx.", call),
    pair("a denied tool of a bound set", "files.remove", "files.remoxe", call),
    pair("a tool that the profile hides", "cancel_scheduled_task", "cancel_scheduled_tasx", |name| {
        call(name).header("rb-tool-profile", "subagent")
    }),
    pair(
        "a tool that the profile hides behind a prefix",
        "jobs.mcp_unregister_server",
        "jobs.mcp_unregister_servex",
        |name| call(name).header("rb-tool-profile", "subagent"),
    ),
];

const LISTS: [Pair; 4] = [
    pair("a list of one", "transfer_money", "transfer_monkey", |name| list(&json!([name]))),
    pair("a list with a visible one", "vault.open", "vaulx.open", |name| list(&json!([name, "get_weather"]))),
    pair("a list of a set", "vault", "vaulx", |name| list(&json!([name]))),
    pair("a list under a profile", "cancel_scheduled_task", "cancel_scheduled_tasx", |name| {
        list(&json!([name])).header("rb-tool-profile", "subagent")
    }),
];

fn list(names: &Value) -> Sent {
    raw(json!({"names": names}).to_string()).on("tool.list")
}

/// A reply without what differs between any two: ids, times, and the requested name.
fn shape(message: Message, name: &str) -> Message {
    let blank = |text: &str| text.replace(name, "[the name]");
    let times = ["rb-rb-queue-ms", "rb-rb-duration-ms"];
    let mut body = message.body();
    if let Some(fields) = body.as_object_mut() {
        fields.entry("toolCallId").and_modify(|id| *id = json!("[an id]"));
    }
    let properties = message.properties.clone();
    let properties = properties.with_message_id("[an id]".into()).with_correlation_id("[an id]".into());
    Message {
        properties: properties.with_headers(FieldTable::default()).with_timestamp(0),
        headers: message
            .headers
            .into_iter()
            .map(|(header, value)| if times.contains(&&*header) { (header, String::new()) } else { (header, value) })
            .collect(),
        data: blank(&body.to_string()).into_bytes(),
        ..message
    }
}

impl Pair {
    async fn replies(&self, fixture: &Fixture) -> [Message; 2] {
        let make = async |name| {
            let request = (self.make)(name).request(&fixture.client, &fixture.site);
            shape(fixture.client.exchange(&request).await, name)
        };
        [make(self.hidden).await, make(self.unknown).await]
    }
}

/// Waits until a second has begun without a search for near names: there are five searches in each.
async fn fresh_second(fixture: &Fixture) {
    let is_offered = async || {
        let request = call("get_weatherx").request(&fixture.client, &fixture.site);
        fixture.client.exchange(&request).await.error().contains("'get_weather'")
    };
    eventually("the last search of a second", async || (!is_offered().await).then_some(())).await;
    eventually("the first search of a second", async || is_offered().await.then_some(())).await;
}

#[tokio::test]
async fn a_call_of_a_hidden_tool_gets_the_reply_of_an_unknown_one() {
    let fixture = fixture().await;
    let mut errors = Vec::new();
    for pair in &CALLS {
        fresh_second(&fixture).await;
        let [hidden, unknown] = pair.replies(&fixture).await;
        assert_eq!(hidden, unknown, "{}", pair.what);
        assert_eq!(hidden.kind(), "RockBot.Tools.ToolError", "{}", pair.what);
        errors.push(format!("{}: {} | {}", pair.what, hidden.code(), hidden.error()));
    }
    insta::assert_snapshot!(errors.join("\n"), @"
    a tool: tool_not_found | Tool '[the name]' is not registered.
    a tool near a visible one: tool_not_found | Tool '[the name]' is not registered. Did you mean 'get_weather'?
    a tool in another case: tool_not_found | Tool '[the name]' is not registered.
    a tool near a hidden one: tool_not_found | Tool '[the name]' is not registered.
    a tool with arguments that are no JSON: tool_not_found | Tool '[the name]' is not registered.
    a tool that addresses people: tool_not_found | Tool '[the name]' is not registered.
    a tool of a set that is not bound: tool_not_found | Toolset not found for [the name]
    a tool of a set that is not bound, bare: tool_not_found | Tool '[the name]' is not registered.
    a tool by the name that models know: tool_not_found | Tool '[the name]' is not registered.
    a tool that needs a session: tool_not_found | Toolset not found for [the name]
    a set without a tool: tool_not_found | Toolset not found for [the name]
    a denied tool of a bound set: tool_not_found | Tool '[the name]' is not registered.
    a tool that the profile hides: tool_not_found | Tool '[the name]' is not registered.
    a tool that the profile hides behind a prefix: tool_not_found | Tool '[the name]' is not registered.
    ");
    assert_eq!(fixture.backend.total(), 0);
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_hidden_tool_is_listed_like_an_unknown_one() {
    let fixture = fixture().await;
    for pair in &LISTS {
        let [hidden, unknown] = pair.replies(&fixture).await;
        assert_eq!(hidden, unknown, "{}", pair.what);
        assert_eq!(hidden.kind(), "Toolbus.ToolListResponse", "{}", pair.what);
    }
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn cancelling_a_call_of_another_agent_is_like_cancelling_an_unknown_one() {
    let fixture = fixture().await;
    let body = json!({"toolCallId": "call-1", "toolName": "hold", "arguments": {"id": "held"}});
    let held = raw(body.to_string()).request(&fixture.client, &fixture.site);
    fixture.client.send(&held).await;
    fixture.backend.wait_for("held").await;
    let cancel = pair("a call", "call-1", "call-2", |id| {
        raw(json!({"toolCallId": id}).to_string()).on("tool.cancel").by("bruno")
    });
    let [foreign, unknown] = cancel.replies(&fixture).await;
    assert_eq!(foreign, unknown);
    assert_eq!(foreign.body()["cancelled"], false);
    fixture.backend.open();
    assert_eq!(fixture.client.reply(&held).await.content(), "passed held");
    fixture.daemon.stop(&fixture.site).await;
}

#[tokio::test]
async fn a_hidden_tool_takes_the_time_of_an_unknown_one() {
    let _turn = turn().await;
    let fixture = fixture().await;
    let (_connection, channel) = fixture.site.channel().await;
    let replies = format!("{}-answers", fixture.site.prefix);
    let own = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(replies.as_str().into(), own, FieldTable::default()).await.unwrap();
    let consume = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let consumed = channel.basic_consume(replies.as_str().into(), "".into(), consume, FieldTable::default());
    let mut received = consumed.await.unwrap();
    for pair in [&CALLS[0], &CALLS[6], &CALLS[11], &LISTS[0]] {
        let mut times = [Vec::new(), Vec::new()];
        for number in 0..2 * SAMPLES {
            let which = number % 2;
            let sent = (pair.make)([pair.hidden, pair.unknown][which]).reply_to(&replies);
            let (request, started) = (sent.request(&fixture.client, &fixture.site), Instant::now());
            fixture.client.send(&request).await;
            received.next().await.unwrap().unwrap();
            times[which].push(started.elapsed());
        }
        let [hidden, unknown] = times.map(median);
        println!("{}: {hidden:?} hidden, {unknown:?} unknown", pair.what);
        let allowed = (hidden.max(unknown) / 4).max(Duration::from_micros(200));
        assert!(hidden.abs_diff(unknown) < allowed, "{}: {hidden:?} hidden, {unknown:?} unknown", pair.what);
    }
    fixture.daemon.stop(&fixture.site).await;
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
