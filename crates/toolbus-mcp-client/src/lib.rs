//! MCP servers as tools on the bus.
//!
//! [`bridge`] keeps the servers of a configuration running and their tools registered; everything else is a part of that:
//! how a server is reached (`transport`, `process`), spoken to (`connection`), understood (`definition`) and kept alive
//! (`server`).

pub mod bus_messages;
mod client;
pub mod events;
pub mod model_tools;
pub mod process;
pub mod servers;
pub mod spec;
pub mod standalone;
pub mod status;
mod supervise;
pub(crate) mod transport;
