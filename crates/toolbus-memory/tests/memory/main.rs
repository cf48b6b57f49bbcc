//! Working memory as agents use it, on a store.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, helpers outside test functions included"
)]

mod results;
mod tools;
