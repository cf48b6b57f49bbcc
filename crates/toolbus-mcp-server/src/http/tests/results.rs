//! Results of every kind.

use std::time::Duration;

use serde_json::{Value, json};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::ToolOutput;
use toolbus_protocol::ContentBlock;

use super::fixture::{Fixture, call, hello, message};

/// The result of a call with this output, in a session and without one.
async fn both(output: ToolOutput) -> [Value; 2] {
    let (world, session) = Fixture::begun().await;
    world.backend.script(Ok(output.clone()));
    let in_session = world.request(&world.ana, &session, &call(1, "scripted")).await.json().await;
    world.backend.script(Ok(output));
    let alone = world.alone(&world.ana, 1, "tools/call", json!({"name": "scripted"})).await.json().await;
    [in_session, alone].map(|mut response| response["result"].take())
}

fn block(kind: &str) -> ContentBlock {
    ContentBlock { kind: kind.to_owned(), text: None, data: None, mime_type: None, uri: None }
}

#[tokio::test(start_paused = true)]
async fn a_text_is_a_block_of_text_marked_as_the_tools_own() {
    let [in_session, alone] = both(ToolOutput::text("Sunny.\n\"22\" °C \u{0}")).await;
    insta::assert_snapshot!(in_session, @r#"{"_meta":{"toolbus/content-trust":"tool-output"},"content":[{"text":"Sunny.\n\"22\" °C \u0000","type":"text"}],"isError":false}"#);
    insta::assert_snapshot!(alone, @r#"{"_meta":{"toolbus/content-trust":"tool-output"},"content":[{"text":"Sunny.\n\"22\" °C \u0000","type":"text"}],"isError":false,"resultType":"complete"}"#);
}

#[tokio::test(start_paused = true)]
async fn an_error_result_of_a_tool_has_no_code() {
    let [in_session, _] = both(ToolOutput::error("No such city.")).await;
    insta::assert_snapshot!(in_session, @r#"{"_meta":{"toolbus/content-trust":"tool-output"},"content":[{"text":"No such city.","type":"text"}],"isError":true}"#);
    let [nothing, _] = both(ToolOutput::default()).await;
    assert_eq!(nothing["content"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn every_block_becomes_one_that_the_protocol_knows() {
    let text = |text: &str| Some(text.to_owned());
    let blocks = vec![
        ContentBlock { text: text("one"), ..block("text") },
        ContentBlock { data: text("aW1n"), mime_type: text("image/png"), ..block("image") },
        ContentBlock { data: text("c291bmQ="), mime_type: text("audio/wav"), ..block("audio") },
        ContentBlock { data: text("aW1n"), ..block("image") },
        ContentBlock {
            uri: text("file:///a"),
            text: text("inside"),
            mime_type: text("text/plain"),
            ..block("resource")
        },
        ContentBlock { uri: text("file:///b"), data: text("YmxvYg=="), ..block("resource") },
        ContentBlock { uri: text("file:///c"), text: text("a link"), ..block("resource_link") },
        ContentBlock { text: text("from the future"), ..block("hologram") },
        block("image"),
        block("text"),
    ];
    let [in_session, alone] = both(ToolOutput { blocks, ..ToolOutput::default() }).await;
    assert_eq!(in_session["content"], alone["content"]);
    let shown: Vec<String> = in_session["content"].as_array().unwrap().iter().map(Value::to_string).collect();
    insta::assert_snapshot!(shown.join("\n"), @r#"
    {"text":"one","type":"text"}
    {"data":"aW1n","mimeType":"image/png","type":"image"}
    {"data":"c291bmQ=","mimeType":"audio/wav","type":"audio"}
    {"data":"aW1n","mimeType":"application/octet-stream","type":"image"}
    {"resource":{"mimeType":"text/plain","text":"inside","uri":"file:///a"},"type":"resource"}
    {"resource":{"blob":"YmxvYg==","uri":"file:///b"},"type":"resource"}
    {"name":"c","title":"a link","type":"resource_link","uri":"file:///c"}
    {"text":"from the future","type":"text"}
    {"text":"","type":"text"}
    {"text":"","type":"text"}
    "#);
}

#[tokio::test(start_paused = true)]
async fn sessions_get_only_structured_objects() {
    for (value, to_sessions) in [(json!({"a": 1}), true), (json!([1, 2]), false), (json!("text"), false)] {
        let output = ToolOutput { structured: Some(Box::new(value.clone())), ..ToolOutput::text("as text") };
        let [in_session, alone] = both(output).await;
        assert_eq!(in_session.get("structuredContent").is_some(), to_sessions, "{value}");
        assert_eq!(alone["structuredContent"], value);
        assert_eq!(in_session["content"][0]["text"], "as text", "{value}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_structured_block_is_sent_to_every_client_once() {
    for (value, in_content) in [(json!({"a": 1}), false), (json!([1, 2]), true)] {
        let text = ContentBlock { text: Some("two numbers".to_owned()), ..block("text") };
        let output = ToolOutput {
            blocks: vec![text, ContentBlock::structured(value.to_string())],
            structured: Some(Box::new(value.clone())),
            ..ToolOutput::default()
        };
        let [in_session, alone] = both(output).await;
        assert_eq!((&alone["structuredContent"], alone["content"].as_array().unwrap().len()), (&value, 1));
        assert_eq!(in_session.get("structuredContent").is_some(), !in_content, "{value}");
        let repeated = in_session["content"][1]["resource"]["text"].as_str();
        assert_eq!(repeated, in_content.then(|| value.to_string()).as_deref(), "{value}");
    }
}

#[tokio::test(start_paused = true)]
async fn audio_is_a_resource_for_versions_without_audio() {
    let world = Fixture::new();
    let mut contents = String::new();
    for version in ["2024-11-05", "2025-03-26"] {
        let mut hello = hello();
        hello["params"]["protocolVersion"] = version.into();
        let begun = world.post(&world.ana, &[], &hello).await;
        let session = begun.headers["mcp-session-id"].to_str().unwrap();
        let sound = ContentBlock {
            data: Some("c291bmQ=".to_owned()),
            mime_type: Some("audio/wav".to_owned()),
            ..block("audio")
        };
        world.backend.script(Ok(ToolOutput { blocks: vec![sound], ..ToolOutput::default() }));
        let response = world.request(&world.ana, session, &call(1, "scripted")).await.json().await;
        contents += &format!("{version} {}\n", response["result"]["content"]);
    }
    insta::assert_snapshot!(contents, @r#"
    2024-11-05 [{"resource":{"blob":"c291bmQ=","mimeType":"audio/wav","uri":"toolbus:audio"},"type":"resource"}]
    2025-03-26 [{"data":"c291bmQ=","mimeType":"audio/wav","type":"audio"}]
    "#);
}

#[tokio::test(start_paused = true)]
async fn a_result_may_have_sixteen_megabytes_and_no_more() {
    let limit = 16 * 1024 * 1024 - 64 * 1024;
    let [in_session, _] = both(ToolOutput::text("x".repeat(limit))).await;
    assert_eq!(in_session["content"][0]["text"].as_str().unwrap().len(), limit);
    let [refused, _] = both(ToolOutput::text("x".repeat(limit + 1))).await;
    insta::assert_snapshot!(refused, @r#"{"_meta":{"toolbus/content-trust":"tool-output","toolbus/error":{"code":"execution_failed","isRetryable":false,"outcome":"unknown"}},"content":[{"text":"The result is too large to be sent: 16711681 bytes, and the limit is 16711680. Ask the tool for less at a time.","type":"text"}],"isError":true}"#);
}

#[tokio::test(start_paused = true)]
async fn a_link_to_a_part_of_a_result_is_read_as_its_caller_and_only_where_that_may_read_it() {
    let world = Fixture::new();
    let link = ContentBlock::memory_link("session/s/tool-x-1-chunk0", "Intro");
    let read = message(1, "resources/read", json!({"uri": link.uri}));
    let session = world.begin(&world.ana).await;
    let refusal = world.request(&world.ana, &session, &read).await.refusal().await;
    assert_eq!(refusal, "200 1 -32002 There is no resource `toolbus://memory/session/s/tool-x-1-chunk0`.");
    world.backend.has("ana", &["get_from_working_memory"]);
    let read = world.request(&world.ana, &session, &read).await.json().await;
    let content = &read["result"]["contents"][0];
    assert_eq!((&content["uri"], &content["mimeType"]), (&json!(link.uri), &json!("text/plain")));
    // The arguments of the tool, which the backend of this test repeats.
    assert_eq!(content["text"], r#"{"key":"session/s/tool-x-1-chunk0","limit":1000000}"#);
}

#[tokio::test(start_paused = true)]
async fn a_temporary_failure_to_read_an_entry_is_not_reported_as_missing() {
    let world = Fixture::new();
    world.backend.has("ana", &["get_from_working_memory"]);
    let session = world.begin(&world.ana).await;
    let read = message(1, "resources/read", json!({"uri": "toolbus://memory/scripted"}));
    let busy = ToolFailure::new(Cause::Overloaded, "Too many calls are under way.");
    world.backend.script(Err(busy.with_retry_after(Duration::from_secs(1))));
    let response = world.request(&world.ana, &session, &read).await.json().await;
    insta::assert_snapshot!(response["error"], @r#"{"code":-32603,"data":{"code":"overloaded","isRetryable":true,"outcome":"not_started","retryAfterMs":1000},"message":"Too many calls are under way."}"#);
    for missing in [Ok(ToolOutput::error("There is no entry.")), Err(ToolFailure::new(Cause::NotAllowed, "No."))] {
        world.backend.script(missing);
        let refusal = world.request(&world.ana, &session, &read).await.refusal().await;
        assert_eq!(refusal, "200 1 -32002 There is no resource `toolbus://memory/scripted`.");
    }
}
