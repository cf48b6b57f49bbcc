//! The MCP door: any MCP client gets the tools of the bus, by the same rules as agents on the bus.
//!
//! [`Door`] speaks the protocol, over any transport: a message comes in, and an answer goes out.
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

pub use self::auth::{Entry, Keeper, TokenId, Visitor};
pub use self::backend::{Backend, BackendCall, Document, Listed, Local, NoShelf, Shelf, Unavailable};
pub use self::events::{Observer, Operation, Silent, Started};
pub use self::http::router;
pub use self::meta::Version;
pub use self::server::{Door, Settings};
pub use self::stdio::End;
