//! The servers as other parts use them: [`ServerControl`], and tools that are pending while a server connects.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::policy::EffectiveTools;
use toolbus_core::text::shown;
use toolbus_core::{Lookup, PendingTools, ToolRef};

use super::entry::ServerEntry;
use super::{ServerWithSet, Servers};
use crate::spec::{ServerName, ServerOrigin, ServerSpec};
use crate::status::ServerDescription;

/// Control of the servers, for messages and management tools.
pub trait ServerControl: Send + Sync + 'static {
    /// The servers of which a caller could use some tool, listed or not. No other server is
    /// refreshed or woken for that caller.
    fn within_reach(&self, effective: &EffectiveTools) -> Vec<ServerName>;

    /// Servers within reach that start on first use and have not been started: their tools are unknown.
    fn asleep(&self, effective: &EffectiveTools) -> Vec<ServerName>;

    /// Requests a listing of a server's tools; a waiting server connects at once. Does not wait for it.
    fn refresh(&self, server: &ServerName);

    /// Description and instructions of a server, if known. The name is case-insensitive.
    fn describe(&self, server: &str) -> Option<ServerDescription>;

    /// Starts a lazy server, and waits until its tools are known or that failed, at most until `latest`. Returns at
    /// once if there is nothing to wait for.
    fn wake<'a>(&'a self, server: &'a ServerName, latest: Instant) -> BoxFuture<'a, ()>;

    /// Adds a server, replaces a registered one of its name, and waits for its first connection, at most until
    /// `latest`; returns the names of its tools. Dropped half-way, the server is there or not.
    ///
    /// # Errors
    ///
    /// If it does not connect, with a reason for callers; the server then stays until it is removed. If a server of its
    /// name is configured; nothing is then changed.
    fn add<'a>(&'a self, spec: ServerSpec, latest: Instant) -> BoxFuture<'a, Result<Vec<String>, String>>;

    /// Removes a server with its tools. Returns `false` if there was none of this name.
    fn remove<'a>(&'a self, name: &'a ServerName) -> BoxFuture<'a, bool>;

    /// Origin of the server of this name (case-insensitive); `None` if there is none.
    fn origin(&self, name: &str) -> Option<ServerOrigin>;
}

/// No servers: for a daemon that has those of a bridge alone.
#[derive(Debug, Clone, Copy)]
pub struct NoServers;

impl ServerControl for NoServers {
    fn within_reach(&self, _: &EffectiveTools) -> Vec<ServerName> {
        Vec::new()
    }

    fn asleep(&self, _: &EffectiveTools) -> Vec<ServerName> {
        Vec::new()
    }

    fn refresh(&self, _: &ServerName) {}

    fn describe(&self, _: &str) -> Option<ServerDescription> {
        None
    }

    fn wake<'a>(&'a self, _: &'a ServerName, _: Instant) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn add<'a>(&'a self, _: ServerSpec, _: Instant) -> BoxFuture<'a, Result<Vec<String>, String>> {
        Box::pin(std::future::ready(Err("this daemon runs no MCP servers".to_owned())))
    }

    fn remove<'a>(&'a self, _: &'a ServerName) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(false))
    }

    fn origin(&self, _: &str) -> Option<ServerOrigin> {
        None
    }
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
                if self.origin(spec.name.as_str()) == Some(ServerOrigin::Configuration) {
                    return Err("a server of this name is configured".to_owned());
                }
                self.shared.add(ServerWithSet { spec, set: None })
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
            let entry =
                self.shared.entry(name.as_str()).filter(|entry| entry.spec().origin == ServerOrigin::Registration);
            entry.iter().for_each(|entry| self.shared.forget(entry));
            entry.is_some()
        })
    }

    fn origin(&self, name: &str) -> Option<ServerOrigin> {
        self.shared.entry(name).map(|entry| entry.spec().origin)
    }
}

/// Retry hint of a call whose tool is pending.
const RETRY_AFTER: Duration = Duration::from_secs(5);

impl PendingTools for Servers {
    fn expect<'a>(
        &'a self,
        wanted: ToolRef<'a>,
        effective: &'a EffectiveTools,
        latest: Instant,
    ) -> Option<BoxFuture<'a, ()>> {
        let (entries, is_named) = match wanted.route {
            Lookup::Server(server) => (self.shared.entry(server).into_iter().collect::<Vec<_>>(), true),
            Lookup::Name | Lookup::AnyServer => (self.entries().into_values().collect(), false),
        };
        let arriving: Vec<_> =
            entries.into_iter().filter(|entry| !entry.is_known() && may_use(entry, wanted, effective)).collect();
        if arriving.is_empty() {
            return None;
        }
        Some(Box::pin(async move {
            let mut each: FuturesUnordered<_> = arriving
                .iter()
                .map(async |entry| {
                    let until = if is_named { None } else { entry.promising_until() };
                    let until = until.map_or(latest, |until| until.min(latest));
                    let _ = tokio::time::timeout_at(until.into(), entry.arrival(is_named)).await;
                    entry
                })
                .collect();
            while let Some(entry) = each.next().await {
                if entry.has_brought(wanted.name) {
                    return;
                }
            }
        }))
    }

    fn out_of_reach(&self, wanted: ToolRef<'_>, effective: &EffectiveTools) -> Option<ToolFailure> {
        let Lookup::Server(server) = wanted.route else {
            let mut entries = self.entries().into_values();
            let is_open = entries.any(|entry| entry.is_untried() && may_use(&entry, wanted, effective));
            return is_open.then(|| not_known_yet(wanted.name));
        };
        let entry = self.shared.entry(server).filter(|entry| !entry.is_known())?;
        may_use(&entry, wanted, effective).then(|| entry.out_of_reach()).flatten()
    }
}

/// The failure of a call whose tool may belong to a server that is connecting for the first time.
fn not_known_yet(name: &str) -> ToolFailure {
    let text = format!(
        "Tool '{}' is not there yet: an MCP server that may have it is still being connected to. Try again in a few seconds.",
        shown(name)
    );
    ToolFailure::new(Cause::ConnectFailed, text).with_retry_after(RETRY_AFTER)
}

/// Whether the caller could use the tool if the server had it. A caller starts nothing, waits for nothing, and learns
/// of nothing that it could not use.
fn may_use(entry: &ServerEntry, wanted: ToolRef<'_>, effective: &EffectiveTools) -> bool {
    let is_published = !matches!(wanted.route, Lookup::Server(_));
    let imagined = entry.imagined(wanted.name, is_published);
    imagined.is_some_and(|descriptor| effective.admits(&descriptor))
        || (is_published && entry.may_offer_as(wanted.name, effective))
}
