//! MCP servers as tools on the bus.
//!
//! [`bridge`] keeps the servers of a configuration running and their tools registered; everything else is a part of that:
//! how a server is reached (`transport`, `process`), spoken to (`connection`), understood (`definition`) and kept alive
//! (`server`).

pub mod bridge;
mod connection;
mod definition;
mod dial;
pub mod direct;
pub mod filter;
pub mod management;
pub mod observe;
pub mod peers;
pub mod probe;
pub mod process;
mod result;
mod schema;
mod server;
pub mod sessions;
pub mod spec;
pub mod status;
pub mod summary;
pub mod supervisor;
mod transport;
mod vetting;
