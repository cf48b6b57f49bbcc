//! Guides as resources of the MCP server.

use serde_json::{Value, json};
use toolbus_e2e::backend::Backend;
use toolbus_e2e::daemon::Daemon;

use crate::fixture::{ANA, BEA, Fixture};

const RULES: &str = r#"
[http]
tokens = { ana = "the-token-of-ana", bea = "the-token-of-bea" }
[guides]
[memory]
[identity]
trust_headers = true
[agents.ana]
[agents.bea]
allowed_tools = ["current_time"]
"#;
const GUIDE: &str = "toolbus://guides/working-memory";

async fn exchange(fixture: &Fixture, token: &str, method: &str, params: Value) -> Value {
    let session = fixture.session(token).await;
    fixture.exchange(&[token, &session], &json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})).await
}

#[tokio::test]
async fn a_client_lists_and_reads_the_guides_of_the_tools_that_it_may_use() {
    let fixture = Fixture { backend: Backend::start().await, daemon: Daemon::alone(RULES).await };
    for (token, is_there) in [(ANA, true), (BEA, false)] {
        let listed = exchange(&fixture, token, "resources/list", json!({})).await;
        let resources = listed["result"]["resources"].as_array().unwrap();
        assert_eq!(resources.iter().any(|resource| resource["uri"] == GUIDE), is_there, "{listed}");
        let read = exchange(&fixture, token, "resources/read", json!({"uri": GUIDE})).await;
        let contents = &read["result"]["contents"][0];
        let has_text = contents["text"].as_str().is_some_and(|text| text.contains("save_to_working_memory"));
        assert_eq!((has_text, read["error"]["code"] == -32002), (is_there, !is_there), "{read}");
    }
    fixture.daemon.end().await;
}
