//! Tools that address people, and of whose arguments too little is known.

use serde_json::Value;
use toolbus_core::recipients::declared;

use crate::config::agents::{AgentConfig, matches_either};
use crate::config::tool_names::{KnownTools, KnownTool};
use crate::config::{Config, OutboundConfig};

/// What may name recipients and is not compared with a list, or is refused for the sake of one; in words.
pub(super) fn warnings(config: &Config, known: &KnownTools) -> Vec<String> {
    let listed = config.outbound.iter().filter(|(channel, _)| config.agents.values().any(|agent| agent.lists(channel)));
    listed.flat_map(|(channel, outbound)| outbound.warnings(channel, known)).collect()
}

impl AgentConfig {
    /// Whether it lists recipients on a channel, be it for one binding alone.
    fn lists(&self, channel: &str) -> bool {
        let mut bindings = self.bindings.iter().filter_map(|binding| binding.outbound_allowlist.as_ref());
        self.outbound_allowlist.contains_key(channel) || bindings.any(|lists| lists.contains_key(channel))
    }
}

impl OutboundConfig {
    fn warnings<'a>(&'a self, channel: &'a str, known: &'a KnownTools) -> impl Iterator<Item = String> + 'a {
        let tools = known.iter().filter(|(name, tool)| matches_either(&self.tools, name, &tool.bare_name));
        tools.filter_map(move |(name, tool)| {
            let what = tool.unknown_arguments()?;
            Some(format!("outbound.{channel}: `{name}` {what}"))
        })
    }
}

impl KnownTool {
    /// What becomes of arguments that nothing is known of, if it may be given any.
    fn unknown_arguments(&self) -> Option<&'static str> {
        let schema = self.parameters.as_ref();
        if schema.and_then(|schema| schema.get("additionalProperties")) == Some(&Value::Bool(false)) {
            None
        } else if schema.is_some_and(|schema| !declared(schema).is_empty()) {
            Some(
                "has an open schema; arguments that the schema does not declare are refused for agents with an \
                 `outbound_allowlist`",
            )
        } else {
            Some(
                "has no schema that declares its arguments; those that hold no recipient are refused for agents with an \
                 `outbound_allowlist`",
            )
        }
    }
}
