//! The messages that agents and bridges exchange about servers.
//!
//! [`Index`] is what agents are told of servers, [`Refresh`] answers those who ask to be told again, and [`Manage`] answers
//! everything else that is asked about servers.

mod index;
mod manage;
mod refresh;
mod register;
mod remembered;
mod unserved;
mod wait_limits;

use std::time::Instant;

use futures_util::future::BoxFuture;
use toolbus_core::policy::EffectiveTools;

use crate::spec::ServerName;

pub use self::index::Index;
pub use self::manage::Manage;
pub use self::refresh::Refresh;
pub use self::remembered::AskedBefore;

/// The servers, as far as the messages about them need them.
pub trait Servers: Send + Sync + 'static {
    /// The servers of which a caller could use some tool, whether they have such a one or not. No other server is
    /// refreshed or woken for that caller.
    fn within_reach(&self, effective: &EffectiveTools) -> Vec<ServerName>;

    /// Those of them that have never been started, and are by their first use: nobody knows their tools.
    fn asleep(&self, effective: &EffectiveTools) -> Vec<ServerName>;

    /// Asks a server to list its tools again; one that waits for its next try is tried at once. Returns at once.
    fn refresh(&self, server: &ServerName);

    /// What a server, named in any case, says of itself, if that is known.
    fn about(&self, server: &str) -> Option<AboutServer>;

    /// Starts a lazy server, and waits until its tools are known or that failed, at most until `latest`. Where there is
    /// nothing to wait for it returns at once.
    fn wake<'a>(&'a self, server: &'a ServerName, latest: Instant) -> BoxFuture<'a, ()>;
}

/// What a server says of itself. The texts are the server's own, and bounded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AboutServer {
    /// Its name, as configured.
    pub name: String,
    /// What it is.
    pub description: Option<String>,
    /// How it wants to be used.
    pub instructions: Option<String>,
}
