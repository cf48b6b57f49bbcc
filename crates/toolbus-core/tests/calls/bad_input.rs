//! Outcome of bad input: one reply or one dead letter, and never a second call.

use insta::assert_snapshot;
use serde_json::json;
use toolbus_core::bus::Target;

use crate::fixture::{Message, Settled, World, call, raw, request};

/// The text of the `invalid_arguments` that a message gets.
async fn refusal(message: Message) -> String {
    let world = World::new();
    let sent = world.reply(message).await;
    assert_eq!(sent.body["code"], "invalid_arguments");
    assert_eq!(sent.body["isRetryable"], false);
    assert_eq!(sent.properties.correlation_id.as_deref(), Some("corr-1"));
    assert_eq!(world.runs(), 0);
    sent.body["message"].as_str().unwrap().to_owned()
}

/// The reason of the dead letter that a message becomes.
async fn dead_reason(message: Message) -> String {
    let world = World::new();
    let sent = world.reply(message).await;
    assert_eq!(sent.target, Target::DeadLetter("bus7.invoke".to_owned()));
    assert_eq!(world.runs(), 0);
    sent.properties.header("rb-dead-reason").unwrap().to_owned()
}

#[tokio::test]
async fn a_request_that_cannot_be_used_is_refused_with_the_reason() {
    assert_snapshot!(refusal(raw(&b"{\"a\xff\""[..])).await, @"The request is not usable: not UTF-8: invalid byte at offset 3.");
    assert_snapshot!(refusal(request(&json!({"toolCallId": "c"}))).await, @"The request is not usable: missing member `toolName`.");
    // Before it is parsed.
    assert_snapshot!(refusal(raw(vec![b'{'; 1024 * 1024 + 1])).await, @"The request has 1048577 bytes; at most 1048576 are taken. Send less.");
    let deep_in_a_string = json!(format!("{{\"text\": {}{}}}", "[".repeat(64), "]".repeat(64)));
    assert_snapshot!(refusal(call("echo", deep_in_a_string)).await, @"The arguments are not usable: nested deeper than 64 levels at offset 72.");
}

#[tokio::test]
async fn a_body_that_cannot_be_read_and_has_no_address_is_dead_lettered_once() {
    for body in [&b"\xff\xfe"[..], b"{oops", b"[1]", b"", b"null"] {
        assert_eq!(dead_reason(raw(body).reply_to(None)).await, "malformed_request", "{body:?}");
    }
}

#[tokio::test]
async fn a_request_without_a_tool_is_refused_under_its_own_id_and_on_the_default_topic_if_it_has_no_address() {
    for (address, topic) in [(Some("tool.result.ana"), "tool.result.ana"), (None, "tool.result")] {
        let sent = World::new().reply(request(&json!({"toolCallId": "mine"})).reply_to(address)).await;
        assert_eq!((sent.target, &sent.body["toolCallId"]), (Target::Topic(topic.to_owned()), &json!("mine")));
    }
}

#[tokio::test]
async fn arguments_that_do_not_fit_the_schema_are_refused_without_their_values() {
    let text = refusal(call("echo", json!({"text": 12345, "password": "s3cret"}))).await;
    assert_snapshot!(text, @r#"The arguments do not fit the tool's parameters: /text: value is not of type "string"; /: Additional properties are not allowed ('password' was unexpected)"#);
    assert!(!text.contains("12345") && !text.contains("s3cret"));
}

#[tokio::test]
async fn a_reply_on_a_topic_for_requests_is_settled_and_never_answered() {
    for message_type in ["RockBot.Tools.ToolInvokeResponse", "RockBot.Tools.ToolError", "Toolbus.ToolsChanged"] {
        let world = World::new();
        let settlement = world.deliver(call("echo", json!({})).typed(Some(message_type))).await;
        assert_eq!(settlement.get(), Some(Settled::Acknowledged));
        assert!(world.sent().is_empty());
    }
}

#[tokio::test]
async fn a_peers_type_that_does_not_belong_here_is_dead_lettered() {
    let message = call("echo", json!({"text": "x"})).typed(Some("RockBot.Scripts.ScriptInvokeRequest"));
    assert_eq!(dead_reason(message).await, "unknown_type");
}

#[tokio::test]
async fn a_plain_clients_own_message_type_is_accepted() {
    let message = call("echo", json!({"text": "x"})).typed(Some("my.Request"));
    assert_eq!(World::new().reply(message).await.body["content"], "x");
}

#[tokio::test]
async fn a_forbidden_reply_address_dead_letters_the_request_and_the_tool_is_not_run() {
    let long = "x".repeat(256);
    let addresses = [
        "tool.invoke",
        "tool.invoke.mcp",
        "mcp.manage",
        "agent.task.bob",
        "my.requests",
        "bus7.invoke",
        "toolbus.control",
        "rockbot.mcp-bridge.RockBot",
        &long,
    ];
    for address in addresses {
        for message_type in [None, Some("RockBot.Tools.ToolInvokeRequest")] {
            let message = call("pay", json!({})).typed(message_type).reply_to(Some(address));
            assert_eq!(dead_reason(message).await, "reply_to_refused", "{address}");
        }
    }
}

#[tokio::test]
async fn a_dead_letter_names_the_address_and_no_login() {
    let mut message = call("pay", json!({})).reply_to(Some("tool.invoke"));
    message.properties.user_id = Some("svc-ana".to_owned());
    let sent = World::new().reply(message).await;
    assert_eq!(sent.properties.header("rb-dead-reply-to"), Some("tool.invoke"));
    assert_eq!(sent.properties.user_id, None);
}

#[tokio::test]
async fn an_unknown_name_is_repeated_shortened_and_without_control_characters() {
    let name = format!("evil\u{1b}[2J{}", "x".repeat(1_000));
    let sent = World::new().reply(call(&name, json!({}))).await;
    let text = sent.body["message"].as_str().unwrap();
    assert!(text.len() < 200 && !text.contains('\u{1b}'), "{text}");
}

#[tokio::test]
async fn a_name_or_an_id_that_is_too_long_is_refused_and_repeated_shortened() {
    let long = "\u{1}".repeat(1025);
    for (id, tool) in [("call_1", &*long), (&*long, "pay")] {
        let sent = World::new().reply(request(&json!({"toolCallId": id, "toolName": tool}))).await;
        assert_eq!(sent.body["code"], "invalid_arguments");
        assert!(sent.body.to_string().len() < 4096);
        let ids = [(&sent.body["toolCallId"], id), (&sent.body["toolName"], tool)];
        for (repeated, written) in ids {
            assert_eq!(repeated, &written[..written.len().min(255)]);
        }
    }
    let fits = "x".repeat(1024);
    let sent = World::new().reply(request(&json!({"toolCallId": fits, "toolName": "pay"}))).await;
    assert_eq!((&sent.body["content"], &sent.body["toolCallId"]), (&json!("paid"), &json!(fits)));
}

#[tokio::test]
async fn an_id_that_has_to_be_made_up_is_the_same_for_the_same_request() {
    let mut message = request(&json!({"toolName": "no_such_tool"}));
    message.properties.message_id = None;
    let (first, again) = (World::new().reply(message.clone()).await, World::new().reply(message.clone()).await);
    assert_eq!((&first.body, &first.properties.message_id), (&again.body, &again.properties.message_id));
    message.properties.correlation_id = Some("corr-2".to_owned());
    assert_ne!(World::new().reply(message).await.body["toolCallId"], first.body["toolCallId"]);
}
