//! MCP servers as tools on the bus.
//!
//! [`bridge`] keeps the servers of a configuration running and their tools registered; everything else is a part of that:
//! how a server is reached (`transport`, `process`), spoken to (`connection`), understood (`definition`) and kept alive
//! (`server`).

pub mod bus_messages;
mod client;
pub mod direct;
pub mod events;
pub mod filter;
pub mod model_tools;
pub mod probe;
pub mod process;
pub mod servers;
pub mod spec;
pub mod status;
pub mod summary;
mod supervise;
mod transport;
