//! The servers, for messages about them.

use std::time::Instant;

use futures_util::future::BoxFuture;
use toolbus_core::policy::EffectiveTools;

use super::{PlacedServer, Servers};
use crate::spec::{Origin, ServerName, ServerSpec};

/// The servers, as far as the messages about them need them.
pub trait ServerControl: Send + Sync + 'static {
    /// The servers of which a caller could use some tool, whether they have such a one or not. No other server is
    /// refreshed or woken for that caller.
    fn within_reach(&self, effective: &EffectiveTools) -> Vec<ServerName>;

    /// Those of them that have never been started, and are by their first use: nobody knows their tools.
    fn asleep(&self, effective: &EffectiveTools) -> Vec<ServerName>;

    /// Asks a server to list its tools again; one that waits for its next try is tried at once. Returns at once.
    fn refresh(&self, server: &ServerName);

    /// What a server, named in any case, says of itself, if that is known.
    fn describe(&self, server: &str) -> Option<ServerDescription>;

    /// Starts a lazy server, and waits until its tools are known or that failed, at most until `latest`. Where there is
    /// nothing to wait for it returns at once.
    fn wake<'a>(&'a self, server: &'a ServerName, latest: Instant) -> BoxFuture<'a, ()>;

    /// Adds a server, in place of any other of its name that was registered, and waits for its first connection, at most
    /// until `latest`; gives the names of its tools. Dropped half-way, the server is there or not.
    ///
    /// # Errors
    ///
    /// When it is not connected, with a reason that callers may read; the server then stays until it is removed. When a
    /// server of its name is configured; nothing is then changed.
    fn add<'a>(&'a self, spec: ServerSpec, latest: Instant) -> BoxFuture<'a, Result<Vec<String>, String>>;

    /// Removes a server and what it registered; false when there was none of this name.
    fn remove<'a>(&'a self, name: &'a ServerName) -> BoxFuture<'a, bool>;

    /// Who added the server of this name, in any case of letters; absent when there is none.
    fn origin(&self, name: &str) -> Option<Origin>;
}

/// What a server says of itself. The texts are the server's own, and bounded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerDescription {
    /// Its name, as configured.
    pub name: String,
    /// What it is.
    pub description: Option<String>,
    /// How it wants to be used.
    pub instructions: Option<String>,
}

impl ServerControl for Servers {
    fn within_reach(&self, effective: &EffectiveTools) -> Vec<ServerName> {
        let entries = self.entries().into_iter();
        entries.filter(|(_, entry)| entry.is_within_reach(effective)).map(|(name, _)| name).collect()
    }

    fn asleep(&self, effective: &EffectiveTools) -> Vec<ServerName> {
        let entries = self.entries().into_iter();
        entries
            .filter(|(_, entry)| entry.is_asleep() && entry.is_within_reach(effective))
            .map(|(name, _)| name)
            .collect()
    }

    fn refresh(&self, server: &ServerName) {
        self.shared.entry(server.as_str()).iter().for_each(|entry| entry.relist());
    }

    fn describe(&self, server: &str) -> Option<ServerDescription> {
        self.shared.entry(server)?.describe()
    }

    fn wake<'a>(&'a self, server: &'a ServerName, latest: Instant) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(entry) = self.shared.entry(server.as_str()).filter(|entry| !entry.is_known()) {
                let _ = tokio::time::timeout_at(latest.into(), entry.arrival(true)).await;
            }
        })
    }

    fn add<'a>(&'a self, spec: ServerSpec, latest: Instant) -> BoxFuture<'a, Result<Vec<String>, String>> {
        Box::pin(async move {
            let entry = {
                let _one_at_a_time = self.changing();
                if self.origin(spec.name.as_str()) == Some(Origin::Configuration) {
                    return Err("a server of this name is configured".to_owned());
                }
                self.shared.add(PlacedServer { spec, set: None })
            };
            let _ = tokio::time::timeout_at(latest.into(), entry.arrival(false)).await;
            if entry.is_known() {
                return Ok(entry.tool_names());
            }
            Err(entry.last_error().unwrap_or_else(|| "the server did not get ready in time".to_owned()))
        })
    }

    fn remove<'a>(&'a self, name: &'a ServerName) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let _one_at_a_time = self.changing();
            let entry = self.shared.entry(name.as_str()).filter(|entry| entry.spec().origin == Origin::Registration);
            entry.iter().for_each(|entry| self.shared.forget(entry));
            entry.is_some()
        })
    }

    fn origin(&self, name: &str) -> Option<Origin> {
        self.shared.entry(name).map(|entry| entry.spec().origin)
    }
}
