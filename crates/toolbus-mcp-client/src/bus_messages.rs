//! The messages about servers on the bus.
//!
//! [`Index`] publishes the servers of each agent, [`RefreshHandler`] handles requests to publish them again, and
//! [`ManageHandler`] all other requests about servers.

mod index;
mod manage;
mod refresh;
mod unserved;

pub use self::index::Index;
pub use self::manage::ManageHandler;
pub use self::refresh::{RefreshHandler, RememberedAgents};
