//! The running daemon: consumers on a bus, calls in tasks, and an orderly end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use toolbus_core::audit::Audit;
use toolbus_core::bus::{Bus, Ownership, Subscription};
use toolbus_core::policy::Access;
use toolbus_core::telemetry::{Load, Telemetry};
use toolbus_core::toolsets::SessionSets;
use toolbus_core::{AllArrived, About, Budgets, Desk, Dispatcher, Drained, Gates, ReplyRules, Service, Settings};
use toolbus_protocol::{new_message_id, topic};

use crate::config::Config;
use crate::config::identity::Source;

/// Small requests that are taken at a time.
const DESK_PREFETCH: u16 = 64;

/// What a daemon works with.
pub struct Parts {
    /// Where requests come from, and answers go.
    pub bus: Arc<dyn Bus>,
    /// Who may use what.
    pub access: Access,
    /// Tool sets that are built for each session.
    pub sessions: SessionSets,
    /// What is told of calls.
    pub telemetry: Arc<dyn Telemetry>,
    /// What is kept of calls for those who ask later.
    pub audit: Arc<dyn Audit>,
    /// How much is going on.
    pub load: Arc<Load>,
}

/// A daemon that takes calls in.
pub struct Daemon {
    bus: Arc<dyn Bus>,
    service: Arc<Service>,
    sessions: SessionSets,
    gates: Arc<Gates>,
    digest: watch::Sender<String>,
    consumers: JoinSet<()>,
    /// What ends with the daemon, and holds nothing up.
    background: JoinSet<()>,
}

impl Daemon {
    /// Starts taking calls in, as soon as the bus allows.
    #[must_use]
    pub fn start(config: &Config, parts: Parts) -> Self {
        let Parts { bus, access, sessions, telemetry, audit, load } = parts;
        let settings = settings(config);
        let rules = settings.replies.clone();
        let gates = Arc::new(Gates::new(access.clone()));
        let dispatcher = Dispatcher::new(settings, Arc::clone(&gates), Arc::clone(&bus), telemetry, audit, load, Arc::new(AllArrived));
        let announcer = dispatcher.announcer(Arc::clone(&bus));
        let digest = watch::Sender::new(config.digest());
        let desk =
            Desk::new(about(config, digest.subscribe()), Arc::clone(&bus), rules, dispatcher.clone(), sessions.clone());
        let service = Arc::new(Service::new(dispatcher));

        let prefix = config.queue_prefix();
        let subscribe = |queue: String, topics: Vec<String>, prefetch, ownership| {
            bus.consume(Subscription { queue, topics, prefetch, ownership })
        };
        let names = |topics: [&str; 2]| topics.map(str::to_owned).to_vec();
        let calls =
            subscribe(format!("{prefix}.invoke"), config.invoke_topics(), config.invoke.prefetch(), Ownership::Shared);
        let control = subscribe(
            format!("{prefix}.control"),
            names([topic::TOOL_LIST, topic::TOOL_PING]),
            DESK_PREFETCH,
            Ownership::Shared,
        );
        let replica = subscribe(
            format!("{prefix}.replica.{}", new_message_id()),
            names([topic::TOOL_CANCEL, topic::TOOL_SESSION_END]),
            DESK_PREFETCH,
            Ownership::Replica,
        );

        let mut consumers = JoinSet::new();
        let of_calls = Arc::clone(&service);
        consumers.spawn(async move { of_calls.serve_calls(calls).await });
        for requests in [control, replica] {
            let (service, desk) = (Arc::clone(&service), desk.clone());
            consumers.spawn(async move { service.serve_requests(&desk, requests).await });
        }
        let mut background = JoinSet::new();
        background.spawn(async move { access.follow().await });
        background.spawn(announcer.run());
        Self { bus, service, sessions, gates, digest, consumers, background }
    }

    /// The gates that calls pass.
    #[must_use]
    pub const fn gates(&self) -> &Arc<Gates> {
        &self.gates
    }

    /// The hash of the configuration that the daemon says it runs.
    #[must_use]
    pub const fn digest(&self) -> &watch::Sender<String> {
        &self.digest
    }

    /// Stops taking calls in, waits at most `patience` for those under way, ends the rest, and closes the bus.
    pub async fn drain(mut self, patience: Duration) -> Drained {
        self.bus.stop_consuming().await;
        while self.consumers.join_next().await.is_some() {}
        self.background.abort_all();
        let drained = self.service.drain(patience).await;
        self.sessions.shutdown().await;
        self.bus.close().await;
        drained
    }
}

fn about(config: &Config, config_digest: watch::Receiver<String>) -> About {
    About {
        name: config.bus.name.clone(),
        version: crate::VERSION.to_owned(),
        config_digest,
        roles: config.roles().iter().map(|role| role.as_str().to_owned()).collect(),
        started: std::time::Instant::now(),
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
            own_topics_only: config.identity.source == Source::Broker,
        },
        budgets: Budgets { default: config.invoke.default_timeout.into(), max: config.invoke.max_timeout.into() },
        max_body: usize::try_from(config.invoke.max_body.bytes()).unwrap_or(usize::MAX),
        max_in_flight: config.invoke.max_in_flight,
        max_waiting: config.invoke.max_waiting,
        ignores_unknown_servers: false,
    }
}
