//! Pipelines of tool calls: their tool.

use toolbus_agents::guides::GuideFor;
use toolbus_agents::{Pipelines, pipeline};
use toolbus_core::Clock;
use toolbus_core::tool::Tool;

use super::{FamilyContext, FamilyError, FamilyGuide, FamilyPlan, ToolFamily};

/// Pipelines; absent where the configuration has no section for them.
pub(super) struct PipelineFamily(Option<Pipelines>);

impl PipelineFamily {
    pub(super) fn new(context: &FamilyContext<'_>) -> Self {
        let section = context.config.pipelines.as_ref();
        Self(section.map(|section| Pipelines::new(section, context.policy().clone(), context.invoker(), Clock::SYSTEM)))
    }
}

impl ToolFamily for PipelineFamily {
    fn name(&self) -> &'static str {
        "pipelines"
    }

    fn tools(&self, _: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        Ok(self.0.iter().map(Pipelines::tool).collect())
    }

    fn guides(&self) -> Vec<FamilyGuide> {
        vec![(GuideFor::Source(pipeline::SOURCE), "pipelines", pipeline::GUIDE)]
    }
}
