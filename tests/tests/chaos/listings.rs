//! Servers with a harmful list of tools.

use std::net::TcpListener;

use serde_json::{Value, json};
use toolbus_e2e::client::Request;
use toolbus_e2e::message::Message;
use toolbus_testing::patience::eventually;

use crate::fixture::Fixture;

/// Most memory that sixty lists of thousands of tools may cost, in KiB: they took 46 to 105 MiB in a debug build.
const LISTS: u64 = 128 * 1024;

/// Names and reasons of what is hidden.
fn hidden(shown: &Value) -> Vec<String> {
    let tools = shown["hidden"].as_array().unwrap();
    tools
        .iter()
        .map(|tool| format!("{}: {}", tool["name"].as_str().unwrap(), tool["reason"].as_str().unwrap()))
        .collect()
}

#[tokio::test]
async fn of_a_huge_list_ten_thousand_tools_are_taken() {
    let fixture = Fixture::besieged("many").await;
    let shown = fixture.seen("ready", "").await;
    let offered = shown["tools"].as_array().unwrap().len();
    assert!((1..=10_000).contains(&offered), "{offered} {:?}", hidden(&shown));
    // So many tools are not on the list of every agent at once.
    let call = async || (fixture.client.call("many_0", &json!({})).await.content() == "done").then_some(());
    eventually("the first of them", call).await;
    fixture.neighbour_serves().await;
    fixture.end().await;
}

/// Sends so many requests, lets the neighbour serve beside them, and gives the kinds of the replies.
async fn beside_neighbour(fixture: &Fixture, requests: Vec<Request>) -> Vec<Message> {
    for request in &requests {
        fixture.client.send(request).await;
    }
    fixture.neighbour_serves().await;
    let mut replies = Vec::new();
    for request in &requests {
        replies.push(fixture.client.reply(request).await);
    }
    replies
}

#[tokio::test]
async fn listing_thousands_of_tools_again_and_again_costs_others_neither_memory_nor_time() {
    let mut fixture = Fixture::besieged("large").await;
    fixture.seen("ready", "").await;
    let is_whole = async || {
        let list = fixture.client.exchange(&fixture.client.raw("{}").on("tool.list")).await.body();
        (list["tools"].as_array()?.len() > 9_000).then_some(())
    };
    eventually("all tools to be listed", is_whole).await;
    fixture.rest();
    let list = |_| fixture.client.raw("{}").on("tool.list");
    let replies = beside_neighbour(&fixture, (0..60).map(list).collect()).await;
    let is_list = |reply: &&Message| reply.kind() == "Toolbus.ToolListResponse";
    let lists = replies.iter().filter(is_list).count();
    println!("lists: {lists} of {}", replies.len());
    assert!(lists > 0 && replies.iter().all(|reply| is_list(&reply) || reply.code() == "overloaded"));
    let manage = |_| {
        let request = fixture.client.raw(json!({"serverName": "hostile"}).to_string()).on("mcp.manage");
        request.of_type("RockBot.Tools.Mcp.McpGetServiceDetailsRequest")
    };
    beside_neighbour(&fixture, (0..60).map(manage).collect()).await;
    fixture.end_within(LISTS).await;
}

#[tokio::test]
async fn details_of_thousands_of_tools_at_once_are_refused_in_few_words() {
    let mut fixture = Fixture::besieged("large").await;
    fixture.seen("ready", "").await;
    let of_one = json!({"server_name": "hostile", "tool_name": "many_8999"});
    eventually("the details of one tool", async || {
        let one = fixture.client.call("mcp_get_service_details", &of_one).await;
        one.content().contains("property_1").then_some(())
    })
    .await;
    fixture.rest();
    let details = |_| fixture.client.request("mcp_get_service_details", &json!({"server_name": "hostile"}));
    let replies = beside_neighbour(&fixture, (0..200).map(details).collect()).await;
    // One owner has half of the slots to wait for a turn.
    let (described, overloaded): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.code().is_empty());
    assert!(overloaded.iter().all(|reply| reply.code() == "overloaded"), "{:?}", overloaded.first());
    let refused: Vec<String> = described.into_iter().map(Message::content).collect();
    insta::assert_snapshot!(refused[0], @"The 9000 tools of server 'hostile' are too many to describe at once. Ask for one by its tool_name; mcp_list_services has their names.");
    let other = refused.iter().find(|reply| **reply != refused[0]);
    assert_eq!(other, None);
    fixture.end().await;
}

#[tokio::test]
async fn of_two_tools_of_one_name_the_first_counts() {
    let fixture = Fixture::besieged("duplicates").await;
    let shown = fixture.seen("ready", "").await;
    assert_eq!(shown["tools"], json!(["Strike", "strike"]));
    assert_eq!(hidden(&shown), ["strike: the server has another tool of this name"]);
    assert_eq!(fixture.strike().await.content(), "done");
    fixture.end().await;
}

#[tokio::test]
async fn a_bad_schema_hides_its_tool_and_nothing_is_fetched() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let fixture = Fixture::besieged_with("schemas", &port, "").await;
    let shown = fixture.seen("ready", "").await;
    let text = format!("{}\n\n{}", shown["tools"], hidden(&shown).join("\n")).replace(&port, "PORT");
    insta::assert_snapshot!(text, @r#"
    ["dialect","invalid","pattern","recursive"]

    (no name): its definition cannot be read: invalid type: integer `7`, expected struct Tool
    endless: its schema applies itself to the same value without end
    file: its schema refers to `file:///etc/passwd`, which is not within it
    nested: its definition cannot be read: missing field `inputSchema`
    no_object: its schema is not one of objects: `type` must be "object"
    none: its definition cannot be read: missing field `inputSchema`
    text: its definition cannot be read: invalid type: string "no schema", expected a map
    url: its schema refers to `http://127.0.0.1:PORT/schema`, which is not within it
    "#);
    assert_eq!(fixture.client.call("recursive", &json!({"next": {"next": {}}})).await.content(), "done");
    assert_eq!(fixture.client.call("recursive", &json!({"next": {"next": 1}})).await.code(), "invalid_arguments");
    assert!(listener.accept().is_err(), "something was fetched");
    fixture.end().await;
}

#[tokio::test]
async fn a_server_that_lists_its_tools_once_keeps_them_and_holds_up_no_end() {
    let fixture = Fixture::besieged("never-again").await;
    fixture.seen("ready", "").await;
    assert_eq!(fixture.client.call("neighbour", &json!({})).await.content(), "well");
    fixture.end().await;
}

#[tokio::test]
async fn a_server_that_changes_its_tools_all_the_time_changes_nothing_for_others() {
    let fixture = Fixture::besieged("turning").await;
    fixture.seen("ready", "").await;
    assert_eq!(fixture.strike().await.content(), "done");
    let before = fixture.processor_seconds();
    fixture.neighbour_serves().await;
    let spent = fixture.processor_seconds() - before;
    println!("processor: {spent} s in about 2 s");
    fixture.end().await;
}
