//! The circuit breaker of an MCP server that does not respond, for all of its tools.

use serde_json::json;
use toolbus_testing::patience::eventually;

use crate::small::{Small, knowing};

#[tokio::test]
async fn a_server_that_does_not_respond_is_not_called_for_a_while_and_comes_back_with_a_trial() {
    let small = Small::new();
    let hangs = small.path("hangs");
    let stuck = small.section_with("stuck", &["ask", "tell"], &[], &[("HANGS", hangs.to_str().unwrap())], "");
    let servers = format!("{stuck}{}", small.section("other", &["look"], ""));
    let rules = "[breaker]\nfailures = 2\npause = \"10s\"\nmax_pause = \"10s\"\n[tools.limits.ask]\ntimeout = \"1s\"\n";
    let (site, daemon, client) = knowing(&format!("{rules}{servers}"), &["stuck", "other"]).await;
    std::fs::write(&hangs, "").unwrap();
    for _ in 0..2 {
        assert_eq!(client.call("ask", &json!({})).await.code(), "timeout");
    }
    let listed = daemon.operate(&["breaker", "list", "--output", "json"]).await.json();
    assert_eq!(listed["breakers"][0]["name"], "mcp:stuck", "{listed}");
    for tool in ["ask", "tell"] {
        let body = client.call(tool, &json!({})).await.body();
        assert_eq!((&body["code"], &body["outcome"]), (&json!("execution_failed"), &json!("not_started")), "{body}");
        assert!(
            body["message"].as_str().unwrap().starts_with("MCP server 'stuck' has failed again and again"),
            "{body}"
        );
    }
    assert_eq!(client.call("look", &json!({"text": "here"})).await.content(), "other.look: here");
    std::fs::remove_file(&hangs).unwrap();
    let reply = eventually("a trial that succeeds", async || {
        let reply = client.call("tell", &json!({"text": "again"})).await;
        (reply.code() != "execution_failed").then_some(reply)
    });
    assert_eq!(reply.await.content(), "stuck.tell: again");
    assert_eq!(daemon.logged("circuit breaker closed").len(), 1);
    daemon.stop(&site).await;
}
