//! Which tools have labels of their own.

use std::collections::HashMap;
use std::sync::Arc;

use opentelemetry::KeyValue;
use parking_lot::RwLock;
use toolbus_core::failure::Status;
use toolbus_core::tool::ToolDescriptor;

use crate::attributes::{ErrorLabel, FAILURES, Prebuilt, STATUSES, status_place};

/// Tools with labels of their own. With the two fixed labels and every failure this stays below [`MAX_SERIES`].
const MAX_TOOLS: usize = 200;
/// Series that a metric may have; the SDK folds further ones into one, which would hide tools by chance.
pub(crate) const MAX_SERIES: usize = 6_000;

const _: () = assert!((MAX_TOOLS + 2) * FAILURES <= MAX_SERIES, "every tool may fail in every way");
const _: () = assert!((MAX_TOOLS + 2) * STATUSES <= MAX_SERIES, "every tool may have every status");

/// Stands for every name that is no tool's: names come from outside, and are without number.
const UNKNOWN: &str = "_unknown";
/// Stands for every tool that came after the first [`MAX_TOOLS`].
const OTHER: &str = "_other";

/// The attribute sets of one tool.
#[derive(Debug)]
pub(crate) struct ToolLabels {
    name: Arc<str>,
    source: Arc<str>,
    by_status: Prebuilt<STATUSES>,
    by_failure: Prebuilt<FAILURES>,
}

impl ToolLabels {
    fn new(name: impl Into<Arc<str>>, source: impl Into<Arc<str>>) -> Arc<Self> {
        let (by_status, by_failure) = Default::default();
        Arc::new(Self { name: name.into(), source: source.into(), by_status, by_failure })
    }

    /// Attributes of the `rockbot.tool.…` metrics.
    pub(crate) fn invoked(&self, status: Status) -> &[KeyValue] {
        self.by_status.get(status_place(status), || {
            [
                KeyValue::new("tool_name", Arc::clone(&self.name)),
                KeyValue::new("status", status.as_str()),
                KeyValue::new("tool_source", Arc::clone(&self.source)),
            ]
        })
    }

    /// Attributes of `gen_ai.execute_tool.duration`.
    pub(crate) fn executed(&self, failure: ErrorLabel) -> &[KeyValue] {
        self.by_failure.get(failure.place(), || {
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
        let (unknown, other) = (ToolLabels::new(UNKNOWN, UNKNOWN), ToolLabels::new(OTHER, OTHER));
        Self { known: RwLock::default(), unknown, other }
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
        let labels = ToolLabels::new(Arc::clone(&tool.name), Arc::clone(&tool.source));
        known.tools.entry(Arc::clone(&tool.name)).or_default().push(Arc::clone(&labels));
        known.count += 1;
        labels
    }
}

#[cfg(test)]
mod tests {
    use toolbus_core::tool::ToolDescriptor;

    use super::{LabelledTools, MAX_TOOLS};

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
    fn a_name_that_moves_to_another_source_gets_new_labels() {
        let tools = LabelledTools::new();
        let one = tools.of(Some(&ToolDescriptor::new("search", "rest", "rest")));
        let two = tools.of(Some(&ToolDescriptor::new("search", "mcp:web", "mcp")));
        assert_eq!((&*one.source, &*two.source), ("rest", "mcp:web"));
    }
}
