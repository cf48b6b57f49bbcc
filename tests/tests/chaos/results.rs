//! Replies that mean harm.

use serde_json::json;

use crate::fixture::Fixture;

#[tokio::test]
async fn a_result_of_100_mb_is_refused() {
    let fixture = Fixture::besieged("huge").await;
    fixture.seen("ready", "").await;
    let reply = fixture.strike_beside_neighbour(json!({})).await;
    assert_ne!(reply.code(), "", "{:?}", reply.data.len());
    let shown = fixture.shown("hostile").await;
    assert!(shown["lastError"].as_str().unwrap().contains("a line over 16 MiB"), "{shown}");
    insta::assert_snapshot!(reply.error(), @"The MCP server of tool 'strike' went away before it answered. It may have had its effect: calling again may repeat that.");
    fixture.end().await;
}

#[tokio::test]
async fn a_result_of_a_hundred_thousand_levels_is_no_message() {
    let fixture = Fixture::besieged_with("deep", "-", "tool_timeout = \"2s\"").await;
    fixture.seen("ready", "").await;
    let reply = fixture.strike_beside_neighbour(json!({"kind": "deep"})).await;
    insta::assert_snapshot!(format!("{}: {}", reply.code(), reply.error()), @"execution_failed: Tool 'strike' answered with something that is not the result of a call. Whether it had its effect is not known: find out before calling again.");
    fixture.end().await;
}

#[tokio::test]
async fn a_result_of_a_million_values_ends_the_connection() {
    let fixture = Fixture::besieged("deep").await;
    fixture.seen("ready", "").await;
    let reply = fixture.strike_beside_neighbour(json!({"kind": "wide"})).await;
    insta::assert_snapshot!(format!("{}: {}", reply.code(), reply.error()), @"execution_failed: The MCP server of tool 'strike' went away before it answered. It may have had its effect: calling again may repeat that.");
    let shown = fixture.shown("hostile").await;
    assert!(shown["lastError"].as_str().unwrap().contains("more than 500000 values"), "{shown}");
    fixture.end().await;
}
