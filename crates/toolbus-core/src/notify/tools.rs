//! `tool.meta.tools.{agent}`: an agent is told when what it may use has changed.

use std::collections::BTreeSet;

use toolbus_protocol::{ToolsChanged, message_type, topic};

use super::News;
use crate::caller::AgentName;
use crate::policy::EffectiveTools;

/// The names of the tools that an agent may use. An agent that wants to know them asks; it is told of changes only.
pub struct ToolNames;

impl News for ToolNames {
    fn topic(&self, agent: &AgentName) -> Option<String> {
        Some(topic::tools_changed(agent.as_str()))
    }

    fn message_type(&self) -> &'static str {
        message_type::TOOLS_CHANGED
    }

    fn begins_untold(&self) -> bool {
        false
    }

    fn told(&self, before: Option<&EffectiveTools>, now: &EffectiveTools) -> Vec<Vec<u8>> {
        let changed = before.filter(|before| !before.lists_like(now));
        changed.map(|before| serde_json::to_vec(&difference(before, now)).unwrap_or_default()).into_iter().collect()
    }
}

fn difference(before: &EffectiveTools, now: &EffectiveTools) -> ToolsChanged {
    let names = |effective: &EffectiveTools| effective.names().map(str::to_owned).collect::<BTreeSet<_>>();
    let (before, after) = (names(before), names(now));
    ToolsChanged {
        version: now.version().to_string(),
        added: after.difference(&before).cloned().collect(),
        removed: before.difference(&after).cloned().collect(),
    }
}
