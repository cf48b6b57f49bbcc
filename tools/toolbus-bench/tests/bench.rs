//! Measurements that need no broker, as a user has them run.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A proxy in front of the same server: this program again.
const PEER: &str = r#"another=exec "$TOOLBUS" --set bus.url=embedded --set daemon.socket=none --set http.listen=127.0.0.1:$PORT \
    --set http.open=true --set mcp.servers.it.command="${SERVER% *}" --set "mcp.servers.it.args=[\"${SERVER##* }\"]" serve"#;

/// The daemon.
fn toolbus() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("toolbus");
    assert!(built.exists(), "{} is missing: build it first, with `cargo build`, or run ./tests/run", built.display());
    built
}

/// Measures by way of `toolbus bench`, as users do.
fn bench(args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(toolbus());
    command.current_dir(folder.path()).arg("bench").args(args);
    // What a run of tests hands to its tests is no setting of the daemon; by the one that stays its processes are known.
    let is_of_run = |name: &str| name.starts_with("TOOLBUS_") && name != "TOOLBUS_TEST_RUN";
    for (name, _) in std::env::vars().filter(|(name, _)| is_of_run(name)) {
        command.env_remove(name);
    }
    command.env("TOOLBUS", toolbus()).output().unwrap()
}

/// Exit code, standard output and standard error.
fn ended(done: &Output) -> (i32, &str, &str) {
    let text = |bytes| str::from_utf8(bytes).unwrap().trim_end();
    (done.status.code().unwrap(), text(&done.stdout), text(&done.stderr))
}

#[test]
fn the_mcp_server_is_measured_beside_the_bus_and_a_page_and_another_proxy() {
    let args =
        ["--mcp-server", "--rounds", "1", "--seconds", "1", "--callers", "1,4", "--sessions", "20", "--output", "json"];
    let done = bench(&[&args[..], &["--peer", PEER]].concat());
    // Speed depends on the load of this machine: neither figures nor the exit code, which depends on them, are checked.
    let report: Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
    let errors = String::from_utf8_lossy(&done.stderr);
    let rows = report["rows"].as_array().unwrap_or_else(|| panic!("{errors}"));
    let sides: Vec<(&str, u64)> =
        rows.iter().map(|row| (row["side"].as_str().unwrap(), row["callers"].as_u64().unwrap())).collect();
    let all = ["bus", "/healthz", "MCP session", "MCP stateless"];
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
fn a_proxy_that_does_not_start_is_reported_with_its_output() {
    let args = ["--mcp-server", "--rounds", "1", "--seconds", "1", "--callers", "1", "--sessions", "1"];
    let done = bench(&[&args[..], &["--peer", "another=echo no configuration >&2; exit 3"]].concat());
    let text = String::from_utf8(done.stderr).unwrap();
    assert_eq!((done.status.code(), &*done.stdout), (Some(1), &b""[..]));
    let error = "error: the MCP server cannot be measured: another ended (exit status: 3): no configuration\n";
    assert!(text.ends_with(error), "{text}");
}

#[test]
fn bench_measures_scripts_and_reports_what_they_leave_behind() {
    let given = ["--script", "--rounds", "1", "--seconds", "1", "--callers", "2", "--scripts", "5", "--output", "json"];
    let done = bench(&given);
    // Speed depends on the load of this machine: neither figures nor the exit code, which depends on them, are checked.
    let report: Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
    let is = |row: &Value, side: &str| row["side"].as_str().is_some_and(|name| name.starts_with(side));
    let rows = report["rows"].as_array().unwrap_or_else(|| panic!("{}", ended(&done).2));
    for side in ["plain", "cold, ", "warm", "cold", "pool"] {
        let row = rows.iter().find(|row| is(row, side)).unwrap_or_else(|| panic!("no {side}: {report}"));
        assert!(row["p50Ms"].as_f64().unwrap() > 0.0 && row["callsPerSecond"].as_f64().unwrap() > 0.0, "{row}");
    }
    let has_bwrap = rows.iter().any(|row| is(row, "bwrap"));
    let is_listed_as_absent = report["absent"].as_array().unwrap().iter().any(|absent| absent[0] == "bwrap");
    assert_ne!(has_bwrap, is_listed_as_absent, "{report}");
    assert!(report["throughput"][0]["cold"].as_f64().unwrap() > 0.0, "{report}");
    for growth in report["growth"].as_array().unwrap() {
        for of in ["descriptors", "processes", "folders", "mounts"] {
            assert_eq!(growth["before"][of], growth["after"][of], "{of}: {growth}");
        }
    }
    let all_met = report["gates"].as_array().unwrap().iter().all(|gate| gate["isMet"] == true);
    assert_eq!(done.status.success(), all_met, "{report}");
}

#[test]
fn a_measurement_needs_a_broker() {
    let output = bench(&[]);
    let (code, out, err) = ended(&output);
    assert_eq!((code, out), (1, ""));
    assert!(err.contains("--bus-url"), "{err}");
}

#[test]
fn a_measurement_refuses_certificates_instead_of_leaving_them_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n").unwrap();
    let ca = format!("bus.tls.ca={}", file.display());
    let output = bench(&["--bus-url", "amqps://127.0.0.1:9", "--set", &ca]);
    assert_eq!(
        ended(&output),
        (1, "", "error: bench does not use bus.tls: measure on a broker without certificates of its own")
    );
}
