//! The messages that agents and bridges exchange about servers.
//!
//! [`Index`] is what agents are told of servers, [`Refresh`] answers those who ask to be told again, and [`Manage`] answers
//! everything else that is asked about servers.

mod further;
mod index;
mod manage;
mod refresh;
mod register;

use std::time::Instant;

use futures_util::future::BoxFuture;

pub use self::index::Index;
pub use self::manage::Manage;
pub use self::refresh::Refresh;

/// The servers, as far as the messages about them need them.
pub trait Servers: Send + Sync + 'static {
    /// Asks a server, or all, to list its tools again; servers that are not connected are tried at once. Returns at once.
    fn refresh(&self, server: Option<&str>);

    /// What a server, named in any case, says of itself, if that is known.
    fn about(&self, server: &str) -> Option<AboutServer>;

    /// Starts a lazy server, named in any case, and waits until its tools are known or that failed, at most until
    /// `latest`. Where there is nothing to wait for it returns at once.
    fn wake<'a>(&'a self, server: &'a str, latest: Instant) -> BoxFuture<'a, ()>;
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
