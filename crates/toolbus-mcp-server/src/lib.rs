//! The MCP door: any MCP client gets the tools of the bus, by the same rules as agents on the bus.
//!
//! [`Door`] speaks the protocol, over any transport: a message comes in, and an answer goes out.
//! `http` is the Streamable HTTP transport, `stdio` the one over standard input and output. What there is to offer comes from a [`Backend`]: here [`Local`], which asks
//! the policy and has the dispatcher run calls with all their steps.

mod backend;
mod content;
mod cursor;
mod definition;
mod door;
mod flow;
mod http;
pub mod keeper;
mod local;
mod meta;
mod methods;
mod news;
mod observe;
mod peer;
mod rpc;
mod sessions;
mod stdio;
mod version;
mod visitor;

pub use backend::{Backend, BackendCall, Document, Listed, Unavailable};
pub use door::{Door, Settings};
pub use http::router;
pub use keeper::{Entry, Keeper};
pub use local::{Local, NoShelf, Shelf};
pub use observe::{Observer, Operation, Silent, Started};
pub use stdio::End;
pub use version::Version;
pub use visitor::{TokenId, Visitor};
