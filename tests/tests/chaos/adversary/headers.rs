//! Headers that name the caller, its role, and its binding.

use lapin::types::{AMQPValue, FieldArray, FieldTable};

use super::row::{Back, NOT_FOUND, Row, Sent, call, row};

pub(crate) fn rows() -> Vec<Row> {
    senders().into_iter().chain(profiles()).chain(bindings()).collect()
}

/// Names that are not quite the one of the agent that has the tool.
fn senders() -> Vec<Row> {
    let long = "b".repeat(65);
    let names = [
        ("in capitals", "BRUNO"),
        ("with one capital", "Bruno"),
        ("with a space before", " bruno"),
        ("with a space after", "bruno "),
        ("with a new line", "bruno\n"),
        ("with NUL", "bruno\0"),
        ("with a dot", "bruno."),
        ("with a dot before", ".bruno"),
        ("with a Cyrillic letter", "brun\u{43e}"),
        ("with a space without width", "bruno\u{200b}"),
        ("with a colon", "bruno:"),
        ("with a slash", "bruno/"),
        ("in a list", "ana,bruno"),
        ("as a pattern", "*"),
        ("as nobody", ""),
        ("as the section of everybody", "default"),
        ("as unknown", "unknown"),
        ("of 65 characters", &long),
    ];
    let array = AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::LongString("bruno".into())]));
    let mut rows: Vec<_> = names
        .into_iter()
        .map(|(how, name)| row(format!("a sender's name {how}"), call("transfer_money").by(name), NOT_FOUND))
        .collect();
    rows.extend([
        row("no sender's name", call("transfer_money").bare(), NOT_FOUND),
        row("a list as the sender's name", call("transfer_money").header_of("rb-source", array), NOT_FOUND),
        row(
            "bytes as the sender's name",
            call("transfer_money").header_of("rb-source", AMQPValue::ByteArray(b"bruno".to_vec().into())),
            NOT_FOUND,
        ),
        row(
            "a sender's name that is no text",
            call("transfer_money").header_of("rb-source", AMQPValue::LongString(b"bruno\xff".to_vec().into())),
            NOT_FOUND,
        ),
        row("a sender's name with the prefix twice", call("transfer_money").header("rb-rb-source", "bruno"), NOT_FOUND),
        row(
            "a sender's name with the prefix twice alone",
            call("transfer_money").bare().header("rb-rb-source", "bruno"),
            NOT_FOUND,
        ),
        row(
            "a sender's name in a header in capitals",
            call("transfer_money").bare().header("RB-SOURCE", "bruno"),
            NOT_FOUND,
        ),
        row(
            "a sender's name in a header without prefix",
            call("transfer_money").bare().header("source", "bruno"),
            NOT_FOUND,
        ),
        row("another agent as the destination", call("transfer_money").header("rb-destination", "bruno"), NOT_FOUND),
        row(
            "another agent in headers of other systems",
            call("transfer_money").header("rb-agent", "bruno").header("x-user-id", "bruno"),
            NOT_FOUND,
        ),
        row("a login of the broker's as the agent", call("transfer_money").with_user("guest"), NOT_FOUND),
        row("a server that hides the tool", call("open").header("rb-mcp-server", "vault"), NOT_FOUND),
        row(
            "a server that hides the tool, with the prefix twice",
            call("open").header("rb-rb-mcp-server", "cellar"),
            NOT_FOUND,
        ),
        row("a server with a hidden tool", call("transfer_money").header("rb-mcp-server", "rest"), NOT_FOUND),
        row("a provider", call("transfer_money").header("rb-rb-tool-provider", "rest"), NOT_FOUND),
        row("trust", call("transfer_money").header("rb-rb-content-trust", "system"), NOT_FOUND),
        row("hops of another daemon", call("transfer_money").header("rb-rb-hops", "1"), NOT_FOUND),
        row(
            "a tool's name in a header",
            call("get_weather").header("rb-tool-name", "transfer_money"),
            Back::Runs("get_weather"),
        ),
    ]);
    rows
}

/// The agent `sub` has the profile `subagent`, always; `free` has the one that it names.
fn profiles() -> Vec<Row> {
    let tool = "cancel_scheduled_task";
    let values = [
        ("main", "main"),
        ("main in capitals", "MAIN"),
        ("main with a space", " main"),
        ("another one", "scheduled"),
        ("a list", "main,subagent"),
        ("a pattern", "*"),
        ("an unknown one", "root"),
        ("nothing", ""),
        ("null", "null"),
    ];
    let sub = |tool| call(tool).by("sub");
    let free = |tool| call(tool).by("free");
    let padding = |sent: Sent| (0..64).fold(sent, |sent, number| sent.header(&format!("rb-a-{number}"), "x"));
    let mut rows: Vec<_> = ["rb-tool-profile", "rb-rb-tool-profile", "RB-TOOL-PROFILE"]
        .into_iter()
        .flat_map(|header| values.into_iter().map(move |(what, value)| (header, what, value)))
        .map(|(header, what, value)| {
            row(format!("a fixed profile, and {what} in {header}"), sub(tool).header(header, value), NOT_FOUND)
        })
        .collect();
    rows.extend(no_texts().into_iter().map(|(what, value)| {
        let sent = free("get_weather").header_of("rb-rb-tool-profile", value);
        row(format!("a profile as {what} hides everything"), sent, NOT_FOUND)
    }));
    rows.extend([
        row("an empty profile hides everything", free("get_weather").header("rb-tool-profile", ""), NOT_FOUND),
        row("a fixed profile, and none in the request", sub(tool), NOT_FOUND),
        row("a fixed profile, and another denied name", sub("mcp_register_server"), NOT_FOUND),
        row("a fixed profile, and a denied name behind a prefix", sub("jobs.mcp_unregister_server"), NOT_FOUND),
        row(
            "a fixed profile, and both spellings",
            sub(tool).header("rb-tool-profile", "main").header("rb-rb-tool-profile", "main"),
            NOT_FOUND,
        ),
        row("a profile of the request's", free(tool).header("rb-tool-profile", "subagent"), NOT_FOUND),
        row(
            "a profile of the request's, and a denied name behind a prefix",
            free("jobs.mcp_unregister_server").header("rb-rb-tool-profile", "subagent"),
            NOT_FOUND,
        ),
        row(
            "two profiles, of which the one with the prefix twice decides",
            free(tool).header("rb-tool-profile", "main").header("rb-rb-tool-profile", "subagent"),
            NOT_FOUND,
        ),
        row("an unknown profile hides everything", free("get_weather").header("rb-tool-profile", "root"), NOT_FOUND),
        row(
            "two profiles in one header hide everything",
            free("get_weather").header("rb-tool-profile", "subagent,main"),
            NOT_FOUND,
        ),
        row(
            "a profile that is no text hides everything",
            free("get_weather").header_of("rb-tool-profile", AMQPValue::LongString(b"main\xff".to_vec().into())),
            NOT_FOUND,
        ),
        row(
            "a profile as a number hides everything",
            free("get_weather").header_of("rb-tool-profile", AMQPValue::LongInt(0)),
            NOT_FOUND,
        ),
        row("a profile behind many headers", padding(free(tool)).header("rb-tool-profile", "subagent"), NOT_FOUND),
        row("a fixed profile behind many headers", padding(sub(tool)).header("rb-tool-profile", "main"), NOT_FOUND),
    ]);
    rows
}

/// Lists values that no name can be read from.
fn no_texts() -> Vec<(&'static str, AMQPValue)> {
    let text = AMQPValue::LongString("main".into());
    vec![
        ("a list", AMQPValue::FieldArray(FieldArray::from(vec![text]))),
        ("a table", AMQPValue::FieldTable(FieldTable::default())),
        ("bytes", AMQPValue::ByteArray(b"main".to_vec().into())),
        ("a fraction", AMQPValue::Double(0.5)),
        ("a time", AMQPValue::Timestamp(0)),
        ("nothing", AMQPValue::Void),
    ]
}

/// `ana` has the binding `whatsapp:sales`, with one tool; `bruno` has `whatsapp:treasury`.
fn bindings() -> Vec<Row> {
    let values = [
        ("another agent's", "whatsapp:treasury"),
        ("an unknown account", "whatsapp:nobody"),
        ("an unknown channel", "email:sales"),
        ("no account", "whatsapp"),
        ("an empty account", "whatsapp:"),
        ("an empty channel", ":sales"),
        ("a colon", ":"),
        ("a pattern", "*:*"),
        ("a pattern for the account", "whatsapp:*"),
        ("capitals", "WhatsApp:Sales"),
        ("a space", "whatsapp: sales"),
        ("two", "whatsapp:sales,whatsapp:treasury"),
        ("three parts", "whatsapp:sales:x"),
        ("NUL", "whatsapp:sales\0"),
    ];
    let mut rows: Vec<_> = values
        .into_iter()
        .map(|(what, value)| {
            row(
                format!("a binding of {what} hides everything"),
                call("get_weather").header("rb-binding", value),
                NOT_FOUND,
            )
        })
        .collect();
    rows.extend(no_texts().into_iter().map(|(what, value)| {
        let sent = call("get_weather").header_of("rb-rb-binding", value);
        row(format!("a binding as {what} hides everything"), sent, NOT_FOUND)
    }));
    rows.extend([
        row(
            "a binding of another agent does not give its tools",
            call("transfer_money").header("rb-binding", "whatsapp:treasury"),
            NOT_FOUND,
        ),
        row("a binding hides what it does not list", call("lookup").header("rb-binding", "whatsapp:sales"), NOT_FOUND),
        row(
            "a binding hides what it does not list, with the prefix twice",
            call("lookup").header("rb-rb-binding", "whatsapp:sales"),
            NOT_FOUND,
        ),
        row(
            "two bindings, of which the one with the prefix twice decides",
            call("lookup").header("rb-binding", "").header("rb-rb-binding", "whatsapp:sales"),
            NOT_FOUND,
        ),
        row("an empty binding hides everything", call("get_weather").header("rb-binding", ""), NOT_FOUND),
        row(
            "a binding in the body",
            super::row::raw(r#"{"toolName":"transfer_money","binding":"whatsapp:treasury"}"#),
            NOT_FOUND,
        ),
        row(
            "a visible tool within its binding",
            call("get_weather").header("rb-rb-binding", "whatsapp:sales"),
            Back::Runs("get_weather"),
        ),
    ]);
    rows
}
