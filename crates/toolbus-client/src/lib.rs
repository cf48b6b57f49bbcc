//! A caller of the tools of Toolbus, over RabbitMQ: calls with progress and cancellation, lists of tools, pings.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use serde_json::{Map, json};
//! use toolbus_client::{AgentName, BusConnection, ConnectionOptions, ReplyContent, ToolListRequest};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let patience = Duration::from_secs(10);
//! let connection = BusConnection::open(ConnectionOptions {
//!     agent: Some(AgentName::parse("ana")?),
//!     ..ConnectionOptions::new("amqp://ana:secret@127.0.0.1:5672/%2f")
//! })?;
//! let client = connection.client(patience).await?;
//! println!("{} runs {} tools", client.ping(patience).await?.name, client.ping(patience).await?.tools);
//! for tool in client.list(&ToolListRequest::default(), patience).await?.tools {
//!     println!("{}", tool["name"]);
//! }
//!
//! let arguments = Map::from_iter([("text".to_owned(), json!("hello"))]);
//! let mut call = client.invoke("echo", &arguments, Duration::from_secs(30)).await?;
//! while let Some(report) = call.progress().await {
//!     println!("{} of {:?}", report.progress, report.total);
//! }
//! match call.response().await?.content {
//!     ReplyContent::Result(result) => println!("{}", result.content.unwrap_or_default()),
//!     ReplyContent::Error(error) => println!("{}: {}", error.code, error.message),
//! }
//! connection.close().await;
//! # Ok(())
//! # }
//! ```
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
