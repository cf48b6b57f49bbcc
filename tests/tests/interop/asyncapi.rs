//! AsyncAPI's own parser reads the description of the messages.

use std::path::Path;

use serde_json::{Value, json};
use toolbus_e2e::program::read_asyncapi;

fn documents() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/wire"))
}

#[tokio::test]
async fn the_parser_accepts_the_document_and_knows_the_body_of_every_message() {
    let file = documents().join("asyncapi.json");
    let seen = read_asyncapi(&file).await.json();
    let document: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let messages = document["components"]["messages"].as_object().unwrap();
    let mut types: Vec<&str> = messages.values().map(|message| message["name"].as_str().unwrap()).collect();
    types.sort_unstable();
    assert_eq!(seen, json!({"faults": [], "types": types}));
}

#[tokio::test]
async fn the_parser_refuses_a_reply_that_its_channel_does_not_have() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["asyncapi.json", "messages.schema.json"] {
        let text = std::fs::read_to_string(documents().join(name)).unwrap();
        let text = text.replace("#/channels/reply/messages/ToolError", "#/channels/reply/messages/Other");
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let seen = read_asyncapi(&folder.path().join("asyncapi.json")).await.json();
    assert!(!seen["faults"].as_array().unwrap().is_empty(), "{seen}");
}
