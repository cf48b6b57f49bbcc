//! Records of tools that are held back.

use toolbus_telemetry::{Exporters, QuarantinedTools, RemoteSetCounts};

use crate::observed::metrics;
use crate::support::Daemon;

/// Registers the observable instruments of the contract.
pub(crate) fn look(exporters: &Exporters) {
    exporters.watch_pins(|| {
        let source = |name: &str, count, changes| QuarantinedTools { source: name.to_owned(), count, changes };
        vec![source("mcp:files", 2, 3), source("rest", 0, 0)]
    });
    exporters.watch_reloads(|| [("applied", 2), ("refused", 0)]);
    exporters.watch_breakers(|| 1, || 4);
    exporters.watch_replicas(|| [("same", 1), ("different", 0)]);
    exporters.watch_other_daemons(|| [("queues", 1), ("topics", 0)]);
    exporters.watch_store(|| false, || [("daemons", Some(-7)), ("store", Some(0))]);
    exporters.watch_remote(|| RemoteSetCounts {
        phases: vec![("waiting", 0), ("ready", 1), ("away", 2)],
        ages: vec![("remote:lab".to_owned(), 70), ("mcp:notes".to_owned(), 3)],
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_tools_and_changes_are_looked_up_at_each_export() {
    let (receiver, daemon) = Daemon::with_receiver(&[("OTEL_TRACES_EXPORTER", "none")]).await;
    look(&daemon.exporters);
    daemon.end().await;

    let metrics = metrics(&receiver);
    let of = |name: &str, source| metrics[name].value(&[("tool_source", source)]);
    assert_eq!(of("toolbus.pins.held", "mcp:files"), Some(2.0));
    assert_eq!(of("toolbus.pins.held", "rest"), Some(0.0));
    assert_eq!(of("toolbus.pins.changes", "mcp:files"), Some(3.0));
    let breakers = ["toolbus.breaker.open", "toolbus.breaker.trips"].map(|name| metrics[name].value(&[]));
    assert_eq!(breakers, [Some(1.0), Some(4.0)]);
    let reloads = |outcome| metrics["toolbus.config.reloads"].value(&[("outcome", outcome)]);
    assert_eq!((reloads("applied"), reloads("refused")), (Some(2.0), Some(0.0)));
    let others = |shares| metrics["toolbus.other_daemons"].value(&[("shares", shares)]);
    assert_eq!((others("queues"), others("topics")), (Some(1.0), Some(0.0)));
    assert_eq!(metrics["toolbus.store.available"].value(&[]), Some(0.0));
    let skew = |clock| metrics["toolbus.clock.skew"].value(&[("clock", clock)]);
    assert_eq!((skew("daemons"), skew("store")), (Some(-7.0), Some(0.0)));
    let sets = |phase| metrics["toolbus.remote.sets"].value(&[("phase", phase)]);
    assert_eq!(["waiting", "ready", "away"].map(sets), [Some(0.0), Some(1.0), Some(2.0)]);
    assert_eq!(of("toolbus.remote.list.age", "remote:lab"), Some(70.0));
    assert_eq!(of("toolbus.remote.list.age", "mcp:notes"), Some(3.0));
}
