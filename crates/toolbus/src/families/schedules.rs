//! Tasks that agents schedule: their tools, and their publisher.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use toolbus_agents::Scheduler;
use toolbus_agents::guides::GuideFor;
use toolbus_agents::schedule::tools::{SOURCE, ScheduleTools};
use toolbus_agents::schedule::{self, TaskStore};
use toolbus_core::bus::Bus;
use toolbus_core::tool::Tool;
use toolbus_core::{Clock, Gates, Invoker};
use toolbus_protocol::Random;
use toolbus_store::StoreUrl;

use super::{Contributions, FamilyContext, FamilyError, FamilyGuide, FamilyPlan, Purpose, ToolFamily, Work};
use crate::config::daemon::Role;

/// Longest time for publications in progress when the daemon ends.
const PUBLISH_TIME: Duration = Duration::from_secs(5);

/// Scheduled tasks.
pub(super) struct ScheduleFamily {
    tasks: TaskStore,
    /// Decide about calls that are to be scheduled.
    gates: Arc<Gates>,
    bus: Arc<dyn Bus>,
    invoker: Arc<dyn Invoker>,
    is_daemon: bool,
    /// Whether the configuration has a section for them.
    is_on: bool,
    /// Cancelled when tasks are no longer published.
    stop: CancellationToken,
    scheduler: Mutex<JoinSet<()>>,
}

impl ScheduleFamily {
    pub(super) fn new(context: &FamilyContext<'_>) -> Self {
        Self {
            tasks: TaskStore::new(Arc::clone(&context.store), Random::SYSTEM),
            gates: Arc::clone(&context.gates),
            bus: Arc::clone(&context.bus),
            invoker: context.invoker(),
            is_daemon: context.purpose == Purpose::Daemon,
            is_on: context.config.schedule.is_some(),
            stop: CancellationToken::new(),
            scheduler: Mutex::default(),
        }
    }
}

impl ToolFamily for ScheduleFamily {
    fn name(&self) -> &'static str {
        "schedules"
    }

    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        let Some(section) = &plan.config.schedule else { return Ok(Vec::new()) };
        let (tasks, gates) = (self.tasks.clone(), Arc::clone(&self.gates));
        Ok(ScheduleTools::new(section, tasks, gates, Clock::SYSTEM, Random::SYSTEM).tools())
    }

    fn guides(&self) -> Vec<FamilyGuide> {
        vec![(GuideFor::Source(SOURCE), "scheduling", schedule::GUIDE)]
    }

    fn contribute(&self, to: &mut Contributions) {
        to.views.schedules = self.is_on.then(|| self.tasks.clone());
    }

    /// Publishes the tasks that are due, where this process does.
    fn work(&self, work: &mut Work<'_>) {
        let config = work.config;
        let Some(section) = config.schedule.clone() else { return };
        if !self.is_daemon || !config.roles().contains(&Role::Schedule) {
            return;
        }
        if config.store.url() == StoreUrl::Memory {
            tracing::info!("scheduled tasks are lost when the daemon ends: store.url is \"memory:\"");
        }
        let (tasks, bus, name) = (self.tasks.clone(), Arc::clone(&self.bus), config.bus.name.clone());
        let is_shared = matches!(config.store.url(), StoreUrl::Redis(_));
        let calls = (Arc::clone(&self.invoker), self.gates.policy().clone());
        let scheduler = Scheduler::new(tasks, section, bus, name, is_shared, calls, (Clock::SYSTEM, Random::SYSTEM));
        self.scheduler.lock().spawn(scheduler.run(self.stop.clone()));
    }

    fn leave(&self) -> BoxFuture<'_, ()> {
        self.stop.cancel();
        ready(()).boxed()
    }

    fn end(&self, patience: Duration) -> BoxFuture<'_, ()> {
        let mut scheduler = std::mem::take(&mut *self.scheduler.lock());
        async move {
            // A publication in progress has its time; the other tasks end with the set.
            let _ = tokio::time::timeout(PUBLISH_TIME.min(patience), scheduler.join_next()).await;
        }
        .boxed()
    }
}
