//! The public conformance suite, against the bridge as a client and the MCP server of the daemon. What is known not to
//! pass is listed with reasons; the list is wrong as soon as it names a scenario that passes, or does not name one that
//! does not.

use std::path::{Path, PathBuf};

use serde_json::json;
use toolbus_e2e::conformance::{Listed, folder, listed, scenarios, suite, unexpected};
use toolbus_e2e::daemon::Daemon;
use toolbus_e2e::mcp::{TOKEN, Workplace, environment, python, ready};
use toolbus_e2e::namespace::BrokerNamespace;
use toolbus_e2e::program::{Run, binary, interpreter};

/// Longest run of one client, in milliseconds: it may have to wait for its turn on the machine.
const CLIENT_MS: &str = "90000";
/// The scenario that wants the client back within 0.2 s of a given time, which a busy machine does not always grant.
const PUNCTUAL: &str = "sse-retry";
/// Number of times that the punctual scenario is tried again, alone.
const TRIES: usize = 5;
const SIDES: [&str; 2] = ["client", "server"];

/// Runs the bridge in some scenarios.
async fn run(which: [&str; 2]) -> Run {
    let quoted = |path: PathBuf| format!("'{}'", path.display());
    let command = [interpreter(), folder().join("bridge.py"), binary()].map(quoted).join(" ");
    suite(&[&["client", "--command", &command, "--timeout", CLIENT_MS], &which[..]].concat()).await
}

#[tokio::test]
async fn the_bridge_passes_all_scenarios_of_a_client_but_those_that_are_listed() {
    let mut done = run(["--suite", "all"]).await;
    for _ in 0..TRIES {
        if done.code == 0 || unexpected(&done) != [PUNCTUAL] {
            break;
        }
        done = run(["--scenario", PUNCTUAL]).await;
    }
    assert!(done.code == 0, "tests/conformance/expected-failures.yml is wrong:\n{}\n{}", done.out, done.err);
}

/// The tools that the suite's clients call are those of an MCP server, so that each call goes through the MCP server of the
/// daemon, the dispatcher and the bridge, and back.
#[tokio::test]
async fn the_mcp_server_passes_all_scenarios_of_a_server_but_those_that_are_listed() {
    let work = Workplace::new().await;
    let server = json!({"command": python(), "args": [folder().join("server.py")], "env": environment()});
    work.write(&json!({"suite": server}));
    // The suite shows no token.
    let more =
        format!("[http]\nopen = true\nadmin_token = {TOKEN:?}\n[mcp]\nservers_file = {:?}\n", work.text("mcp.json"));
    let daemon = Daemon::start(&BrokerNamespace::embedded(), &more).await;
    ready(&daemon, "suite").await;
    let url = format!("http://{}/mcp", daemon.listen());
    let done = suite(&["server", "--url", &url, "--suite", "all"]).await;
    assert!(done.code == 0, "tests/conformance/expected-failures.yml is wrong:\n{}\n{}", done.out, done.err);
    daemon.end().await;
}

#[tokio::test]
async fn the_list_names_scenarios_that_there_are_and_each_once() {
    for side in SIDES {
        let all = scenarios(side).await;
        let mut names: Vec<_> = listed(side).into_iter().flat_map(|entry| entry.scenarios).collect();
        let unknown: Vec<_> = names.iter().filter(|name| !all.contains(name)).collect();
        assert!(unknown.is_empty(), "the suite has no scenarios {unknown:?}");
        names.sort();
        let repeated: Vec<_> = names.windows(2).filter(|pair| pair.first() == pair.last()).collect();
        assert!(repeated.is_empty(), "listed twice: {repeated:?}");
    }
}

#[test]
fn the_page_shows_the_list() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/mcp.md");
    let page = std::fs::read_to_string(page).unwrap();
    for side in SIDES {
        let row = |entry: Listed| {
            let names: Vec<_> = entry.scenarios.iter().map(|name| format!("`{name}`")).collect();
            format!("| {} | {} |\n", names.join(", "), entry.reason)
        };
        let rows: String = listed(side).into_iter().map(row).collect();
        let table = format!("\n| `{side}` scenario | Why it does not pass |\n|---|---|\n{rows}\n");
        assert!(page.contains(&table), "docs/mcp.md does not have this table:\n{table}");
    }
}
