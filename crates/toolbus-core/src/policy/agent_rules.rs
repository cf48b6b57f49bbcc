//! The rules of a policy, numbered and arranged: everything that does not depend on the tools that there are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value};

use super::index::{ListId, PatternIndex};
use super::profile::Profile;
use super::rules::{AgentPolicy, Allowed, Capacity, Policy};
use crate::caller::{AgentName, Caller, Identity};
use crate::gates::permit::AgentGate;
use crate::gates::rate::RateRules;
use crate::gates::recipients::AllowedRecipients;
use crate::pattern::Pattern;
use crate::tool::ToolDescriptor;

/// Name of the section of callers without one.
pub(crate) const DEFAULT_SECTION: &str = "default";

/// A policy, arranged.
pub(crate) struct Rules {
    pub(crate) identity: Identity,
    pub(crate) policy: Policy,
    pub(crate) profiles: Vec<Profile>,
    /// The section of callers without one.
    default: AgentRules,
    agents: Vec<AgentRules>,
    /// Numbers of sections, as [`Self::section`] takes them.
    by_name: HashMap<AgentName, usize>,
    /// The lists of patterns that occur; equal ones are one.
    pub(crate) lists: Vec<PatternList>,
    pub(crate) index: PatternIndex,
}

/// The rules of one agent, or of callers without a section.
pub(crate) struct AgentRules {
    /// `None` for callers without a section.
    pub(crate) agent: Option<AgentName>,
    /// Whether there is no tool for it, whatever its lists.
    pub(crate) is_denied: bool,
    pub(crate) tools: ToolList,
    pub(crate) denied: ToolList,
    pub(crate) toolsets: BTreeSet<Arc<str>>,
    /// Arguments that are set for it, by pattern of tool names, the most specific first.
    pub(crate) arguments: Vec<(Pattern, Arc<Map<String, Value>>)>,
    /// Number of the profile that it always has.
    pub(crate) profile: Option<usize>,
    pub(crate) gate: Arc<AgentGate>,
    pub(crate) limits: CallLimits,
    /// Rules without a binding.
    whole: BindingRules,
    bindings: Vec<BindingRules>,
}

/// Limits of the calls of one agent that run and wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallLimits {
    pub(crate) max_in_flight: usize,
    pub(crate) max_queued: usize,
}

/// Rules for one agent under one binding.
pub(crate) struct BindingRules {
    /// The same for the same agent and binding, also after a change of the policy.
    pub(crate) key: u64,
    /// The binding, as `channel:account`; empty without one.
    pub(crate) binding: String,
    /// Narrows the agent's; everything without a binding.
    pub(crate) tools: ToolList,
    pub(crate) denied: ToolList,
    pub(crate) rates: Arc<RateRules>,
    pub(crate) recipients: Recipients,
    /// Last logged counts of each of its sets.
    pub(crate) logged: Vec<AtomicU64>,
}

/// Whom an agent may address, by the name of the channel.
type Recipients = Arc<BTreeMap<Arc<str>, AllowedRecipients>>;

/// A list of tools, by the number that its patterns have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolList {
    All,
    None,
    Only(ListId),
}

/// A list of patterns, as it occurs in a policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PatternList {
    pub(crate) patterns: Vec<Pattern>,
    /// Whether the list takes tools away. Such a list means a tool of a set under its own name, too: a prefix is no way
    /// around.
    pub(crate) denies: bool,
}

/// Numbers lists of patterns.
#[derive(Default)]
struct Lists {
    numbers: HashMap<PatternList, ListId>,
    lists: Vec<PatternList>,
}

impl Lists {
    fn allowed(&mut self, allowed: &Allowed) -> ToolList {
        match allowed {
            Allowed::All => ToolList::All,
            Allowed::None => ToolList::None,
            Allowed::Only(patterns) => self.only(patterns, false),
        }
    }

    fn denied(&mut self, patterns: &[Pattern]) -> ToolList {
        if patterns.is_empty() { ToolList::None } else { self.only(patterns, true) }
    }

    fn only(&mut self, patterns: &[Pattern], denies: bool) -> ToolList {
        let list = PatternList { patterns: patterns.to_vec(), denies };
        let next = ListId::try_from(self.lists.len()).unwrap_or(ListId::MAX);
        let number = *self.numbers.entry(list).or_insert_with_key(|list| {
            self.lists.push(list.clone());
            next
        });
        ToolList::Only(number)
    }
}

impl Rules {
    /// Arranges a policy. Agents that keep their limits keep their slots, too.
    pub(crate) fn new(identity: Identity, policy: Policy, capacity: Capacity, previous: Option<&Self>) -> Self {
        let profiles = Profile::all();
        let mut lists = Lists::default();
        let mut section = |agent: Option<&AgentName>, written: &AgentPolicy| {
            let mut section = AgentRules::new(agent, written, capacity, &profiles, &mut lists);
            section.is_denied = agent.is_none() && policy.deny_unknown;
            if let Some(known) = previous.and_then(|rules| rules.named(agent))
                && known.limits == section.limits
            {
                section.gate = Arc::clone(&known.gate);
            }
            section
        };
        let default = section(None, &policy.default);
        let agents: Vec<_> = policy.agents.iter().map(|(agent, written)| section(Some(agent), written)).collect();
        let by_name = policy.agents.keys().cloned().zip(1..).collect();
        let index = PatternIndex::new((0..).zip(lists.lists.iter().map(|list| list.patterns.as_slice())));
        Self { identity, policy, profiles, default, agents, by_name, lists: lists.lists, index }
    }

    /// The number of the section that a caller belongs to.
    pub(crate) fn section_of(&self, caller: &Caller) -> usize {
        caller.agent.as_ref().and_then(|agent| self.by_name.get(agent)).copied().unwrap_or_default()
    }

    fn named(&self, agent: Option<&AgentName>) -> Option<&AgentRules> {
        agent.map_or(Some(0), |agent| self.by_name.get(agent).copied()).map(|number| self.section(number))
    }

    /// The section of this number; 0 is that of callers without one.
    pub(crate) fn section(&self, number: usize) -> &AgentRules {
        number.checked_sub(1).and_then(|number| self.agents.get(number)).unwrap_or(&self.default)
    }

    /// Every section, in the order of their numbers.
    pub(crate) fn sections(&self) -> impl Iterator<Item = &AgentRules> {
        std::iter::once(&self.default).chain(&self.agents)
    }

    pub(crate) fn profile(&self, name: &str) -> Option<usize> {
        self.profiles.iter().position(|profile| profile.is_named(name))
    }

    /// The pattern of a list that means this tool.
    pub(crate) fn matching(&self, list: ToolList, tool: &ToolDescriptor) -> Option<&Pattern> {
        let ToolList::Only(number) = list else { return None };
        let PatternList { patterns, denies } = self.lists.get(number as usize)?;
        let matches =
            |pattern: &&Pattern| pattern.matches(&tool.name) || (*denies && pattern.matches(tool.bare_name()));
        patterns.iter().find(matches)
    }
}

impl AgentRules {
    fn new(
        agent: Option<&AgentName>,
        written: &AgentPolicy,
        capacity: Capacity,
        profiles: &[Profile],
        lists: &mut Lists,
    ) -> Self {
        let limits = CallLimits {
            max_in_flight: written.max_in_flight.unwrap_or_else(|| (capacity.max_in_flight * 3 / 4).max(1)),
            max_queued: written.max_queued.unwrap_or_else(|| capacity.max_waiting.div_ceil(2)),
        };
        let sets = profiles.len();
        let whole = BindingRules {
            key: key(agent, "", ""),
            binding: String::new(),
            tools: ToolList::All,
            denied: ToolList::None,
            rates: Arc::clone(&written.rates),
            recipients: Arc::clone(&written.recipients),
            logged: unlogged(sets),
        };
        let bindings = written.bindings.iter().map(|binding| BindingRules {
            key: key(agent, &binding.channel, &binding.account),
            binding: format!("{}:{}", binding.channel, binding.account),
            tools: lists.allowed(&binding.tools),
            denied: lists.denied(&binding.denied),
            rates: Arc::clone(binding.rates.as_ref().unwrap_or(&written.rates)),
            recipients: recipients(&written.recipients, binding.recipients.as_ref()),
            logged: unlogged(sets),
        });
        let bindings = bindings.collect();
        Self {
            agent: agent.cloned(),
            is_denied: false,
            tools: lists.allowed(&written.tools),
            denied: lists.denied(&written.denied),
            toolsets: written.toolsets.iter().cloned().collect(),
            arguments: written.arguments.clone(),
            profile: written.profile.as_ref().and_then(|name| profiles.iter().position(|p| p.is_named(name))),
            gate: Arc::new(match agent {
                Some(_) => AgentGate::new(limits.max_in_flight, limits.max_queued),
                None => AgentGate::shared(limits.max_in_flight, limits.max_queued),
            }),
            limits,
            whole,
            bindings,
        }
    }

    /// Rules under the binding of this number; 0 is without one.
    pub(crate) fn binding_rules(&self, number: usize) -> &BindingRules {
        number.checked_sub(1).and_then(|number| self.bindings.get(number)).unwrap_or(&self.whole)
    }

    /// Number of bindings, with the one for requests without a binding.
    pub(crate) fn binding_count(&self) -> usize {
        1 + self.bindings.len()
    }

    /// The number of the binding that a request names, as `channel:account`.
    pub(crate) fn binding(&self, name: &str) -> Option<usize> {
        self.bindings.iter().position(|rules| rules.binding == name).map(|position| position + 1)
    }

    /// Name of the agent, as an operator gives it.
    pub(crate) fn name(&self) -> &str {
        self.agent.as_ref().map_or(DEFAULT_SECTION, AgentName::as_str)
    }
}

impl BindingRules {
    /// Whether these counts of one of its sets are news.
    pub(crate) fn is_news(&self, set: usize, allowed: usize, denied: usize) -> bool {
        let counts = ((allowed as u64) << 32 | denied as u64 & 0xffff_ffff) + 1;
        self.logged.get(set).is_some_and(|logged| logged.swap(counts, Ordering::Relaxed) != counts)
    }
}

/// The lists of an agent, replaced by those of a binding, channel by channel: a binding without a list for a channel
/// opens nothing there.
fn recipients(agent: &Recipients, binding: Option<&Recipients>) -> Recipients {
    let Some(binding) = binding else { return Arc::clone(agent) };
    let lists = agent.iter().chain(binding.iter());
    Arc::new(lists.map(|(channel, list)| (Arc::clone(channel), list.clone())).collect())
}

/// One count for each profile, and one for a request that names none.
fn unlogged(profiles: usize) -> Vec<AtomicU64> {
    std::iter::repeat_with(AtomicU64::default).take(profiles + 1).collect()
}

/// A number for an agent under a binding, so that a bucket is found without a text.
fn key(agent: Option<&AgentName>, channel: &str, account: &str) -> u64 {
    crate::tool::digest_of(&[agent.map_or("", AgentName::as_str), channel, account])
}
