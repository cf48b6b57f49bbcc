use serde_json::{Map, Value, json};

use crate::header;

/// Headers of messages to a daemon, with their meanings.
const READ: [(&str, &str); 13] = [
    (header::SOURCE, "The sender's name. It is not verified."),
    (header::TIMEOUT_MS, "Time that the caller allows, in milliseconds, more than 0."),
    (header::TOOL_PROFILE, "The requested profile, which restricts the tools. An unknown one leaves none."),
    (header::BINDING, "The requested binding, as `channel:account`. An unknown one leaves no tools."),
    (header::MCP_SERVER, "The MCP server whose tool is called, in any case; `toolName` is then the server's own name."),
    (header::HOPS, "Daemons that have passed the call on, 0 to 4."),
    (
        header::IDEMPOTENCY_KEY,
        "What identifies the request instead of its `message_id`: a text of 1 to 255 bytes, or `tool-call-id` for its `toolCallId`.",
    ),
    (header::MODEL, "The model that the caller works for, by which long results are split."),
    (header::PROGRESS, "`1`: send `ToolProgress`."),
    (header::STRUCTURED_CONTENT, "`1`: send the structured part of a result in `contentBlocks`."),
    (header::RESOURCE_LINKS, "`1`: send a link to each part of a result that was split, in `contentBlocks`."),
    (header::TRACEPARENT, "W3C Trace Context; also read as `rb-traceparent`, which comes first."),
    (header::TRACESTATE, "W3C Trace Context, up to 512 bytes; also read as `rb-tracestate`, which comes first."),
];

/// Headers of messages from a daemon, by their names in the envelope, with their meanings.
const WRITTEN: [(&str, &str); 13] = [
    (header::SOURCE, "Name of the daemon."),
    (header::DESTINATION, "Of a reply, the caller, if the request names it."),
    (header::CONTENT_TRUST, "`tool-output` of replies and reports, `system` of announcements."),
    (header::TOOL_PROVIDER, "Of a reply, the kind of backend that ran: `local`, `rest`, `mcp`, `script` or `remote`."),
    (header::QUEUE_MS, "Of a reply, milliseconds that the call waited for its permit."),
    (header::DURATION_MS, "Of a reply, milliseconds that the tool took."),
    (header::TOOL_PROFILE, "Of a task, the profile to work on it with."),
    (header::ON_BEHALF_OF, "Of a task for an agent, the agent that gave it to the daemon."),
    (header::ANSWERING_AGENT, "Of the end of a task, the agent that worked on it."),
    (header::PEER_TRACEPARENT, "W3C Trace Context."),
    (header::PEER_TRACESTATE, "W3C Trace Context."),
    (header::TRACEPARENT, "The same as `rb-traceparent`."),
    (header::TRACESTATE, "The same as `rb-tracestate`."),
];

/// The definitions of properties and headers.
pub(super) fn definitions() -> Map<String, Value> {
    let read = READ.map(|(name, meaning)| {
        let kinds =
            if name == header::IDEMPOTENCY_KEY { json!("string") } else { json!(["string", "integer", "boolean"]) };
        (name.to_owned(), json!({"type": kinds, "description": meaning}))
    });
    let written = WRITTEN.map(|(name, meaning)| (on_the_wire(name), json!({"type": "string", "description": meaning})));
    let envelope = json!({
        "type": "object",
        "description": "The properties of a message, by their names in AMQP 0-9-1.",
        "properties": {
            "content_type": {"const": "application/json", "description": "Written; not looked at when read."},
            "delivery_mode": {"enum": [1, 2], "description": "2: survives a restart of the broker. Progress, hints and `Pong` have 1."},
            "type": {"type": "string", "description": "The type of the body, such as `RockBot.Tools.ToolInvokeRequest`. A client that is no peer leaves it out, or has one that begins with neither `RockBot.` nor `Toolbus.`."},
            "message_id": {"type": "string", "maxLength": 255, "description": "Identifies a request when it comes again. Written: 32 hexadecimal digits, the same for a repeated reply."},
            "correlation_id": {"type": "string", "maxLength": 255, "description": "Copied into the reply; an empty string if absent."},
            "reply_to": {"type": "string", "maxLength": 255, "description": "Where the reply goes: a queue or a topic. Of a reply, an empty string."},
            "timestamp": {"type": "integer", "minimum": 0, "description": "Unix seconds."},
            "user_id": {"type": "string", "description": "Login of the sender, which the broker verifies. A daemon does not write it."},
            "expiration": {"type": "string", "description": "Milliseconds, as text, after which the broker dead-letters the message. A daemon does not write it."},
            "headers": {"anyOf": [{"$ref": "#/$defs/RequestHeaders"}, {"$ref": "#/$defs/ReplyHeaders"}]},
        },
    });
    let headers = |description: &str, fields: Map<String, Value>| json!({"type": "object", "description": description, "properties": fields});
    let request = "Headers of messages to a daemon, all optional. RockBot writes one `rb-` more, as in `rb-rb-timeout-ms`, before all but `rb-source` and the trace: both are read, the longer name first.";
    let reply = "Headers of messages from a daemon, as they are written.";
    Map::from_iter([
        ("Envelope".to_owned(), envelope),
        ("RequestHeaders".to_owned(), headers(request, read.into_iter().collect())),
        ("ReplyHeaders".to_owned(), headers(reply, written.into_iter().collect())),
    ])
}

/// A header's name in AMQP, as it is written.
fn on_the_wire(name: &str) -> String {
    let is_single = matches!(name, header::SOURCE | header::DESTINATION) || name.contains("trace");
    if is_single { name.to_owned() } else { header::on_the_wire(name) }
}
