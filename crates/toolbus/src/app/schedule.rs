//! Tasks that agents schedule: their tools, and what publishes them.

use std::sync::Arc;

use toolbus_agents::Scheduler;
use toolbus_agents::schedule::TaskStore;
use toolbus_agents::schedule::tools::ScheduleTools;
use toolbus_core::store::Store;
use toolbus_core::tool::Tool;
use toolbus_core::{Clock, Gates, Invoker};
use toolbus_protocol::Random;

use super::App;
use crate::config::Config;
use crate::config::daemon::Role;
use crate::config::store::StoreUrl;

/// The tasks in the store.
pub(super) fn tasks(store: &Arc<dyn Store>) -> TaskStore {
    TaskStore::new(Arc::clone(store), Random::SYSTEM)
}

/// The tools, with their limits. `gates` decide about calls that are to be scheduled.
pub(super) fn tools(config: &Config, tasks: &TaskStore, gates: &Arc<Gates>) -> Vec<Tool> {
    let Some(section) = &config.schedule else { return Vec::new() };
    let mut tools =
        ScheduleTools::new(section, tasks.clone(), Arc::clone(gates), Clock::SYSTEM, Random::SYSTEM).tools();
    tools.iter_mut().for_each(|tool| config.limit(tool));
    tools
}

impl App {
    /// Starts to publish the tasks that are due, where this process does.
    pub(super) fn start_scheduler(&mut self) {
        let Some(section) = self.config.schedule.clone() else { return };
        if self.daemon.is_none() || !self.config.roles().contains(&Role::Schedule) {
            return;
        }
        if self.config.store.url == StoreUrl::Memory {
            tracing::info!("scheduled tasks are lost when the daemon ends: store.url is \"memory:\"");
        }
        let (tasks, bus, name) = (self.tasks.clone(), self.bus(), self.config.bus.name.clone());
        let is_shared = matches!(self.config.store.url, StoreUrl::Redis(_));
        let calls = (Arc::new(self.dispatcher.clone()) as Arc<dyn Invoker>, self.policy.clone());
        let scheduler = Scheduler::new(tasks, section, bus, name, is_shared, calls, (Clock::SYSTEM, Random::SYSTEM));
        self.scheduler.spawn(scheduler.run(self.stop_scheduling.clone()));
    }
}
