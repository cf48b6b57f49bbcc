//! The daemon as a process: what it says, and how signals end it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Stdio};

use tempfile::TempDir;

/// A daemon on the embedded bus, which ends with the test.
struct Served {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    _folder: TempDir,
}

impl Served {
    fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_toolbus"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, log, _folder: folder }
    }

    /// Reads the log up to a line with `text`; fails when the daemon ends before it.
    fn read_until(&mut self, text: &str) -> String {
        self.log.by_ref().map(Result::unwrap).find(|line| line.contains(text)).unwrap()
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap().success());
    }

    fn code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_daemon_on_the_embedded_bus_says_that_nobody_can_reach_it_and_ends_in_order() {
    let mut served = Served::start(&[]);
    let warning = served.read_until("the bus is embedded");
    assert!(warning.contains("WARN") && warning.contains("set bus.url"), "{warning}");
    served.signal("TERM");
    let draining = served.read_until("draining");
    assert!(draining.contains("30000") && !draining.contains("\"30000\""), "{draining}");
    assert_eq!(served.code(), Some(0));
}

#[test]
fn a_second_signal_ends_the_daemon_at_once_even_while_telemetry_leaves() {
    // A collector that takes connections and never answers: the last export waits for it.
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("telemetry.otlp_endpoint=http://{}", collector.local_addr().unwrap());
    let mut served = Served::start(&["--set", &endpoint]);
    served.read_until("the bus is embedded");
    served.signal("TERM");
    served.read_until("drained:");
    served.signal("INT");
    served.read_until("stopping at once");
    assert_eq!(served.code(), Some(130));
}
