//! Families of tools: REST endpoints, scripts, memory, schedules, agents and so on. Each is built, listed, reloaded, watched
//! and drained in one shape, [`ToolFamily`]; [`all`] lists them.

mod agents;
mod builtin;
mod commands;
mod context;
mod guides;
mod mcp;
mod memory;
mod pipelines;
mod plan;
mod remote;
mod remote_sets;
mod rest;
mod schedules;
mod scripts;
mod search;
mod servers;
mod specifications;
mod subagents;
#[cfg(test)]
mod tests;
mod web;
mod work;

use std::error::Error;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use toolbus_agents::guides::GuideFor;
use toolbus_core::tool::Tool;
use toolbus_telemetry::Exporters;

pub(crate) use self::context::{DeferredInvoker, FamilyContext, Purpose, volatile_memory};
pub(crate) use self::plan::{Commit, FamilyPlan, Planned, plan, prepare};
pub(crate) use self::scripts::script_section;
pub(crate) use self::search::short_lists;
pub(crate) use self::servers::AppServers;
pub(crate) use self::specifications::with_specifications;
pub(crate) use self::work::{CONTROL_PREFETCH, Contributions, Queue, Takes, Work, max_body};
use crate::config::Config;

/// Reason why a family cannot be built, or its tools cannot be made.
pub(crate) type FamilyError = Box<dyn Error + Send + Sync>;

/// A guide to tools of a family: its readers, name and text.
pub(crate) type FamilyGuide = (GuideFor, &'static str, &'static str);

/// The position of a family in the order of starting. Families end in the opposite order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Runs programs and connections; before the tools of other families.
    Backends,
    /// Needs no other family.
    Tools,
    /// Describes the tools of the families before it.
    Finding,
}

/// A family of tools. Without its section in the configuration it has no tools.
pub(crate) trait ToolFamily: Send + Sync {
    /// The name of the family.
    fn name(&self) -> &'static str;

    /// When it starts.
    fn phase(&self) -> Phase {
        Phase::Tools
    }

    /// Prepares what [`Self::tools`] needs for a configuration, which takes time: not for a description. No running
    /// part changes.
    fn prepare<'a>(&'a self, _config: &'a Config) -> BoxFuture<'a, Result<(), FamilyError>> {
        ready(Ok(())).boxed()
    }

    /// Makes the tools by the configuration of `plan`, which adds the limits. Changes for the time when the
    /// configuration is in force go to [`FamilyPlan::on_commit`]; nothing changes before.
    ///
    /// # Errors
    ///
    /// If its settings are mistaken.
    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError>;

    /// The guides to the use of the tools, for models.
    fn guides(&self) -> Vec<FamilyGuide> {
        Vec::new()
    }

    /// Publishes its status for other parts.
    fn contribute(&self, _to: &mut Contributions) {}

    /// Registers what the exporters read of the family at each export.
    fn watch(&self, _exporters: &Exporters) {}

    /// Starts what its tools need, before any call is taken.
    fn start(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }

    /// The queues that it takes messages from, beside those of calls.
    fn queues(&self, _config: &Config) -> Vec<Queue> {
        Vec::new()
    }

    /// Adds its tasks and the handlers of its queues, when calls are taken.
    fn work(&self, _work: &mut Work<'_>) {}

    /// Begins nothing any more, and announces that to others. Calls are still taken.
    fn leave(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }

    /// Ends its running parts, when no call runs any more. Publications have `patience`.
    fn end(&self, _patience: Duration) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}

/// Builds every family, in the order of their phases.
///
/// # Errors
///
/// If a family cannot be built as configured.
pub(crate) fn all(context: &FamilyContext<'_>) -> Result<Vec<Box<dyn ToolFamily>>, FamilyError> {
    let servers = AppServers::new(context)?;
    let mut families: Vec<Box<dyn ToolFamily>> = vec![
        Box::new(builtin::TimeFamily),
        Box::new(builtin::EchoFamily),
        Box::new(rest::RestFamily::new(context)),
        Box::new(web::WebFamily::new(context)),
        Box::new(scripts::ScriptFamily::new(context)),
        Box::new(commands::CommandFamily::new(context)),
        Box::new(memory::MemoryFamily::new(context)),
        Box::new(remote::RemoteFamily::new(context, servers.as_ref())),
        Box::new(agents::AgentFamily::new(context)?),
        Box::new(guides::GuideFamily::new(context, servers.clone())),
        Box::new(search::SearchFamily::new(context, servers.clone())),
        Box::new(mcp::McpFamily::new(context, servers)),
        Box::new(subagents::SubagentFamily::new(context)),
        Box::new(schedules::ScheduleFamily::new(context)),
        Box::new(pipelines::PipelineFamily::new(context)),
    ];
    families.sort_by_key(|family| family.phase());
    Ok(families)
}

/// Collects the contributions of families.
pub(crate) fn contributions(families: &[Box<dyn ToolFamily>]) -> Contributions {
    let mut contributions = Contributions::default();
    families.iter().for_each(|family| family.contribute(&mut contributions));
    contributions
}
