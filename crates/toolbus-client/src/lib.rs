#![doc = include_str!("../README.md")]
//!
//! [`Client`] also builds, sends and follows single messages, for programs that show or change them, over any
//! [`Bus`](toolbus_bus::Bus).

mod client;
mod connection;
mod inbox;
mod invocation;
mod sender;

pub use client::{CallReply, Client, ReplyContent, SOURCE};
pub use connection::{BusConnection, ConnectionOptions};
pub use inbox::{ClientError, Expectation, Expected, Inbox, ProgressHandler, Received, SenderCheck};
pub use invocation::Invocation;
pub use sender::{Sender, SignedRequest};
pub use toolbus_broker::rabbitmq::{SettingsError, Tls};
pub use toolbus_bus as bus;
pub use toolbus_protocol::{AgentName, ToolListRequest, ToolListResponse, ToolProgress};
