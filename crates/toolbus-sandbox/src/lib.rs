//! Runs untrusted programs without access to the rest of the machine.
//!
//! [`Sandbox::start`] starts a program under a [`Plan`]; it is confined before its first instruction and waits for its
//! [`Job`]. [`Waiting::run`] gives it one and returns an [`Outcome`] when all its processes have ended; a
//! [`KeptProgram`] takes one after another. [`Sandbox::probe`] tries which [`Level`] this system allows.
//!
//! This executable applies the confinement itself, started again with a hidden argument ([`take_over`]): a process of one
//! thread, in which forking is safe.

mod helper;
mod outcome;
mod plan;
mod removal;
mod sandbox;
mod wire;

use std::time::Instant;

pub use helper::{CollectedFiles, take_over};
pub use outcome::{Artifact, Ending, Outcome, Stop, Stream, Unplaced, Usage};
pub use plan::{Job, Layer, Layers, Level, Limits, Plan};
pub use sandbox::{KeptProgram, Probed, Sandbox, SandboxError, Template, Waiting, Watcher, Written};

/// The present time by the monotonic clock of the system.
#[expect(
    clippy::disallowed_methods,
    reason = "helpers have no runtime, and this crate knows nothing of `toolbus_core::Clock`"
)]
fn now() -> Instant {
    Instant::now()
}
