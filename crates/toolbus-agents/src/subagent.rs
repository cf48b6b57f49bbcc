//! Tasks that agents give to other agents, and a whiteboard that both share. The daemon keeps the tasks, their limits,
//! times and results; agents that volunteer do the work.
//!
//! * [`config`]: the section of the configuration.
//! * [`tools`] and [`whiteboard`]: what agents call.
//! * `coordinator`: what travels, and which reports count.

pub mod config;
mod coordinator;
mod overview;
mod task;
#[cfg(test)]
mod tests;
pub mod tools;
pub mod whiteboard;

pub use self::config::SubagentsConfig;
pub use self::coordinator::Subagents;
pub use self::overview::{SubagentState, SubagentSummary};

/// Guide to the use of the subagent tools, for models.
pub const GUIDE: &str = include_str!("subagent/guide.md");
