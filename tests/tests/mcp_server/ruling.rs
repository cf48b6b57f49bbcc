//! Rights that rules give, and rules that change while a client is connected.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::http::hello;
use toolbus_testing::patience::PATIENCE;

use crate::fixture::{ANA, BEA, Fixture, alone, call, rules};

#[tokio::test]
async fn a_tool_that_an_agent_may_not_use_looks_like_an_unknown_one() {
    let fixture = Fixture::new(&["gate", "echo"]).await;
    let (ana, bea) = (fixture.session(ANA).await, fixture.session(BEA).await);
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let names = |list: &Value| -> Vec<String> {
        let tools = list["result"]["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&fixture.exchange(&[ANA, &ana], &list).await), ["echo", "gate"]);
    assert_eq!(names(&fixture.exchange(&[BEA, &bea], &list).await), ["echo"]);
    let forbidden = fixture.exchange(&[BEA, &bea], &call(2, "gate", &json!({"id": "x"}))).await.to_string();
    let absent = fixture.exchange(&[BEA, &bea], &call(2, "none", &json!({"id": "x"}))).await.to_string();
    assert_eq!(forbidden.replace("gate", "none"), absent);
    assert_eq!(fixture.client().await.post(&[BEA, &ana], &list).await.code, 404);
    assert_eq!(fixture.backend.total(), 0);
    fixture.daemon.end().await;
}

#[tokio::test]
async fn rules_that_change_hold_at_once_and_listening_clients_are_notified() {
    let fixture = Fixture::new(&["gate", "echo"]).await;
    let session = fixture.session(ANA).await;
    let mut news = fixture.listen(ANA, &session).await;
    let echo = call(1, "echo", &json!({"text": "x"}));
    assert_eq!(fixture.exchange(&[ANA, &session], &echo).await["result"]["isError"], false);
    fixture.daemon.reload(&rules(&fixture.backend, &["gate"], "")).await;
    assert_eq!(fixture.exchange(&[ANA, &session], &echo).await["error"]["code"], -32602);
    assert!(news.saw("notifications/tools/list_changed").await);

    let gate = call(2, "gate", &json!({"id": "x"}));
    fixture.backend.open();
    assert_eq!(fixture.exchange(&[ANA, &session], &gate).await["result"]["isError"], false);
    let run = fixture.daemon.operate(&["disable", "tool", "gate"]).await;
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(fixture.exchange(&[ANA, &session], &gate).await["error"]["code"], -32602);
    assert!(news.saw("notifications/tools/list_changed").await);
    fixture.daemon.end().await;
}

#[tokio::test]
async fn arguments_newly_set_for_an_agent_change_its_list_of_tools() {
    let fixture = Fixture::new(&["echo"]).await;
    let session = fixture.session(ANA).await;
    let mut news = fixture.listen(ANA, &session).await;
    fixture.daemon.reload(&rules(&fixture.backend, &["echo"], "arguments = { echo = { text = \"set\" } }")).await;
    let notified = tokio::time::timeout(PATIENCE, news.saw("notifications/tools/list_changed")).await;
    assert_eq!(notified, Ok(true));
    fixture.daemon.end().await;
}

#[tokio::test]
async fn a_profile_removes_tools_and_adds_none() {
    let fixture = Fixture::new(&["echo"]).await;
    let echo = call(1, "echo", &json!({"text": "x"}));
    for (profile, code) in [("subagent", Value::Null), ("made-up", json!(-32602)), ("", json!(-32602))] {
        let head = format!("rb-tool-profile: {profile}");
        let began = fixture.client().await.post(&[ANA, &head], &hello()).await;
        let session = format!("Mcp-Session-Id: {}", began.header("mcp-session-id").unwrap());
        assert_eq!(fixture.exchange(&[ANA, &session], &echo).await["error"]["code"], code, "{profile}");
        let gate = call(2, "gate", &json!({"id": "x"}));
        assert_eq!(fixture.exchange(&[ANA, &session], &gate).await["error"]["code"], -32602, "{profile}");
    }
    let twice = [ANA, "rb-tool-profile: main", "rb-tool-profile: subagent"];
    assert_eq!(fixture.client().await.post(&twice, &hello()).await.code, 400);
    fixture.daemon.end().await;
}

#[tokio::test]
async fn a_tool_set_bound_later_is_there_at_once_without_a_session_and_else_in_the_next_session() {
    let backend = Backend::start().await;
    let tool = backend.tool("gate", "/gate?id={id}", "");
    let rules = |sets: &[&str]| {
        format!(
            "[identity]\ntrust_headers = true\n[http]\ntokens = {{ ana = \"the-token-of-ana\" }}\n[agents.ana]\ntoolsets = {sets:?}\n\
             [toolsets.desk]\nkind = \"rest\"\nendpoints = [\"gate\"]\n[tools]\necho = true\n{tool}"
        )
    };
    backend.open();
    let daemon = Daemon::alone(&rules(&[])).await;
    let fixture = Fixture { backend, daemon };
    let session = fixture.session(ANA).await;
    let gate = json!({"id": "x"});
    let (headers, of_alone) = alone(1, "desk.gate", &gate);
    let head: Vec<&str> = [ANA].into_iter().chain(headers.iter().map(String::as_str)).collect();
    // The first call of a session decides on its tool sets.
    let (echo_headers, echo) = alone(1, "echo", &json!({"text": "x"}));
    let echo_head: Vec<&str> = [ANA].into_iter().chain(echo_headers.iter().map(String::as_str)).collect();
    assert_eq!(fixture.exchange(&echo_head, &echo).await["result"]["isError"], false);
    assert_eq!(
        fixture.exchange(&[ANA, &session], &call(1, "echo", &json!({"text": "x"}))).await["result"]["isError"],
        false
    );
    assert_eq!(fixture.exchange(&head, &of_alone).await["error"]["code"], -32602);

    fixture.daemon.reload(&rules(&["desk"])).await;
    assert_eq!(fixture.exchange(&head, &of_alone).await["result"]["isError"], false);
    assert_eq!(fixture.exchange(&[ANA, &session], &call(2, "desk.gate", &gate)).await["error"]["code"], -32602);
    let next = fixture.session(ANA).await;
    assert_eq!(fixture.exchange(&[ANA, &next], &call(2, "desk.gate", &gate)).await["result"]["isError"], false);
    fixture.daemon.end().await;
}
