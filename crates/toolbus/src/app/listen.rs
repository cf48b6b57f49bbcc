//! The intake of an app: calls and control requests from the bus, each queue in a task; and HTTP requests.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tokio::sync::watch;
use toolbus_core::audit::Audit;
use toolbus_core::bus::{Ownership, Subscription};
use toolbus_core::caller::IdentitySource;
use toolbus_core::ledger::{Ledger, LedgerSettings};
use toolbus_core::redact::Redactor;
use toolbus_core::results::ResultBudget;
use toolbus_core::{About, Budgets, Clock, ControlService, DispatcherSettings, Invoker, MAX_CONTROL_BODY, ReplyRules};
use toolbus_mcp_client::config::UnknownServer;
use toolbus_mcp_server::{Local, McpServer};
use toolbus_memory::working_memory::WorkingMemory;
use toolbus_protocol::{Random, new_message_id, topic};
use toolbus_telemetry::Exporters;

use super::other_daemons::OtherDaemons;
use super::{App, pins};
use crate::config::Config;
use crate::config::daemon::Role;
use crate::families::{self, CONTROL_PREFETCH, Queue, Takes, ToolFamily, Work, max_body};
use crate::http::admin::{self, Admin, DeadLetterAdmin, OperatorCalls};
use crate::http::{self, Console, HttpRefusal, HttpState, LastHour, SharedState};

/// Topics of the agents' requests other than calls.
const CONTROL: [&str; 3] = [topic::TOOL_LIST, topic::TOOL_HINTS, topic::TOOL_PING];

impl App {
    /// Takes calls from the bus; a daemon serves HTTP requests, too. Where the store that replicas share has not been read,
    /// calls are taken once it has been.
    pub fn listen(&mut self) {
        if let Some(replicas) = self.peers.replicas.take() {
            self.peers.announcement = Some(replicas.announcement());
            self.tasks.background.spawn(replicas.run());
        }
        if let Some(files) = self.store_files.take() {
            self.tasks.background.spawn(files.run());
        }
        if !self.peers.shared.borrow().is_unread {
            self.consume();
        }
        let Some(daemon) = &mut self.daemon else { return };
        daemon.exporters.export_now();
        let Some((listeners, switches)) = daemon.listeners.take() else { return };
        let Some(daemon) = &self.daemon else { return };
        let mcp = self.mcp_server(&daemon.exporters);
        let admin = Arc::new(Admin {
            gates: Arc::clone(&self.calls.gates),
            switches,
            pins: Some(self.pins.clone()),
            servers: self.servers(),
            recent: self.calls.recent.clone(),
            metrics: daemon.exporters.text(),
            families: self.given.views.clone(),
            dead_letters: Some(DeadLetterAdmin::new(self.in_force.subscribe())),
            audit: Arc::clone(&daemon.audit) as Arc<dyn Audit>,
            daemon: Some(self.admin.clone()),
        });
        let (gates, dispatcher) = (Arc::clone(&self.calls.gates), self.calls.dispatcher.clone());
        let calls = OperatorCalls::new(gates, dispatcher, self.peers.shared.clone());
        let http = &self.config.http;
        let console = daemon.exporters.text().filter(|_| http.has_console()).map(|metrics| {
            let history = Arc::new(LastHour::default());
            let following = Arc::clone(&history).follow(metrics, self.tasks.stop_serving.clone());
            self.tasks.background.spawn(following);
            let console = Console {
                history,
                admin: Arc::clone(&admin),
                calls: calls.clone(),
                redactor: self.redactor.clone(),
                name: self.config.bus.name.clone(),
                trace_url: http.trace_url.clone(),
                keeps_payloads: http.keeps_payloads(),
                config: self.in_force.subscribe(),
                sources: self.sources.clone(),
            };
            http::console(console, http, &self.http_auth)
        });
        let state = HttpState {
            health: Arc::clone(&self.health),
            metrics: daemon.exporters.text().filter(|_| http.has_metrics()),
            admin: http.takes_operators().then(|| admin::guarded(Arc::clone(&admin), http, &self.http_auth)),
            console,
            auth: Arc::clone(&self.http_auth),
            mcp: toolbus_mcp_server::router(mcp.clone())
                .layer(from_fn_with_state(self.peers.shared.clone(), refuse_until_read)),
            redactor: self.redactor.clone(),
        };
        self.tasks.serving = listeners.serve(
            state,
            admin::open(Arc::clone(&admin)).merge(admin::calls(admin, calls)),
            &self.tasks.stop_serving,
        );
        self.tasks.serving.spawn(mcp.run());
    }

    /// Starts the consumers, and the tasks beside them; once.
    pub(super) fn consume(&mut self) {
        self.is_consuming = true;
        let notifier = self.calls.dispatcher.notifier(self.bus());
        self.tasks.background.spawn(notifier.run());
        let control = self.control();
        let queues = all_queues(&self.config, &self.families);
        // A command writes no pins.
        if self.daemon.is_some() {
            self.tasks.background.spawn(pins::keep(self.pins.clone(), self.policy.clone()));
        }
        let policy = self.policy.clone();
        self.tasks.background.spawn(async move { policy.follow().await });
        let (sessions, policy) = (self.calls.sessions.clone(), self.policy.clone());
        self.tasks.background.spawn(async move { sessions.follow(policy).await });
        if self.daemon.is_some()
            && let Some(queue) = OtherDaemons::queue(&self.config)
        {
            let (bus, digest) = (self.bus(), self.digest.subscribe());
            let others = OtherDaemons::new(&self.config, bus, digest, self.peers.others.clone());
            self.tasks.announcements.spawn(others.run(queue, self.tasks.stop_announcing.clone()));
        }
        for (subscription, takes) in queues {
            if subscription.ownership != Ownership::Replica {
                self.calls.telemetry.consuming(&subscription.queue);
            }
            let is_inbox = subscription.is_inbox;
            let deliveries = self.bus.consume(subscription);
            let (service, control) = (Arc::clone(&self.calls.service), control.clone());
            if is_inbox {
                let ended = self.tasks.stop_receiving.clone();
                self.tasks.inboxes.spawn(async move { service.serve_inbox(&control, deliveries, &ended).await });
                continue;
            }
            self.tasks.consumers.spawn(async move {
                match takes {
                    Takes::Calls => service.serve_calls(deliveries).await,
                    Takes::Requests => service.serve_requests(&control, deliveries).await,
                }
            });
        }
    }

    /// The MCP server for the tools of this process. It ends when the app stops serving HTTP.
    fn mcp_server(&self, exporters: &Exporters) -> McpServer {
        let settings = toolbus_mcp_server::McpServerSettings {
            name: self.config.bus.name.clone(),
            version: crate::VERSION.to_owned(),
            max_body: self.config.max_mcp_body(),
            clock: Clock::SYSTEM,
        };
        let invoker: Arc<dyn Invoker> = Arc::new(self.calls.dispatcher.clone());
        let short_lists = self.config.http.tool_search.map(|search| families::short_lists(search.above));
        let backend =
            Local::new(self.policy.clone(), invoker, self.calls.sessions.clone(), self.given.resources.clone());
        let backend = Arc::new(backend.with_short_lists(short_lists));
        let observer = Arc::new(exporters.mcp_server());
        let server = McpServer::new(settings, backend, observer, self.tasks.stop_serving.clone());
        let watched = server.clone();
        exporters.watch_mcp_server(move || u64::try_from(watched.sessions()).unwrap_or(u64::MAX));
        server
    }

    /// The service for requests beside calls, those of families included.
    fn control(&mut self) -> ControlService {
        let about = about(&self.config, self.digest.subscribe());
        let (dispatcher, sessions) = (self.calls.dispatcher.clone(), self.calls.sessions.clone());
        let mut control = ControlService::new(about, self.bus(), reply_rules(&self.config), dispatcher, sessions);
        if let Some(hints) = self.given.hints.clone() {
            control = control.with_hints(hints);
        }
        if !self.config.takes_agents_calls() {
            control = control.without_agents();
        }
        let mut work = Work::new(&self.config, &self.calls.dispatcher, &mut self.tasks.background);
        self.families.iter().for_each(|family| family.work(&mut work));
        work.control(control)
    }
}

/// Refuses requests to the MCP server until the switches have been read.
async fn refuse_until_read(
    State(shared): State<watch::Receiver<SharedState>>,
    request: Request,
    next: Next,
) -> Response {
    let is_unread = shared.borrow().is_unread;
    if is_unread {
        return HttpRefusal::not_ready().respond(request.into_body()).await;
    }
    next.run(request).await
}

/// Every queue of a process with these families.
pub(super) fn all_queues(config: &Config, families: &[Box<dyn ToolFamily>]) -> Vec<Queue> {
    let of_families = families.iter().flat_map(|family| family.queues(config));
    queues(config).into_iter().chain(of_families).collect()
}

/// The queues of calls, and of requests that every daemon takes.
fn queues(config: &Config) -> Vec<Queue> {
    let prefix = config.queue_prefix();
    let names = |topics: &[&str]| -> Vec<String> { topics.iter().map(|topic| (*topic).to_owned()).collect() };
    let requests = |queue, topics, ownership| {
        (
            Subscription {
                queue,
                topics,
                prefetch: CONTROL_PREFETCH,
                max_body: MAX_CONTROL_BODY,
                ownership,
                // Messages for this replica alone are about calls that run here.
                is_inbox: ownership == Ownership::Replica,
            },
            Takes::Requests,
        )
    };
    // The daemon that takes the calls of agents also serves their control requests; others have topics of their own.
    let mut control = names(if config.takes_agents_calls() { &CONTROL } else { &[] });
    for invoke in config.invoke.topics.iter().filter(|invoke| *invoke != topic::TOOL_INVOKE) {
        control.extend(CONTROL.into_iter().filter_map(|control| topic::control_of(control, invoke)));
    }
    let of_replica = names(&[topic::TOOL_CANCEL, topic::TOOL_SESSION_END]);
    let calls = |role, name: &str, topics| {
        let (queue, prefetch, max_body) = (format!("{prefix}.{name}"), config.invoke.prefetch(), max_body(config));
        let (ownership, is_inbox) = (Ownership::Shared, false);
        let subscription = Subscription { queue, topics, prefetch, max_body, ownership, is_inbox };
        config.roles().contains(&role).then_some((subscription, Takes::Calls))
    };
    let invoke = calls(Role::Invoke, "invoke", config.invoke_topics());
    let scripts = calls(Role::Scripts, "script", vec![topic::SCRIPT_INVOKE.to_owned()]);
    // A daemon that runs calls also lists the tools: another process may know fewer.
    let control = invoke.is_some().then(|| requests(format!("{prefix}.control"), control, Ownership::ShortLived));
    let of_replica = requests(format!("{prefix}.replica.{}", new_message_id()), of_replica, Ownership::Replica);
    invoke.into_iter().chain(scripts).chain(control).chain([of_replica]).collect()
}

/// The report of `tool.ping`.
fn about(config: &Config, config_digest: watch::Receiver<String>) -> About {
    About {
        name: config.bus.name.clone(),
        version: crate::VERSION.to_owned(),
        config_digest,
        roles: config.roles().iter().map(|role| role.as_str().to_owned()).collect(),
        started: Clock::SYSTEM.now(),
    }
}

/// The settings of the dispatcher.
pub(super) fn settings(
    config: &Config,
    redactor: Redactor,
    ledger: Option<Arc<dyn Ledger>>,
    memory: Option<&Arc<dyn WorkingMemory>>,
    budget: &ResultBudget,
) -> DispatcherSettings {
    let of_ledger = |ledger| LedgerSettings {
        ledger,
        ttl: config.ledger.ttl.into(),
        max_reply: usize::try_from(config.ledger.max_answer.bytes()).unwrap_or(usize::MAX),
    };
    DispatcherSettings {
        name: config.bus.name.clone(),
        replies: reply_rules(config),
        budgets: Budgets { default: config.invoke.default_timeout.into(), max: config.invoke.max_timeout.into() },
        max_body: max_body(config),
        max_in_flight: config.invoke.max_in_flight,
        max_waiting: config.invoke.max_waiting,
        redactor,
        ignores_unknown_servers: config.mcp.unknown_server == UnknownServer::Ignore,
        ledger: ledger.map(of_ledger),
        results: memory.map(|memory| config.results.settings(Arc::clone(memory), budget.clone())),
        clock: Clock::SYSTEM,
        random: Random::SYSTEM,
    }
}

fn reply_rules(config: &Config) -> ReplyRules {
    ReplyRules {
        reply_topics: config.bus.reply_topics.clone(),
        request_topics: config.invoke_topics(),
        queue_prefix: config.queue_prefix(),
        default_topic: config.invoke.default_reply_topic.clone(),
        own_topics_only: config.identity.source == IdentitySource::Broker,
    }
}
