//! The door for operators: who may use what and why, what is switched off, and how MCP servers are. On a Unix socket of the
//! daemon's user, and over HTTP with a token.

use std::collections::HashMap;
use std::sync::Arc;

use toolbus_core::caller::{AgentName, AgentNameError, Caller};
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{Because, EffectiveTools, Explanation, Nothing, Summary, Switch, SwitchError};
use toolbus_core::tool::ToolDescriptor;
use toolbus_core::{Gates, Step};
use toolbus_trust::pins::Pins;

pub mod client;
mod daemon;
mod pins;
mod routes;
mod servers;
mod socket;
mod switches;
mod token;
mod tools;
pub mod view;

pub use daemon::{DaemonAdmin, ReloadRequest};
pub use pins::PinError;
pub use routes::{MAX_BODY, guarded, open};
#[cfg(test)]
pub(crate) use servers::example;
pub use servers::{McpAdmin, McpError, NoServers};
pub use socket::{AdminSocket, SocketError};
pub use switches::{LoadError, Switches};
pub use tools::ToolsQuery;

use view::{
    AgentSummary, AgentTools, Agents, Explained, Gate, Named, Question, Role, Rules, Switched, Switching, Verdict,
};

/// The name that stands for every caller without a section.
pub const EVERYBODY: &str = "default";

/// Longest part of a name that an error repeats, in characters.
const MAX_SHOWN: usize = 64;

/// What operators can ask and change.
pub struct Admin {
    gates: Arc<Gates>,
    switches: Switches,
    pins: Option<Pins>,
    daemon: Option<DaemonAdmin>,
}

/// Why a request of an operator is refused.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// It cannot be read.
    #[error("{0}")]
    Request(String),
    /// Its body is too large.
    #[error("the body is larger than {} KiB", MAX_BODY / 1024)]
    TooLarge,
    /// It names no agent.
    #[error("`{0}` {1}")]
    Agent(String, AgentNameError),
    /// There is no tool of this name; the text says which others there are.
    #[error("{0}")]
    Tool(String),
    /// It names nothing that can be switched.
    #[error("{0}")]
    Switch(SwitchError),
    /// Too much is switched off already.
    #[error("{0}")]
    TooMany(SwitchError),
    /// The switch cannot be kept.
    #[error("{0}")]
    Store(String),
}

impl Admin {
    /// Asks the gates that calls pass, and keeps what is switched off in `switches`.
    #[must_use]
    pub const fn new(gates: Arc<Gates>, switches: Switches) -> Self {
        Self { gates, switches, pins: None, daemon: None }
    }

    /// The same, which tells of the daemon as a whole, too.
    #[must_use]
    pub fn with_daemon(mut self, daemon: DaemonAdmin) -> Self {
        self.daemon = Some(daemon);
        self
    }

    /// Every agent that has a section, and everybody else.
    #[must_use]
    pub fn agents(&self) -> Agents {
        let access = self.gates.access();
        let total = access.current().len();
        let callers = access.agents().into_iter().map(Caller::agent).chain([Caller::unknown()]);
        let summary = |caller: Caller| {
            let effective = access.effective(&caller);
            let Summary { profile, max_in_flight, max_queued, rates, bindings, .. } = effective.summary();
            AgentSummary {
                agent: effective.section_name().to_owned(),
                tools: effective.names().count(),
                total,
                profile,
                max_in_flight,
                max_queued,
                rate_limits: rates.iter().map(|(pattern, _)| pattern.to_string()).collect(),
                bindings,
                disabled: effective.nothing() == Some(Nothing::Disabled),
            }
        };
        Agents { agents: callers.map(summary).collect(), unknown: access.unknown_callers(), disabled: self.disabled() }
    }

    /// What one agent may use.
    ///
    /// # Errors
    ///
    /// When no agent can have this name.
    pub fn effective(&self, name: &str, role: &Role) -> Result<EffectiveTools, AdminError> {
        Ok(self.gates.access().effective(&caller(name, role)?))
    }

    /// What one agent may use, and why.
    ///
    /// # Errors
    ///
    /// When no agent can have this name.
    pub fn agent(&self, name: &str, role: &Role) -> Result<AgentTools, AdminError> {
        let effective = self.effective(name, role)?;
        let tools = self.gates.access().current().tools();
        let known: HashMap<&str, &ToolDescriptor> = tools.iter().map(|tool| (&*tool.name, &**tool)).collect();
        let verdict = |explanation: Explanation| {
            let tool = known.get(&*explanation.tool);
            Verdict {
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
            nothing: effective.nothing().map(|reason| reason.to_string()),
            rules: rules(effective.summary()),
            tools: effective.explain_all().into_iter().map(verdict).collect(),
        })
    }

    /// The gates of a call that is not made, up to the first that refuses.
    ///
    /// # Errors
    ///
    /// When no agent can have this name.
    pub fn explain(&self, question: &Question) -> Result<Explained, AdminError> {
        let Question { agent, tool, arguments, binding, profile, session } = question;
        let role = Role { binding: binding.clone(), profile: profile.clone(), session: session.clone() };
        let arguments = arguments
            .as_deref()
            .map(|raw| serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_| raw.get().to_owned()));
        let steps = self.gates.explain(&caller(agent, &role)?, tool, arguments.as_deref());
        let gate = |step: Step| Gate {
            step: step.name.as_str().to_owned(),
            passes: step.passes,
            text: step.text,
            told: step.told,
        };
        let steps: Vec<Gate> = steps.into_iter().map(gate).collect();
        let passes = steps.iter().all(|step| step.passes);
        Ok(Explained { agent: agent.clone(), tool: tool.clone(), passes, steps })
    }

    /// What is switched off.
    #[must_use]
    pub fn disabled(&self) -> Vec<Switched> {
        let switched = |switch: Switch| Switched { kind: switch.kind().to_owned(), name: switch.name().to_string() };
        self.gates.access().disabled().into_iter().map(switched).collect()
    }

    /// Switches something off or on again, at once and for the time after a restart, too.
    ///
    /// # Errors
    ///
    /// When nothing can have this name, too much is off already, or the switch cannot be kept. What cannot be kept is
    /// off all the same.
    pub async fn switch(&self, kind: &str, name: &str, off: bool) -> Result<Switching, AdminError> {
        let switch = Switch::new(kind, name).map_err(AdminError::Switch)?;
        let changed = self.switches.set(self.gates.access(), &switch, off).await?;
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
        let access = self.gates.access();
        match switch {
            Switch::Tool(name) => {
                access.current().tools().iter().any(|tool| tool.name == *name || tool.bare_name() == name)
            }
            Switch::Source(name) => access.current().tools().iter().any(|tool| tool.source == *name),
            Switch::Agent(name) => {
                **name == *EVERYBODY || access.agents().iter().any(|agent| agent.as_str() == &**name)
            }
        }
    }
}

/// Ids of the rules that a suspect definition meets.
fn rules_met(tool: &ToolDescriptor) -> Vec<String> {
    tool.suspicions.iter().map(|suspicion| suspicion.rule.to_string()).collect()
}

/// What holds for an agent beside its tools.
fn rules(summary: Summary) -> Rules {
    let named = |(pattern, text): (Pattern, String)| Named { name: pattern.to_string(), value: text };
    Rules {
        profile: summary.profile,
        tool_sets: summary.toolsets,
        max_in_flight: summary.max_in_flight,
        max_queued: summary.max_queued,
        rate_limits: summary.rates.into_iter().map(named).collect(),
        recipients: summary
            .recipients
            .into_iter()
            .map(|(name, listed)| Named {
                name,
                value: listed.map_or_else(|| "everybody".to_owned(), |listed| format!("{listed} listed")),
            })
            .collect(),
        arguments: summary.arguments.into_iter().map(|(pattern, names)| named((pattern, names.join(", ")))).collect(),
        bindings: summary.bindings,
    }
}

/// Whoever asks under this name, in this role.
fn caller(name: &str, role: &Role) -> Result<Caller, AdminError> {
    let refused = |error| AdminError::Agent(name.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect(), error);
    let whoever = match name {
        EVERYBODY => Caller::unknown(),
        name => Caller::agent(AgentName::parse(name).map_err(refused)?),
    };
    let given = |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(Arc::from);
    Ok(Caller {
        binding: given(&role.binding),
        profile: given(&role.profile),
        session: given(&role.session),
        ..whoever
    })
}

#[cfg(test)]
mod tests;
