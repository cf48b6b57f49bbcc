//! Runs the dispatcher and the control service of Toolbus through faults that a seed chooses.
//!
//! [`run`] is one schedule: one or two daemons with the code of `toolbus-core`, on a broker that loses, doubles, returns
//! and reorders messages, with callers that repeat and cancel, and with tools that record every run. Time is the paused
//! clock of one thread, and every choice is drawn from the seed, so that the same seed gives the same bytes of the trace.

mod broker;
mod bus;
mod callers;
mod chance;
mod context;
mod daemon;
mod ledger;
mod oracle;
mod schedule;
mod tools;

pub use context::{Fault, Faults};
pub use oracle::Violation;
pub use schedule::{ScheduleReport, run};
