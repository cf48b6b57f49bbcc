//! Tools by which agents work with time and with other agents.
//!
//! * [`schedule`]: tasks that agents are reminded of at times that they give.

pub mod schedule;

pub use self::schedule::{ScheduleConfig, Scheduler};
