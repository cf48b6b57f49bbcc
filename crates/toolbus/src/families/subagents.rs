//! Tasks that agents give to others: their tools, the consumer of reports, and the watch on deadlines.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use tokio_util::sync::CancellationToken;
use toolbus_agents::guides::GuideFor;
use toolbus_agents::{Subagents, subagent};
use toolbus_core::bus::{Ownership, Subscription};
use toolbus_core::events::{Discard, SubagentEvents};
use toolbus_core::tool::Tool;
use toolbus_core::{Clock, MAX_CONTROL_BODY};
use toolbus_protocol::{Random, topic};

use super::{
    Contributions, FamilyContext, FamilyError, FamilyGuide, FamilyPlan, Purpose, Queue, Takes, ToolFamily, Work,
};
use crate::config::Config;

/// Reports that may be in work at a time.
const PREFETCH: u16 = 64;

/// Tasks for sub-agents.
pub(super) struct SubagentFamily {
    /// Absent where the configuration has no section for them.
    subagents: Option<Subagents>,
    /// Whether this process takes reports.
    takes_reports: bool,
    /// Cancelled when deadlines are no longer watched.
    stop: CancellationToken,
}

impl SubagentFamily {
    pub(super) fn new(context: &FamilyContext<'_>) -> Self {
        let (name, tools) = (&context.config.bus.name, (Clock::SYSTEM, Random::SYSTEM));
        let subagents = context.config.subagents.as_ref().map(|section| {
            let events: Arc<dyn SubagentEvents> = match context.exporters {
                Some(exporters) => Arc::new(exporters.subagents()),
                None => Arc::new(Discard),
            };
            Subagents::new(section, &context.store, Arc::clone(&context.bus), events, name, tools)
        });
        let takes_reports = context.purpose == Purpose::Daemon && subagents.is_some();
        Self { subagents, takes_reports, stop: CancellationToken::new() }
    }
}

impl ToolFamily for SubagentFamily {
    fn name(&self) -> &'static str {
        "subagents"
    }

    fn tools(&self, _: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        let all = self.subagents.iter().flat_map(|subagents| [subagents.tools(), subagents.whiteboard_tools()]);
        Ok(all.flatten().collect())
    }

    fn guides(&self) -> Vec<FamilyGuide> {
        [subagent::tools::SOURCE, subagent::whiteboard::SOURCE]
            .map(|source| (GuideFor::Source(source), "subagents", subagent::GUIDE))
            .to_vec()
    }

    fn contribute(&self, to: &mut Contributions) {
        to.views.subagents = self.subagents.clone();
    }

    fn queues(&self, config: &Config) -> Vec<Queue> {
        let queue = || Subscription {
            queue: format!("{}.subagent-report", config.queue_prefix()),
            topics: vec![topic::SUBAGENT_REPORT.to_owned()],
            prefetch: PREFETCH,
            max_body: MAX_CONTROL_BODY,
            ownership: Ownership::Shared,
            is_inbox: false,
        };
        self.takes_reports.then(|| (queue(), Takes::Requests)).into_iter().collect()
    }

    fn work(&self, work: &mut Work<'_>) {
        let Some(subagents) = self.subagents.clone().filter(|_| self.takes_reports) else { return };
        work.background.spawn(subagents.clone().run(self.stop.clone()));
        work.handle(topic::SUBAGENT_REPORT, Arc::new(subagents));
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        self.stop.cancel();
        ready(()).boxed()
    }
}
