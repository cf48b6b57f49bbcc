//! What an app listens to: calls and control requests from the bus, each queue in a task; and HTTP requests.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use tokio::sync::watch;
use toolbus_agents::AgentService;
use toolbus_core::bus::{Ownership, Subscription};
use toolbus_core::caller::IdentitySource;
use toolbus_core::ledger::{Ledger, LedgerSettings};
use toolbus_core::redact::Redactor;
use toolbus_core::registry::Rank;
use toolbus_core::results::ResultBudget;
use toolbus_core::working_memory::WorkingMemory;
use toolbus_core::{About, Budgets, Clock, ControlService, DispatcherSettings, Invoker, MAX_CONTROL_BODY, ReplyRules};
use toolbus_mcp_client::bus_messages::{Index, ManageHandler, RefreshHandler, RememberedAgents};
use toolbus_mcp_client::model_tools;
use toolbus_mcp_client::servers::ServerControl;
use toolbus_mcp_server::{Local, McpServer, Resources};
use toolbus_protocol::{Random, new_message_id, topic};
use toolbus_telemetry::Exporters;

use super::guides::{self, Documents};
use super::{App, AppServers, agents, pins, subagents};
use crate::config::Config;
use crate::config::daemon::Role;
use crate::config::mcp::UnknownServer;
use crate::http::admin::{self, Admin};
use crate::http::{HttpRefusal, HttpState, SharedState};

/// Prefetch of queues of control requests.
const CONTROL_PREFETCH: u16 = 64;

impl App {
    /// Takes calls from the bus; a daemon answers HTTP requests, too. Where the store that replicas share has not been read,
    /// calls are taken once it has been.
    pub fn listen(&mut self) {
        if let Some(replicas) = self.replicas.take() {
            self.announcement = Some(replicas.announcement());
            self.background.spawn(replicas.run());
        }
        if let Some(files) = self.store_files.take() {
            self.background.spawn(files.run());
        }
        if !self.shared.borrow().is_unread {
            self.consume();
        }
        let Some(daemon) = &mut self.daemon else { return };
        daemon.exporters.export_now();
        let Some((listeners, switches)) = daemon.listeners.take() else { return };
        let Some(daemon) = &self.daemon else { return };
        let mcp = self.mcp_server(&daemon.exporters);
        let admin = Arc::new(Admin {
            gates: Arc::clone(&self.gates),
            switches,
            pins: Some(self.pins.clone()),
            servers: self.servers(),
            daemon: Some(self.admin.clone()),
        });
        let token = self.config.http.admin_token.as_ref();
        let state = HttpState {
            health: Arc::clone(&self.health),
            admin: token.map(|token| admin::guarded(Arc::clone(&admin), token.expose())),
            auth: Arc::clone(&self.http_auth),
            mcp: toolbus_mcp_server::router(mcp.clone())
                .layer(from_fn_with_state(self.shared.clone(), refuse_until_read)),
            redactor: self.redactor.clone(),
        };
        self.serving = listeners.serve(state, admin::open(admin), &self.stop_serving);
        self.serving.spawn(mcp.run());
    }

    /// Starts the consumers, and the tasks beside them; once.
    pub(super) fn consume(&mut self) {
        self.is_consuming = true;
        self.start_scheduler();
        self.background.spawn(self.dispatcher.notifier(self.bus()).run());
        let about = about(&self.config, self.digest.subscribe());
        let (dispatcher, sessions) = (self.dispatcher.clone(), self.sessions.clone());
        let mut control = ControlService::new(about, self.bus(), reply_rules(&self.config), dispatcher, sessions)
            .with_hints(Arc::new(self.search.clone()));
        let subagents = self.subagents.clone().filter(|_| self.daemon.is_some());
        let queues = all_queues(&self.config, self.servers.is_some(), self.agents.as_ref(), subagents.is_some());
        if let Some(subagents) = subagents {
            control = self.with_subagents(control, subagents);
        }
        if let Some(servers) = self.servers.clone() {
            control = self.with_servers(control, &servers);
        }
        control = self.with_agents(control);
        // A command writes no pins.
        if self.daemon.is_some() {
            self.background.spawn(pins::keep(self.pins.clone(), self.policy.clone()));
        }
        let policy = self.policy.clone();
        self.background.spawn(async move { policy.follow().await });
        let (sessions, policy) = (self.sessions.clone(), self.policy.clone());
        self.background.spawn(async move { sessions.follow(policy).await });
        for (subscription, takes) in queues {
            if subscription.ownership != Ownership::Replica {
                self.telemetry.consuming(&subscription.queue);
            }
            let deliveries = self.bus.consume(subscription);
            let (service, control) = (Arc::clone(&self.service), control.clone());
            self.consumers.spawn(async move {
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
        let resources = Documents { guides: Arc::clone(&self.guides), servers: self.servers.clone() };
        let resources = Some(Arc::new(resources) as Arc<dyn Resources>);
        let invoker: Arc<dyn Invoker> = Arc::new(self.dispatcher.clone());
        let short_lists = self.config.http.tool_search.map(|search| guides::short_lists(search.above));
        let backend = Local::new(self.policy.clone(), invoker, self.sessions.clone(), resources);
        let backend = Arc::new(backend.with_short_lists(short_lists));
        let observer = Arc::new(exporters.mcp_server());
        let server = McpServer::new(settings, backend, observer, self.stop_serving.clone());
        let watched = server.clone();
        exporters.watch_mcp_server(move || u64::try_from(watched.sessions()).unwrap_or(u64::MAX));
        server
    }

    /// Registers the tools that manage MCP servers, with the limits of the configuration.
    pub(super) fn publish_model_tools(&self) {
        let Some(servers) = &self.servers else { return };
        let servers: Arc<dyn ServerControl> = Arc::new(servers.bridge().clone());
        let invoker: Arc<dyn Invoker> = Arc::new(self.dispatcher.clone());
        let mut tools = model_tools::tools(&self.policy, servers, invoker, self.registrar.clone());
        tools.iter_mut().for_each(|tool| self.config.limit(tool));
        if let Err(error) = self.policy.registry().publish(Rank::Own, &model_tools::SOURCE.into(), tools) {
            tracing::error!(%error, "the tools that manage MCP servers were not registered");
        }
    }

    /// Registers the tools that manage MCP servers, and has `control` answer requests about servers.
    fn with_servers(&mut self, control: ControlService, servers: &AppServers) -> ControlService {
        self.publish_model_tools();
        let servers: Arc<dyn ServerControl> = Arc::new(servers.bridge().clone());
        let invoker: Arc<dyn Invoker> = Arc::new(self.dispatcher.clone());
        let (notifier, notify) = self.dispatcher.notifier_of(Index::new(Arc::clone(&servers)), self.bus());
        let asked = RememberedAgents::new(Arc::clone(&self.store), Clock::SYSTEM);
        let refresh = Arc::new(RefreshHandler::new(self.policy.clone(), notify, Arc::clone(&servers), asked));
        let ignores_unknown = self.config.mcp.unknown_server == UnknownServer::Ignore;
        let manage = Arc::new(ManageHandler::new(self.policy.clone(), servers, invoker, ignores_unknown));
        self.background.spawn(notifier.run());
        let peers = Arc::clone(&refresh);
        self.background.spawn(async move { peers.tell_again().await });
        control.with(topic::MCP_MANAGE, manage).with(topic::MCP_REFRESH, refresh)
    }
}

/// Refuses requests to the MCP server until it is known what is switched off.
async fn refuse_until_read(
    State(shared): State<watch::Receiver<SharedState>>,
    request: Request,
    next: Next,
) -> Response {
    let is_unread = shared.borrow().is_unread;
    if is_unread {
        return HttpRefusal::not_ready().answer(request.into_body()).await;
    }
    next.run(request).await
}

/// What a queue brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Calls,
    Requests,
}

/// Every queue of a process that has MCP servers, hears of other agents and takes reports of sub-agents, or not.
pub(super) fn all_queues(
    config: &Config,
    has_servers: bool,
    agents: Option<&AgentService>,
    takes_reports: bool,
) -> Vec<(Subscription, Takes)> {
    let mut queues = queues(config);
    if takes_reports {
        queues.push((subagents::queue(config), Takes::Requests));
    }
    if has_servers {
        queues.extend(queues_of_servers(config));
    }
    let of_agents = agents::queues(config, agents, CONTROL_PREFETCH).into_iter();
    queues.extend(of_agents.map(|queue| (queue, Takes::Requests)));
    queues
}

/// The queues of calls, and of requests that every daemon takes.
fn queues(config: &Config) -> Vec<(Subscription, Takes)> {
    let prefix = config.queue_prefix();
    let names = |topics: &[&str]| topics.iter().map(|topic| (*topic).to_owned()).collect();
    let requests = |queue, topics, ownership| {
        (
            Subscription { queue, topics, prefetch: CONTROL_PREFETCH, max_body: MAX_CONTROL_BODY, ownership },
            Takes::Requests,
        )
    };
    // Other daemons ask on the topics of their own for the tools behind a topic of calls; no one asks a sidecar so.
    let lists = config.invoke.topics.iter().filter_map(|topic| topic::tool_list_of(topic));
    let mut control: Vec<String> = names(&[topic::TOOL_LIST, topic::TOOL_HINTS, topic::TOOL_PING]);
    control.extend(lists.filter(|topic| *topic != topic::TOOL_LIST));
    let of_replica = names(&[topic::TOOL_CANCEL, topic::TOOL_SESSION_END]);
    let calls = |role, name: &str, topics| {
        let (queue, prefetch, max_body) = (format!("{prefix}.{name}"), config.invoke.prefetch(), max_body(config));
        let subscription = Subscription { queue, topics, prefetch, max_body, ownership: Ownership::Shared };
        config.roles().contains(&role).then_some((subscription, Takes::Calls))
    };
    let invoke = calls(Role::Invoke, "invoke", config.invoke_topics());
    let scripts = calls(Role::Scripts, "script", vec![topic::SCRIPT_INVOKE.to_owned()]);
    // Those that run calls say what can be called: another process may know less.
    let control = invoke.is_some().then(|| requests(format!("{prefix}.control"), control, Ownership::ShortLived));
    let of_replica = requests(format!("{prefix}.replica.{}", new_message_id()), of_replica, Ownership::Replica);
    invoke.into_iter().chain(scripts).chain(control).chain([of_replica]).collect()
}

/// The queues of a daemon with MCP servers. `bus.compat_queues` replaces each by one that exists.
fn queues_of_servers(config: &Config) -> [(Subscription, Takes); 3] {
    let prefix = config.queue_prefix();
    let queue = |name: &str, instead: &Option<String>, topic: &str, prefetch, takes| {
        let (queue, ownership) = match instead {
            Some(queue) => (queue.clone(), Ownership::Existing),
            None => (format!("{prefix}.{name}"), Ownership::Shared),
        };
        let max_body = if takes == Takes::Calls { max_body(config) } else { MAX_CONTROL_BODY };
        (Subscription { queue, topics: vec![topic.to_owned()], prefetch, max_body, ownership }, takes)
    };
    let instead = &config.bus.compat_queues;
    [
        queue("mcp", &instead.mcp, topic::TOOL_INVOKE_MCP, config.invoke.prefetch(), Takes::Calls),
        queue("mcp-manage", &instead.mcp_manage, topic::MCP_MANAGE, CONTROL_PREFETCH, Takes::Requests),
        queue("mcp-refresh", &instead.mcp_refresh, topic::MCP_REFRESH, CONTROL_PREFETCH, Takes::Requests),
    ]
}

/// Largest body of a call, in bytes.
fn max_body(config: &Config) -> usize {
    usize::try_from(config.invoke.max_body.bytes()).unwrap_or(usize::MAX)
}

/// What `tool.ping` reports.
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
        max_answer: usize::try_from(config.ledger.max_answer.bytes()).unwrap_or(usize::MAX),
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
