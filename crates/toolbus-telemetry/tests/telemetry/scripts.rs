//! Telemetry of scripts.

use std::time::Duration;

use toolbus_core::events::{ScriptEvents as _, ScriptRun};
use toolbus_telemetry::{Exporters, ScriptLoad};

use crate::observed::metrics;
use crate::support::Daemon;

const LOAD: ScriptLoad = ScriptLoad { waiting: 3, running: 2, warm: 1, sessions: 4 };

fn run() -> ScriptRun {
    ScriptRun {
        outcome: "ok",
        start: Some("warm"),
        duration: Duration::from_millis(30),
        waited: Duration::from_millis(5),
        cpu: Some(Duration::from_millis(20)),
        peak_memory: Some(20 << 20),
    }
}

/// Every end of a run that the contract knows, and more.
pub(crate) fn run_in_every_way(exporters: &Exporters) {
    let recorder = exporters.scripts();
    for outcome in ScriptRun::OUTCOMES.into_iter().chain(["exploded"]) {
        recorder.run(&ScriptRun { outcome, ..run() });
    }
    for start in [Some("cold"), Some("forked"), Some("lukewarm"), None] {
        recorder.run(&ScriptRun { start, ..run() });
    }
    exporters.watch_scripts(|| LOAD);
    exporters.watch_sandbox(|| Some("no-namespaces"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn measured_usage_of_a_script_is_recorded() {
    let (receiver, daemon) = Daemon::with_receiver(&[("OTEL_TRACES_EXPORTER", "none")]).await;
    let recorder = daemon.exporters.scripts();
    recorder.run(&run());
    recorder.run(&ScriptRun { outcome: "cancelled", start: None, cpu: None, peak_memory: None, ..run() });
    daemon.exporters.watch_scripts(|| LOAD);
    daemon.end().await;

    let metrics = metrics(&receiver);
    let value = |name: &str, labels: &[(&str, &str)]| metrics[&format!("toolbus.script.{name}")].value(labels);
    assert_eq!(value("runs", &[("outcome", "ok"), ("start", "warm")]), Some(1.0));
    assert_eq!(value("runs", &[("outcome", "cancelled")]), Some(1.0));
    for (name, count) in [("duration", 2.0), ("queue.duration", 2.0), ("cpu.time", 1.0), ("memory.peak", 1.0)] {
        assert_eq!(value(name, &[]), Some(count), "{name}");
    }
    assert_eq!(["waiting", "running", "warm"].map(|name| value(name, &[])), [Some(3.0), Some(2.0), Some(1.0)]);
}
