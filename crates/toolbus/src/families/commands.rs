//! Commands of the configuration: their tools.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::sync::OnceCell;
use toolbus_agents::guides::GuideFor;
use toolbus_core::tool::Tool;
use toolbus_sandbox::Sandbox;
use toolbus_scripts::commands::{self, CommandConfig, CommandError, GUIDE, SOURCE};

use super::scripts::ScriptsError;
use super::{FamilyContext, FamilyError, FamilyGuide, FamilyPlan, Phase, Purpose, ToolFamily};
use crate::config::Config;
use crate::config::daemon::Role;

/// Commands.
pub(super) struct CommandFamily {
    is_described: bool,
    sandbox: Arc<OnceCell<Sandbox>>,
}

impl CommandFamily {
    pub(super) fn new(context: &FamilyContext<'_>) -> Self {
        Self { is_described: context.purpose == Purpose::Description, sandbox: Arc::clone(&context.sandbox) }
    }

    fn tool(&self, command: &CommandConfig) -> Result<Tool, ScriptsError> {
        let tool = match (command.sandbox, self.sandbox.get()) {
            _ if self.is_described => commands::described(command),
            (true, None) => Err(CommandError::NoSandbox),
            (true, sandbox) => commands::tool(command, sandbox),
            (false, _) => commands::tool(command, None),
        };
        tool.map_err(|error| ScriptsError::Command { name: command.name.clone(), error })
    }
}

impl ToolFamily for CommandFamily {
    fn name(&self) -> &'static str {
        "commands"
    }

    fn phase(&self) -> Phase {
        Phase::Backends
    }

    /// Looks for a sandbox when there is a command that needs it.
    fn prepare<'a>(&'a self, config: &'a Config) -> BoxFuture<'a, Result<(), FamilyError>> {
        async move {
            let is_needed = commands_of(config).iter().any(|command| command.sandbox);
            if is_needed && !self.is_described {
                let require = config.script.as_ref().map(|script| script.sandbox).unwrap_or_default().require;
                let found = self.sandbox.get_or_try_init(|| commands::sandbox(require)).await;
                found.map_err(ScriptsError::from)?;
            }
            Ok(())
        }
        .boxed()
    }

    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        Ok(commands_of(plan.config).iter().map(|command| self.tool(command)).collect::<Result<_, _>>()?)
    }

    fn guides(&self) -> Vec<FamilyGuide> {
        vec![(GuideFor::Source(SOURCE), "commands", GUIDE)]
    }
}

/// The commands that this process runs.
fn commands_of(config: &Config) -> &[CommandConfig] {
    if config.roles().contains(&Role::Invoke) { &config.commands } else { &[] }
}
