//! Tools of other agents, changes during a session, and pages of a changing list.

use serde_json::json;

use super::fixture::{Fixture, call, message, standing_alone};

async fn names(world: &Fixture, session: &str, principal: &crate::auth::Principal) -> Vec<String> {
    let (mut names, mut cursor) = (Vec::new(), json!({}));
    loop {
        let page = world.request(principal, session, &message(1, "tools/list", cursor)).await.json().await;
        let tools = page["result"]["tools"].as_array().unwrap();
        names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        match page["result"]["nextCursor"].as_str() {
            Some(next) => cursor = json!({"cursor": next}),
            None => return names,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_neither_sees_nor_calls_the_tools_of_another() {
    let world = Fixture::new();
    world.backend.has("bea", &["secret"]);
    let (ana, bea) = (world.begin(&world.ana).await, world.begin(&world.bea).await);
    assert_eq!(names(&world, &ana, &world.ana).await, ["echo", "scripted", "storm", "wait"]);
    assert_eq!(names(&world, &bea, &world.bea).await, ["secret"]);
    let refusal = world.request(&world.ana, &ana, &call(1, "secret")).await.refusal().await;
    assert_eq!(refusal, "200 1 -32602 Tool 'secret' is not registered.");
    assert_eq!(world.backend.log(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_tool_withdrawn_during_a_session_is_gone_at_once() {
    let (world, session) = Fixture::begun().await;
    assert_eq!(world.request(&world.ana, &session, &call(1, "echo")).await.json().await["result"]["isError"], false);
    world.backend.has("ana", &["wait"]);
    let refusal = world.request(&world.ana, &session, &call(2, "echo")).await.refusal().await;
    assert_eq!(refusal, "200 2 -32602 Tool 'echo' is not registered.");
    assert_eq!(names(&world, &session, &world.ana).await, ["wait"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_changes_between_its_pages_repeats_and_omits_nothing_that_stays() {
    let world = Fixture::new();
    let all: Vec<String> = (0..450).map(|number| format!("tool_{number:03}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    world.backend.has("ana", &all);
    let session = world.begin(&world.ana).await;
    let first = world.request(&world.ana, &session, &message(1, "tools/list", json!({}))).await.json().await;
    let cursor = first["result"]["nextCursor"].as_str().unwrap();
    // The last of the first page goes, and another comes before it.
    let changed: Vec<&str> =
        ["a_new_one"].into_iter().chain(all.iter().copied().filter(|name| *name != "tool_199")).collect();
    world.backend.has("ana", &changed);
    let second = message(2, "tools/list", json!({"cursor": cursor}));
    let second = world.request(&world.ana, &session, &second).await.json().await;
    assert_eq!(first["result"]["tools"][199]["name"], "tool_199");
    assert_eq!(second["result"]["tools"][0]["name"], "tool_200");
    assert_eq!(second["result"]["tools"].as_array().unwrap().len(), 200);
    let third = message(3, "tools/list", json!({"cursor": second["result"]["nextCursor"]}));
    let third = world.request(&world.ana, &session, &third).await.json().await;
    assert_eq!(third["result"]["tools"].as_array().unwrap().len(), 50);
    assert!(third["result"]["nextCursor"].is_null());
}

#[tokio::test(start_paused = true)]
async fn an_invalid_cursor_is_refused_and_a_made_up_one_shows_no_other_tools() {
    let (world, session) = Fixture::begun().await;
    for method in ["tools/list", "resources/list", "resources/templates/list"] {
        for cursor in [json!("!"), json!("a b"), json!("_w"), json!("\u{0}"), json!("=".repeat(10_000))] {
            let listing = message(1, method, json!({"cursor": cursor}));
            let refusal = world.request(&world.ana, &session, &listing).await.refusal().await;
            let text = "200 1 -32602 The cursor is none of ours. Begin the list anew, without one.";
            assert_eq!(refusal, text, "{method} {cursor}");
        }
        let typed = message(1, method, json!({"cursor": {"a": 1}}));
        let refusal = world.request(&world.ana, &session, &typed).await.refusal().await;
        assert!(refusal.starts_with("200 1 -32602 The parameters are not what the method takes: "), "{refusal}");
    }
    // The key in it comes from outside, and is compared with the client's own tools alone.
    let made_up = message(1, "tools/list", json!({"cursor": "c2VjcmV0"}));
    let page = world.request(&world.ana, &session, &made_up).await.json().await;
    assert_eq!(page["result"]["tools"].as_array().unwrap().len(), 2, "those after `secret`: {page}");
}

#[tokio::test(start_paused = true)]
async fn an_absent_resource_has_the_error_code_of_each_generation() {
    let world = Fixture::new();
    world.backend.set_instructions("Use it wisely.");
    let session = world.begin(&world.ana).await;
    let read = |uri: &str| json!({"uri": uri});
    let known = message(1, "resources/read", read("toolbus://servers/one/instructions"));
    let text = world.request(&world.ana, &session, &known).await.json().await;
    assert_eq!(text["result"]["contents"][0]["text"], "Use it wisely.");
    let absent = message(1, "resources/read", read("file:///etc/passwd"));
    let refusal = world.request(&world.ana, &session, &absent).await.refusal().await;
    assert_eq!(refusal, "200 1 -32002 There is no resource `file:///etc/passwd`.");
    let absent = standing_alone(1, "resources/read", read("file:///etc/passwd"));
    let headers =
        [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "resources/read"), ("mcp-name", "file:///etc/passwd")];
    let alone = world.post(&world.ana, &headers, &absent).await.refusal().await;
    assert_eq!(alone, "200 1 -32602 There is no resource `file:///etc/passwd`.");
}
