//! Reason why a caller may use a tool, or may not: derived from the rules as they are written, one after the other.

use std::fmt;
use std::sync::Arc;

use super::agent_rules::ToolList;
use super::effective::{EffectiveTools, EmptyReason, Grant};
use super::profile::{Profile, ProfileRole};
use super::switches::Switch;
use crate::pattern::Pattern;
use crate::tool::ToolDescriptor;

/// Explanation of a caller's access to one tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The tool's published name, or the requested name.
    pub tool: Arc<str>,
    /// Whether the caller may use it.
    pub is_in: bool,
    /// Why, or why not.
    pub because: Because,
}

/// The rule that decides: the first that refuses, or else the one that allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Because {
    /// No list restricts the caller.
    Unrestricted,
    /// This pattern of the innermost list that restricts the caller allows it.
    Allowed(Pattern),
    /// There is no such tool.
    Unregistered,
    /// The first source has the name and publishes no tool of it now; tools of the others are reached by their server.
    Absent(Arc<str>, Vec<Arc<str>>),
    /// The caller has no tool at all.
    Empty(EmptyReason),
    /// An operator has switched it off.
    Disabled(Switch),
    /// The tool is quarantined, for this reason.
    Quarantined(Arc<str>),
    /// The tool belongs to a tool set that is not bound to the agent.
    NotBound(Arc<str>),
    /// The tool belongs to a tool set that was bound to the agent after the session began.
    NotInSession(Arc<str>),
    /// The agent's list does not have it.
    NotListed,
    /// The agent has no tool: its list is "none".
    AllowsNone,
    /// The agent's list of denied tools has it.
    Denied(Pattern),
    /// The binding's list does not have it.
    NotInBinding,
    /// The binding's list of denied tools has it.
    DeniedInBinding(Pattern),
    /// The profile denies its name.
    ProfileDeniesName(String),
    /// The profile denies its source.
    ProfileDeniesSource(String, Arc<str>),
    /// The profile allows neither its name nor its source.
    ProfileLacks(String, Arc<str>),
}

impl EffectiveTools {
    /// Reason why the caller may use the tool of this name, or may not.
    #[must_use]
    pub fn explain(&self, name: &str) -> Explanation {
        let mut first = None;
        for number in self.catalogue.numbers_of(name) {
            let Some(entry) = self.catalogue.entry(number) else { continue };
            let explanation = self.explanation(&entry.tool.descriptor);
            if explanation.is_in {
                return explanation;
            }
            first = first.or(Some(explanation));
        }
        first.unwrap_or_else(|| {
            let name = Arc::from(name);
            let because = match self.catalogue.owner_of_shadowed(&name) {
                Some(owner) => Because::Absent(Arc::clone(owner), self.shadowed_at(&name)),
                None => Because::Unregistered,
            };
            Explanation { tool: name, is_in: false, because }
        })
    }

    /// Sources whose tools of this name are not called by it, because another source has the name; sorted.
    #[must_use]
    pub fn shadowed_at(&self, name: &str) -> Vec<Arc<str>> {
        self.catalogue.shadowed_at(name).into_iter().cloned().collect()
    }

    /// Reason why the caller may use each of the tools that there are, or may not, and each name whose owner is away;
    /// sorted by name.
    #[must_use]
    pub fn explain_all(&self) -> Vec<Explanation> {
        let mut all: Vec<_> = self.catalogue.tools().iter().map(|descriptor| self.explanation(descriptor)).collect();
        all.extend(self.catalogue.absent().keys().map(|name| self.explain(name)));
        all.sort_by(|a, b| a.tool.cmp(&b.tool));
        all
    }

    fn explanation(&self, tool: &ToolDescriptor) -> Explanation {
        let (is_in, because) = match self.refusal(tool) {
            Some(refusal) => (false, refusal),
            None => (true, self.permission(tool)),
        };
        Explanation { tool: Arc::clone(&tool.name), is_in, because }
    }

    /// The first rule that refuses.
    pub(super) fn refusal(&self, tool: &ToolDescriptor) -> Option<Because> {
        if let Grant::Denied(reason) = &self.grant {
            return Some(Because::Empty(*reason));
        }
        let (section, binding) = (self.rules(), self.binding_rules());
        if let Some(switch) = self.catalogue.switches.of_tool(tool) {
            return Some(Because::Disabled(switch));
        }
        if let Some(reason) = self.catalogue.quarantine.reason(tool) {
            return Some(Because::Quarantined(Arc::clone(reason)));
        }
        if let Some(member) = &tool.toolset {
            if !section.toolsets.contains(&member.set) {
                return Some(Because::NotBound(Arc::clone(&member.set)));
            }
            if !self.is_in_session(&member.set) {
                return Some(Because::NotInSession(Arc::clone(&member.set)));
            }
        }
        let matching = |list| self.catalogue.rules.matching(list, tool);
        let lacks = |list| match list {
            ToolList::All => false,
            ToolList::None => true,
            ToolList::Only(_) => matching(list).is_none(),
        };
        if let Some(pattern) = matching(section.denied) {
            return Some(Because::Denied(pattern.clone()));
        }
        if section.tools == ToolList::None {
            return Some(Because::AllowsNone);
        }
        if lacks(section.tools) {
            return Some(Because::NotListed);
        }
        if let Some(pattern) = matching(binding.denied) {
            return Some(Because::DeniedInBinding(pattern.clone()));
        }
        if lacks(binding.tools) {
            return Some(Because::NotInBinding);
        }
        self.profiles().find_map(|profile| {
            let name = || profile.name().to_owned();
            match profile.judge(&tool.name, tool.bare_name(), &tool.source) {
                ProfileRole::Allowed => None,
                ProfileRole::DeniedName => Some(Because::ProfileDeniesName(name())),
                ProfileRole::DeniedSource => Some(Because::ProfileDeniesSource(name(), Arc::clone(&tool.source))),
                ProfileRole::NotAllowed => Some(Because::ProfileLacks(name(), Arc::clone(&tool.source))),
            }
        })
    }

    fn permission(&self, tool: &ToolDescriptor) -> Because {
        let lists = [self.binding_rules().tools, self.rules().tools];
        let pattern = lists.into_iter().find_map(|list| self.catalogue.rules.matching(list, tool));
        pattern.map_or(Because::Unrestricted, |pattern| Because::Allowed(pattern.clone()))
    }

    /// The profiles that narrow the caller: the agent's own, and the one that the request names.
    pub(super) fn profiles(&self) -> impl Iterator<Item = &Profile> {
        let rules = &self.catalogue.rules;
        let own = self.rules().profile.or_else(|| rules.profile("main"));
        [own, self.profile].into_iter().flatten().filter_map(|number| rules.profiles.get(number))
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unrestricted => f.write_str("no list restricts it"),
            Self::Allowed(pattern) => write!(f, "allowed by `{pattern}`"),
            Self::Unregistered => f.write_str("there is no such tool"),
            Self::Absent(owner, others) => write!(
                f,
                "the name belongs to `{owner}`, which does not offer it now; {} also has a tool of this name, which is \
                 called by its server",
                listed(others)
            ),
            Self::Empty(reason) => write!(f, "{reason}"),
            Self::Disabled(switch) => write!(f, "switched off by an operator ({switch})"),
            Self::Quarantined(reason) => write!(f, "quarantined: {reason}"),
            Self::NotBound(set) => write!(f, "tool set `{set}` is not bound"),
            Self::NotInSession(set) => write!(f, "tool set `{set}` was bound after the session began"),
            Self::NotListed => f.write_str("not in allowed_tools"),
            Self::AllowsNone => f.write_str("allowed_tools is \"none\""),
            Self::Denied(pattern) => write!(f, "denied by `{pattern}`"),
            Self::NotInBinding => f.write_str("not in allowed_tools of the binding"),
            Self::DeniedInBinding(pattern) => write!(f, "denied by `{pattern}` of the binding"),
            Self::ProfileDeniesName(profile) => write!(f, "profile `{profile}` denies this name"),
            Self::ProfileDeniesSource(profile, source) => write!(f, "profile `{profile}` denies source `{source}`"),
            Self::ProfileLacks(profile, source) => write!(f, "profile `{profile}` does not have source `{source}`"),
        }
    }
}

/// Sources, as a text names them.
pub(crate) fn listed(sources: &[Arc<str>]) -> String {
    sources.iter().map(|source| format!("`{source}`")).collect::<Vec<_>>().join(", ")
}
