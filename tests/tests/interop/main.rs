//! Software that others wrote, with the real binary: MCP servers behind it, MCP clients and model providers before it,
//! the public conformance suite on both sides, and AsyncAPI's parser for the description of the messages.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod asyncapi;
mod clients;
mod clients_stdio;
mod conformance;
mod fixture;
mod providers;
mod rust_sdk;
mod servers;
mod servers_changes;
mod servers_commands;
mod servers_content;
mod servers_http;
mod servers_losses;
mod servers_rules;
mod servers_running;
