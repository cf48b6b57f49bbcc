//! Support for the end-to-end tests: the real binary as a process, a raw AMQP client, a REST backend, a shared broker.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

pub mod backend;
pub mod client;
pub mod conformance;
pub mod daemon;
mod described;
pub mod history;
pub mod http;
pub mod mcp;
pub mod mcp_client;
pub mod message;
pub mod metrics;
pub mod namespace;
mod processes;
pub mod program;
pub mod prometheus;
pub mod sockets;
pub mod stdio;
pub mod survivor;
