//! The rules for agents, as the core takes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use toolbus_core::caller::AgentName;
use toolbus_core::pattern::Pattern;
use toolbus_core::policy::{AgentPolicy, Allowed, BindingPolicy, Policy};
use toolbus_core::rate::{Rate, RateError, RateRule, RateRules, RateRulesError};
use toolbus_core::recipients::{
    AllowedRecipients, Compare, Outbound, RecipientError, RecipientPath, RecipientPathError,
};

use super::Config;
use super::agents::{AgentConfig, AllowedTools, BindingConfig, Rates, Recipients};
use super::outbound::{Comparison, OutboundConfig};
use super::pattern::ToolPattern;

/// Why there is no policy; [`Config::load`] has found that before, and said where.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A rate that is none.
    #[error("tool_rate_limits: {0}")]
    Rate(#[from] RateError),
    /// Rates that contradict each other.
    #[error("tool_rate_limits: {0}")]
    Rates(#[from] RateRulesError),
    /// A path to recipients that is none.
    #[error("outbound: {0}")]
    Path(#[from] RecipientPathError),
    /// A recipient that is none.
    #[error("outbound_allowlist: {0}")]
    Recipient(#[from] RecipientError),
}

type RecipientLists = Arc<BTreeMap<Arc<str>, AllowedRecipients>>;

impl Config {
    /// Who may use what.
    ///
    /// # Errors
    ///
    /// When a rule cannot be kept; [`Config::load`] has found that before.
    pub fn policy(&self) -> Result<Policy, PolicyError> {
        let mut policy = Policy {
            deny_unknown: self.denies_unknown(),
            toolsets: self.toolsets.iter().map(|(name, set)| (name.as_str().into(), set.prefix(name).into())).collect(),
            ..Policy::default()
        };
        for (channel, outbound) in &self.outbound {
            policy.outbound.insert(channel.as_str().into(), Arc::new(outbound.rules(channel)?));
        }
        for (agent, section) in &self.agents {
            let rules = self.section(section)?;
            if agent.is_default() {
                policy.default = rules;
            } else {
                policy.agents.insert(AgentName::clone(agent), rules);
            }
        }
        Ok(policy)
    }

    fn section(&self, section: &AgentConfig) -> Result<AgentPolicy, PolicyError> {
        let mut arguments: Vec<_> = section
            .arguments
            .iter()
            .map(|(pattern, arguments)| (Pattern::clone(pattern), Arc::new(arguments.clone())))
            .collect();
        arguments.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.specificity()));
        Ok(AgentPolicy {
            tools: allowed(&section.allowed_tools),
            denied: patterns(&section.denied_tools),
            toolsets: section.toolsets.iter().map(|set| set.as_str().into()).collect(),
            profile: section.profile.as_deref().map(Into::into),
            max_in_flight: section.max_in_flight,
            max_queued: section.max_queued,
            rates: rates(&section.tool_rate_limits)?,
            recipients: self.recipients(&section.outbound_allowlist)?,
            arguments,
            bindings: section.bindings.iter().map(|binding| self.binding(binding)).collect::<Result<_, _>>()?,
        })
    }

    fn binding(&self, binding: &BindingConfig) -> Result<BindingPolicy, PolicyError> {
        Ok(BindingPolicy {
            channel: binding.channel.as_str().into(),
            account: binding.account.as_str().into(),
            tools: allowed(&binding.allowed_tools),
            denied: patterns(&binding.denied_tools),
            rates: binding.tool_rate_limits.as_ref().map(rates).transpose()?,
            recipients: binding.outbound_allowlist.as_ref().map(|lists| self.recipients(lists)).transpose()?,
        })
    }

    fn recipients(&self, lists: &Recipients) -> Result<RecipientLists, PolicyError> {
        let known = lists.iter().filter_map(|(channel, list)| Some((channel, list, self.outbound.get(channel)?)));
        let lists = known.map(|(channel, list, outbound)| {
            Ok((channel.as_str().into(), AllowedRecipients::new(outbound.compare.into(), list)?))
        });
        Ok(Arc::new(lists.collect::<Result<_, RecipientError>>()?))
    }
}

impl OutboundConfig {
    fn rules(&self, channel: &str) -> Result<Outbound, RecipientPathError> {
        Ok(Outbound {
            channel: channel.into(),
            tools: patterns(&self.tools),
            recipients: self.recipients.iter().map(|path| RecipientPath::parse(path)).collect::<Result<_, _>>()?,
            compare: self.compare.into(),
        })
    }
}

impl From<Comparison> for Compare {
    fn from(comparison: Comparison) -> Self {
        match comparison {
            Comparison::Digits => Self::Digits,
            Comparison::Email => Self::Email,
            Comparison::Exact => Self::Exact,
        }
    }
}

fn allowed(tools: &AllowedTools) -> Allowed {
    match tools {
        AllowedTools::All => Allowed::All,
        AllowedTools::None => Allowed::None,
        AllowedTools::Only(list) => Allowed::Only(patterns(list)),
    }
}

fn patterns(list: &[ToolPattern]) -> Vec<Pattern> {
    list.iter().map(|pattern| Pattern::clone(pattern)).collect()
}

fn rates(rates: &Rates) -> Result<Arc<RateRules>, PolicyError> {
    let rules = rates
        .iter()
        .map(|(pattern, rate)| Ok(RateRule::new(Pattern::clone(pattern), Rate::new(rate.rps, rate.burst)?)))
        .collect::<Result<_, RateError>>()?;
    Ok(Arc::new(RateRules::new(rules)?))
}
