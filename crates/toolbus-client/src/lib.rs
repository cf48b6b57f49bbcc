//! A caller on the bus, as an agent is one.

#[cfg(feature = "mcp-server")]
pub mod backend;
mod client;
mod inbox;
mod pending;
mod sender;

pub use client::{Answer, Client, ClientError, Content, Received, Request};
pub use inbox::Inbox;
pub use pending::Expected;
pub use sender::Sender;
