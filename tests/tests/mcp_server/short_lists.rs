//! `http.tool_search`: clients with many tools are listed some, and call all.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;

use crate::fixture::{ANA, BEA, Fixture, call};

const RULES: &str = r#"
[http]
tokens = { ana = "the-token-of-ana", bea = "the-token-of-bea" }
tool_search = { above = 3 }
[tools]
echo = true
search = true
[guides]
[identity]
trust_headers = true
[agents.ana]
[agents.bea]
allowed_tools = ["echo", "current_time", "convert_time", "list_tool_guides", "get_tool_guide"]
"#;

async fn names(fixture: &Fixture, token: &str, session: &str) -> Vec<String> {
    let listed = fixture
        .exchange(&[token, session], &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}))
        .await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_client_with_many_tools_is_listed_some_finds_the_others_and_calls_them() {
    let backend = Backend::start().await;
    let daemon = Daemon::alone(RULES).await;
    let fixture = Fixture { backend, daemon };
    let session = fixture.session(ANA).await;
    let finders = ["get_tool_guide", "list_tool_guides", "search_known_services", "search_tools"];
    assert_eq!(names(&fixture, ANA, &session).await, finders);

    let found =
        fixture.exchange(&[ANA, &session], &call(2, "search_tools", &json!({"query": "answer with the text"}))).await;
    let found: Value = serde_json::from_str(found["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(found["results"][0]["name"], "echo", "{found}");
    assert!(found["results"][0]["parameters"]["properties"]["text"].is_object(), "{found}");
    let called = fixture.exchange(&[ANA, &session], &call(3, "echo", &json!({"text": "x"}))).await;
    assert_eq!(called["result"]["content"][0]["text"], "x");

    assert_eq!(names(&fixture, ANA, &session).await, finders, "the list of a session stays");
    let next = fixture.session(ANA).await;
    assert_eq!(names(&fixture, ANA, &next).await, [&["echo"][..], &finders].concat());
    // An agent without the tool `search_tools` gets the whole list.
    let of_bea = fixture.session(BEA).await;
    assert_eq!(names(&fixture, BEA, &of_bea).await.len(), 5);
    fixture.daemon.end().await;
}
