//! `[tools]`: the tools that the daemon brings along, and limits for any tool.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::HumanDuration;

use super::pattern::ToolPattern;

/// The tools that the daemon brings along, and limits for any tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolsConfig {
    /// Whether there is the tool `echo`, which answers with its text: for trying things out.
    pub echo: bool,
    /// Whether there are the tools `current_time` and `convert_time`.
    pub time: bool,
    /// Tools without which the daemon is not ready.
    #[schemars(length(max = 1024), extend("items" = {"type": "string", "format": "toolbus-name"}))]
    pub required: Vec<String>,
    /// Limits by pattern of tool names: `*` is any run of characters, `?` one. Where several match, the one that fixes
    /// most characters decides, for each limit on its own.
    #[schemars(extend("propertyNames" = {"format": "toolbus-pattern"}))]
    pub limits: BTreeMap<ToolPattern, ToolLimits>,
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

impl Default for ToolsConfig {
    fn default() -> Self {
        Self { echo: false, time: true, required: Vec::new(), limits: BTreeMap::new() }
    }
}

impl ToolsConfig {
    /// The limits that hold for a tool of this name.
    #[must_use]
    pub fn limits_of(&self, name: &str) -> ToolLimits {
        let mut matching: Vec<_> = self.limits.iter().filter(|(pattern, _)| pattern.matches(name)).collect();
        matching.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.specificity()));
        matching.iter().fold(ToolLimits::default(), |limits, (_, next)| ToolLimits {
            timeout: limits.timeout.or(next.timeout),
            max_in_flight: limits.max_in_flight.or(next.max_in_flight),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_pattern_decides_for_each_limit_on_its_own() {
        let pattern = |text| ToolPattern::parse(text).unwrap();
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
}
