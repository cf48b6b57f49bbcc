//! Tool sets of scope `session`: what runs their tools is built for each session of a caller, and ends with it.
//!
//! Read `SessionSet::run` in `set.rs` first, then `lifecycle.rs`, which is the life of one session. A tool set of scope
//! `shared` needs nothing of this: its tools have plain executors.

mod instance;
mod lifecycle;
mod session;
mod set;
mod sets;
#[cfg(test)]
mod tests;

pub use instance::{Instance, SessionFactory, SessionKey};
pub use set::{SessionLimits, SessionSet};
pub use sets::SessionSets;
