//! JSON-RPC 2.0, as MCP uses it.

mod error;
mod message;
mod reply;

pub(crate) use error::RpcError;
pub(crate) use message::{Call, Id, Message};
pub(crate) use reply::{failure, notification, success};
