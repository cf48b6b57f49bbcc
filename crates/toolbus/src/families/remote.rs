//! Tools of other daemons: those that the configuration lists, and sets that other daemons list.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use toolbus_core::tool::Tool;
use toolbus_core::{AllArrived, ParametersError, PendingTools};
use toolbus_remote::RemoteDaemons;
use toolbus_telemetry::Exporters;

use super::remote_sets::RemoteSets;
use super::{AppServers, Contributions, FamilyContext, FamilyError, FamilyPlan, Phase, ToolFamily};
use crate::config::{Config, toolsets};

/// Tools of other daemons.
pub(super) struct RemoteFamily {
    daemons: RemoteDaemons,
    sets: RemoteSets,
}

/// A tool of another daemon whose schema is none of arguments.
#[derive(Debug, thiserror::Error)]
#[error("tool `{name}` of a remote tool set: {error}")]
struct RemoteToolError {
    name: String,
    error: ParametersError,
}

impl RemoteFamily {
    /// Calls for tools of `servers` wait for these.
    pub(super) fn new(context: &FamilyContext<'_>, servers: Option<&AppServers>) -> Self {
        let (config, bus) = (context.config, Arc::clone(&context.bus));
        let max_reply = usize::try_from(config.results.max_size.bytes()).unwrap_or(usize::MAX);
        let daemons =
            RemoteDaemons::new(bus, config.bus.name.clone(), config.bus.url.login(), config.identity(), max_reply);
        let others: Arc<dyn PendingTools> = match servers {
            Some(servers) => Arc::new(servers.bridge().clone()),
            None => Arc::new(AllArrived),
        };
        let sets = RemoteSets::new(context.policy().registry().clone(), daemons.clone(), others);
        Self { daemons, sets }
    }
}

impl ToolFamily for RemoteFamily {
    fn name(&self) -> &'static str {
        "remote"
    }

    fn phase(&self) -> Phase {
        Phase::Backends
    }

    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        let (sets, daemons, config) = (self.sets.clone(), self.daemons.clone(), plan.config.clone());
        plan.on_commit(move || {
            daemons.identify_by(config.identity());
            sets.apply(&config);
        });
        Ok(listed(plan.config, &self.daemons)?)
    }

    fn contribute(&self, to: &mut Contributions) {
        let sets = self.sets.clone();
        to.remote = Some(Box::new(move || sets.status()));
        to.pending = Some(Arc::new(self.sets.clone()));
    }

    fn watch(&self, exporters: &Exporters) {
        let sets = self.sets.clone();
        exporters.watch_remote(move || sets.counts());
    }

    fn end(&self, _: Duration) -> BoxFuture<'_, ()> {
        self.sets.stop();
        ready(()).boxed()
    }
}

/// The tools that the configuration lists.
///
/// # Errors
///
/// If a tool's settings are mistaken; [`Config::load`] refuses them before.
fn listed(config: &Config, daemons: &RemoteDaemons) -> Result<Vec<Tool>, RemoteToolError> {
    let mut tools = Vec::new();
    for (set, section) in &config.toolsets {
        let Some(topic) = section.calls_topic() else { continue };
        if section.is_of_scripts() {
            let descriptor = toolsets::scripts_descriptor((set, section));
            let executor = daemons.scripts(Arc::clone(&descriptor.name));
            tools.push(Tool::new(descriptor, executor));
            continue;
        }
        for (name, tool) in &section.tools {
            let descriptor = tool.descriptor((set, section), name);
            let descriptor = descriptor.map_err(|error| RemoteToolError { name: name.clone(), error })?;
            let executor = daemons.tool(&*topic, Arc::clone(&descriptor.name), tool.effect);
            tools.push(Tool::new(descriptor, executor));
        }
    }
    Ok(tools)
}
