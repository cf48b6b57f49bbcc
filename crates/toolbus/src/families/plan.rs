//! Plans: tools that families make of a configuration, and changes that are made once it is in force.

use std::sync::Arc;

use toolbus_agents::A2aTools;
use toolbus_core::tool::Tool;
use toolbus_core::toolsets::SessionSet;

use super::{FamilyError, FamilyGuide, ToolFamily};
use crate::config::Config;

/// A change of running parts.
pub(crate) type Commit = Box<dyn FnOnce() + Send + Sync>;

/// The configuration of which families make their tools, and what they make beside tools.
pub(crate) struct FamilyPlan<'a> {
    pub(crate) config: &'a Config,
    /// Gives the tool sets whose sessions go on.
    pub(crate) kept: &'a dyn Fn(&str) -> Option<Arc<SessionSet>>,
    /// The tool sets that are built for each session.
    pub(crate) sessions: Vec<Arc<SessionSet>>,
    /// The guides of every family.
    pub(crate) guides: Vec<FamilyGuide>,
    /// Other agents, once their family has made its tools.
    pub(crate) agents: Option<A2aTools>,
    commits: Vec<Commit>,
}

impl FamilyPlan<'_> {
    /// Has this done once the configuration is in force.
    pub(crate) fn on_commit(&mut self, change: impl FnOnce() + Send + Sync + 'static) {
        self.commits.push(Box::new(change));
    }
}

/// The tools of a configuration that is not in force yet.
pub(crate) struct Planned {
    /// Every tool, with its limits.
    pub(crate) tools: Vec<Tool>,
    /// The tool sets that are built for each session.
    pub(crate) sessions: Vec<Arc<SessionSet>>,
    /// Changes that are made once the configuration is in force.
    pub(crate) commits: Vec<Commit>,
}

/// Prepares what the tools of each family need.
///
/// # Errors
///
/// If a family cannot be prepared as configured.
pub(crate) async fn prepare(families: &[Box<dyn ToolFamily>], config: &Config) -> Result<(), FamilyError> {
    for family in families {
        family.prepare(config).await?;
    }
    Ok(())
}

/// Has each family make its tools of a configuration. `kept` gives the tool sets whose sessions go on.
///
/// # Errors
///
/// If the settings of a family are mistaken.
pub(crate) fn plan(
    families: &[Box<dyn ToolFamily>],
    config: &Config,
    kept: &dyn Fn(&str) -> Option<Arc<SessionSet>>,
) -> Result<Planned, FamilyError> {
    let guides = families.iter().flat_map(|family| family.guides()).collect();
    let mut plan = FamilyPlan { config, kept, sessions: Vec::new(), guides, agents: None, commits: Vec::new() };
    let mut all = Vec::new();
    for family in families {
        let mut tools = family.tools(&mut plan)?;
        tracing::trace!(family = family.name(), tools = tools.len(), "tools of a family");
        tools.iter_mut().for_each(|tool| config.limit(tool));
        all.append(&mut tools);
    }
    Ok(Planned { tools: all, sessions: plan.sessions, commits: plan.commits })
}
