#![doc = include_str!("../README.md")]
//!
//! [`Client`] also builds, sends and follows single messages, for programs that show or change them, over any
//! [`Bus`](toolbus_core::bus::Bus). With the feature `mcp-server`, `backend` has the tools of a daemon elsewhere as the
//! backend of an MCP server.

#[cfg(feature = "mcp-server")]
pub mod backend;
mod bridge;
mod calling;
mod client;
mod connection;
mod following;
mod inbox;
mod invocation;
#[cfg(feature = "mcp-server")]
mod listing;
mod remote;
mod script;
mod sender;

pub use client::{CallReply, Client, ReplyContent, SOURCE};
pub use connection::{BusConnection, ConnectionOptions};
pub use following::{RemoteFollower, RemoteListing, RemoteNews};
pub use inbox::{ClientError, Expected, Inbox, Received};
pub use invocation::Invocation;
pub use remote::{BridgedServer, RemoteDaemons, RemoteTool};
pub use script::{MAX_SCRIPT_SECONDS, RemoteScripts, SCRIPT_GRACE};
pub use sender::{Sender, SignedRequest};
pub use toolbus_broker::rabbitmq::{SettingsError, Tls};
pub use toolbus_core::caller::AgentName;
pub use toolbus_protocol::{ToolListRequest, ToolListResponse};
