//! The tools that the daemon brings along: the time, and echo.

use toolbus_agents::guides::GuideFor;
use toolbus_core::tool::Tool;
use toolbus_tools::time;

use super::{FamilyError, FamilyGuide, FamilyPlan, ToolFamily};

/// The time.
pub(super) struct TimeFamily;

impl ToolFamily for TimeFamily {
    fn name(&self) -> &'static str {
        "time"
    }

    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        Ok(plan.config.tools.of_time())
    }

    fn guides(&self) -> Vec<FamilyGuide> {
        vec![(GuideFor::Source("time"), "time", time::GUIDE)]
    }
}

/// Echo, for trying things out.
pub(super) struct EchoFamily;

impl ToolFamily for EchoFamily {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        Ok(plan.config.tools.of_echo())
    }
}
