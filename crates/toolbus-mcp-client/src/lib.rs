//! MCP servers as tools on the bus.
//!
//! [`servers`] registers the tools of the configured servers, and `supervise` keeps each server running. `client` is
//! one connection over a `transport`; `process` starts programs under a guard. [`model_tools`] are the tools with which
//! models list, call and register servers, [`bus_messages`] the same for agents that send messages. [`config`] is what
//! operators write about servers, and reads the file that other programs read, too; a [`spec`] is made of that.

// Tests measure and spawn as they like.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod bus_messages;
mod client;
pub mod config;
pub mod model_tools;
pub mod process;
pub mod servers;
pub mod spec;
pub mod standalone;
pub mod status;
mod supervise;
#[cfg(test)]
mod testing;
pub(crate) mod transport;
