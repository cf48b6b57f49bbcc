//! Tools in quarantine: no agent may use them until an operator has approved them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::tool::ToolDescriptor;

/// Decides which tools are in quarantine, by their definitions. It is no switch of an operator.
pub trait DefinitionCheck: Send + Sync + 'static {
    /// The tools that are in quarantine. Called with all tools whenever any changes, before a caller can use a new one.
    /// Calls go on meanwhile, but no other change can be made, so an implementation must not access files.
    fn review(&self, tools: &[Arc<ToolDescriptor>]) -> Quarantine;

    /// Whether a tool may be used as it is described now. Called for a tool that replaced another while a call of that
    /// one waited for its source, and that no review may have seen yet.
    fn admits(&self, tool: &ToolDescriptor) -> bool;

    /// Record that is kept of this tool under its name. Where several sources list the name, it decides which of them
    /// has it.
    fn claim(&self, tool: &ToolDescriptor) -> Claim {
        let _ = tool;
        Claim::default()
    }

    /// The sources of the start are known. What is seen first later is younger than all of them, which are of one age.
    fn end_start(&self) {}

    /// Published names that only a pinned source may have, also while it does not publish them; each with its source.
    fn reserved(&self) -> HashMap<Arc<str>, Arc<str>> {
        HashMap::new()
    }
}

/// Record that is kept of a tool under its name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claim {
    /// Whether the tool is pinned, or will be as it is seen first now.
    pub is_pinned: bool,
    /// When its source was seen first with a tool of this name, in RFC 3339; `None` if that is not known.
    pub since: Option<String>,
}

/// Quarantined tools, each with the reason, for operators.
#[derive(Debug, Clone, Default)]
pub struct Quarantine(HashMap<(Arc<str>, Arc<str>), Arc<str>>);

impl Quarantine {
    /// Holds a tool back.
    pub fn insert(&mut self, tool: &ToolDescriptor, reason: impl Into<Arc<str>>) {
        self.0.insert((Arc::clone(&tool.source), Arc::clone(&tool.name)), reason.into());
    }

    /// Reason why a tool is in quarantine; `None` if it is not.
    #[must_use]
    pub fn reason(&self, tool: &ToolDescriptor) -> Option<&Arc<str>> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&(Arc::clone(&tool.source), Arc::clone(&tool.name)))
    }

    /// Number of tools.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no tool is in quarantine.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
