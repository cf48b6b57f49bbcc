//! `tool.hints`: its callers, refusals and rate.

use std::sync::Arc;

use serde_json::{Value, json};
use toolbus_core::HintSource;
use toolbus_core::caller::Caller;
use toolbus_core::policy::EffectiveTools;

use crate::fixture::{World, control, request, serve};

/// Returns the caller, its tools, and the text.
struct Repeats;

impl HintSource for Repeats {
    fn hints(&self, caller: &Caller, effective: &EffectiveTools, text: &str) -> String {
        let session = caller.session.as_deref().unwrap_or("no session");
        format!("{} in {session} with {} tools: {text}", caller.name, effective.names().count())
    }
}

/// Reply to a body.
async fn hinted(world: &World, body: Value) -> Value {
    let control = control(&world.dispatcher, &world.bus).with_hints(Arc::new(Repeats));
    let message = request(&body).typed(Some("Toolbus.ToolHintsRequest"));
    serve(&world.dispatcher, &control, "tool.hints", message).await;
    let sent = world.sent().pop().unwrap();
    assert!(!sent.properties.persistent || sent.body["code"].is_string(), "a hint outlives nothing");
    sent.body
}

#[tokio::test]
async fn the_sender_is_hinted_at_its_own_tools_in_its_session() {
    let world = World::new();
    let body = hinted(&world, json!({"text": "pay the bill", "sessionId": "s1"})).await;
    insta::assert_json_snapshot!(body, @r#"
    {
      "hints": "ana in s1 with 9 tools: pay the bill"
    }
    "#);
    let body = hinted(&world, json!({"Text": "pay", "more": 1})).await;
    assert!(body["hints"].as_str().unwrap().contains("no session"), "{body}");
}

#[tokio::test]
async fn a_text_that_is_missing_empty_or_too_long_is_refused_with_the_reason() {
    let world = World::new();
    let table = [
        (json!({}), "its `text` is missing or empty."),
        (json!({"text": " "}), "its `text` is missing or empty."),
        (json!({"text": 7}), "it cannot be read: "),
        (
            json!({"text": "x".repeat(32 * 1024 + 1)}),
            "its `text` has 32769 bytes; at most 32768 are read, so send its beginning.",
        ),
    ];
    for (body, reason) in table {
        let refused = hinted(&world, body).await;
        assert_eq!(refused["code"], "invalid_arguments");
        let message = refused["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("The request is not usable: {reason}")), "{message}");
    }
}
