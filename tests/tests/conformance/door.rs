//! The suite's clients, and the door of the real binary as their server. The tools that they call are those of an MCP
//! server, so that each call goes through the door, the dispatcher and the bridge, and back.

use serde_json::json;
use toolbus_e2e::conformance::{folder, suite};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::mcp::{TOKEN, Workplace, environment, python, ready};
use toolbus_e2e::site::Site;

#[tokio::test]
async fn the_door_passes_all_scenarios_of_a_server_but_those_that_are_listed() {
    let work = Workplace::new().await;
    let server = json!({"command": python(), "args": [folder().join("server.py")], "env": environment()});
    work.write(&json!({"suite": server}));
    // The suite shows no token.
    let more =
        format!("[http]\nopen = true\nadmin_token = {TOKEN:?}\n[mcp]\nservers_file = {:?}\n", work.text("mcp.json"));
    let daemon = Daemon::start(&Site::embedded(), &more).await;
    ready(&daemon, "suite").await;
    let url = format!("http://{}/mcp", daemon.listen());
    let told = suite(&["server", "--url", &url, "--suite", "all"]).await;
    assert!(told.code == 0, "tests/conformance/expected-failures.yml is wrong:\n{}\n{}", told.out, told.err);
}
