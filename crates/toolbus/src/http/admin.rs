//! The admin API: who may use what and why, switches, reloads, pins and MCP servers. It is served on a Unix socket of the
//! daemon's user, and over HTTP with a token.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use toolbus_config::nearest;
use toolbus_core::audit::Audit;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{Because, EffectiveTools, EmptyReason, Explanation, PolicyHandle, PolicySummary, Switch};
use toolbus_core::text::shown;
use toolbus_core::tool::{Effect, ToolDescriptor};
use toolbus_core::{ExplainedStep, Gates, milliseconds};
use toolbus_telemetry::{MetricsText, RecentCalls};
use toolbus_trust::pins::Pins;

mod acting;
mod calls;
pub mod client;
mod dead_letters;
mod families;
mod pins;
pub mod recent;
mod routes;
mod servers;
mod switches;
pub mod view;

pub use acting::Actor;
pub use calls::OperatorCalls;
pub use dead_letters::{DeadLetterAdmin, LetterAction, LetterQuery, MAX_LETTERS};
pub use families::FamilyViews;
use recent::{RecentFound, RecentQuery};
pub use routes::{OperatorRight, OperatorTokens, calls, guarded, open};
pub use switches::{LoadError, NAMESPACE as SWITCHES, SwitchStore};
use toolbus_store::StoreUrl;
use view::{
    AgentOverview, AgentSummary, AgentTools, ApiError, AppliedRules, BreakerReset, BusyAgent, BusyTool, CallerQuery,
    DaemonStatus, Explained, GateResult, NamedRule, OpenBreakers, Question, Switched, Switching, ToolDetails,
    ToolVerdict, ToolsFound, ToolsQuery,
};

use crate::config::Config;
pub use crate::config::DEFAULT_SECTION;
use crate::http::{Health, McpAdmin, ReloadReport};

/// Longest part of a name that an error repeats, in characters.
const MAX_SHOWN: usize = 64;

/// Agents, and tools, that the status names as the busiest.
const MAX_BUSIEST: usize = 5;

/// Reloads that may wait for their turn.
const MAX_RELOADS: usize = 8;

/// A request for a reload; the report goes to the sender.
pub type ReloadRequest = oneshot::Sender<ReloadReport>;

/// Admin API: the reads and changes of operators.
pub struct Admin {
    /// The gates that calls pass.
    pub gates: Arc<Gates>,
    /// Stores the switches.
    pub switches: Arc<SwitchStore>,
    /// Pins of tools.
    pub pins: Option<Pins>,
    /// The MCP servers.
    pub servers: Arc<dyn McpAdmin>,
    /// The calls of the last minutes.
    pub recent: RecentCalls,
    /// The metrics; `None` where they are off.
    pub metrics: Option<MetricsText>,
    /// State of families.
    pub families: FamilyViews,
    /// Dead letters; `None` for a configuration alone.
    pub dead_letters: Option<DeadLetterAdmin>,
    /// Records the actions of operators.
    pub audit: Arc<dyn Audit>,
    /// The daemon as a whole; `None` for a configuration alone.
    pub daemon: Option<DaemonAdmin>,
}

impl Admin {
    /// Every agent that has a section, and all other callers.
    #[must_use]
    pub fn agents(&self) -> AgentOverview {
        AgentOverview {
            agents: self.callers().iter().map(|caller| self.summary(caller)).collect(),
            unknown: self.gates.policy().unknown_callers(),
            disabled: self.disabled(),
        }
    }

    /// A caller for every agent that has a section, and one without a section for all others, which comes last.
    #[must_use]
    pub fn callers(&self) -> Vec<Caller> {
        self.gates.policy().agents().into_iter().map(Caller::agent).chain([Caller::unknown()]).collect()
    }

    /// A caller's rules and calls in short.
    #[must_use]
    pub fn summary(&self, caller: &Caller) -> AgentSummary {
        let effective = self.gates.policy().effective(caller);
        let PolicySummary { profile, max_in_flight, max_queued, rates, bindings, .. } = PolicySummary::of(&effective);
        let used = self.daemon.is_some().then(|| effective.used());
        AgentSummary {
            agent: effective.section_name().to_owned(),
            tools: effective.names().count(),
            total: self.gates.policy().current().len(),
            profile,
            max_in_flight,
            max_queued,
            running: used.map(|(running, _)| running),
            waiting: used.map(|(_, waiting)| waiting),
            rate_limits: rates.iter().map(|(pattern, _)| pattern.to_string()).collect(),
            bindings,
            disabled: effective.empty_reason() == Some(EmptyReason::Disabled),
        }
    }

    /// Returns the tools that one agent may use.
    ///
    /// # Errors
    ///
    /// If `name` cannot be the name of an agent.
    pub fn effective(&self, name: &str, role: &CallerQuery) -> Result<EffectiveTools, ApiError> {
        Ok(self.gates.policy().effective(&caller(name, role)?))
    }

    /// Returns the tools that one agent may use, and why.
    ///
    /// # Errors
    ///
    /// If `name` cannot be the name of an agent.
    pub fn agent(&self, name: &str, role: &CallerQuery) -> Result<AgentTools, ApiError> {
        let effective = self.effective(name, role)?;
        let tools = self.gates.policy().current().tools();
        let known: HashMap<&str, &ToolDescriptor> = tools.iter().map(|tool| (&*tool.name, &**tool)).collect();
        let verdict = |explanation: Explanation| {
            let tool = known.get(&*explanation.tool);
            ToolVerdict {
                source: match (&explanation.because, tool) {
                    (Because::Absent(owner, _), _) => owner.to_string(),
                    (_, tool) => tool.map(|tool| tool.source.to_string()).unwrap_or_default(),
                },
                tool: explanation.tool.to_string(),
                allowed: explanation.is_in,
                because: explanation.because.to_string(),
                shadows: match explanation.because {
                    Because::Absent(..) => Vec::new(),
                    _ => effective.shadowed_at(&explanation.tool).iter().map(ToString::to_string).collect(),
                },
                suspect: tool.map(|tool| rules_met(tool)).unwrap_or_default(),
            }
        };
        Ok(AgentTools {
            agent: name.to_owned(),
            configured: effective.section_name() == name,
            nothing: effective.empty_reason().map(|reason| reason.to_string()),
            rules: rules(PolicySummary::of(&effective)),
            tools: effective.explain_all().into_iter().map(verdict).collect(),
        })
    }

    /// The gates of a call that is not made, up to the first that refuses.
    ///
    /// # Errors
    ///
    /// If the agent's name cannot be one.
    pub fn explain(&self, question: &Question) -> Result<Explained, ApiError> {
        let Question { agent, tool, arguments, binding, profile, session } = question;
        let role = CallerQuery { binding: binding.clone(), profile: profile.clone(), session: session.clone() };
        let arguments = arguments
            .as_deref()
            .map(|raw| serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned()));
        let steps = self.gates.explain(&caller(agent, &role)?, tool, arguments.as_deref());
        let gate = |step: ExplainedStep| GateResult {
            step: step.name.as_str().to_owned(),
            passes: step.passes,
            text: step.text,
            told: step.message,
        };
        let steps: Vec<GateResult> = steps.into_iter().map(gate).collect();
        let passes = steps.iter().all(|step| step.passes);
        Ok(Explained { agent: agent.clone(), tool: tool.clone(), passes, steps })
    }

    /// Returns the newest matching calls.
    #[must_use]
    pub fn recent(&self, query: &RecentQuery) -> RecentFound {
        query.find(&self.recent)
    }

    /// Returns the switches that are off.
    #[must_use]
    pub fn disabled(&self) -> Vec<Switched> {
        switched_off(self.gates.policy())
    }

    /// Returns the tools and servers whose circuit breaker is open.
    #[must_use]
    pub fn breakers(&self) -> OpenBreakers {
        OpenBreakers { breakers: self.gates.breakers().open().into_iter().map(Into::into).collect() }
    }

    /// Has a tool or server get calls again.
    ///
    /// # Errors
    ///
    /// If there is neither a tool nor a server of this name.
    fn reset_breaker(&self, name: String) -> Result<BreakerReset, ApiError> {
        let open = self.gates.breakers().reset(&name);
        let was_open = open.is_some();
        let tools = self.gates.policy().current().tools();
        let servers: Vec<String> = self.servers.status().iter().map(|server| format!("mcp:{}", server.name)).collect();
        let mut names = tools.iter().map(|tool| &*tool.name).chain(servers.iter().map(String::as_str));
        if !was_open && !names.clone().any(|known| known == name) {
            let as_server = format!("mcp:{name}");
            let near = names.clone().find(|known| *known == as_server).or_else(|| nearest(&name, names.by_ref()));
            let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            let what = format!("there is no tool and no server `{}`{near}", shown(&name));
            return Err(ApiError::not_found(format!("{what} (`toolbus breaker list` has those that get no calls)")));
        }
        tracing::info!(name, was_open, "admin: a breaker was reset");
        Ok(BreakerReset { name, was_open })
    }

    /// Switches something off or on again, at once and for the time after a restart, too.
    ///
    /// # Errors
    ///
    /// If nothing can have this name, too much is off already, or the switch cannot be stored. A switch that cannot be
    /// stored is off all the same.
    async fn switch(&self, kind: &str, name: &str, off: bool) -> Result<Switching, ApiError> {
        let switch = Switch::new(kind, name).map_err(ApiError::bad_request)?;
        let changed = self.switches.set(self.gates.policy(), &switch, off).await?;
        tracing::info!(kind, name, off, changed, "admin: a switch was set");
        Ok(Switching {
            kind: kind.to_owned(),
            name: name.to_owned(),
            disabled: off,
            changed,
            known: self.is_known(&switch),
        })
    }

    fn is_known(&self, switch: &Switch) -> bool {
        let policy = self.gates.policy();
        match switch {
            Switch::Tool(name) => {
                policy.current().tools().iter().any(|tool| tool.name == *name || tool.bare_name() == name)
            }
            Switch::Source(name) => policy.current().tools().iter().any(|tool| tool.source == *name),
            Switch::Agent(name) => {
                **name == *DEFAULT_SECTION || policy.agents().iter().any(|agent| agent.as_str() == &**name)
            }
        }
    }

    /// The tools of the daemon, or those of one agent, sorted by name.
    ///
    /// # Errors
    ///
    /// If no agent can have the given name, or there is no tool of the given name.
    pub fn tools(&self, query: &ToolsQuery) -> Result<ToolsFound, ApiError> {
        let wanted = |tool: &ToolDescriptor| query.name.as_deref().is_none_or(|name| *tool.name == *name);
        let (tools, names, nothing) = match &query.agent {
            None => {
                let all = self.gates.policy().current().tools();
                let tools: Vec<_> = all
                    .iter()
                    .filter(|tool| wanted(tool))
                    .map(|tool| self.details(tool, tool.parameters.clone()))
                    .collect();
                (tools, all.iter().map(|tool| Arc::clone(&tool.name)).collect::<Vec<_>>(), None)
            }
            Some(agent) => {
                let role =
                    CallerQuery { binding: query.binding.clone(), profile: query.profile.clone(), session: None };
                let effective = self.effective(agent, &role)?;
                let (mut tools, mut names) = (Vec::new(), Vec::new());
                for allowed in effective.tools() {
                    let tool = &allowed.tool.descriptor;
                    if wanted(tool) {
                        tools.push(self.details(tool, effective.definition(allowed).parameters));
                    }
                    names.push(Arc::clone(&tool.name));
                }
                (tools, names, effective.empty_reason().map(|reason| reason.to_string()))
            }
        };
        match &query.name {
            Some(name) if tools.is_empty() => Err(no_tool(name, query.agent.as_deref(), &names)),
            _ => Ok(ToolsFound { nothing, tools }),
        }
    }

    /// The tool of exactly this name.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(in crate::http) fn tool(&self, name: &str) -> Result<Arc<ToolDescriptor>, ApiError> {
        let tools = self.gates.policy().current().tools();
        let names = || tools.iter().map(|tool| Arc::clone(&tool.name)).collect::<Vec<_>>();
        tools.iter().find(|tool| *tool.name == *name).cloned().ok_or_else(|| no_tool(name, None, &names()))
    }

    fn details(&self, tool: &ToolDescriptor, parameters: Option<Arc<Value>>) -> ToolDetails {
        ToolDetails {
            name: tool.name.to_string(),
            description: tool.description.clone(),
            source: tool.source.to_string(),
            provider: tool.provider.to_owned(),
            effect: effect(tool.effect).to_owned(),
            timeout_ms: tool.timeout.map(milliseconds),
            max_in_flight: tool.max_in_flight,
            unavailable: self.unavailable(tool),
            parameters: parameters.map(Arc::unwrap_or_clone),
        }
    }

    /// Reason why `tool` cannot be called now; `None` if it can.
    pub(in crate::http) fn unavailable(&self, tool: &ToolDescriptor) -> Option<String> {
        let policy = self.gates.policy();
        if let Some(switch) = policy.switch_of(tool) {
            return Some(format!("{} {} is switched off", switch.kind(), switch.name()));
        }
        policy.current().held_back(&tool.name).map(|reason| format!("quarantined: {reason}"))
    }
}

/// The daemon as a whole: its status, and reloads of its configuration.
#[derive(Clone)]
pub struct DaemonAdmin {
    health: Arc<Health>,
    files: Arc<[PathBuf]>,
    has_state_in_memory: bool,
    reloads: mpsc::Sender<ReloadRequest>,
}

impl DaemonAdmin {
    /// A daemon with this configuration, which is read from `files`; the receiver yields the requests for reloads.
    #[must_use]
    pub fn new(health: Arc<Health>, files: &[PathBuf], config: &Config) -> (Self, mpsc::Receiver<ReloadRequest>) {
        let (reloads, requests) = mpsc::channel(MAX_RELOADS);
        let absolute = |file: &PathBuf| std::path::absolute(file).unwrap_or_else(|_| file.clone());
        let files = files.iter().map(absolute).collect();
        let has_state_in_memory = config.store.url() == StoreUrl::Memory;
        (Self { health, files, has_state_in_memory, reloads }, requests)
    }

    /// Whether requests can be taken and served now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.health.readiness().ready
    }

    /// Returns the present status.
    #[must_use]
    pub fn status(&self) -> DaemonStatus {
        DaemonStatus {
            files: self.files.to_vec(),
            blocked_by: self.health.readiness().blocked_by,
            state_in_memory: self.has_state_in_memory,
            busiest_agents: busiest_agents(self.health.policy(), &self.health.recent_by_agent()),
            busiest_tools: busiest_tools(self.health.busy_tools()),
            disabled: switched_off(self.health.policy()),
            status: self.health.status(),
        }
    }

    /// Tools with calls that run now or ended in the last one to two minutes, in no order.
    pub(in crate::http) fn busy_tools(&self) -> Vec<toolbus_core::telemetry::BusyTool> {
        self.health.busy_tools()
    }

    /// Has the configuration reloaded, and waits for the report.
    ///
    /// # Errors
    ///
    /// If too many reloads wait, or the daemon ends first.
    async fn reload(&self) -> Result<ReloadReport, ApiError> {
        let (sender, report) = oneshot::channel();
        let is_ending = || ApiError::unavailable("the daemon is ending, and reloads nothing");
        self.reloads.try_send(sender).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                ApiError::unavailable(format!("{MAX_RELOADS} reloads wait already; try again once they are done"))
            }
            mpsc::error::TrySendError::Closed(_) => is_ending(),
        })?;
        report.await.map_err(|_| is_ending())
    }
}

/// Returns the switches that are off.
fn switched_off(policy: &PolicyHandle) -> Vec<Switched> {
    let switched = |switch: Switch| Switched { kind: switch.kind().to_owned(), name: switch.name().to_string() };
    policy.disabled().into_iter().map(switched).collect()
}

/// The agents with the most calls.
fn busiest_agents(policy: &PolicyHandle, recent: &HashMap<Arc<str>, u64>) -> Vec<BusyAgent> {
    let callers = policy.agents().into_iter().map(Caller::agent).chain([Caller::unknown()]);
    let busy = callers.map(|caller| {
        let effective = policy.effective(&caller);
        let ((running, waiting), agent) = (effective.used(), effective.section_name().to_owned());
        BusyAgent { running, waiting, recent: recent.get(&*agent).copied().unwrap_or_default(), agent }
    });
    let mut busy: Vec<_> = busy.filter(|agent| agent.running + agent.waiting > 0 || agent.recent > 0).collect();
    busy.sort_by_key(|agent| Reverse((agent.running + agent.waiting, agent.recent)));
    busy.truncate(MAX_BUSIEST);
    busy
}

/// The tools with the most calls.
fn busiest_tools(busy: Vec<toolbus_core::telemetry::BusyTool>) -> Vec<BusyTool> {
    let mut busy: Vec<_> = busy
        .into_iter()
        .map(|tool| BusyTool { tool: tool.name.to_string(), running: tool.running, recent: tool.recent })
        .collect();
    busy.sort_by(|one, other| {
        (other.running, other.recent).cmp(&(one.running, one.recent)).then_with(|| one.tool.cmp(&other.tool))
    });
    busy.truncate(MAX_BUSIEST);
    busy
}

/// There is no tool of this name among those that an agent may use, or at all.
fn no_tool(name: &str, agent: Option<&str>, names: &[Arc<str>]) -> ApiError {
    let others = match nearest(name, names.iter().map(|name| &**name)) {
        Some(near) => format!("did you mean `{}`?", shown(near)),
        None => "`toolbus tools` lists all".to_owned(),
    };
    let agent = agent.map(|agent| format!(" for {}", shown(agent))).unwrap_or_default();
    ApiError::not_found(format!("there is no tool `{}`{agent}: {others}", shown(name)))
}

/// An effect, as operators read it.
pub(in crate::http) const fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::ReadOnly => "read-only",
        Effect::Idempotent => "idempotent",
        Effect::Effectful => "effectful",
        Effect::Undeclared => "undeclared",
    }
}

/// Ids of the rules that a suspect definition meets.
fn rules_met(tool: &ToolDescriptor) -> Vec<String> {
    tool.suspicions.iter().map(|suspicion| suspicion.rule.to_string()).collect()
}

/// Returns the rules of an agent beside its tools.
fn rules(summary: PolicySummary) -> AppliedRules {
    let named = |(pattern, text): (Pattern, String)| NamedRule { name: pattern.to_string(), value: text };
    AppliedRules {
        profile: summary.profile,
        tool_sets: summary.toolsets,
        max_in_flight: summary.max_in_flight,
        max_queued: summary.max_queued,
        rate_limits: summary.rates.into_iter().map(named).collect(),
        recipients: summary
            .recipients
            .into_iter()
            .map(|(name, listed)| NamedRule {
                name,
                value: listed.map_or_else(|| "everybody".to_owned(), |listed| format!("{listed} listed")),
            })
            .collect(),
        arguments: summary.arguments.into_iter().map(|(pattern, names)| named((pattern, names.join(", ")))).collect(),
        bindings: summary.bindings,
    }
}

/// The caller of this name, in this role.
fn caller(name: &str, role: &CallerQuery) -> Result<Caller, ApiError> {
    let refused = |error| {
        let shown: String = name.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
        ApiError::bad_request(format!("`{shown}` {error}"))
    };
    let named = match name {
        DEFAULT_SECTION => Caller::unknown(),
        name => Caller::agent(AgentName::parse(name).map_err(refused)?),
    };
    let given = |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(Arc::from);
    Ok(Caller { binding: given(&role.binding), profile: given(&role.profile), session: given(&role.session), ..named })
}

#[cfg(test)]
mod tests;
