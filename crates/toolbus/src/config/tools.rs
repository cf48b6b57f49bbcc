//! `[tools]`: the tools that the daemon brings along, and limits for any tool.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolbus_config::HumanDuration;
use toolbus_core::Clock;
use toolbus_core::pattern::Pattern;
use toolbus_core::tool::{Effect, ModelHints, Tool, ToolDescriptor};
use toolbus_outbound::egress::EgressRules;
use toolbus_tools::{echo, time};

use super::agents::is_default;
use super::toolsets::ToolsetMembers;
use super::{Config, ScriptConfig};

/// The tools that the daemon brings along, and limits for any tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolsConfig {
    /// Whether there is the tool `echo`, which answers with its text: for trying things out.
    pub echo: bool,
    /// Effect that repeating a call of `echo` is taken to have: for trying out and measuring what is recorded.
    pub echo_effect: Effect,
    /// Whether there are the tools `current_time` and `convert_time`.
    pub time: bool,
    /// Whether there are the tools `search_known_services` and `search_tools`.
    pub search: bool,
    /// Tools without which the daemon is not ready.
    #[schemars(length(max = 1024), extend("items" = {"type": "string", "format": "toolbus-name"}))]
    pub required: Vec<String>,
    /// Limits by pattern of tool names: `*` is any run of characters, `?` one. Where several match, the one that fixes
    /// most characters decides, for each limit on its own.
    #[schemars(extend("propertyNames" = {"format": "toolbus-pattern"}))]
    pub limits: BTreeMap<Pattern, ToolLimits>,
    /// Hints for providers of models beside the definitions of tools, by pattern of tool names as for `limits`.
    #[schemars(extend("propertyNames" = {"format": "toolbus-pattern"}))]
    pub definitions: BTreeMap<Pattern, ToolHints>,
}

/// Limits of one tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolLimits {
    /// Longest run of one call.
    pub timeout: Option<HumanDuration>,
    /// Calls that may run at a time.
    #[schemars(range(min = 1, max = 65_535))]
    pub max_in_flight: Option<usize>,
}

/// Hints for providers of models beside the definition of one tool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolHints {
    /// Whether a model finds it by a search of its provider, and does not have it in each prompt.
    pub defer_loading: Option<bool>,
    /// Permitted callers: "direct" for the model itself, or a provider's name of what runs programs of the model.
    #[schemars(length(max = 16), inner(length(min = 1, max = 64)))]
    pub allowed_callers: Option<Vec<String>>,
    /// Arguments of calls, as examples.
    #[schemars(length(max = 16))]
    pub input_examples: Option<Vec<Map<String, Value>>>,
}

impl Default for ToolsConfig {
    fn default() -> Self {
        Self {
            echo: false,
            echo_effect: Effect::ReadOnly,
            time: true,
            search: false,
            required: Vec::new(),
            limits: BTreeMap::new(),
            definitions: BTreeMap::new(),
        }
    }
}

/// Returns the values of the patterns that match a name, the most specific first.
fn matching<'a, T>(patterns: &'a BTreeMap<Pattern, T>, name: &str) -> impl Iterator<Item = &'a T> + use<'a, T> {
    let mut matching: Vec<_> = patterns.iter().filter(|(pattern, _)| pattern.matches(name)).collect();
    matching.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.specificity()));
    matching.into_iter().map(|(_, given)| given)
}

impl ToolsConfig {
    /// The limits that hold for a tool of this name.
    #[must_use]
    pub fn limits_of(&self, name: &str) -> ToolLimits {
        matching(&self.limits, name).fold(ToolLimits::default(), |limits, next| ToolLimits {
            timeout: limits.timeout.or(next.timeout),
            max_in_flight: limits.max_in_flight.or(next.max_in_flight),
        })
    }

    /// Returns the hints on a tool of this name; `None` if there are none.
    fn hints_of(&self, name: &str) -> Option<Arc<ModelHints>> {
        let merged = matching(&self.definitions, name).cloned().reduce(|hints, next| ToolHints {
            defer_loading: hints.defer_loading.or(next.defer_loading),
            allowed_callers: hints.allowed_callers.or(next.allowed_callers),
            input_examples: hints.input_examples.or(next.input_examples),
        })?;
        Some(Arc::new(ModelHints {
            defer_loading: merged.defer_loading.unwrap_or_default(),
            allowed_callers: merged.allowed_callers.unwrap_or_default(),
            input_examples: merged.input_examples.unwrap_or_default(),
        }))
    }

    /// The tools of the family `time`.
    pub(crate) fn of_time(&self) -> Vec<Tool> {
        if self.time { time::tools(Clock::SYSTEM) } else { Vec::new() }
    }

    /// The tool of the family `echo`.
    pub(crate) fn of_echo(&self) -> Vec<Tool> {
        self.echo.then(|| echo::tool(self.echo_effect)).into_iter().collect()
    }

    /// Applies the limits to a tool that may have stricter ones, and adds the hints for providers.
    pub(crate) fn limit(&self, tool: &mut ToolDescriptor) {
        let limits = self.limits_of(&tool.name);
        let timeout = limits.timeout.map(HumanDuration::get);
        tool.timeout = [tool.timeout, timeout].into_iter().flatten().min();
        tool.max_in_flight = [tool.max_in_flight, limits.max_in_flight].into_iter().flatten().min();
        tool.model_hints = self.hints_of(&tool.name);
    }
}

/// The tools that the daemon brings along, as far as they are switched on.
pub(crate) fn builtin(config: &ToolsConfig) -> Vec<Tool> {
    [config.of_time(), config.of_echo()].concat()
}

impl Config {
    /// The hosts that callers may make the daemon reach.
    pub(crate) fn egress_rules(&self) -> EgressRules {
        let agents = self.agents.iter().map(|(agent, section)| (agent.clone(), section.hosts())).collect();
        let default = self.agents.iter().find(|(agent, _)| is_default(agent)).map(|(_, section)| section.hosts());
        EgressRules::new(self.egress.clone(), agents, default.unwrap_or_default())
    }

    /// Narrows the limits of a tool; its own narrower ones stay.
    pub(crate) fn limit(&self, tool: &mut Tool) {
        self.tools.limit(Arc::make_mut(&mut tool.descriptor));
    }

    /// Name of every tool of this configuration.
    #[must_use]
    pub fn tool_names(&self) -> Vec<Arc<str>> {
        let builtin = builtin(&self.tools).into_iter().map(|tool| Arc::clone(&tool.descriptor.name));
        let members = ToolsetMembers::new(&self.toolsets);
        let endpoints = self.rest.all().map(|endpoint| members.published(&endpoint.name));
        let web = self.web.iter().flat_map(toolbus_web::tool_names).map(Into::into);
        let commands = self.commands.iter().map(|command| command.name.as_str().into());
        let script = self.script.iter().flat_map(ScriptConfig::tool_names).map(Into::into);
        let own = self.own_tools().into_iter().map(|tool| tool.name.into());
        let remote = self.toolsets.iter().flat_map(|(set, config)| {
            config.written_names().map(move |name| format!("{}.{name}", config.prefix(set)).into())
        });
        builtin.chain(own).chain(remote).chain(endpoints).chain(web).chain(commands).chain(script).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_pattern_decides_for_each_limit_on_its_own() {
        let pattern = |text| Pattern::parse(text).unwrap();
        let timeout = |seconds| Some(HumanDuration::from_secs(seconds));
        let config = ToolsConfig {
            limits: BTreeMap::from([
                (pattern("*"), ToolLimits { timeout: timeout(1), max_in_flight: Some(1) }),
                (pattern("web_*"), ToolLimits { timeout: timeout(2), max_in_flight: None }),
                (pattern("web_search"), ToolLimits { timeout: None, max_in_flight: Some(3) }),
            ]),
            ..ToolsConfig::default()
        };
        assert_eq!(config.limits_of("web_search"), ToolLimits { timeout: timeout(2), max_in_flight: Some(3) });
        assert_eq!(config.limits_of("echo"), ToolLimits { timeout: timeout(1), max_in_flight: Some(1) });
        assert_eq!(ToolsConfig::default().limits_of("echo"), ToolLimits::default());
    }

    #[test]
    fn the_most_specific_pattern_decides_the_hints_for_providers() {
        let definitions = serde_json::json!({
            "*": {"defer_loading": true, "allowed_callers": ["direct"]},
            "e*": {"defer_loading": false, "input_examples": [{"text": "hello"}]}
        });
        let config = ToolsConfig { definitions: serde_json::from_value(definitions).unwrap(), ..Default::default() };
        let mut echo = ToolDescriptor::new("echo", "echo", "local");
        config.limit(&mut echo);
        let hints = echo.model_hints.unwrap();
        assert_eq!((hints.defer_loading, &*hints.allowed_callers[0]), (false, "direct"));
        assert_eq!(hints.input_examples[0]["text"], "hello");
        assert_eq!(ToolsConfig::default().hints_of("echo"), None);
    }
}
