//! The tools that the daemon brings along: the time, and echo.

use toolbus_agents::guides::GuideFor;
use toolbus_core::tool::Tool;
use toolbus_tools::time;

use super::{FamilyError, FamilyGuide, Plan, ToolFamily};

/// The time.
pub(super) struct Time;

impl ToolFamily for Time {
    fn name(&self) -> &'static str {
        "time"
    }

    fn tools(&self, plan: &mut Plan<'_>) -> Result<Vec<Tool>, FamilyError> {
        Ok(plan.config.tools.of_time())
    }

    fn guides(&self) -> Vec<FamilyGuide> {
        vec![(GuideFor::Source("time"), "time", time::GUIDE)]
    }
}

/// Echo, for trying things out.
pub(super) struct Echo;

impl ToolFamily for Echo {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn tools(&self, plan: &mut Plan<'_>) -> Result<Vec<Tool>, FamilyError> {
        Ok(plan.config.tools.of_echo())
    }
}
