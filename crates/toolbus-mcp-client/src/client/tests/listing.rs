use std::sync::Arc;

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{How, Script, session};
use crate::client::{RequestError, ServerListing};

fn tool(name: &str) -> Value {
    json!({ "name": name, "inputSchema": { "type": "object" } })
}

/// Lists the tools of a server that responds to each request with the page of its cursor.
async fn listed(page: impl Fn(Option<&str>) -> Value) -> ServerListing {
    let (connection, mut script) = session(How::default()).await;
    let listing = tokio::spawn(async move { connection.list_tools().await });
    serve(&mut script, page).await;
    listing.await.unwrap().unwrap()
}

async fn serve(script: &mut Script, page: impl Fn(Option<&str>) -> Value) {
    while let Some(request) = script.received.recv().await {
        if request["method"] == "tools/list" {
            script.respond(&request, page(request["params"]["cursor"].as_str()));
        }
    }
}

#[tokio::test]
async fn all_pages_are_read() {
    let listed = listed(|cursor| {
        let page: usize = cursor.map_or(0, |cursor| cursor.parse().unwrap());
        let tools: Vec<Value> = (page * 100..(page + 1) * 100).map(|n| tool(&format!("tool-{n}"))).collect();
        if page == 99 {
            json!({ "tools": tools })
        } else {
            json!({ "tools": tools, "nextCursor": format!("{}", page + 1) })
        }
    })
    .await;
    assert_eq!((listed.tools.len(), listed.unreadable.len(), listed.cut), (10_000, 0, None));
    assert_eq!(listed.tools.last().unwrap().name, "tool-9999");
}

/// The cursor of the page after this one.
fn next(cursor: Option<&str>) -> String {
    (cursor.map_or(0, |cursor| cursor.parse::<u32>().unwrap()) + 1).to_string()
}

#[tokio::test]
async fn an_endless_or_oversized_list_is_cut_with_the_reason() {
    type Page = fn(Option<&str>) -> Value;
    let many: Page = |_| json!({ "tools": (0..10_001).map(|n| tool(&format!("tool-{n}"))).collect::<Vec<_>>() });
    let leads_back: Page = |_| json!({ "tools": [tool("same")], "nextCursor": "again" });
    let has_no_end: Page = |cursor| json!({ "tools": [tool("same")], "nextCursor": next(cursor) });
    let large: Page = |cursor| {
        let schema = json!({ "type": "object" });
        let tool = json!({ "name": "long", "description": "x".repeat(9 << 20), "inputSchema": schema });
        json!({ "tools": [tool], "nextCursor": next(cursor) })
    };
    for (page, tools, cut) in [
        (many, 10_000, "the server lists more than 10000 tools"),
        (leads_back, 2, "the server's pages lead back to where they were"),
        (has_no_end, 1_000, "the server has more than 1000 pages of tools"),
        (large, 3, "the server's definitions take more than 32 MiB"),
    ] {
        let listed = listed(page).await;
        assert_eq!((listed.tools.len(), listed.cut.as_deref()), (tools, Some(cut)));
    }
}

#[tokio::test]
async fn an_empty_cursor_leads_to_another_page_or_ends_the_list() {
    let second = listed(|cursor| match cursor {
        None => json!({ "tools": [tool("a")], "nextCursor": "" }),
        Some(_) => json!({ "tools": [tool("b")] }),
    });
    let names = |listed: ServerListing| listed.tools.iter().map(|tool| tool.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(second.await), ["a", "b"]);
    let same = listed(|_| json!({ "tools": [tool("a")], "nextCursor": "" })).await;
    assert_eq!((same.cut.clone(), names(same)), (None, vec!["a".to_owned()]));
}

#[tokio::test]
async fn a_definition_that_cannot_be_read_hides_its_tool_alone() {
    let bad = json!({ "name": "bad\u{7}", "inputSchema": "none" });
    let nameless = json!({ "inputSchema": { "type": "object" } });
    let tools = json!([tool("good"), bad, nameless, 7, tool("better")]);
    let old = listed(|_| json!({ "tools": tools })).await;
    let new =
        listed(|_| json!({ "tools": tools, "_meta": { "a": 1 }, "resultType": "complete", "ttlMs": 0, "cacheScope": "private" })).await;
    let names: Vec<_> = old.tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(names, ["good", "better"]);
    let hidden: Vec<_> = old.unreadable.iter().map(|tool| format!("{}: {}", tool.name, tool.reason)).collect();
    assert_snapshot!(hidden.join("\n"), @r#"
    bad\u{7}: its definition cannot be read: invalid type: string "none", expected a map
    (no name): its definition cannot be read: missing field `name`
    (no name): its definition cannot be read: invalid type: integer `7`, expected struct Tool
    "#);
    assert_eq!((old.tools, old.unreadable), (new.tools, new.unreadable));
}

#[tokio::test]
async fn tools_of_one_name_are_all_listed() {
    let listed = listed(|_| json!({ "tools": [tool("twice"), tool("twice")] })).await;
    assert_eq!(listed.tools.len(), 2);
}

#[tokio::test]
async fn a_server_without_tools_has_none() {
    let (connection, mut script) = session(How::default()).await;
    let listing = tokio::spawn(async move { connection.list_tools().await });
    let request = script.expect("tools/list").await;
    script.refuse(&request, -32601, "Method not found");
    assert!(listing.await.unwrap().unwrap().tools.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_list_is_left_after_half_a_minute() {
    let (connection, mut script) = session(How::default()).await;
    let lister = Arc::clone(&connection);
    let listing = tokio::spawn(async move { lister.list_tools().await });
    script.expect("tools/list").await;
    let Err(RequestError::Failed(text)) = listing.await.unwrap() else { panic!("nothing was listed") };
    assert_snapshot!(text, @"the server did not list its tools within 30 s");
    script.expect("notifications/cancelled").await;
    assert!(!connection.is_busy());
}
