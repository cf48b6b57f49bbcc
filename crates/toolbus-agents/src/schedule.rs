//! Tasks at times that agents give: each time, the agent receives a message, or a tool is called and the agent receives
//! what became of that.
//!
//! * [`config`]: the section of the configuration.
//! * [`tools`]: what agents call.
//! * [`scheduler`]: publishes what is due, in one process at a time.

mod calls;
pub mod config;
mod cron;
mod failures;
mod lease;
mod message;
mod overview;
pub mod scheduler;
mod task;
mod task_store;
pub mod tools;

pub use self::config::ScheduleConfig;
pub use self::overview::ScheduledTask;
pub use self::scheduler::Scheduler;
pub use self::task_store::TaskStore;
pub use self::tools::{GUIDE, NAMES};
