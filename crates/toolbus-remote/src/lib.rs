//! Tools that others run, over the bus: those of other daemons, of programs that provide tools, of bridges of MCP servers,
//! and scripts at a scripts manager.
//!
//! [`RemoteDaemons`] makes calls there and follows what is listed there; [`backend`] has the tools of a daemon elsewhere as
//! the backend of an MCP server. Both are on `toolbus-client`.

pub mod backend;
mod bridge;
mod calling;
mod following;
mod listing;
mod remote;
mod script;

pub use following::{RemoteFollower, RemoteListing, RemoteNews};
pub use remote::{BridgedServer, RemoteDaemons, RemoteTool};
pub use script::{MAX_SCRIPT_SECONDS, RemoteScripts, SCRIPT_GRACE};
