//! `tool.hints`: who asks, what is refused, and how often it may be asked.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use toolbus_core::bus::Bus;
use toolbus_core::caller::Caller;
use toolbus_core::policy::EffectiveTools;
use toolbus_core::toolsets::SessionSets;
use toolbus_core::{About, Clock, ControlService, HintSource, Service};

use crate::fixture::{World, delivery, request, settings};

/// Says who asks, what it may use, and what it says.
struct Repeats;

impl HintSource for Repeats {
    fn hints(&self, caller: &Caller, effective: &EffectiveTools, text: &str) -> String {
        let session = caller.session.as_deref().unwrap_or("no session");
        format!("{} in {session} with {} tools: {text}", caller.name, effective.names().count())
    }
}

/// What is answered to a body.
async fn hinted(world: &World, body: Value) -> Value {
    let about = About {
        name: "toolbus".to_owned(),
        version: String::new(),
        config_digest: watch::channel(String::new()).1,
        roles: Vec::new(),
        started: Clock::SYSTEM.now(),
    };
    let bus = Arc::clone(&world.bus) as Arc<dyn Bus>;
    let control = ControlService::new(about, bus, settings().replies, world.dispatcher.clone(), SessionSets::default())
        .with_hints(Arc::new(Repeats));
    let (mut asked, _) = delivery(request(&body).typed(Some("Toolbus.ToolHintsRequest")));
    asked.routing_key = "tool.hints".into();
    let (sender, receiver) = mpsc::channel(1);
    sender.send(asked).await.unwrap();
    drop(sender);
    let service = Service::new(world.dispatcher.clone());
    service.serve_requests(&control, receiver).await;
    service.drain(Duration::from_secs(30)).await;
    let sent = world.bus.sent().pop().unwrap();
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
