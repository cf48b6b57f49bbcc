//! Tools that pretend to be others, or are made to be misread.

use serde_json::json;

use crate::fixture::Fixture;

#[tokio::test]
async fn names_that_cannot_be_shown_are_hidden_and_taken_ones_stay_with_their_owners() {
    let fixture = Fixture::quiet("").await;
    // Of two servers, the one whose name comes first has the name that both want.
    fixture.add(&fixture.program("strange", "names", "-", "")).await;
    let shown = fixture.seen_of("strange", "ready", "").await;
    fixture.neighbour_serves().await;
    assert_eq!(shown["tools"], json!(["current_time", "good_one", "mcp:management", "neighbour"]));
    let hidden = shown["hidden"].as_array().unwrap().iter();
    let hidden: Vec<_> = hidden.map(|tool| format!("{}: {}", tool["name"], tool["reason"])).collect();
    insta::assert_snapshot!(hidden.join("\n"), @r#"
    "": "its name is not usable: expected 1 to 128 visible characters, and no space at either end"
    " ": "its name is not usable: expected 1 to 128 visible characters, and no space at either end"
    "\\u{202e}ekirts": "its name is not usable: expected 1 to 128 visible characters, and no space at either end"
    "a\\nb": "its name is not usable: expected 1 to 128 visible characters, and no space at either end"
    "a\\u{1b}[2Jb": "its name is not usable: expected 1 to 128 visible characters, and no space at either end"
    "mcp_invoke_tool": "it has the name of a management tool"
    "mcp_list_services": "it has the name of a management tool"
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…": "its name is not usable: expected 1 to 128 visible characters, and no space at either end"
    "zero\\u{200b}width": "its name is not usable: expected 1 to 128 visible characters, and no space at either end"
    "#);
    assert!(fixture.client.call("current_time", &json!({})).await.content() != "done");
    let listed = fixture.client.call("mcp_list_services", &json!({})).await.content();
    assert!(listed.contains("neighbour"), "{listed}");
    let table = fixture.daemon.operate(&["mcp", "show", "strange"]).await.out;
    assert!(!table.contains(['\u{1b}', '\u{202e}', '\u{200b}']), "{table}");
    fixture.end().await;
}

#[tokio::test]
async fn a_description_of_10_mb_is_cut() {
    let fixture = Fixture::besieged("prose").await;
    fixture.seen("ready", "").await;
    let run = fixture.daemon.operate(&["--output", "json", "tools"]).await;
    assert!(run.out.len() < 64 * 1024, "{}", run.out.len());
    assert!(!run.out.contains(['\u{1b}', '\u{7}']));
    fixture.end().await;
}
