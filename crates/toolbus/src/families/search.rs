//! Search over MCP servers, other agents and tools: its tools, hints and short lists.

use std::sync::Arc;

use parking_lot::RwLock;
use toolbus_agents::{A2aTools, CallerSearch, SearchSources, guides, search};
use toolbus_core::caller::Caller;
use toolbus_core::policy::{EffectiveTools, PolicyHandle};
use toolbus_core::tool::Tool;
use toolbus_core::{Clock, HintSource};
use toolbus_mcp_client::model_tools;
use toolbus_mcp_client::servers::ServerControl as _;
use toolbus_mcp_server::{ShortListRules, ShortLists};

use super::{AppServers, Contributions, FamilyContext, FamilyError, FamilyPlan, Phase, ToolFamily};

/// Search.
pub(super) struct SearchFamily {
    policy: PolicyHandle,
    servers: Option<AppServers>,
    current: CurrentSearch,
}

impl SearchFamily {
    /// Searches `servers`, and other agents once their family has made its tools.
    pub(super) fn new(context: &FamilyContext<'_>, servers: Option<AppServers>) -> Self {
        let policy = context.policy().clone();
        let current = CurrentSearch(Arc::new(RwLock::new(searching(&policy, servers.as_ref(), None))));
        Self { policy, servers, current }
    }
}

impl ToolFamily for SearchFamily {
    fn name(&self) -> &'static str {
        "search"
    }

    fn phase(&self) -> Phase {
        Phase::Finding
    }

    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        let search = searching(&self.policy, self.servers.as_ref(), plan.agents.clone());
        let tools = if plan.config.tools.search { search.tools() } else { Vec::new() };
        let current = self.current.clone();
        plan.on_commit(move || *current.0.write() = search);
        Ok(tools)
    }

    /// Hints, also where there are no tools.
    fn contribute(&self, to: &mut Contributions) {
        to.hints = Some(Arc::new(self.current.clone()));
    }
}

/// The search that is in force, for hints.
#[derive(Clone)]
struct CurrentSearch(Arc<RwLock<CallerSearch>>);

impl HintSource for CurrentSearch {
    fn hints(&self, caller: &Caller, effective: &EffectiveTools, text: &str) -> String {
        let search = self.0.read().clone();
        search.hints(caller, effective, text)
    }
}

/// Searches MCP servers and other agents, and the tools of callers.
fn searching(policy: &PolicyHandle, servers: Option<&AppServers>, agents: Option<A2aTools>) -> CallerSearch {
    let (described, changes) = (servers.cloned(), servers.cloned());
    let summary = move |server: &str| described.as_ref()?.bridge().describe(server)?.summarised();
    let known = agents.clone();
    let visible = move |caller: &Caller| known.as_ref().map(|agents| agents.visible(caller)).unwrap_or_default();
    // Neither of the two ever becomes less.
    let version = move || {
        let of_servers = changes.as_ref().map_or(0, |servers| servers.bridge().descriptions());
        of_servers + agents.as_ref().map_or(0, A2aTools::version)
    };
    let (summaries, agents, version) = (Arc::new(summary), Arc::new(visible), Arc::new(version));
    CallerSearch::new(policy, SearchSources { summaries, agents, version })
}

/// Short lists for MCP clients that may use more tools than `above`.
pub(crate) fn short_lists(above: usize) -> ShortLists {
    let rules = ShortListRules {
        above,
        is_finder: |tool| *tool.source == *search::SOURCE && *tool.name == *search::FINDER,
        // Tools of MCP servers can also be called by another tool that clients know.
        is_always: |tool| {
            [search::SOURCE, guides::SOURCE].contains(&&*tool.source) || *tool.name == *model_tools::INVOKE
        },
    };
    ShortLists::new(rules, Clock::SYSTEM)
}
