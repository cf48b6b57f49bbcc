//! Selection of the tools and agents that have labels of their own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use opentelemetry::KeyValue;
use parking_lot::RwLock;
use toolbus_core::failure::Status;
use toolbus_core::tool::ToolDescriptor;

use crate::attributes::{ErrorLabel, FAILURES, Prebuilt, STATUSES, status_index};

/// Tools with labels of their own. With the two fixed labels and every failure this stays below [`MAX_SERIES`].
const MAX_TOOLS: usize = 200;
/// Combinations of agent, tool and status with labels of their own. Beyond, the agent is [`OTHER`].
const MAX_OF_AGENTS: usize = 3_000;
/// Series that a metric may have; the SDK folds further ones into one, which would hide tools by chance.
pub(crate) const MAX_SERIES: usize = 6_000;

const _: () = assert!((MAX_TOOLS + 2) * FAILURES <= MAX_SERIES, "every tool may fail in every way");
const _: () = assert!((MAX_TOOLS + 2) * STATUSES + MAX_OF_AGENTS <= MAX_SERIES, "every tool may have every status");

/// Stands for every name that is no tool's: names come from outside, and are without number.
const UNKNOWN: &str = "_unknown";
/// Stands for every tool that came after the first [`MAX_TOOLS`], and for every caller without a section.
const OTHER: &str = "_other";

/// Attribute sets by [`status_index`].
type ByStatus = [Option<Arc<[KeyValue]>>; STATUSES];

/// The attribute sets of one tool.
#[derive(Debug)]
pub(crate) struct ToolLabels {
    name: Arc<str>,
    source: Arc<str>,
    by_agent: RwLock<HashMap<Arc<str>, ByStatus>>,
    by_failure: Prebuilt<FAILURES>,
    /// Sets in the `by_agent` of all tools, but for those of [`OTHER`].
    of_agents: Arc<AtomicUsize>,
}

impl ToolLabels {
    fn new(name: impl Into<Arc<str>>, source: impl Into<Arc<str>>, of_agents: &Arc<AtomicUsize>) -> Arc<Self> {
        let (by_agent, by_failure) = Default::default();
        let of_agents = Arc::clone(of_agents);
        Arc::new(Self { name: name.into(), source: source.into(), by_agent, by_failure, of_agents })
    }

    /// Attributes of the `rockbot.tool.…` metrics; `agent` is the name of the caller's section.
    pub(crate) fn invoked(&self, status: Status, agent: Option<&Arc<str>>) -> Arc<[KeyValue]> {
        let (index, name) = (status_index(status), agent.map_or(OTHER, |agent| agent));
        let known = |sets: &HashMap<Arc<str>, ByStatus>| sets.get(name)?.get(index)?.clone();
        let found = known(&self.by_agent.read());
        if let Some(found) = found {
            return found;
        }
        let mut by_agent = self.by_agent.write();
        // Another call may have been quicker.
        if let Some(found) = known(&by_agent) {
            return found;
        }
        let enter = |count: usize| (count < MAX_OF_AGENTS).then_some(count + 1);
        if agent.is_some() && self.of_agents.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter).is_err() {
            drop(by_agent);
            return self.invoked(status, None);
        }
        let name: Arc<str> = agent.map_or_else(|| OTHER.into(), Arc::clone);
        let labels: Arc<[KeyValue]> = Arc::new([
            KeyValue::new("tool_name", Arc::clone(&self.name)),
            KeyValue::new("status", status.as_str()),
            KeyValue::new("tool_source", Arc::clone(&self.source)),
            KeyValue::new("agent", Arc::clone(&name)),
        ]);
        if let Some(set) = by_agent.entry(name).or_default().get_mut(index) {
            *set = Some(Arc::clone(&labels));
        }
        labels
    }

    /// Attributes of `gen_ai.execute_tool.duration`.
    pub(crate) fn executed(&self, failure: ErrorLabel) -> &[KeyValue] {
        self.by_failure.get(failure.index(), || {
            let name = KeyValue::new("gen_ai.tool.name", Arc::clone(&self.name));
            [name, KeyValue::new("gen_ai.tool.type", "function")].into_iter().chain(failure.attribute())
        })
    }
}

/// The labels of all tools. A tool keeps its labels while the daemon runs, also when it is gone: its series do too.
#[derive(Debug)]
pub(crate) struct LabelledTools {
    known: RwLock<LabelTable>,
    unknown: Arc<ToolLabels>,
    other: Arc<ToolLabels>,
    of_agents: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct LabelTable {
    /// By name; more than one where a name moved from one source to another.
    tools: HashMap<Arc<str>, Vec<Arc<ToolLabels>>>,
    count: usize,
}

impl LabelTable {
    fn get(&self, tool: &ToolDescriptor) -> Option<Arc<ToolLabels>> {
        self.tools.get(&tool.name)?.iter().find(|labels| labels.source == tool.source).cloned()
    }
}

impl LabelledTools {
    pub(crate) fn new() -> Self {
        let of_agents = Arc::default();
        let [unknown, other] = [UNKNOWN, OTHER].map(|name| ToolLabels::new(name, name, &of_agents));
        Self { known: RwLock::default(), unknown, other, of_agents }
    }

    /// The labels of a call of `tool`, or of a name that is no tool's.
    pub(crate) fn of(&self, tool: Option<&ToolDescriptor>) -> Arc<ToolLabels> {
        let Some(tool) = tool else { return Arc::clone(&self.unknown) };
        let (found, full) = {
            let known = self.known.read();
            (known.get(tool), known.count >= MAX_TOOLS)
        };
        match found {
            Some(labels) => labels,
            None if full => Arc::clone(&self.other),
            None => self.add(tool),
        }
    }

    fn add(&self, tool: &ToolDescriptor) -> Arc<ToolLabels> {
        let mut known = self.known.write();
        // Another call of the same tool may have been quicker.
        if let Some(labels) = known.get(tool) {
            return labels;
        }
        if known.count >= MAX_TOOLS {
            return Arc::clone(&self.other);
        }
        let labels = ToolLabels::new(Arc::clone(&tool.name), Arc::clone(&tool.source), &self.of_agents);
        known.tools.entry(Arc::clone(&tool.name)).or_default().push(Arc::clone(&labels));
        known.count += 1;
        labels
    }
}

#[cfg(test)]
mod tests {
    use toolbus_core::failure::Status;
    use toolbus_core::tool::ToolDescriptor;

    use super::{LabelledTools, MAX_OF_AGENTS, MAX_TOOLS};

    #[test]
    fn a_name_that_is_no_tools_has_the_fixed_label() {
        let labels = LabelledTools::new().of(None);
        assert_eq!((&*labels.name, &*labels.source), ("_unknown", "_unknown"));
    }

    #[test]
    fn tools_beyond_the_limit_share_one_label_and_earlier_ones_keep_theirs() {
        let tools = LabelledTools::new();
        for number in 0..MAX_TOOLS {
            let tool = ToolDescriptor::new(format!("tool_{number}"), "rest", "rest");
            assert_eq!(*tools.of(Some(&tool)).name, *tool.name);
        }
        let late = ToolDescriptor::new("late", "rest", "rest");
        assert_eq!(&*tools.of(Some(&late)).name, "_other");
        let first = ToolDescriptor::new("tool_0", "rest", "rest");
        assert_eq!(&*tools.of(Some(&first)).name, "tool_0");
    }

    #[test]
    fn agents_have_labels_of_their_own_until_there_are_too_many_and_earlier_ones_keep_theirs() {
        let tools = LabelledTools::new();
        let echo = tools.of(Some(&ToolDescriptor::new("echo", "echo", "local")));
        let agent_of = |agent: Option<&str>, status| {
            let labels = echo.invoked(status, agent.map(Into::into).as_ref());
            labels.iter().find(|label| label.key.as_str() == "agent").unwrap().value.to_string()
        };
        assert_eq!(agent_of(None, Status::Ok), "_other");
        for number in 0..MAX_OF_AGENTS {
            let name = format!("agent_{number}");
            assert_eq!(agent_of(Some(&name), Status::Ok), name);
        }
        assert_eq!(agent_of(Some("late"), Status::Ok), "_other");
        assert_eq!(agent_of(Some("agent_0"), Status::Error), "_other", "a status of its own is a series of its own");
        assert_eq!(agent_of(Some("agent_0"), Status::Ok), "agent_0");
    }

    #[test]
    fn a_name_that_moves_to_another_source_gets_new_labels() {
        let tools = LabelledTools::new();
        let one = tools.of(Some(&ToolDescriptor::new("search", "rest", "rest")));
        let two = tools.of(Some(&ToolDescriptor::new("search", "mcp:web", "mcp")));
        assert_eq!((&*one.source, &*two.source), ("rest", "mcp:web"));
    }
}
