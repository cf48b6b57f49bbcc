//! Telemetry of other agents.

use toolbus_core::events::{AgentEvents as _, AgentOutcomes};
use toolbus_telemetry::Exporters;

use crate::observed::metrics;
use crate::support::Daemon;

/// Every outcome that the contract knows, and more.
pub(crate) fn use_in_every_way(exporters: &Exporters) {
    let recorder = exporters.agents();
    let with_more = |outcomes: &[&'static str]| outcomes.iter().copied().chain(["other"]).collect::<Vec<_>>();
    with_more(&AgentOutcomes::ANNOUNCEMENTS).into_iter().for_each(|outcome| recorder.announced(outcome));
    with_more(&AgentOutcomes::TASK_MESSAGES).into_iter().for_each(|outcome| recorder.task_message(outcome));
    with_more(&AgentOutcomes::TASKS).into_iter().for_each(|outcome| recorder.task_ended(outcome));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announcements_replies_and_tasks_are_counted_by_outcome() {
    let (receiver, daemon) = Daemon::with_receiver(&[("OTEL_TRACES_EXPORTER", "none")]).await;
    let recorder = daemon.exporters.agents();
    recorder.announced("new");
    recorder.task_message("not_asked");
    recorder.task_message("not_asked");
    recorder.task_ended("timeout");
    daemon.end().await;

    let metrics = metrics(&receiver);
    let value = |name: &str, outcome: &str| metrics[&format!("toolbus.a2a.{name}")].value(&[("outcome", outcome)]);
    assert_eq!(value("announcements", "new"), Some(1.0));
    assert_eq!(value("answers", "not_asked"), Some(2.0));
    assert_eq!(value("tasks", "timeout"), Some(1.0));
}
