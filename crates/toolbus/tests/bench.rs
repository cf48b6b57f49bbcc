//! Measurements that need no broker, as a user has them run.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

use serde_json::Value;

/// A proxy in front of the same server: this program again.
const PEER: &str = r#"another=exec "$TOOLBUS" --set bus.url=embedded --set daemon.socket=none --set http.listen=127.0.0.1:$PORT \
    --set http.open=true --set mcp.servers.it.command="${SERVER% *}" --set "mcp.servers.it.args=[\"${SERVER##* }\"]" serve"#;

fn bench(args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolbus"));
    command.current_dir(folder.path()).arg("bench").args(args).env("TOOLBUS", env!("CARGO_BIN_EXE_toolbus"));
    command.output().unwrap()
}

#[test]
fn the_door_is_measured_beside_the_bus_and_a_page_and_another_proxy() {
    let args =
        ["--door", "--rounds", "1", "--seconds", "1", "--callers", "1,4", "--sessions", "20", "--output", "json"];
    let done = bench(&[&args[..], &["--peer", PEER]].concat());
    // How fast it is depends on what else this machine does: that is not looked at, nor the exit code, which says it.
    let report: Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
    let errors = String::from_utf8_lossy(&done.stderr);
    let rows = report["rows"].as_array().unwrap_or_else(|| panic!("{errors}"));
    let sides: Vec<(&str, u64)> =
        rows.iter().map(|row| (row["side"].as_str().unwrap(), row["callers"].as_u64().unwrap())).collect();
    let all = ["bus", "/healthz", "door, session", "door, stateless"];
    assert_eq!(sides, [all.map(|side| (side, 1)), all.map(|side| (side, 4))].concat());
    for row in rows {
        assert!(row["callsPerSecond"].as_f64().unwrap() > 10.0, "{row}");
        // A packet that one side holds back for the other's acknowledgement would cost 40 ms.
        assert!(row["callers"] != 1 || row["p50Ms"].as_f64().unwrap() < 20.0, "{row}");
    }
    assert!(report["idle"]["before"].as_u64().unwrap() > 1 << 20, "{report}");
    let gates = report["gates"].as_array().unwrap();
    assert_eq!(gates.len(), 5, "{report}");
    let all_met = gates.iter().all(|gate| gate["isMet"] == true);
    assert_eq!(done.status.success(), all_met, "{report}");

    let peers = report["peers"].as_array().unwrap();
    let names: Vec<&str> = peers.iter().map(|peer| peer["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["toolbus", "another"]);
    for peer in peers {
        for calls in peer["calls"].as_array().unwrap() {
            assert!(calls["callsPerSecond"].as_f64().unwrap() > 10.0 && calls["failures"] == 0, "{peer}");
        }
        assert!(peer["memoryMib"].as_f64().unwrap() > 1.0, "{peer}");
        for again in ["sameSessionMs", "newSessionMs"] {
            assert!(peer["afterKill"][again].as_f64().is_some_and(|time| time > 0.0), "{again}: {peer}");
        }
    }
}

#[test]
fn a_proxy_that_does_not_start_is_told_with_its_own_words() {
    let args = ["--door", "--rounds", "1", "--seconds", "1", "--callers", "1", "--sessions", "1"];
    let done = bench(&[&args[..], &["--peer", "another=echo no configuration >&2; exit 3"]].concat());
    let told = String::from_utf8(done.stderr).unwrap();
    assert_eq!((done.status.code(), &*done.stdout), (Some(1), &b""[..]));
    let said = "error: the door cannot be measured: another ended (exit status: 3): no configuration\n";
    assert!(told.ends_with(said), "{told}");
}
