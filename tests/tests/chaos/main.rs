//! Servers, clients and callers that mean harm, behind the real binary: the others go on, nothing is reached that is not
//! theirs, memory and time stay bounded, and operators see what happened.
//!
//! A program of its own, and those that measure one at a time, so that nothing else runs beside them.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod adversary;
mod agents;
mod channels;
mod cluster;
mod confined;
mod costly_checks;
mod disguised;
mod endings;
mod fairness;
mod faults;
mod fixture;
mod floods;
mod heavy;
mod hidden;
mod listings;
mod publishers;
mod remote;
mod results;
mod soak;
mod wire;

use tokio::sync::{Mutex, MutexGuard};

/// Waits until no other test of this process measures.
async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}
