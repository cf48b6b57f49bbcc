//! Tools by which agents work with time, give each other tasks, find what they need, and call several tools at once.
//!
//! * [`a2a`]: other agents, and tasks for them.
//! * [`schedule`]: tasks that agents are reminded of at times that they give.
//! * [`guides`]: how families of tools are used.
//! * [`search`]: services and tools by their descriptions.
//! * [`pipeline`]: lists of calls, where later ones use values of earlier ones.
//! * [`subagent`]: tasks for other agents, and a whiteboard.

pub mod a2a;
pub mod guides;
#[cfg(test)]
mod hostile_arguments;
pub mod pipeline;
pub mod schedule;
pub mod search;
mod share_plan;
mod share_values;
pub mod subagent;
#[cfg(test)]
mod testing;
mod texts;

pub use self::a2a::{A2aConfig, A2aTools, AgentService};
pub use self::guides::{Guides, GuidesConfig};
pub use self::pipeline::{Pipelines, PipelinesConfig};
pub use self::schedule::{ScheduleConfig, Scheduler};
pub use self::search::{CallerSearch, SearchSources};
pub use self::share_values::Overview;
pub use self::subagent::{Subagents, SubagentsConfig};
