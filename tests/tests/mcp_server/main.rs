//! The MCP server of the real binary, over HTTP and over standard input and output. Clients that others wrote are in
//! `interop`.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod connections;
mod fixture;
mod guides;
mod keys;
mod leaving;
mod ruling;
mod short_lists;
mod stdio;
mod stdio_losses;
mod telemetry;
mod tokens;
