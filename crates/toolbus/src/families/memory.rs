//! Working memory: its tools.

use std::sync::Arc;

use toolbus_agents::guides::GuideFor;
use toolbus_core::Clock;
use toolbus_core::tool::Tool;
use toolbus_memory::MemoryConfig;
use toolbus_memory::tools::{GUIDE, SOURCE};
use toolbus_memory::working_memory::{MemoryLimits, WorkingMemory};
use toolbus_store::StoreUrl;

use super::{Contributions, FamilyContext, FamilyError, FamilyGuide, FamilyPlan, ToolFamily};

/// Working memory.
pub(super) struct MemoryFamily {
    /// The store of the entries, with its limits; absent where there is none.
    memory: Option<(Arc<dyn WorkingMemory>, MemoryLimits)>,
}

impl MemoryFamily {
    pub(super) fn new(context: &FamilyContext<'_>) -> Self {
        let limits = context.config.memory.as_ref().map(MemoryConfig::limits);
        Self { memory: context.memory.clone().zip(limits) }
    }
}

impl ToolFamily for MemoryFamily {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        let config = plan.config;
        let (Some(section), Some((memory, _))) = (&config.memory, &self.memory) else { return Ok(Vec::new()) };
        let is_volatile = config.store.url() == StoreUrl::Memory;
        Ok(section.tools(Arc::clone(memory), is_volatile, Clock::SYSTEM).tools())
    }

    fn contribute(&self, to: &mut Contributions) {
        to.views.memory = self.memory.clone();
    }

    fn guides(&self) -> Vec<FamilyGuide> {
        vec![(GuideFor::Source(SOURCE), "working-memory", GUIDE)]
    }
}
