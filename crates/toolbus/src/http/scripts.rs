//! How scripts are run, as `/status` tells it.

use serde::Serialize;
use toolbus_scripts::runner::RunnerStatus;

/// Tells how scripts are run, for an operator.
pub trait ScriptState: Send + Sync + 'static {
    /// How they are run now; nothing where they are not.
    fn status(&self) -> Option<ScriptStatus>;
}

/// How scripts are run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScriptStatus {
    /// What runs them, and how well it keeps them in.
    #[serde(flatten)]
    pub runner: RunnerStatus,
    /// Scripts that run now.
    pub running: usize,
    /// Scripts that wait for their turn.
    pub waiting: usize,
}
