//! Telemetry of sub-agents.

use toolbus_core::events::SubagentEvents;
use toolbus_telemetry::Exporters;

use crate::observed::metrics;
use crate::support::Daemon;

/// Every outcome of a report that the contract knows, and one more.
pub(crate) fn report_in_every_way(exporters: &Exporters) {
    let recorder = exporters.subagents();
    <dyn SubagentEvents>::OUTCOMES.into_iter().chain(["exploded"]).for_each(|outcome| recorder.reported(outcome));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_are_counted_by_outcome() {
    let (receiver, daemon) = Daemon::with_receiver(&[("OTEL_TRACES_EXPORTER", "none")]).await;
    daemon.exporters.subagents().reported("not_asked");
    daemon.end().await;
    let reports = &metrics(&receiver)["toolbus.subagent.reports"];
    assert_eq!(reports.value(&[("outcome", "not_asked")]), Some(1.0));
    assert_eq!(reports.value(&[("outcome", "taken")]), Some(0.0), "from the start");
}
