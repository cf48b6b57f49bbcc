//! The MCP server: any MCP client gets the tools of the bus, by the same rules as agents on the bus.
//!
//! [`McpServer`] speaks the protocol, over any transport: a message comes in, and an answer goes out.
//! `http` is the Streamable HTTP transport, `stdio` the one over standard input and output. What there is to offer comes from a [`Backend`]: here [`Local`], which asks
//! the policy and has the dispatcher run calls with all their steps.

pub mod auth;
mod backend;
mod content;
mod events;
mod http;
mod meta;
mod methods;
mod rpc;
mod server;
mod session;
mod stdio;

pub use self::auth::{AuthOutcome, Principal, TokenAuth, TokenId};
pub use self::backend::{Backend, BackendCall, Document, Listed, Local, Resources, Unavailable};
pub use self::events::{Discard, Observer, Operation, Started};
pub use self::http::router;
pub use self::meta::Version;
pub use self::server::{McpServer, Settings};
pub use self::stdio::End;
