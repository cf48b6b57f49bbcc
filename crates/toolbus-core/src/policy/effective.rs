//! Effective tools of one caller: the one object that lists, enforces and explains.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Weak};

use serde_json::Map;
use toolbus_protocol::topic;

use super::agent_rules::{AgentRules, BindingRules, ToolList};

use super::catalogue::{Catalogue, CatalogueTool, Forced, SetData};
use super::profile::Profile;
use crate::caller::Caller;
use crate::gates::permit::AgentGate;
use crate::gates::rate::RateRule;
use crate::gates::recipients::{AllowedRecipients, Outbound};
use crate::listing::{self, ListedTool};
use crate::pattern::Pattern;
use crate::tool::{Tool, ToolDescriptor};

/// Tools that one caller may use at one moment; a snapshot, which does not change.
#[derive(Clone)]
pub struct EffectiveTools {
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) section: usize,
    pub(super) binding: usize,
    /// Number of the profile that the request names.
    pub(super) profile: Option<usize>,
    /// The tool sets that the session began with; absent without a session.
    pub(super) frozen: Option<Arc<[Arc<str>]>>,
    pub(super) grant: Grant,
}

/// Tools granted to a caller.
#[derive(Clone)]
pub(super) enum Grant {
    ToolSet(Arc<SetData>),
    Denied(EmptyReason),
}

/// Reason why a caller has no tool at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyReason {
    /// Callers without a section of their own have no tools here.
    UnknownAgent,
    /// The request names a profile that there is not.
    UnknownProfile,
    /// The request names a binding that the agent does not have.
    UnknownBinding,
    /// An operator has switched the agent off.
    Disabled,
    /// The rules leave none of the tools that there are.
    NoneLeft,
    /// There is no tool in this daemon.
    NoTools,
}

/// Identity of the tools of a caller: equal only if two callers may use the same tools, with the same definitions. It
/// keeps none of them in memory.
#[derive(Clone)]
pub struct ToolSetId {
    set: Weak<SetData>,
    frozen: Option<Arc<[Arc<str>]>>,
}

/// A tool that a caller may use.
#[derive(Clone, Copy)]
pub struct AllowedTool<'a> {
    /// The tool.
    pub tool: &'a Tool,
    pub(super) number: u32,
    pub(super) entry: &'a CatalogueTool,
}

/// Stand for listing and for hints where rates are counted by tool.
const LISTING: u64 = 0;
const HINTS: u64 = 1;
const NOT_LOOKED_UP: u16 = 0;
const NO_RATE: u16 = 1;
const FIRST_RATE: u16 = 2;

impl EffectiveTools {
    /// Effective tools of a caller in a catalogue, outside of any session.
    pub(crate) fn new(catalogue: Arc<Catalogue>, caller: &Caller) -> Self {
        let rules = &catalogue.rules;
        let number = rules.section_of(caller);
        let section = rules.section(number);
        let binding = match caller.binding.as_deref().map(|name| section.binding(name)) {
            None => Some(0),
            // The binding of the daemon that passes the call on, which has applied it, and listed the tools without it.
            Some(None) if caller.hops > 0 => Some(0),
            Some(binding) => binding,
        };
        let profile = caller.profile.as_deref().map_or(Some(None), |name| rules.profile(name).map(Some));
        let denied = |reason| (0, None, Grant::Denied(reason));
        let (binding, profile, grant) = match (binding, profile) {
            _ if section.is_denied => denied(EmptyReason::UnknownAgent),
            _ if catalogue.has_switched_off(caller) => denied(EmptyReason::Disabled),
            (None, _) => denied(EmptyReason::UnknownBinding),
            (_, None) => denied(EmptyReason::UnknownProfile),
            (Some(binding), Some(profile)) => match catalogue.set(number, binding, profile) {
                Some(set) => (binding, profile, Grant::ToolSet(set)),
                None => denied(EmptyReason::NoneLeft),
            },
        };
        Self { catalogue, section: number, binding, profile, frozen: None, grant }
    }

    /// The tool of exactly this name, or else of the name that models use for it; only if the caller may use it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<AllowedTool<'_>> {
        let set = self.set()?;
        self.catalogue.numbers_of(name).find_map(|number| self.allowed(set, number))
    }

    /// The tool of this name that this MCP server has; only if the caller may use it. `tool` is the server's own name
    /// for it, and the case of letters in the server's name does not matter.
    #[must_use]
    pub fn of_server(&self, server: &str, tool: &str) -> Option<AllowedTool<'_>> {
        self.allowed(self.set()?, self.catalogue.number_at(server, tool)?)
    }

    /// The tool of this published name that some MCP server has, by itself or as part of a tool set; only if the caller
    /// may use it. Where a tool of no server has the name, that of the server which comes first.
    #[must_use]
    pub fn of_any_server(&self, tool: &str) -> Option<AllowedTool<'_>> {
        let named = self.get(tool).filter(|allowed| allowed.tool.descriptor.server.is_some());
        // A name that belongs to a server is that server's alone, also while it is not connected.
        let is_hidden_by_none = |allowed: &AllowedTool<'_>| {
            let ToolDescriptor { name, .. } = &*allowed.tool.descriptor;
            **name == *tool && !self.catalogue.is_of_server(name)
        };
        let set = self.set()?;
        let mut others = self.catalogue.numbers_at_any(tool).filter_map(|number| self.allowed(set, number));
        named.or_else(|| others.find(is_hidden_by_none))
    }

    /// Every tool of an MCP server that the caller may use, also those that other tools hide; sorted by server and
    /// name.
    #[must_use]
    pub fn of_servers(&self) -> Vec<AllowedTool<'_>> {
        let Some(set) = self.set() else { return Vec::new() };
        let mut tools: Vec<_> =
            self.catalogue.numbers_at_all().filter_map(|number| self.allowed(set, number)).collect();
        tools.sort_by(|a, b| {
            let (a, b) = (&a.tool.descriptor, &b.tool.descriptor);
            (&a.server, a.bare_name()).cmp(&(&b.server, b.bare_name()))
        });
        tools
    }

    /// Whether the caller could use a tool like this one, if there were one.
    #[must_use]
    pub fn admits(&self, descriptor: &ToolDescriptor) -> bool {
        self.refusal(descriptor).is_none()
    }

    /// Every tool that the caller may use by its name, sorted by name.
    #[must_use]
    pub fn tools(&self) -> Vec<AllowedTool<'_>> {
        let Some(set) = self.set() else { return Vec::new() };
        let mut tools: Vec<_> = self.listed(set).collect();
        tools.sort_by(|a, b| a.tool.descriptor.name.cmp(&b.tool.descriptor.name));
        tools
    }

    /// Every name that the caller may use, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let listed = self.set().into_iter().flat_map(|set| self.listed(set));
        listed.map(|allowed| &*allowed.tool.descriptor.name)
    }

    /// Whether there is no tool that the caller may use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names().next().is_none()
    }

    /// Reason why there is no tool that the caller may use, if there is none.
    #[must_use]
    pub fn empty_reason(&self) -> Option<EmptyReason> {
        match &self.grant {
            Grant::Denied(reason) => Some(*reason),
            Grant::ToolSet(_) if !self.is_empty() => None,
            Grant::ToolSet(_) if self.catalogue.is_empty() => Some(EmptyReason::NoTools),
            Grant::ToolSet(_) => Some(EmptyReason::NoneLeft),
        }
    }

    /// Whether the caller has tool sets at all, and a name is of none of them: it has a dot, and what comes before the
    /// first is no prefix of theirs, or what comes after it is empty.
    #[must_use]
    pub fn lacks_toolset(&self, name: &str) -> bool {
        let Some((prefix, rest)) = name.split_once('.') else { return false };
        let prefixes = &self.catalogue.rules.policy.toolsets;
        let mut sets = self.rules().toolsets.iter().filter(|set| self.is_in_session(set)).peekable();
        let has_sets = sets.peek().is_some() && self.set().is_some();
        has_sets && (rest.is_empty() || !sets.any(|set| prefixes.get(set).is_some_and(|known| **known == *prefix)))
    }

    /// The definition of a tool as this caller gets it: without the arguments that are set for it.
    #[must_use]
    pub fn definition(&self, allowed: AllowedTool<'_>) -> ListedTool {
        let definition = listing::definition(&allowed.tool.descriptor);
        let Some(forced) = self.forced(allowed) else { return definition };
        let hidden: Vec<&str> = forced.0.keys().map(String::as_str).collect();
        definition.hiding(&hidden)
    }

    /// The profile that holds: the agent's own, or else the one that the request names.
    #[must_use]
    pub fn profile(&self) -> &str {
        let rules = &self.catalogue.rules;
        let number = self.rules().profile.or(self.profile);
        number.and_then(|number| rules.profiles.get(number)).map_or("main", |profile| profile.name())
    }

    /// The caller, with the profile of its section: what a daemon to which the call is passed on must know. Of a
    /// section's profile and the request's, the section's counts there.
    #[must_use]
    pub(crate) fn with_own_profile(&self, caller: &Arc<Caller>) -> Arc<Caller> {
        let own = self.rules().profile.and_then(|number| self.catalogue.rules.profiles.get(number));
        match own.map(Profile::name).filter(|name| *name != "main" && caller.profile.as_deref() != Some(*name)) {
            Some(name) => Arc::new(Caller { profile: Some(name.into()), ..Caller::clone(caller) }),
            None => Arc::clone(caller),
        }
    }

    /// Arguments that are set for the caller whenever it calls this tool.
    #[must_use]
    pub fn forced(&self, allowed: AllowedTool<'_>) -> Option<Arc<Forced>> {
        let arguments = &self.rules().arguments;
        if arguments.is_empty() {
            return None;
        }
        let mut known = self.set()?.forced.lock();
        let forced = known.entry(allowed.number).or_insert_with(|| {
            let tool = &allowed.tool.descriptor;
            let is_for = |pattern: &Pattern| pattern.matches(&tool.name) || pattern.matches(tool.bare_name());
            let mut all = Map::new();
            // The most specific comes first, and the first decides.
            for (_, arguments) in arguments.iter().filter(|(pattern, _)| is_for(pattern)) {
                for (argument, value) in arguments.iter() {
                    all.entry(argument).or_insert_with(|| value.clone());
                }
            }
            (!all.is_empty()).then(|| Arc::new(Forced(all)))
        });
        forced.clone()
    }

    /// Rate at which the caller may call this tool, if that is limited.
    #[must_use]
    pub(crate) fn rate(&self, allowed: AllowedTool<'_>) -> Option<&RateRule> {
        let rates = &self.binding_rules().rates;
        if rates.is_empty() {
            return None;
        }
        let set = self.set()?;
        let known = set.rates.get_or_init(|| std::iter::repeat_with(AtomicU16::default).take(set.capacity).collect());
        let known_rate = known.get(allowed.number as usize)?;
        let number = match known_rate.load(Ordering::Relaxed) {
            NOT_LOOKED_UP => {
                let tool = &allowed.tool.descriptor;
                let found =
                    rates.rule_of_either(&tool.name, tool.bare_name()).map_or(NO_RATE, |rule| rule + FIRST_RATE);
                known_rate.store(found, Ordering::Relaxed);
                found
            }
            known => known,
        };
        rates.rule(number.checked_sub(FIRST_RATE)?)
    }

    /// Rate at which the caller may list its tools, or request hints, if a rule names the topic. Patterns are of tools:
    /// a limit for all of them must not leave an agent without its list.
    pub(crate) fn topic_rate(&self, topic: &str) -> Option<&RateRule> {
        let rates = &self.binding_rules().rates;
        rates.rule(rates.rule_of(topic)?).filter(|rule| rule.pattern().is_exact())
    }

    /// Key of this caller's requests on a topic, distinct from all others and from calls.
    pub(crate) fn topic_rate_key(&self, topic: &str) -> (u64, u64) {
        (self.binding_rules().key, if topic == topic::TOOL_HINTS { HINTS } else { LISTING })
    }

    /// Identity of these tools; `None` if the caller is denied everything.
    #[must_use]
    pub fn id(&self) -> Option<ToolSetId> {
        match &self.grant {
            Grant::ToolSet(set) => Some(ToolSetId { set: Arc::downgrade(set), frozen: self.frozen.clone() }),
            Grant::Denied(_) => None,
        }
    }

    /// Catalogue that the tools are taken from.
    pub(crate) const fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }

    /// Whether the caller has no section of its own.
    #[must_use]
    pub fn has_no_section(&self) -> bool {
        self.rules().agent.is_none()
    }

    /// Key of this caller's calls of this tool, distinct from all others, for as long as the agent and the tool keep
    /// their names.
    pub(crate) fn rate_key(&self, allowed: AllowedTool<'_>) -> (u64, u64) {
        (self.binding_rules().key, allowed.entry.key)
    }

    /// The channels on which this tool addresses people, and the recipients that the caller may address there; channels
    /// on which it may address every agent are left out.
    pub(crate) fn recipients(&self, allowed: AllowedTool<'_>) -> impl Iterator<Item = (&Outbound, &AllowedRecipients)> {
        let binding = self.binding_rules();
        let outbound = &self.catalogue.rules.policy.outbound;
        allowed
            .entry
            .channels
            .iter()
            .filter_map(move |channel| Some((&**outbound.get(channel)?, binding.recipients.get(channel)?)))
    }

    /// Counts the calls of the caller's agent.
    pub(crate) fn gate(&self) -> &Arc<AgentGate> {
        &self.rules().gate
    }

    /// Calls of the caller's agent that may run and wait at a time.
    #[must_use]
    pub fn limits(&self) -> (usize, usize) {
        let limits = self.rules().limits;
        (limits.max_in_flight, limits.max_queued)
    }

    /// Calls of the caller's agent that run and wait now.
    #[must_use]
    pub fn used(&self) -> (usize, usize) {
        self.gate().used()
    }

    /// Number of that section, below the number of sections.
    pub(crate) const fn section_number(&self) -> usize {
        self.section
    }

    /// Name of the section of the policy that holds for the caller: its agent, or `default`.
    #[must_use]
    pub fn section_name(&self) -> &str {
        self.rules().name()
    }

    /// Names of the tool sets that are bound to the agent now.
    pub(super) fn bound_sets(&self) -> Arc<[Arc<str>]> {
        self.rules().toolsets.iter().cloned().collect()
    }

    /// A hash of everything that the caller may use: equal in every daemon that would list the same.
    #[must_use]
    pub fn version(&self) -> Arc<str> {
        let all = || -> Arc<str> {
            let definitions: Vec<_> = self.tools().into_iter().map(|allowed| self.definition(allowed)).collect();
            listing::version(&definitions).into()
        };
        match (self.set(), &self.frozen) {
            // What a session sees is its own, and is not kept for others.
            (Some(set), None) => Arc::clone(set.version.get_or_init(all)),
            _ => all(),
        }
    }

    /// Whether both would list the same tools, as far as that can be determined without listing them.
    pub(crate) fn lists_like(&self, other: &Self) -> bool {
        self.fingerprint() == other.fingerprint() && self.rules().arguments == other.rules().arguments
    }

    /// A number for all tools that are listed, outside of any session: the sum of the definitions' own, so that equal
    /// sets have equal ones, in whatever order.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let sum = |set: &SetData| {
            let entries = set.bits.iter().filter_map(|number| self.catalogue.entry(number));
            entries.filter(|entry| !entry.is_shadowed).fold(0_u64, |sum, entry| sum.wrapping_add(entry.fingerprint))
        };
        self.set().map_or(0, |set| *set.fingerprint.get_or_init(|| sum(set)))
    }

    /// As [`Self::fingerprint`], but also another number when other arguments are left out of the definitions.
    #[must_use]
    pub fn listing_fingerprint(&self) -> u64 {
        let arguments = &self.rules().arguments;
        if arguments.is_empty() {
            return self.fingerprint();
        }
        let mut hasher = DefaultHasher::new();
        self.fingerprint().hash(&mut hasher);
        for (pattern, arguments) in arguments {
            (pattern, arguments.keys().collect::<Vec<_>>()).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Whether the caller could use some tool of this source, as part of the tool set `set` or by itself, if it had one
    /// of a fitting name. True if the rules depend on names and may allow one.
    #[must_use]
    pub fn could_have(&self, source: &Arc<str>, set: Option<&Arc<str>>) -> bool {
        let (section, binding, catalogue) = (self.rules(), self.binding_rules(), &self.catalogue);
        if matches!(self.grant, Grant::Denied(_)) || catalogue.switches.has_source(source) {
            return false;
        }
        if set.is_some_and(|set| !section.toolsets.contains(set) || !self.is_in_session(set)) {
            return false;
        }
        let prefix = set.and_then(|set| catalogue.rules.policy.toolsets.get(set));
        let beginning = prefix.map(|prefix| format!("{prefix}.")).unwrap_or_default();
        let patterns = |list| match list {
            ToolList::Only(number) => catalogue.rules.lists.get(number as usize).map(|list| list.patterns.as_slice()),
            ToolList::All | ToolList::None => None,
        };
        let allows = |list| match list {
            ToolList::All => true,
            ToolList::None => false,
            ToolList::Only(_) => patterns(list).is_some_and(|all| all.iter().any(|pattern| some(pattern, &beginning))),
        };
        let denies = |list| patterns(list).is_some_and(|all| all.iter().any(|pattern| every(pattern, &beginning)));
        [section.tools, binding.tools].into_iter().all(allows)
            && ![section.denied, binding.denied].into_iter().any(denies)
            && self.profiles().all(|profile| profile.could_allow(source))
    }

    pub(super) fn set(&self) -> Option<&SetData> {
        match &self.grant {
            Grant::ToolSet(set) => Some(set),
            Grant::Denied(_) => None,
        }
    }

    pub(super) fn rules(&self) -> &AgentRules {
        self.catalogue.rules.section(self.section)
    }

    pub(super) fn binding_rules(&self) -> &BindingRules {
        self.rules().binding_rules(self.binding)
    }

    /// Tools that are called by their names, without shadowed ones.
    fn listed<'a>(&'a self, set: &'a SetData) -> impl Iterator<Item = AllowedTool<'a>> {
        let allowed = set.bits.iter().filter_map(move |number| self.allowed(set, number));
        allowed.filter(|allowed| !allowed.entry.is_shadowed)
    }

    fn allowed<'a>(&'a self, set: &SetData, number: u32) -> Option<AllowedTool<'a>> {
        if !set.bits.contains(number) {
            return None;
        }
        let entry = self.catalogue.entry(number)?;
        let member = entry.tool.descriptor.toolset.as_ref();
        member.is_none_or(|member| self.is_in_session(&member.set)).then_some(AllowedTool {
            tool: &entry.tool,
            number,
            entry,
        })
    }

    /// Whether the session began with this tool set.
    pub(super) fn is_in_session(&self, set: &Arc<str>) -> bool {
        self.frozen.as_ref().is_none_or(|frozen| frozen.contains(set))
    }
}

impl PartialEq for ToolSetId {
    fn eq(&self, other: &Self) -> bool {
        Weak::ptr_eq(&self.set, &other.set) && self.frozen == other.frozen
    }
}

impl Eq for ToolSetId {}

impl Hash for ToolSetId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.set.as_ptr().addr(), &self.frozen).hash(state);
    }
}

impl fmt::Debug for ToolSetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolSetId({:p})", self.set.as_ptr())
    }
}

impl AllowedTool<'_> {
    /// Number of channels on which the tool addresses people.
    pub(crate) fn channels(&self) -> usize {
        self.entry.channels.len()
    }
}

impl fmt::Display for EmptyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownAgent => {
                "This caller has no tools here: the daemon serves agents that its configuration names, and does not know \
                 this one."
            }
            Self::UnknownProfile => "There is no profile of the name that the request gives; there are main, subagent, scheduled and a2a-synthesis.",
            Self::UnknownBinding => "This agent has no binding of the name that the request gives, which is written channel:account.",
            Self::Disabled => "An operator has switched this agent off.",
            Self::NoneLeft => "The policy leaves this caller no tool. Ask an operator to look at `toolbus agents`.",
            Self::NoTools => "No tool is registered in this daemon.",
        })
    }
}

/// Whether a pattern may stand for some name that begins so.
fn some(pattern: &Pattern, beginning: &str) -> bool {
    let fixed = pattern.literal_prefix();
    fixed.starts_with(beginning) || (!pattern.is_exact() && beginning.starts_with(fixed))
}

/// Whether a pattern stands for every name that begins so.
fn every(pattern: &Pattern, beginning: &str) -> bool {
    let fixed = pattern.literal_prefix();
    let is_open = pattern.as_str().len() > fixed.len() && pattern.as_str().trim_end_matches('*') == fixed;
    is_open && beginning.starts_with(fixed)
}
