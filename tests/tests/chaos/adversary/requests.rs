//! Small requests about another agent's calls and sessions, refused reply addresses, and messages that are no requests.

use serde_json::json;

use super::row::{Back, NO_ADDRESS, NOT_FOUND, Row, Sent, call, raw, row};

pub(crate) fn rows() -> Vec<Row> {
    cancels().into_iter().chain(session_ends()).chain(lists()).chain(addresses()).chain(types()).collect()
}

fn cancel(id: &str) -> Sent {
    raw(json!({"toolCallId": id}).to_string()).on("tool.cancel").by("bruno")
}

/// `ana` has a call under way with the id `call-of-ana`.
fn cancels() -> Vec<Row> {
    let ids = [
        ("as it is", "call-of-ana"),
        ("in capitals", "CALL-OF-ANA"),
        ("with a space", "call-of-ana "),
        ("with its owner", "ana:call-of-ana"),
        ("with its owner and NUL", "ana\0call-of-ana"),
        ("as a pattern", "*"),
        ("that nobody has", "no-such-call"),
    ];
    let mut rows: Vec<_> = ids
        .into_iter()
        .map(|(how, id)| {
            let back = Back::Body(json!({"toolCallId": id, "cancelled": false}));
            row(format!("cancelling another agent's call by its id {how}"), cancel(id), back)
        })
        .collect();
    let unharmed = Back::Body(json!({"toolCallId": "call-of-ana", "cancelled": false}));
    rows.extend([
        row("cancelling another agent's call as nobody", cancel("call-of-ana").bare(), unharmed.clone()),
        row(
            "cancelling another agent's call under its name in another case",
            cancel("call-of-ana").by("Ana"),
            unharmed.clone(),
        ),
        row(
            "cancelling another agent's call under its name with a space",
            cancel("call-of-ana").by("ana "),
            unharmed.clone(),
        ),
        row(
            "cancelling another agent's call under its name with the prefix twice",
            cancel("call-of-ana").header("rb-rb-source", "ana"),
            unharmed.clone(),
        ),
        row(
            "cancelling another agent's call, naming the agent in the body",
            raw(r#"{"toolCallId":"call-of-ana","agent":"ana","caller":"ana"}"#).on("tool.cancel").by("bruno"),
            unharmed,
        ),
        row(
            "cancelling with two ids",
            raw(r#"{"toolCallId":"mine","ToolCallId":"call-of-ana"}"#).on("tool.cancel").by("bruno"),
            Back::Nothing,
        ),
        row(
            "cancelling with a list of ids",
            raw(r#"{"toolCallId":["call-of-ana"]}"#).on("tool.cancel").by("bruno"),
            Back::Nothing,
        ),
        row("cancelling without an id", raw("{}").on("tool.cancel").by("bruno"), Back::Nothing),
        row(
            "cancelling by an answer",
            cancel("call-of-ana").by("ana").of_type("Toolbus.ToolCancelResponse"),
            Back::Nothing,
        ),
        row(
            "cancelling by a message of another type",
            cancel("call-of-ana").by("ana").of_type("RockBot.Other"),
            Back::Nothing,
        ),
    ]);
    rows
}

/// `ana` has a session `session-of-ana`, in which a call is under way.
fn session_ends() -> Vec<Row> {
    let end = |body: &str| raw(body).on("tool.session.end").by("bruno");
    let own = r#"{"sessionId":"session-of-ana"}"#;
    let rows = [
        ("as it is", end(own)),
        ("as nobody", end(own).bare()),
        ("under its name in another case", end(own).by("ANA")),
        ("under its name with a space", end(own).by(" ana")),
        ("with its owner", end(r#"{"sessionId":"ana:session-of-ana"}"#)),
        ("as a pattern", end(r#"{"sessionId":"*"}"#)),
        ("in a list", end(r#"{"sessionId":["session-of-ana"]}"#)),
        ("twice", end(r#"{"sessionId":"x","SessionId":"session-of-ana"}"#)),
        ("by a message of another type", end(own).by("ana").of_type("Toolbus.Ping")),
    ];
    let mut rows: Vec<_> = rows
        .into_iter()
        .map(|(how, sent)| row(format!("ending another agent's session {how}"), sent, Back::Nothing))
        .collect();
    let within = |tool: &str| raw(json!({"toolName": tool, "sessionId": "session-of-ana"}).to_string());
    rows.extend([
        row("another agent's session does not give its tool sets", within("desk.keep").by("sub"), NOT_FOUND),
        row("the session of an agent with more does not give its tools", within("vault.open"), NOT_FOUND),
    ]);
    rows
}

fn lists() -> Vec<Row> {
    let list = |body: &str| raw(body).on("tool.list");
    let sub = |body: &str| list(body).by("sub");
    let contradiction = Back::Refused("invalid_arguments");
    vec![
        row("listing a hidden tool by name", list(r#"{"names":["transfer_money"]}"#), Back::Lists(&[])),
        row(
            "listing a hidden tool beside a visible one",
            list(r#"{"names":["transfer_money","get_weather"]}"#),
            Back::Lists(&["get_weather"]),
        ),
        row(
            "listing a hidden tool by the name that models know",
            list(r#"{"names":["vault.open","cellar.open","open"]}"#),
            Back::Lists(&[]),
        ),
        row(
            "listing a denied tool of a bound set",
            list(r#"{"names":["files.remove","files_delete_4ef426bd4c42"]}"#),
            Back::Lists(&[]),
        ),
        row("listing by a pattern", list(r#"{"names":["*","transfer_*"]}"#), Back::Lists(&[])),
        row("listing in another case", list(r#"{"names":["TRANSFER_MONEY","GET_WEATHER"]}"#), Back::Lists(&[])),
        row(
            "listing a hidden tool for a model",
            list(r#"{"names":["transfer_money"],"format":"anthropic"}"#),
            Back::Lists(&[]),
        ),
        row(
            "listing as another agent, by the body",
            list(r#"{"agent":"bruno","names":["transfer_money"]}"#),
            Back::Lists(&[]),
        ),
        row(
            "listing in another agent's session",
            list(r#"{"sessionId":"session-of-bruno","names":["vault.open"]}"#),
            Back::Lists(&[]),
        ),
        row("listing under another agent's binding", list(r#"{"binding":"whatsapp:treasury"}"#), Back::Lists(&[])),
        row("listing under a binding by a pattern", list(r#"{"binding":"whatsapp:*"}"#), Back::Lists(&[])),
        row("listing under a binding", list(r#"{"binding":"whatsapp:sales"}"#), Back::Lists(&["get_weather"])),
        row("listing under an unknown profile", list(r#"{"profile":"root"}"#), Back::Lists(&[])),
        row(
            "listing under another profile than the fixed one",
            sub(
                r#"{"profile":"main","names":["cancel_scheduled_task","mcp_register_server","jobs.mcp_unregister_server"]}"#,
            ),
            Back::Lists(&[]),
        ),
        row(
            "listing under another profile than the fixed one, by a header",
            sub(r#"{"names":["cancel_scheduled_task","get_weather"]}"#).header("rb-rb-tool-profile", "main"),
            Back::Lists(&["get_weather"]),
        ),
        row(
            "listing under two profiles",
            sub(r#"{"profile":"main"}"#).header("rb-tool-profile", "subagent"),
            contradiction.clone(),
        ),
        row(
            "listing under two bindings",
            list(r#"{"binding":"whatsapp:sales"}"#).header("rb-binding", "whatsapp:treasury"),
            contradiction.clone(),
        ),
        row("listing under a profile twice", sub(r#"{"profile":"subagent","Profile":"main"}"#), contradiction),
        row("listing as nobody", list("{}").bare(), Back::Lists(&[])),
        row("listing under a name with a space", list("{}").by("bruno "), Back::Lists(&[])),
    ]
}

fn addresses() -> Vec<Row> {
    let addresses = [
        "tool.invoke",
        "tool.invoke.mcp",
        "tool.invoke.agent.bruno",
        "tool.cancel",
        "tool.list",
        "tool.hints",
        "tool.ping",
        "tool.session.end",
        "mcp.manage",
        "script.invoke",
        "agent.task.bruno",
        "scheduled.task.bruno",
        "discovery.announce",
        "{prefix}.invoke",
        "{prefix}.invoke.dlq",
        "{prefix}.control",
        "toolbus.invoke",
        "rockbot.agent",
    ];
    let kinds = ["", "RockBot.Tools.ToolInvokeRequest"];
    let mut rows: Vec<_> = addresses
        .into_iter()
        .flat_map(|address| kinds.into_iter().map(move |kind| (address, kind)))
        .map(|(address, kind)| {
            let what = format!("an answer to {address}, asked for by a message of type '{kind}'");
            row(what, call("get_weather").of_type(kind).reply_to(address), NO_ADDRESS)
        })
        .collect();
    rows.extend([
        row("a list to a topic of requests", raw("{}").on("tool.list").reply_to("tool.invoke"), NO_ADDRESS),
        row("a pong to a queue of the daemon", raw("{}").on("tool.ping").reply_to("{prefix}.invoke"), NO_ADDRESS),
        row(
            "a cancelling answered on a topic of requests",
            cancel("call-of-ana").by("ana").reply_to("tool.invoke"),
            Back::Nothing,
        ),
    ]);
    rows
}

fn types() -> Vec<Row> {
    let replies = [
        "RockBot.Tools.ToolInvokeResponse",
        "RockBot.Tools.ToolError",
        "rockbot.tools.toolinvokeresponse",
        "Toolbus.ToolCancelResponse",
        "Toolbus.ToolsChanged",
        "Toolbus.ToolProgress",
        "RockBot.A2A.AgentCard",
    ];
    let foreign =
        ["RockBot.Scripts.ScriptInvokeRequest", "Toolbus.ToolCancelRequest", "Toolbus.Nothing", "ROCKBOT.Admin"];
    let mut rows: Vec<_> = replies
        .into_iter()
        .map(|kind| {
            row(format!("a call in a message of type {kind}"), call("get_weather").of_type(kind), Back::Nothing)
        })
        .collect();
    rows.extend(foreign.into_iter().map(|kind| {
        row(
            format!("a call in a message of type {kind}"),
            call("get_weather").of_type(kind),
            Back::Dead("unknown_type"),
        )
    }));
    rows.extend([
        row(
            "a list of tools in a message that asks for one",
            raw("{}").on("tool.list").of_type("Toolbus.ToolListResponse"),
            Back::Nothing,
        ),
        row(
            "a call on the topic of lists",
            raw("{}").on("tool.list").of_type("RockBot.Tools.ToolInvokeRequest"),
            Back::Dead("unknown_type"),
        ),
        row(
            "a plain call on the topic of lists",
            call("transfer_money").on("tool.list"),
            Back::Lists(&[
                "desk.keep",
                "files.list",
                "files.stamp",
                "get_weather",
                "hold",
                "lookup",
                "read_note",
                "send_message",
                "vault_open_717aca2af203",
            ]),
        ),
        row(
            "a hidden tool in a message of a type of one's own",
            call("transfer_money").of_type("my.own.Type"),
            NOT_FOUND,
        ),
    ]);
    rows
}
