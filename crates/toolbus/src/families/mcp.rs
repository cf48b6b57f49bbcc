//! MCP servers: their bridge, the tools that manage them, and requests about them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use toolbus_agents::guides::GuideFor;
use toolbus_core::bus::{Bus, Ownership, Subscription};
use toolbus_core::policy::PolicyHandle;
use toolbus_core::registry::Rank;
use toolbus_core::store::Store;
use toolbus_core::tool::Tool;
use toolbus_core::{Clock, Invoker, MAX_CONTROL_BODY};
use toolbus_mcp_client::bus_messages::{Index, ManageHandler, RefreshHandler, RememberedAgents};
use toolbus_mcp_client::config::UnknownServer;
use toolbus_mcp_client::model_tools::{self, Registrar};
use toolbus_mcp_client::servers::{NoServers, ServerControl};
use toolbus_mcp_client::status::{PhaseName, ServerStatus};
use toolbus_protocol::topic;
use toolbus_store::StoreUrl;
use toolbus_telemetry::{Exporters, McpServerCounts};

use super::work::{CONTROL_PREFETCH, max_body};
use super::{
    AppServers, Contributions, FamilyContext, FamilyError, FamilyGuide, FamilyPlan, Phase, Purpose, Queue, Takes,
    ToolFamily, Work,
};
use crate::config::Config;
use crate::config::toolsets::ToolsetConfig;

/// MCP servers.
pub(super) struct McpFamily {
    /// Absent where another process runs them.
    servers: Option<AppServers>,
    management: ManagementTools,
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    /// Whether replicas share the store; then they take over each other's registrations.
    is_shared: bool,
    /// Whether calls are taken, and so the tools published.
    is_working: Arc<AtomicBool>,
}

/// The tools that manage MCP servers, if there are any: also those of a bridge.
#[derive(Clone)]
struct ManagementTools {
    /// Whether this process has servers.
    has_servers: bool,
    policy: PolicyHandle,
    control: Arc<dyn ServerControl>,
    invoker: Arc<dyn Invoker>,
    /// Adds servers for callers; absent where that is not allowed.
    registrar: Option<Arc<Registrar>>,
}

impl McpFamily {
    pub(super) fn new(context: &FamilyContext<'_>, servers: Option<AppServers>) -> Self {
        let config = context.config;
        let registrar = servers.as_ref().filter(|_| context.purpose == Purpose::Daemon);
        let registrar = registrar.and_then(|servers| servers.registrar(config, Arc::clone(&context.store)));
        let control: Arc<dyn ServerControl> = match &servers {
            Some(servers) => Arc::new(servers.bridge().clone()),
            None => Arc::new(NoServers),
        };
        let (has_servers, policy, invoker) = (servers.is_some(), context.policy().clone(), context.invoker());
        Self {
            servers,
            management: ManagementTools { has_servers, policy, control, invoker, registrar },
            bus: Arc::clone(&context.bus),
            store: Arc::clone(&context.store),
            is_shared: matches!(config.store.url(), StoreUrl::Redis(_)),
            is_working: Arc::default(),
        }
    }
}

impl McpFamily {
    /// Announces the servers that an earlier daemon had, where this one has none.
    fn announce_removed(&self, work: &mut Work<'_>) {
        let store = Arc::clone(&self.store);
        let index = Index::new(Arc::new(NoServers), Arc::clone(&store));
        let (notifier, _) = work.dispatcher.notifier_of(index, Arc::clone(&self.bus));
        work.background.spawn(async move {
            if Index::has_announced(&*store).await {
                notifier.run().await;
            }
        });
    }
}

impl ToolFamily for McpFamily {
    fn name(&self) -> &'static str {
        "mcp"
    }

    fn phase(&self) -> Phase {
        Phase::Backends
    }

    /// No tool: servers publish theirs once they are connected, and those that manage them are there while calls are taken.
    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        if let Some(servers) = self.servers.clone() {
            let (placed, sets) = servers.plan(plan.config, plan.kept);
            plan.sessions.extend(sets);
            let config = plan.config.clone();
            plan.on_commit(move || servers.apply(&config, placed));
        }
        let (management, is_working) = (self.management.clone(), Arc::clone(&self.is_working));
        let config = plan.config.clone();
        plan.on_commit(move || {
            if is_working.load(Ordering::Relaxed) {
                management.publish(&config);
            }
        });
        Ok(Vec::new())
    }

    fn guides(&self) -> Vec<FamilyGuide> {
        vec![(GuideFor::Source(model_tools::SOURCE), "mcp-tool-guide", model_tools::GUIDE)]
    }

    fn contribute(&self, to: &mut Contributions) {
        to.servers.clone_from(&self.servers);
        to.registrar.clone_from(&self.management.registrar);
    }

    fn watch(&self, exporters: &Exporters) {
        let servers = AppServers::shown(self.servers.as_ref());
        exporters.watch_mcp_client(move || counted(servers.status()));
    }

    /// Starts the servers that callers have registered, unless replicas follow them.
    fn start(&self) -> BoxFuture<'_, ()> {
        async move {
            if let (Some(servers), Some(registrar), false) = (&self.servers, &self.management.registrar, self.is_shared)
            {
                servers.bridge().restore(registrar.restore().await);
            }
        }
        .boxed()
    }

    /// The queues of a daemon with MCP servers. `bus.compat_queues` replaces each by one that exists.
    fn queues(&self, config: &Config) -> Vec<Queue> {
        if self.servers.is_none() {
            return Vec::new();
        }
        let prefix = config.queue_prefix();
        let queue = |name: &str, instead: &Option<String>, topic: &str, prefetch, takes| {
            let (queue, ownership) = match instead {
                Some(queue) => (queue.clone(), Ownership::Existing),
                None => (format!("{prefix}.{name}"), Ownership::Shared),
            };
            let max_body = if takes == Takes::Calls { max_body(config) } else { MAX_CONTROL_BODY };
            let topics = vec![topic.to_owned()];
            (Subscription { queue, topics, prefetch, max_body, ownership, is_inbox: false }, takes)
        };
        let instead = &config.bus.compat_queues;
        vec![
            queue("mcp", &instead.mcp, topic::TOOL_INVOKE_MCP, config.invoke.prefetch(), Takes::Calls),
            queue("mcp-manage", &instead.mcp_manage, topic::MCP_MANAGE, CONTROL_PREFETCH, Takes::Requests),
            queue("mcp-refresh", &instead.mcp_refresh, topic::MCP_REFRESH, CONTROL_PREFETCH, Takes::Requests),
        ]
    }

    /// Registers the tools that manage servers, and serves requests about servers.
    fn work(&self, work: &mut Work<'_>) {
        self.is_working.store(true, Ordering::Relaxed);
        self.management.publish(work.config);
        if self.servers.is_none() {
            return self.announce_removed(work);
        }
        let ManagementTools { policy, control, invoker, .. } = self.management.clone();
        let (notifier, notify) = work
            .dispatcher
            .notifier_of(Index::new(Arc::clone(&control), Arc::clone(&self.store)), Arc::clone(&self.bus));
        let remembered = RememberedAgents::new(Arc::clone(&self.store), Clock::SYSTEM);
        let refresh = Arc::new(RefreshHandler::new(policy.clone(), notify, Arc::clone(&control), remembered));
        let ignores_unknown = work.config.mcp.unknown_server == UnknownServer::Ignore;
        work.handle(topic::MCP_MANAGE, Arc::new(ManageHandler::new(policy, control, invoker, ignores_unknown)));
        work.background.spawn(notifier.run());
        let peers = Arc::clone(&refresh);
        work.background.spawn(async move { peers.notify_again().await });
        work.handle(topic::MCP_REFRESH, refresh);
    }

    fn end(&self, _: Duration) -> BoxFuture<'_, ()> {
        async move {
            if let Some(servers) = &self.servers {
                servers.bridge().shutdown().await;
            }
        }
        .boxed()
    }
}

impl ManagementTools {
    /// Registers them with the limits of a configuration.
    fn publish(&self, config: &Config) {
        if !self.has_servers && !config.toolsets.values().any(ToolsetConfig::is_of_bridge) {
            return;
        }
        let (control, invoker) = (Arc::clone(&self.control), Arc::clone(&self.invoker));
        let mut tools = model_tools::tools(&self.policy, control, invoker, self.registrar.clone());
        tools.iter_mut().for_each(|tool| config.limit(tool));
        if let Err(error) = self.policy.registry().publish(Rank::Own, &model_tools::SOURCE.into(), tools) {
            tracing::error!(%error, "the tools that manage MCP servers were not registered");
        }
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Every phase with its number of servers, also without any: so that a graph falls to zero.
fn counted(servers: Vec<ServerStatus>) -> McpServerCounts {
    let in_phase = |phase: PhaseName| servers.iter().filter(|server| server.phase == phase).count();
    let phases = PhaseName::ALL.map(|phase| (phase.as_str(), number(in_phase(phase))));
    let suspect = |server: &ServerStatus| (server.name.clone(), number(server.suspect_total));
    let shadowed = |server: &ServerStatus| (server.name.clone(), number(server.shadowed_total));
    McpServerCounts {
        phases: phases.to_vec(),
        suspects: servers.iter().map(suspect).collect(),
        shadowed: servers.iter().map(shadowed).collect(),
        restarts: servers.into_iter().map(|server| (server.name, server.restarts)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::example;

    #[test]
    fn every_phase_is_counted_and_every_servers_restarts_suspects_and_shadowed_tools() {
        let parked = ServerStatus {
            phase: PhaseName::Parked,
            restarts: 9,
            suspect_total: 2,
            shadowed_total: 7,
            ..example("git")
        };
        let counted = counted(vec![example("files"), example("time"), parked]);
        assert_eq!(counted.phases.len(), PhaseName::ALL.len());
        let of = |name: &str| counted.phases.iter().find(|(phase, _)| *phase == name).map(|(_, count)| *count);
        assert_eq!((of("ready"), of("parked"), of("idle")), (Some(2), Some(1), Some(0)));
        assert_eq!(counted.restarts, [("files".to_owned(), 0), ("time".to_owned(), 0), ("git".to_owned(), 9)]);
        assert_eq!(counted.suspects, [("files".to_owned(), 0), ("time".to_owned(), 0), ("git".to_owned(), 2)]);
        assert_eq!(counted.shadowed, [("files".to_owned(), 0), ("time".to_owned(), 0), ("git".to_owned(), 7)]);
    }
}
