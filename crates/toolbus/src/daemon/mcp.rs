//! What a daemon with MCP servers does besides calls: it is asked about servers, and tells of them.

use std::sync::Arc;

use toolbus_core::bus::{Bus, Ownership, Subscription};
use toolbus_core::registry::Rank;
use toolbus_core::store::Store;
use toolbus_core::{ChangeNotifier, ControlHandler, Dispatcher, Invoker};
use toolbus_mcp_client::bus_messages::{Index, ManageHandler, RefreshHandler, RememberedAgents};
use toolbus_mcp_client::model_tools::{self, Registrar};
use toolbus_mcp_client::servers::{ServerControl, Servers};
use toolbus_protocol::topic;

use super::{DESK_PREFETCH, Takes};
use crate::config::Config;

/// Who answers what is asked about servers, and who tells of them.
pub(super) struct Wired {
    pub(super) manage: Arc<dyn ControlHandler>,
    pub(super) refresh: Arc<RefreshHandler>,
    pub(super) notifier: ChangeNotifier<Index>,
}

/// Registers the management tools, and puts together what serves messages about servers; with `ignores_unknown` those for
/// servers that the caller does not have are left to other bridges. `store` remembers who asked about servers.
pub(super) fn wire(
    bridge: &Servers,
    registrar: Option<Arc<Registrar>>,
    dispatcher: &Dispatcher,
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    ignores_unknown: bool,
) -> Wired {
    let access = dispatcher.access();
    let servers: Arc<dyn ServerControl> = Arc::new(bridge.clone());
    let invoker: Arc<dyn Invoker> = Arc::new(dispatcher.clone());
    let tools = model_tools::tools(access, Arc::clone(&servers), Arc::clone(&invoker), registrar);
    if let Err(error) = access.registry().publish(Rank::Own, &model_tools::SOURCE.into(), tools) {
        tracing::error!(%error, "the tools that manage MCP servers were not registered");
    }
    let (notifier, asking) = dispatcher.notifier_of(Index::new(Arc::clone(&servers)), bus);
    let refresh = RefreshHandler::new(access.clone(), asking, Arc::clone(&servers), RememberedAgents::new(store));
    let manage = ManageHandler::new(access.clone(), servers, invoker, ignores_unknown);
    Wired { manage: Arc::new(manage), refresh: Arc::new(refresh), notifier }
}

/// The queues of a daemon with servers; in the place of each another that is there already, if it is configured.
pub(super) fn queues(config: &Config) -> [(Subscription, Takes); 3] {
    let prefix = config.queue_prefix();
    let queue = |name: &str, instead: &Option<String>, topic: &str, prefetch, takes| {
        let (queue, ownership) = match instead {
            Some(queue) => (queue.clone(), Ownership::Existing),
            None => (format!("{prefix}.{name}"), Ownership::Shared),
        };
        (Subscription { queue, topics: vec![topic.to_owned()], prefetch, ownership }, takes)
    };
    let instead = &config.bus.compat_queues;
    [
        queue("mcp", &instead.mcp, topic::TOOL_INVOKE_MCP, config.invoke.prefetch(), Takes::Calls),
        queue("mcp-manage", &instead.mcp_manage, topic::MCP_MANAGE, DESK_PREFETCH, Takes::Requests),
        queue("mcp-refresh", &instead.mcp_refresh, topic::MCP_REFRESH, DESK_PREFETCH, Takes::Requests),
    ]
}
