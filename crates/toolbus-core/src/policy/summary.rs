//! Rules for a caller, whatever tools there are.

use super::effective::EffectiveTools;
use crate::pattern::Pattern;

/// Rules for the agent of a caller, under the caller's binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicySummary {
    /// The profile that each of its requests has; absent: the request chooses.
    pub profile: Option<String>,
    /// Tool sets of the agent, by name.
    pub toolsets: Vec<String>,
    /// Calls of it that may run at a time.
    pub max_in_flight: usize,
    /// Calls of it that may wait at a time.
    pub max_queued: usize,
    /// Rates at which the agent may call tools: patterns, the most specific first, and the rate.
    pub rates: Vec<(Pattern, String)>,
    /// Each channel on which tools address people, and how many of them it may address; `None`: all.
    pub recipients: Vec<(String, Option<usize>)>,
    /// Arguments that are set for it, by pattern of tools.
    pub arguments: Vec<(Pattern, Vec<String>)>,
    /// Bindings of the agent, as `channel:account`.
    pub bindings: Vec<String>,
}

impl PolicySummary {
    /// Rules for the agent of the caller whose tools these are.
    #[must_use]
    pub fn of(effective: &EffectiveTools) -> Self {
        let (rules, section, binding) = (&effective.catalogue.rules, effective.rules(), effective.binding_rules());
        let profile = section.profile.and_then(|number| rules.profiles.get(number));
        let listed = |channel| binding.recipients.get(channel).map(crate::gates::recipients::AllowedRecipients::count);
        let channels = rules.policy.outbound.keys();
        Self {
            profile: profile.map(|profile| profile.name().to_owned()),
            toolsets: section.toolsets.iter().map(ToString::to_string).collect(),
            max_in_flight: section.limits.max_in_flight,
            max_queued: section.limits.max_queued,
            rates: binding.rates.rules().iter().map(|rule| (rule.pattern().clone(), rule.rate().to_string())).collect(),
            recipients: channels.map(|channel| (channel.to_string(), listed(channel))).collect(),
            arguments: section
                .arguments
                .iter()
                .map(|(pattern, arguments)| (pattern.clone(), arguments.keys().cloned().collect()))
                .collect(),
            bindings: (1..section.binding_count())
                .map(|number| section.binding_rules(number).binding.clone())
                .collect(),
        }
    }
}
