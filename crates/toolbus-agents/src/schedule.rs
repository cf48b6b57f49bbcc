//! Tasks at times that agents give: each time, the agent receives a message.
//!
//! * [`config`]: the section of the configuration.
//! * [`tools`]: what agents call.
//! * [`scheduler`]: publishes what is due, in one process at a time.

pub mod config;
mod cron;
mod lease;
pub mod scheduler;
mod task;
mod task_store;
pub mod tools;

pub use self::config::ScheduleConfig;
pub use self::scheduler::Scheduler;
pub use self::task_store::TaskStore;
pub use self::tools::{GUIDE, NAMES};
