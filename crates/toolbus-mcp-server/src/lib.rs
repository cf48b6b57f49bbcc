//! The bus as an MCP server: MCP clients get the tools of the bus, by the same policy as agents on the bus.
//!
//! [`McpServer`] implements the protocol over any transport. `http` is Streamable HTTP, `stdio` standard input and
//! output. A [`Backend`] provides the tools: in the daemon [`Local`], which applies the policy and runs calls through
//! the dispatcher.

// Tests measure and spawn as they like.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod auth;
mod backend;
mod content;
mod http;
mod meta;
mod methods;
mod rpc;
mod server;
mod session;
mod short_list;
mod stdio;
#[cfg(test)]
mod testing;
mod version;

pub use self::auth::{AuthOutcome, Principal, TokenAuth, TokenId};
pub use self::backend::{Backend, BackendCall, CallerListing, Document, Local, Resources, Unavailable};
pub use self::http::router;
pub use self::methods::McpServerSettings;
pub use self::server::McpServer;
pub use self::short_list::{ShortListRules, ShortLists};
pub use self::stdio::StdioEnd;
pub use self::version::Version;
