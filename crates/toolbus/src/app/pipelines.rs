//! Pipelines of tool calls: their tool.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use toolbus_agents::Pipelines;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::policy::PolicyHandle;
use toolbus_core::tool::{Tool, ToolOutput};
use toolbus_core::{Clock, InnerCall, Invoker};

use crate::config::Config;

/// Pipelines, if the configuration has a section for them.
pub(super) fn new(config: &Config, policy: &PolicyHandle, invoker: Arc<dyn Invoker>) -> Option<Pipelines> {
    let section = config.pipelines.as_ref()?;
    Some(Pipelines::new(section, policy.clone(), invoker, Clock::SYSTEM))
}

/// The tool, with its limits.
pub(super) fn tool(config: &Config, pipelines: Option<&Pipelines>) -> Option<Tool> {
    let mut tool = pipelines?.tool();
    config.limit(&mut tool);
    Some(tool)
}

/// Calls nothing: for a description of the tools.
pub(super) struct Uncallable;

impl Invoker for Uncallable {
    fn invoke(&self, _: InnerCall) -> BoxFuture<'_, Result<ToolOutput, ToolFailure>> {
        ready(Err(ToolFailure::new(Cause::Unavailable, "Tools are not called here."))).boxed()
    }
}
