//! Tools that may still come: of servers that are being connected to, and of lazy ones.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::log::shown;
use toolbus_core::policy::EffectiveTools;
use toolbus_core::{Lookup, PendingTools, ToolRef};

use super::Servers;
use super::entry::ServerEntry;

/// When a caller may try again whose tool may still come.
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

/// What is told of a tool that a server may have which is being connected to for the first time.
fn not_known_yet(name: &str) -> ToolFailure {
    let text = format!(
        "Tool '{}' is not there yet: an MCP server that may have it is still being connected to. Try again in a few seconds.",
        shown(name)
    );
    ToolFailure::new(Cause::ConnectFailed, text).with_retry_after(RETRY_AFTER)
}

/// Whether the caller could use the tool if the server had it. A caller starts nothing, waits for nothing, and learns of
/// nothing that it could not use.
fn may_use(entry: &ServerEntry, wanted: ToolRef<'_>, effective: &EffectiveTools) -> bool {
    let is_published = !matches!(wanted.route, Lookup::Server(_));
    let imagined = entry.imagined(wanted.name, is_published);
    imagined.is_some_and(|descriptor| effective.admits(&descriptor))
        || (is_published && entry.may_offer_as(wanted.name, effective))
}
