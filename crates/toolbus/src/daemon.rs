//! The running daemon: consumers on a bus, calls in tasks, and an orderly end.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use toolbus_core::bus::{Bus, Ownership, Subscription};
use toolbus_core::registry::Registry;
use toolbus_core::telemetry::{Load, Telemetry};
use toolbus_core::{Budgets, CancelService, Dispatcher, Drained, ReplyRules, Service, Settings};
use toolbus_protocol::{new_message_id, topic};

use crate::config::Config;

/// Requests to cancel that are taken at a time.
const CANCEL_PREFETCH: u16 = 64;

/// A daemon that takes calls in.
pub struct Daemon {
    bus: Arc<dyn Bus>,
    service: Arc<Service>,
    consumers: JoinSet<()>,
}

impl Daemon {
    /// Starts taking calls in, as soon as the bus allows.
    #[must_use]
    pub fn start(
        config: &Config,
        bus: Arc<dyn Bus>,
        registry: Registry,
        telemetry: Arc<dyn Telemetry>,
        load: Arc<Load>,
    ) -> Self {
        let settings = settings(config);
        let cancel = CancelService::new(settings.name.clone(), Arc::clone(&bus), settings.replies.clone());
        let dispatcher = Dispatcher::new(settings, registry, Arc::clone(&bus), telemetry, load);
        let service = Arc::new(Service::new(dispatcher));
        let calls = bus.consume(Subscription {
            queue: format!("{}.invoke", config.queue_prefix()),
            topics: config.invoke_topics(),
            prefetch: config.invoke.prefetch(),
            ownership: Ownership::Shared,
        });
        let cancellations = bus.consume(Subscription {
            queue: format!("{}.replica.{}", config.queue_prefix(), new_message_id()),
            topics: vec![topic::TOOL_CANCEL.to_owned()],
            prefetch: CANCEL_PREFETCH,
            ownership: Ownership::Replica,
        });
        let mut consumers = JoinSet::new();
        let of_calls = Arc::clone(&service);
        consumers.spawn(async move { of_calls.serve_calls(calls).await });
        let of_cancellations = Arc::clone(&service);
        consumers.spawn(async move { of_cancellations.serve_cancellations(&cancel, cancellations).await });
        Self { bus, service, consumers }
    }

    /// Stops taking calls in, waits at most `patience` for those under way, ends the rest, and closes the bus.
    pub async fn drain(mut self, patience: Duration) -> Drained {
        self.bus.stop_consuming().await;
        while self.consumers.join_next().await.is_some() {}
        let drained = self.service.drain(patience).await;
        self.bus.close().await;
        drained
    }
}

fn settings(config: &Config) -> Settings {
    Settings {
        name: config.bus.name.clone(),
        replies: ReplyRules {
            reply_topics: config.bus.reply_topics.clone(),
            request_topics: config.invoke_topics(),
            queue_prefix: config.queue_prefix(),
            default_topic: config.invoke.default_reply_topic.clone(),
        },
        budgets: Budgets { default: config.invoke.default_timeout.into(), max: config.invoke.max_timeout.into() },
        max_body: usize::try_from(config.invoke.max_body.bytes()).unwrap_or(usize::MAX),
        max_in_flight: config.invoke.max_in_flight,
        max_waiting: config.invoke.max_waiting,
    }
}
