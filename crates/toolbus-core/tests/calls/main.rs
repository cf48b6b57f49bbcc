//! Path of a call, step by step, with a bus and tools in memory.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, helpers outside test functions included"
)]

mod bad_input;
mod breakers;
mod cancelling;
mod direct;
mod fixture;
mod handlers;
mod hinting;
mod keyed;
mod ledger;
mod lost;
mod marking;
mod message;
mod notifying;
mod policy;
mod replaying;
mod replying;
mod running;
mod script_refusals;
mod scripts;
mod secrets;
mod splitting;
