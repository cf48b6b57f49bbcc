//! The rules for agents, as the core takes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use toolbus_core::caller::AgentName;
use toolbus_core::policy::{AgentPolicy, Allowed, BindingPolicy, Policy};
use toolbus_core::rate::{Rate, RateError, RateRule, RateRules, RateRulesError};
use toolbus_core::recipients::{AllowedRecipients, Outbound, RecipientError, RecipientPath, RecipientPathError};

use super::Config;
use super::agents::is_default;
use super::agents::{AgentConfig, AllowedTools, BindingConfig, Rates, Recipients};
use super::outbound::OutboundConfig;

/// Reason why there is no policy; [`Config::load`] has reported that before, with its key.
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
    /// The policy of this configuration.
    ///
    /// # Errors
    ///
    /// If a rule is mistaken; [`Config::load`] refuses it before.
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
            if is_default(agent) {
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
            .map(|(pattern, arguments)| (pattern.clone(), Arc::new(arguments.clone())))
            .collect();
        arguments.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.specificity()));
        Ok(AgentPolicy {
            tools: allowed(&section.allowed_tools),
            denied: section.denied_tools.clone(),
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
            denied: binding.denied_tools.clone(),
            rates: binding.tool_rate_limits.as_ref().map(rates).transpose()?,
            recipients: binding.outbound_allowlist.as_ref().map(|lists| self.recipients(lists)).transpose()?,
        })
    }

    fn recipients(&self, lists: &Recipients) -> Result<RecipientLists, PolicyError> {
        let known = lists.iter().filter_map(|(channel, list)| Some((channel, list, self.outbound.get(channel)?)));
        let lists = known.map(|(channel, list, outbound)| {
            Ok((channel.as_str().into(), AllowedRecipients::new(outbound.compare, list)?))
        });
        Ok(Arc::new(lists.collect::<Result<_, RecipientError>>()?))
    }
}

impl OutboundConfig {
    fn rules(&self, channel: &str) -> Result<Outbound, RecipientPathError> {
        Ok(Outbound {
            channel: channel.into(),
            tools: self.tools.clone(),
            recipients: self.recipients.iter().map(|path| RecipientPath::parse(path)).collect::<Result<_, _>>()?,
            compare: self.compare,
        })
    }
}

fn allowed(tools: &AllowedTools) -> Allowed {
    match tools {
        AllowedTools::All => Allowed::All,
        AllowedTools::None => Allowed::None,
        AllowedTools::Only(list) => Allowed::Only(list.clone()),
    }
}

fn rates(rates: &Rates) -> Result<Arc<RateRules>, PolicyError> {
    let rules = rates
        .iter()
        .map(|(pattern, rate)| Ok(RateRule::new(pattern.clone(), Rate::new(rate.rps, rate.burst)?)))
        .collect::<Result<_, RateError>>()?;
    Ok(Arc::new(RateRules::new(rules)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolbus_core::caller::{AgentName, Caller};
    use toolbus_core::pattern::Pattern;
    use toolbus_core::policy::{Capacity, EffectiveTools, PolicyHandle, PolicySummary};

    use super::*;
    use crate::app;

    /// Returns the tools of a caller under a configuration, which is taken as valid.
    fn effective(config: serde_json::Value, caller: Caller) -> EffectiveTools {
        let config: Config = serde_json::from_value(config).unwrap();
        let registry = app::described(&config).unwrap().registry().clone();
        let capacity = Capacity { max_in_flight: 4, max_waiting: 4 };
        PolicyHandle::new(registry, config.identity(), config.policy().unwrap(), capacity).effective(&caller)
    }

    fn ana() -> Caller {
        Caller::agent(AgentName::parse("ana").unwrap())
    }

    fn names(effective: &EffectiveTools) -> Vec<&str> {
        let mut names: Vec<_> = effective.names().collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn lists_have_three_states() {
        let allowed = |list: serde_json::Value| {
            let config = json!({"tools": {"echo": true}, "agents": {"ana": {"allowed_tools": list}}});
            names(&effective(config, ana())).join(" ")
        };
        assert_eq!(allowed(json!([])), "convert_time current_time echo");
        assert_eq!(allowed(json!(["c*"])), "convert_time current_time");
        assert_eq!(allowed(json!("none")), "");
    }

    #[test]
    fn sections_profiles_bindings_and_limits_are_taken_over() {
        let config = json!({
            "tools": {"echo": true},
            "agents": {"ana": {
                "denied_tools": ["convert_*"], "profile": "subagent", "max_in_flight": 2, "max_queued": 3,
                "tool_rate_limits": {"echo": {"rps": 0.5, "burst": 2}},
                "bindings": [{"channel": "whatsapp", "account": "sales", "allowed_tools": ["echo"]}],
            }},
        });
        let plain = effective(config.clone(), ana());
        assert_eq!(names(&plain), ["current_time", "echo"]);
        let summary = PolicySummary::of(&plain);
        assert_eq!(summary.profile.as_deref(), Some("subagent"));
        assert_eq!((summary.max_in_flight, summary.max_queued), (2, 3));
        assert_eq!(summary.rates, [(Pattern::parse("echo").unwrap(), "0.5 per second, 2 at once".to_owned())]);
        assert_eq!(summary.bindings, ["whatsapp:sales"]);
        let bound = Caller { binding: Some("whatsapp:sales".into()), ..ana() };
        assert_eq!(names(&effective(config.clone(), bound)), ["echo"]);
        assert!(names(&effective(config, Caller::unknown())).is_empty());
    }

    #[test]
    fn the_section_default_applies_to_every_caller() {
        let config = json!({"tools": {"echo": true}, "agents": {"default": {"allowed_tools": ["echo"]}}});
        assert_eq!(names(&effective(config.clone(), Caller::unknown())), ["echo"]);
        assert_eq!(names(&effective(config, ana())), ["echo"]);
    }

    #[test]
    fn the_most_specific_pattern_decides_a_forced_argument() {
        let config = json!({
            "tools": {"echo": true},
            "agents": {"ana": {"arguments": {"*": {"text": "any"}, "ec*": {"text": "some"}, "echo": {"text": "this"}}}},
        });
        let effective = effective(config, ana());
        let forced = effective.forced(effective.get("echo").unwrap()).unwrap();
        assert_eq!(serde_json::Value::Object(forced.0.clone()), json!({"text": "this"}));
    }

    #[test]
    fn invalid_rates_and_recipients_give_no_policy() {
        let refused = |config: serde_json::Value| {
            let config: Config = serde_json::from_value(config).unwrap();
            config.policy().unwrap_err().to_string()
        };
        let rates = |rates: serde_json::Value| refused(json!({"agents": {"ana": {"tool_rate_limits": rates}}}));
        assert!(rates(json!({"a": {"rps": 0.0, "burst": 1}})).starts_with("tool_rate_limits: "));
        assert!(rates(json!({"*b*": {"rps": 1.0, "burst": 1}, "*a": {"rps": 1.0, "burst": 1}})).contains("`*a`"));
        let outbound = |path: &str| json!({"mail": {"tools": ["echo"], "recipients": [path], "compare": "email"}});
        assert!(refused(json!({"outbound": outbound("to")})).starts_with("outbound: "));
        let listed = json!({"ana": {"outbound_allowlist": {"mail": ["nobody"]}}});
        assert!(refused(json!({"outbound": outbound("/to"), "agents": listed})).starts_with("outbound_allowlist: "));
    }
}
