//! The policy as it was written: which agents may use which tools, before it is applied to the registered tools.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::caller::AgentName;
use crate::gates::rate::RateRules;
use crate::gates::recipients::{AllowedRecipients, Outbound};
use crate::pattern::Pattern;

/// Number of calls that the daemon takes, of which each agent may have a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Calls that run at a time.
    pub max_in_flight: usize,
    /// Calls that wait at a time.
    pub max_waiting: usize,
}

/// The policy as written.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Rules for agents by name.
    pub agents: BTreeMap<AgentName, AgentPolicy>,
    /// Rules for all other callers, which are one class.
    pub default: AgentPolicy,
    /// Whether all others have no tools at all, whatever [`Self::default`] allows.
    pub deny_unknown: bool,
    /// Prefix of every tool set, by the set's name.
    pub toolsets: BTreeMap<Arc<str>, Arc<str>>,
    /// Tools that address people, by the name of the channel.
    pub outbound: BTreeMap<Arc<str>, Arc<Outbound>>,
}

/// Tools for callers without a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownCallers {
    /// No tool.
    Denied,
    /// Tools that the section `default` leaves them.
    Restricted,
    /// Every tool that is in no tool set.
    Open,
}

impl Policy {
    /// Tools for callers without a section.
    #[must_use]
    pub fn unknown_callers(&self) -> UnknownCallers {
        match self.default.is_restricting() {
            _ if self.deny_unknown => UnknownCallers::Denied,
            true => UnknownCallers::Restricted,
            false => UnknownCallers::Open,
        }
    }
}

/// Rules of one agent.
#[derive(Debug, Clone, Default)]
pub struct AgentPolicy {
    /// Tools that it may use.
    pub tools: Allowed,
    /// Tools that it may not use, whatever else allows them.
    pub denied: Vec<Pattern>,
    /// Tool sets that are bound to it.
    pub toolsets: Vec<Arc<str>>,
    /// The profile that every request of it has.
    pub profile: Option<Arc<str>>,
    /// Calls of it that run at a time; absent: three quarters of the daemon's.
    pub max_in_flight: Option<usize>,
    /// Calls of it that wait at a time; absent: half of the daemon's.
    pub max_queued: Option<usize>,
    /// Rates at which the agent may call tools.
    pub rates: Arc<RateRules>,
    /// Whom it may address, by the name of the channel; a channel that is absent is unrestricted.
    pub recipients: Arc<BTreeMap<Arc<str>, AllowedRecipients>>,
    /// Arguments that are set for it, by pattern of tool names, the most specific first.
    pub arguments: Vec<(Pattern, Arc<Map<String, Value>>)>,
    /// Bindings of the agent, each narrower than the agent itself.
    pub bindings: Vec<BindingPolicy>,
}

impl AgentPolicy {
    /// Whether anything but the number of calls is narrower than without rules.
    fn is_restricting(&self) -> bool {
        let Self { tools, denied, profile, rates, recipients, arguments, .. } = self;
        let is_open = *tools == Allowed::All && denied.is_empty() && profile.is_none();
        !(is_open && rates.is_empty() && recipients.is_empty() && arguments.is_empty())
    }
}

/// Rules of an agent on behalf of one channel and account.
#[derive(Debug, Clone, Default)]
pub struct BindingPolicy {
    /// The channel, such as `whatsapp`.
    pub channel: Arc<str>,
    /// The account on that channel.
    pub account: Arc<str>,
    /// Tools that it may use, out of the agent's.
    pub tools: Allowed,
    /// Tools that it may not use.
    pub denied: Vec<Pattern>,
    /// Replaces the agent's, when present.
    pub rates: Option<Arc<RateRules>>,
    /// Replaces the agent's, channel by channel; a channel that is absent here is the agent's.
    pub recipients: Option<Arc<BTreeMap<Arc<str>, AllowedRecipients>>>,
}

/// A list of allowed tools. Not a plain list, so that no narrowing can leave an empty one that opens everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Allowed {
    /// Every tool.
    #[default]
    All,
    /// No tool.
    None,
    /// Tools that one of these patterns matches.
    Only(Vec<Pattern>),
}
