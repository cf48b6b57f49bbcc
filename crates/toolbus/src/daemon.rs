//! The running daemon: consumers on a bus, calls in tasks, and an orderly end.

mod mcp;
mod pins;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use toolbus_core::audit::Audit;
use toolbus_core::bus::{Bus, Ownership, Subscription};
use toolbus_core::policy::PolicyHandle;
use toolbus_core::redact::Redactor;
use toolbus_core::store::Store;
use toolbus_core::telemetry::{Load, Telemetry};
use toolbus_core::toolsets::SessionSets;
use toolbus_core::{
    About, AllArrived, Budgets, ControlService, Dispatcher, Drained, Gates, Invoker, PendingTools, ReplyRules, Service,
    Settings,
};
use toolbus_mcp_client::model_tools::Registrar;
use toolbus_protocol::{new_message_id, topic};
use toolbus_trust::pins::Pins;

use crate::assembly::{Scripts, Servers};
use crate::config::Config;
use crate::config::daemon::Role;
use crate::config::identity::Source;
use crate::config::mcp::UnknownServer;

/// Small requests that are taken at a time.
const DESK_PREFETCH: u16 = 64;

/// What a daemon works with.
pub struct Parts {
    /// Where requests come from, and answers go.
    pub bus: Arc<dyn Bus>,
    /// Who may use what.
    pub access: PolicyHandle,
    /// Tool sets that are built for each session.
    pub sessions: SessionSets,
    /// MCP servers, if this process has any.
    pub servers: Option<Servers>,
    /// What runs scripts and commands.
    pub scripts: Scripts,
    /// What tools say of themselves, where that is kept; `access` asks it already.
    pub pins: Option<Pins>,
    /// Adds MCP servers for callers, if they may.
    pub registrar: Option<Arc<Registrar>>,
    /// What must outlive the process.
    pub store: Arc<dyn Store>,
    /// What is told of calls.
    pub telemetry: Arc<dyn Telemetry>,
    /// What is kept of calls for those who ask later.
    pub audit: Arc<dyn Audit>,
    /// How much is going on.
    pub load: Arc<Load>,
    /// Removes the daemon's own secrets from what callers are told.
    pub redactor: Redactor,
}

/// A daemon that takes calls in.
pub struct Daemon {
    bus: Arc<dyn Bus>,
    service: Arc<Service>,
    sessions: SessionSets,
    servers: Option<Servers>,
    scripts: Scripts,
    gates: Arc<Gates>,
    invoker: Arc<dyn Invoker>,
    digest: watch::Sender<String>,
    consumers: JoinSet<()>,
    /// What ends with the daemon, and holds nothing up.
    background: JoinSet<()>,
}

impl Daemon {
    /// Starts taking calls in, as soon as the bus allows.
    #[must_use]
    pub fn start(config: &Config, parts: Parts) -> Self {
        let Parts { bus, access, sessions, servers, scripts, pins, registrar, store, telemetry, audit, load, redactor } =
            parts;
        let settings = settings(config, redactor);
        let rules = settings.replies.clone();
        let gates = Arc::new(Gates::new(access.clone()));
        let arrivals: Arc<dyn PendingTools> = match &servers {
            Some(servers) => Arc::new(servers.bridge().clone()),
            None => Arc::new(AllArrived),
        };
        let (to_gates, to_bus) = (Arc::clone(&gates), Arc::clone(&bus));
        let of_calls = Arc::clone(&telemetry);
        let dispatcher = Dispatcher::new(settings, to_gates, to_bus, of_calls, audit, load, arrivals);
        let mut background = JoinSet::new();
        background.spawn(dispatcher.notifier(Arc::clone(&bus)).run());
        let digest = watch::Sender::new(config.digest());
        let about = about(config, digest.subscribe());
        let mut control = ControlService::new(about, Arc::clone(&bus), rules, dispatcher.clone(), sessions.clone());
        let mut queues = queues(config);
        if let Some(servers) = &servers {
            let ignores_unknown = config.mcp.unknown_server == UnknownServer::Ignore;
            let wired = mcp::wire(servers.bridge(), registrar, &dispatcher, Arc::clone(&bus), store, ignores_unknown);
            background.spawn(wired.notifier.run());
            let refresh = Arc::clone(&wired.refresh);
            background.spawn(async move { refresh.tell_again().await });
            control = control.with(topic::MCP_MANAGE, wired.manage).with(topic::MCP_REFRESH, wired.refresh);
            queues.extend(mcp::queues(config));
        }
        if let Some(pins) = pins {
            background.spawn(pins::keep(pins, access.clone()));
        }
        background.spawn(async move { access.follow().await });
        let invoker: Arc<dyn Invoker> = Arc::new(dispatcher.clone());
        let service = Arc::new(Service::new(dispatcher));
        let mut consumers = JoinSet::new();
        for (subscription, role) in queues {
            if subscription.ownership != Ownership::Replica {
                telemetry.consuming(&subscription.queue);
            }
            let (service, control, deliveries) = (Arc::clone(&service), control.clone(), bus.consume(subscription));
            consumers.spawn(async move {
                match role {
                    Takes::Calls => service.serve_calls(deliveries).await,
                    Takes::Requests => service.serve_requests(&control, deliveries).await,
                }
            });
        }
        Self { bus, service, sessions, servers, scripts, gates, invoker, digest, consumers, background }
    }

    /// The gates that calls pass.
    #[must_use]
    pub const fn gates(&self) -> &Arc<Gates> {
        &self.gates
    }

    /// What runs calls that no message brings.
    #[must_use]
    pub const fn invoker(&self) -> &Arc<dyn Invoker> {
        &self.invoker
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
        if let Some(servers) = &self.servers {
            servers.bridge().shutdown().await;
        }
        self.scripts.shutdown().await;
        self.bus.close().await;
        drained
    }
}

/// What arrives on a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Calls,
    Requests,
}

/// The queues of every daemon.
fn queues(config: &Config) -> Vec<(Subscription, Takes)> {
    let prefix = config.queue_prefix();
    let names = |topics: [&str; 2]| topics.map(str::to_owned).to_vec();
    let requests = |queue, topics, ownership| {
        (Subscription { queue, topics, prefetch: DESK_PREFETCH, ownership }, Takes::Requests)
    };
    let control = names([topic::TOOL_LIST, topic::TOOL_PING]);
    let of_replica = names([topic::TOOL_CANCEL, topic::TOOL_SESSION_END]);
    let calls = |role, name: &str, topics| {
        let (queue, prefetch) = (format!("{prefix}.{name}"), config.invoke.prefetch());
        let subscription = Subscription { queue, topics, prefetch, ownership: Ownership::Shared };
        config.roles().contains(&role).then_some((subscription, Takes::Calls))
    };
    let invoke = calls(Role::Invoke, "invoke", config.invoke_topics());
    let scripts = calls(Role::Scripts, "script", vec![topic::SCRIPT_INVOKE.to_owned()]);
    invoke
        .into_iter()
        .chain(scripts)
        .chain([
            requests(format!("{prefix}.control"), control, Ownership::ShortLived),
            requests(format!("{prefix}.replica.{}", new_message_id()), of_replica, Ownership::Replica),
        ])
        .collect()
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

fn settings(config: &Config, redactor: Redactor) -> Settings {
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
        redactor,
        ignores_unknown_servers: config.mcp.unknown_server == UnknownServer::Ignore,
    }
}
