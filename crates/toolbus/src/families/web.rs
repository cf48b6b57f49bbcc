//! Web search, and pages of the web.

use std::sync::Arc;

use toolbus_agents::guides::GuideFor;
use toolbus_core::events::{Discard, WebEvents};
use toolbus_core::tool::Tool;
use toolbus_web::WebError;

use super::{FamilyContext, FamilyError, FamilyGuide, FamilyPlan, ToolFamily};

/// The web.
pub(super) struct WebFamily {
    /// Records pages and searches, also of tools that a reload makes.
    events: Arc<dyn WebEvents>,
}

/// Reason why the tools cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("[web] {0}")]
struct WebToolsError(#[from] WebError);

impl WebFamily {
    pub(super) fn new(context: &FamilyContext<'_>) -> Self {
        let events: Arc<dyn WebEvents> = match context.exporters {
            Some(exporters) => Arc::new(exporters.web()),
            None => Arc::new(Discard),
        };
        Self { events }
    }
}

impl ToolFamily for WebFamily {
    fn name(&self) -> &'static str {
        "web"
    }

    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        let Some(section) = &plan.config.web else { return Ok(Vec::new()) };
        let tools = toolbus_web::tools(section, plan.config.egress_rules(), None, &self.events);
        Ok(tools.map_err(WebToolsError::from)?)
    }

    fn guides(&self) -> Vec<FamilyGuide> {
        vec![
            (GuideFor::Tool(toolbus_web::SEARCH), "web-tools", toolbus_web::GUIDE),
            (GuideFor::Source(toolbus_web::SOURCE), "web-tools", toolbus_web::BROWSE_GUIDE),
        ]
    }
}
