//! The sandbox against real programs, at every level that this system allows.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, helpers outside test functions included"
)]

mod fixture;
mod inherited;
mod runs;
