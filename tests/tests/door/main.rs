//! The MCP door of the real binary: who may enter, what clients that others wrote make of it, and standard input and output.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod clients;
mod clients_stdio;
mod connections;
mod entrance;
mod hostile;
mod rust_sdk;
mod stdio;
mod stdio_losses;
mod telemetry;
mod tokens;
mod world;
