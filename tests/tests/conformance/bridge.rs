//! The suite's servers, and the bridge of the real binary as their client.

use std::path::PathBuf;

use toolbus_e2e::conformance::{folder, suite, unexpected};
use toolbus_e2e::program::{Run, binary, interpreter};

/// Longest run of one client, in milliseconds: it may have to wait for its turn on the machine.
const CLIENT_MS: &str = "90000";
/// The scenario that wants the client back within 0.2 s of a given time, which a busy machine does not always grant.
const PUNCTUAL: &str = "sse-retry";
/// How often that one is tried again, alone.
const TRIES: usize = 5;

/// Runs the bridge in some scenarios.
async fn run(which: [&str; 2]) -> Run {
    let quoted = |path: PathBuf| format!("'{}'", path.display());
    let command = [interpreter(), folder().join("bridge.py"), binary()].map(quoted).join(" ");
    suite(&[&["client", "--command", &command, "--timeout", CLIENT_MS], &which[..]].concat()).await
}

#[tokio::test]
async fn the_bridge_passes_all_scenarios_of_a_client_but_those_that_are_listed() {
    let mut told = run(["--suite", "all"]).await;
    for _ in 0..TRIES {
        if told.code == 0 || unexpected(&told) != [PUNCTUAL] {
            break;
        }
        told = run(["--scenario", PUNCTUAL]).await;
    }
    assert!(told.code == 0, "tests/conformance/expected-failures.yml is wrong:\n{}\n{}", told.out, told.err);
}
