//! Effect of another policy: the callers that would have other tools.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::agent_rules::{DEFAULT_SECTION, Rules};
use super::bits::Bits;
use super::catalogue::Catalogue;
use super::rules::{Capacity, Policy};
use crate::caller::{AgentName, Caller, Identity};
use crate::registry::Registry;

/// A caller that would have other tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessChange {
    /// The agent, or `default` for callers without a section.
    pub agent: String,
    /// Tools that it would have, and has not.
    pub gains: CountedTools,
    /// Tools that it has, and would not have.
    pub loses: CountedTools,
}

/// The first of some tools by name, and how many they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountedTools {
    /// Names of the first ones.
    pub first: Vec<Arc<str>>,
    /// Number of all.
    pub count: usize,
}

/// Returns the callers that would have other tools of `registry` by the policy `next` than by `present`, the agents by
/// name and then those without a section, with at most `most` names of their tools. Switches and quarantine do not
/// count.
#[must_use]
pub fn access_changes(registry: &Registry, present: Policy, next: Policy, most: usize) -> Vec<AccessChange> {
    let snapshot = registry.snapshot();
    // Limits of calls decide on no tool.
    let capacity = Capacity { max_in_flight: 1, max_waiting: 1 };
    // Made from the same tools, both give each the same number, in the order of the names.
    let [present, next] = [present, next].map(|policy| {
        let rules = Rules::new(Identity::default(), policy, capacity, None);
        Catalogue::new(Arc::new(rules), Arc::default(), &snapshot, None)
    });
    let listed: Bits = present.entries().filter(|(_, entry)| !entry.is_shadowed).map(|(number, _)| number).collect();
    let counted = |tools: &Bits, others: &Bits| {
        let mut beside = tools.clone();
        beside.remove(others);
        beside.keep(&listed);
        let first = beside.iter().take(most).filter_map(|number| present.entry(number));
        CountedTools {
            first: first.map(|entry| Arc::clone(&entry.tool.descriptor.name)).collect(),
            count: beside.count(),
        }
    };
    let sections = present.rules.sections().chain(next.rules.sections());
    let agents: BTreeSet<AgentName> = sections.filter_map(|section| section.agent.clone()).collect();
    let callers = agents.into_iter().map(Caller::agent).chain([Caller::unknown()]);
    let changes = callers.map(|caller| {
        let [has, would_have] = [&present, &next].map(|all| all.bits(all.rules.section_of(&caller), 0, None));
        AccessChange {
            agent: caller.agent.map_or(DEFAULT_SECTION.to_owned(), |agent| agent.to_string()),
            gains: counted(&would_have, &has),
            loses: counted(&has, &would_have),
        }
    });
    changes.filter(|change| change.gains.count + change.loses.count > 0).collect()
}
