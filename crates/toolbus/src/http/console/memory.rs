//! Working memory: how much each agent keeps, and under which keys. The contents of entries are not shown.

use axum::extract::{Path, Query};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use toolbus_memory::usage::{MemoryUsage, NamespaceUsage};
use toolbus_memory::working_memory::{EntryInfo, MemoryLimits};

use super::PATH;
use super::page::{PageWriter, agent_path, size, time, url_encoded};
use super::paging::Paged;

/// The path of the page.
const PAGE: &str = "/memory";
/// Agents that are shown.
const MAX_SHARES: usize = 100;
/// Start of names that are no agent's.
const UNKNOWN: &str = "unknown:";

/// Number of the page, as it is in the address.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MemoryFilter {
    page: String,
}

pub(super) async fn list(pages: PageWriter, Query(filter): Query<MemoryFilter>) -> Response {
    let (usage, limits) = match pages.admin().memory().await {
        Ok(Some(found)) => found,
        Ok(None) => return pages.off(PAGE, "Memory", "There is no working memory", "memory"),
        Err(error) => return pages.refused(&error),
    };
    let paged = Paged::new(&usage.namespaces, &filter.page);
    let main = html! {
        p #total data-part {
            (bytes(usage.bytes)) " of " (bytes(limits.max_total_size)) " are used. Each entry counts 256 bytes more than its texts."
        }
        @if usage.namespaces.is_empty() {
            p.empty #shares data-part {
                "Nothing is kept. Agents keep texts with " (pages.link("tools", "save_to_working_memory")) "."
            }
        } @else {
            (shares(&pages, &usage, &limits))
            section #namespaces data-part aria-label="Namespaces" {
                h2 { "Namespaces" }
                (paged.links(PAGE, &[]))
                table tabindex="0" {
                    caption.hidden { "Namespaces, those with the most entries first" }
                    thead { tr { th { "Of" } th { "Namespace" } th.number { "Entries" } } }
                    tbody { @for one in paged.rows { (namespace(&pages, one, &limits)) } }
                }
            }
        }
        @if !usage.is_whole { p.hint { "There are more, which are not shown." } }
    };
    pages.page(PAGE, "Memory", true, &main)
}

fn shares(pages: &PageWriter, usage: &MemoryUsage, limits: &MemoryLimits) -> Markup {
    html! {
        section #shares data-part aria-label="Agents" {
            h2 { "Agents" }
            table tabindex="0" {
                caption.hidden { "What limits are for, those with the most entries first" }
                thead { tr { th { "Agent" } th.number { "Entries" } th.number { "Size" } } }
                tbody { @for one in usage.shares.iter().take(MAX_SHARES) {
                    tr {
                        td {
                            @if *one.share == *UNKNOWN { "callers without a section" }
                            @else { (pages.link("memory", &one.share)) }
                        }
                        td.number { (one.entries) " of " (limits.max_entries) }
                        td.number { (bytes(one.bytes)) " of " (bytes(limits.max_size)) }
                    }
                } }
            }
        }
    }
}

fn namespace(pages: &PageWriter, one: &NamespaceUsage, limits: &MemoryLimits) -> Markup {
    html! {
        tr {
            td { (pages.link("memory", &one.owner)) }
            td { (pages.text(&one.namespace)) }
            td.number { (one.entries) " of " (limits.max_entries_per_namespace) }
        }
    }
}

pub(super) async fn one(pages: PageWriter, Path(owner): Path<String>, Query(filter): Query<MemoryFilter>) -> Response {
    let entries = match pages.admin().memory_of(&owner).await {
        Ok(Some(entries)) => entries,
        Ok(None) => return pages.off(PAGE, "Memory", "There is no working memory", "memory"),
        Err(error) => return pages.refused(&error),
    };
    let paged = Paged::new(&entries, &filter.page);
    let main = html! {
        @if !owner.starts_with(UNKNOWN) {
            p { a href=(format!("{PATH}{}", agent_path(&owner))) { "The agent" } }
        }
        div #rows data-part {
            (paged.links(&format!("{PAGE}/{}", url_encoded(&owner)), &[]))
            @if entries.is_empty() { p.empty { "It keeps nothing." } }
            @else { table tabindex="0" {
                caption.hidden { "Entries by key" }
                thead { tr {
                    th { "Key" } th { "Category" } th.number { "Characters" } th { "Saved" } th { "Ends" }
                } }
                tbody { @for entry in paged.rows { (row(&pages, entry)) } }
            } }
        }
    };
    pages.page(PAGE, &format!("Memory of {owner}"), true, &main)
}

fn row(pages: &PageWriter, entry: &EntryInfo) -> Markup {
    html! {
        tr {
            td.name { (pages.text(entry.key.as_str())) }
            td { @if let Some(category) = &entry.category { (pages.text(category)) } }
            td.number { (entry.characters) }
            td { (time(entry.saved_at.as_secs())) }
            td { (time(entry.expires_at.as_secs())) }
        }
    }
}

fn bytes(bytes: u64) -> String {
    size(usize::try_from(bytes).unwrap_or(usize::MAX))
}
