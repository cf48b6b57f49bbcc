//! The messages that agents and bridges exchange about servers.
//!
//! [`Index`] is what agents are told of servers, [`RefreshHandler`] answers those who ask to be told again, and [`ManageHandler`] answers
//! everything else that is asked about servers.

mod index;
mod manage;
mod refresh;
mod unserved;

pub use self::index::Index;
pub use self::manage::ManageHandler;
pub use self::refresh::{RefreshHandler, RememberedAgents};
