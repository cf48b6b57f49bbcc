use std::sync::Arc;

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{How, Script, session};
use crate::client::{RequestError, ServerListing};

fn tool(name: &str) -> Value {
    json!({ "name": name, "inputSchema": { "type": "object" } })
}

/// Lists the tools of a server that answers each request with what `page` makes of its cursor.
async fn listed(page: impl Fn(Option<&str>) -> Value) -> ServerListing {
    let (connection, mut script) = session(How::default()).await;
    let listing = tokio::spawn(async move { connection.list_tools().await });
    serve(&mut script, page).await;
    listing.await.unwrap().unwrap()
}

async fn serve(script: &mut Script, page: impl Fn(Option<&str>) -> Value) {
    while let Some(request) = script.heard.recv().await {
        if request["method"] == "tools/list" {
            script.answer(&request, page(request["params"]["cursor"].as_str()));
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

#[tokio::test]
async fn tools_beyond_ten_thousand_are_left_out() {
    let tools: Vec<Value> = (0..10_001).map(|n| tool(&format!("tool-{n}"))).collect();
    let listed = listed(|_| json!({ "tools": tools })).await;
    assert_eq!(listed.tools.len(), 10_000);
    assert_eq!(listed.cut.as_deref(), Some("the server lists more than 10000 tools"));
}

#[tokio::test]
async fn pages_that_lead_back_are_left() {
    let listed = listed(|_| json!({ "tools": [tool("same")], "nextCursor": "again" })).await;
    assert_eq!(listed.tools.len(), 2);
    assert_eq!(listed.cut.as_deref(), Some("the server's pages lead back to where they were"));
}

#[tokio::test]
async fn an_empty_cursor_leads_to_a_page_or_ends_the_list_of_a_server_that_means_none_by_it() {
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
async fn pages_without_end_are_left() {
    let listed = listed(|cursor| {
        let page: u32 = cursor.map_or(0, |cursor| cursor.parse().unwrap());
        json!({ "tools": [tool("same")], "nextCursor": (page + 1).to_string() })
    })
    .await;
    assert_eq!(listed.tools.len(), 1_000);
    assert_eq!(listed.cut.as_deref(), Some("the server has more than 1000 pages of tools"));
}

#[tokio::test]
async fn definitions_take_no_more_than_their_room() {
    let long = "x".repeat(9 << 20);
    let listed = listed(|cursor| {
        let page: u32 = cursor.map_or(0, |cursor| cursor.parse().unwrap());
        let tool = json!({ "name": "long", "description": long, "inputSchema": { "type": "object" } });
        json!({ "tools": [tool], "nextCursor": (page + 1).to_string() })
    })
    .await;
    assert_eq!(listed.tools.len(), 3);
    assert_eq!(listed.cut.as_deref(), Some("the server's definitions take more than 32 MiB"));
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
async fn tools_of_one_name_are_all_told() {
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
    let asked = Arc::clone(&connection);
    let listing = tokio::spawn(async move { asked.list_tools().await });
    script.expect("tools/list").await;
    let Err(RequestError::Failed(text)) = listing.await.unwrap() else { panic!("nothing was listed") };
    assert_snapshot!(text, @"the server did not list its tools within 30 s");
    script.expect("notifications/cancelled").await;
    assert!(!connection.is_busy());
}
