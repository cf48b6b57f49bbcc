//! Tasks that agents give to others: their tools, and what takes reports and watches times.

use std::sync::Arc;

use toolbus_agents::Subagents;
use toolbus_core::bus::{Bus, Ownership, Subscription};
use toolbus_core::events::SubagentEvents;
use toolbus_core::store::Store;
use toolbus_core::tool::Tool;
use toolbus_core::{Clock, ControlService, MAX_CONTROL_BODY};
use toolbus_protocol::{Random, topic};

use super::App;
use crate::config::Config;

/// Reports that may be in work at a time.
const PREFETCH: u16 = 64;

/// The tasks, if the configuration has a section for them.
pub(super) fn new(
    config: &Config,
    store: &Arc<dyn Store>,
    bus: &Arc<dyn Bus>,
    events: impl FnOnce() -> Arc<dyn SubagentEvents>,
) -> Option<Subagents> {
    let section = config.subagents.as_ref()?;
    let tools = (Clock::SYSTEM, Random::SYSTEM);
    Some(Subagents::new(section, store, Arc::clone(bus), events(), &config.bus.name, tools))
}

/// The tools, with their limits.
pub(super) fn tools(config: &Config, subagents: Option<&Subagents>) -> Vec<Tool> {
    let all = subagents.into_iter().flat_map(|subagents| [subagents.tools(), subagents.whiteboard_tools()]);
    let mut tools: Vec<Tool> = all.flatten().collect();
    tools.iter_mut().for_each(|tool| config.limit(tool));
    tools
}

/// The queue of reports.
pub(super) fn queue(config: &Config) -> Subscription {
    Subscription {
        queue: format!("{}.subagent-report", config.queue_prefix()),
        topics: vec![topic::SUBAGENT_REPORT.to_owned()],
        prefetch: PREFETCH,
        max_body: MAX_CONTROL_BODY,
        ownership: Ownership::Shared,
    }
}

impl App {
    /// Has `control` take reports, and watches the times of tasks.
    pub(super) fn with_subagents(&mut self, control: ControlService, subagents: Subagents) -> ControlService {
        self.background.spawn(subagents.clone().run(self.stop_scheduling.clone()));
        control.with(topic::SUBAGENT_REPORT, Arc::new(subagents))
    }
}
