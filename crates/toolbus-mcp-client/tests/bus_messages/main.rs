//! A daemon that replies to requests about MCP servers, and simulated agents, on one bus.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, helpers outside test functions included"
)]

mod fixture;
mod index;
mod manage;
