//! Reports of progress, for callers that want them.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use toolbus_protocol::{Envelope, ToolProgress, bounded, header, message_type};

use super::Dispatcher;
use super::call::Call;
use crate::progress::{Progress, ProgressSink};
use crate::reply::destination;
use crate::reply_address::Address;

/// Time between two messages of one call; of the reports in between, the last is sent.
const PERIOD: Duration = Duration::from_millis(50);
/// Time that the last report gets before the reply overtakes it. A broker that needs as long for a report needs as long
/// for the reply.
const LAST: Duration = Duration::from_secs(2);
/// Longest text of a report, in characters.
const MAX_MESSAGE: usize = 1_000;

/// Reports the progress of one call to its caller.
pub(super) struct ProgressReporter {
    task: JoinHandle<()>,
    ended: CancellationToken,
}

impl ProgressReporter {
    /// Publishes what is reported into the sink that comes with it.
    pub(super) fn begin(dispatcher: &Dispatcher, call: &Call) -> (ProgressSink, Self) {
        let (sink, reports) = ProgressSink::new();
        let ended = CancellationToken::new();
        let request = &call.request;
        let publisher = ProgressPublisher {
            dispatcher: dispatcher.clone(),
            address: request.address.clone(),
            correlation_id: bounded(&request.envelope.correlation_id).to_owned(),
            destination: destination(&request.envelope, &request.caller),
            call_id: request.call_id.to_string(),
            tool: request.tool_name.clone(),
        };
        let task = dispatcher.parts.tasks.spawn(publisher.run(reports, ended.clone()));
        (sink, Self { task, ended })
    }

    /// Returns when everything that was reported has been published, or soon after.
    pub(super) async fn end(self) {
        self.ended.cancel();
        let abort = self.task.abort_handle();
        if tokio::time::timeout(LAST, self.task).await.is_err() {
            abort.abort();
        }
    }
}

struct ProgressPublisher {
    dispatcher: Dispatcher,
    address: Address,
    correlation_id: String,
    destination: Option<String>,
    call_id: String,
    tool: String,
}

impl ProgressPublisher {
    async fn run(self, mut reports: mpsc::Receiver<Progress>, ended: CancellationToken) {
        let mut pace = tokio::time::interval(PERIOD);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Biased, as everywhere: the same run twice takes the same turns.
            tokio::select! {
                biased;
                _ = pace.tick() => {}
                () = ended.cancelled() => {}
            }
            let first = tokio::select! {
                biased;
                report = reports.recv() => report,
                // What was reported before the end is there by now.
                () = ended.cancelled() => reports.try_recv().ok(),
            };
            let Some(mut last) = first else { return };
            while let Ok(later) = reports.try_recv() {
                last = later;
            }
            self.publish(last).await;
        }
    }

    async fn publish(&self, report: Progress) {
        let Progress { progress, total, message } = report;
        let body = ToolProgress {
            tool_call_id: self.call_id.clone(),
            tool_name: self.tool.clone(),
            progress,
            total,
            message: message.map(|text| text.chars().take(MAX_MESSAGE).collect()),
        };
        let settings = &self.dispatcher.parts.settings;
        let (id, now) = (settings.random.id(), settings.clock.wall());
        let envelope = Envelope {
            correlation_id: self.correlation_id.clone(),
            destination: self.destination.clone(),
            ..Envelope::outgoing(message_type::TOOL_PROGRESS, &settings.name, id, now)
        }
        .with_header(header::CONTENT_TRUST, header::TRUST_TOOL_OUTPUT);
        let mut properties = envelope.into_properties();
        properties.persistent = false;
        let body = serde_json::to_vec(&body).unwrap_or_default();
        self.dispatcher.parts.replier.publish_once(&self.address, properties, body.into()).await;
    }
}
