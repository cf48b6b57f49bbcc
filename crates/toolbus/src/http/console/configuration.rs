//! The configuration: its files, the values in force, the present values of the files, and reloads.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use toolbus_core::policy::{AccessChange, CountedTools, access_changes};

use super::page::{PageWriter, Status};
use super::paging::Paged;
use super::servers::seconds;
use super::{ByOperator, PATH};
use crate::config::{Config, EffectiveValue, Problem, Problems};
use crate::http::LastReload;
use crate::http::slots::ConnectionState;

/// Most differences between the files and the values in force that are shown.
const MAX_DIFFERENCES: usize = 200;
/// Most agents whose tools change that are shown, and most tools of each.
const MAX_AGENTS: usize = 100;
const MAX_TOOLS: usize = 20;
/// Value of [`ValueFilter::show`] with which defaults are shown, too.
const ALL: &str = "all";
/// Checks at a time: each reads every file.
static CHECKS: Semaphore = Semaphore::const_new(1);

/// Which values are shown, as the address has it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ValueFilter {
    key: String,
    show: String,
    page: String,
}

pub(super) async fn page(pages: PageWriter, Query(filter): Query<ValueFilter>) -> Response {
    let config = Arc::clone(&pages.console.config.borrow());
    let status = pages.admin().daemon.as_ref().map(|daemon| daemon.status());
    let (files, last) = status.map(|status| (status.files, status.status.reload)).unwrap_or_default();
    let (key, is_all) = (filter.key.trim().to_owned(), filter.show == ALL);
    let telling =
        spawn_blocking(move || config.effective(|own, origin| own.contains(&key) && (is_all || origin.is_some())));
    let Ok(values) = telling.await else {
        return pages.refusal(StatusCode::INTERNAL_SERVER_ERROR, "The values could not be read.");
    };
    let paged = Paged::new(&values, &filter.page);
    let main = html! {
        h2 { "Files" }
        @if files.is_empty() { p.empty { "None: the defaults, the environment and the command line alone." } }
        @else {
            ol { @for file in &files { li { (pages.text(&file.display().to_string())) } } }
            p.hint { "Later files are laid over earlier ones." }
        }
        p {
            a href=(format!("{PATH}/configuration/check")) { "Check the files" } " "
            (pages.action("/configuration/reload", "Reload", &[]))
        }
        h2 { "Last reload" }
        (last_reload(&pages, last.as_ref()))
        h2 { "Values in force" }
        p.hint {
            "Of the running daemon, not of the files as they are now. What waits for a restart has its old value. "
            "Secrets are not shown."
        }
        form.filter role="search" aria-label="Filter" {
            label { "Key has " input name="key" value=(filter.key); }
            label { "Values " select name="show" {
                option value="" { "given" } option value=(ALL) selected[filter.show == ALL] { "all, with defaults" }
            } }
            button { "Filter" }
        }
        @if values.is_empty() {
            p.empty { "No value is meant. Choose " em { "all, with defaults" } ", or another part of a key." }
        }
        @else {
            (paged.links("/configuration", &[("key", &filter.key), ("show", &filter.show)]))
            table tabindex="0" {
                caption.hidden { "Values in force" }
                thead { tr { th { "Key" } th { "Value" } th { "Given in" } } }
                tbody { @for value in paged.rows { tr {
                    td.name { (pages.text(&value.key)) }
                    td.name { (pages.text(&value.value)) }
                    td { @match &value.origin { Some(origin) => (pages.text(origin)), None => span.dim { "default" } } }
                } } }
            }
        }
    };
    pages.page("/configuration", "Configuration", false, &main)
}

fn last_reload(pages: &PageWriter, last: Option<&LastReload>) -> Markup {
    let Some(LastReload { seconds_ago, report }) = last else {
        return html! { p.empty { "There was none since the start." } };
    };
    let row = |title: &str, names: &[String]| {
        html! {
            @if !names.is_empty() {
                dt { (title) }
                dd { @for (index, name) in names.iter().enumerate() { @if index > 0 { ", " } (pages.text(name)) } }
            }
        }
    };
    html! {
        p {
            @if report.applied { (Status::Ok.mark()) " applied " }
            @else { (Status::Failed.mark()) " refused; everything stayed as it was, " }
            (seconds(*seconds_ago)) " ago"
        }
        @if let Some(error) = &report.error { (pages.block(error)) }
        dl {
            (row("Changed", &report.changed))
            (row("Needs a restart", &report.waiting))
            (row("New tools", &report.added))
            (row("Removed tools", &report.removed))
        }
        (warnings(pages, &report.warnings))
    }
}

fn warnings(pages: &PageWriter, warnings: &[String]) -> Markup {
    html! {
        @if !warnings.is_empty() {
            ul { @for warning in warnings { li { (Status::Slow.mark()) " " (pages.text(warning)) } } }
        }
    }
}

/// A value that is another one in the files.
struct Differing {
    key: String,
    in_force: Option<String>,
    in_files: Option<String>,
    origin: Option<String>,
}

pub(super) async fn check(pages: PageWriter, connection: Option<Extension<Arc<ConnectionState>>>) -> Response {
    // As for a reload.
    if let Some(Extension(connection)) = connection {
        connection.take_any_time();
    }
    let Ok(one_at_a_time) = CHECKS.try_acquire() else {
        return pages
            .refusal(StatusCode::SERVICE_UNAVAILABLE, "The files are being checked already. Try again in a moment.");
    };
    let (running, sources) = (Arc::clone(&pages.console.config.borrow()), pages.console.sources.clone());
    let registry = pages.admin().gates.policy().registry().clone();
    let checking = spawn_blocking(move || {
        // A check goes on when its client disconnects.
        let _one_at_a_time = one_at_a_time;
        let loaded = Config::load_again(&sources, &running)?;
        let different = differences(running.effective(|_, _| true), loaded.config.effective(|_, _| true));
        let warnings = [loaded.config.suspects(), loaded.config.missing_programs(), loaded.warnings].concat();
        // Loading refuses rules with mistakes.
        let policies = running.policy().ok().zip(loaded.config.policy().ok());
        let changes = |(present, next)| access_changes(&registry, present, next, MAX_TOOLS);
        let access = policies.map(changes).unwrap_or_default();
        Ok::<_, Problems>((different, access, warnings))
    });
    let Ok(checked) = checking.await else {
        return pages.refusal(StatusCode::INTERNAL_SERVER_ERROR, "The files could not be checked.");
    };
    let main = html! {
        p.hint { "The files as they are now, with the daemon's environment and command line. Nothing was changed." }
        @match &checked {
            Err(Problems(problems)) => {
                p { (Status::Failed.mark()) " A reload would be refused." }
                table tabindex="0" {
                    thead { tr { th { "Where" } th { "Key" } th { "Problem" } } }
                    tbody { @for Problem { location, key, what } in problems { tr {
                        td { (pages.text(location)) } td.name { (pages.text(key)) } td { (pages.block(what)) }
                    } } }
                }
            }
            Ok((different, access, notes)) => {
                p { (Status::Ok.mark()) " No mistake was found." }
                (warnings(&pages, notes))
                h2 { "Different from what is in force" }
                (differing(&pages, different))
                h2 { "Who would gain or lose tools" }
                (changed_access(&pages, access))
            }
        }
        p {
            a href=(format!("{PATH}/configuration")) { "Back to what is in force" } " "
            (pages.action("/configuration/reload", "Reload", &[]))
        }
    };
    pages.page("/configuration", "Check of the files", false, &main)
}

fn changed_access(pages: &PageWriter, changes: &[AccessChange]) -> Markup {
    let names = |tools: &CountedTools| {
        html! {
            @for tool in &tools.first { div { (pages.link("tools", tool)) } }
            @if tools.count > MAX_TOOLS { span.dim { "and " (tools.count - MAX_TOOLS) " more" } }
        }
    };
    html! {
        p.hint { "By the rules for agents, of the tools that there are now." }
        @if changes.is_empty() { p.empty { "No agent." } }
        @else {
            table #access tabindex="0" {
                thead { tr { th { "Agent" } th { "Gains" } th { "Loses" } } }
                tbody { @for change in changes.iter().take(MAX_AGENTS) { tr {
                    td { (pages.link("agents", &change.agent)) }
                    td { (names(&change.gains)) }
                    td { (names(&change.loses)) }
                } } }
            }
            @if changes.len() > MAX_AGENTS { p.dim { "and " (changes.len() - MAX_AGENTS) " more" } }
        }
    }
}

fn differing(pages: &PageWriter, different: &[Differing]) -> Markup {
    let value = |value: &Option<String>| match value {
        Some(value) => pages.text(value),
        None => html! { span.dim { "absent" } },
    };
    html! {
        @if different.is_empty() { p.empty { "Nothing but perhaps a secret: those are not compared." } }
        @else {
            table tabindex="0" {
                thead { tr { th { "Key" } th { "In force" } th { "In the files" } th { "Given in" } } }
                tbody { @for one in different.iter().take(MAX_DIFFERENCES) { tr {
                    td.name { (pages.text(&one.key)) }
                    td.name { (value(&one.in_force)) }
                    td.name { (value(&one.in_files)) }
                    td { @if let Some(origin) = &one.origin { (pages.text(origin)) } }
                } } }
            }
            @if different.len() > MAX_DIFFERENCES { p.dim { "and " (different.len() - MAX_DIFFERENCES) " more" } }
        }
    }
}

/// The values that differ, by key.
fn differences(in_force: Vec<EffectiveValue>, in_files: Vec<EffectiveValue>) -> Vec<Differing> {
    let mut by_key: BTreeMap<String, Differing> = BTreeMap::new();
    for EffectiveValue { key, value, .. } in in_force {
        by_key.insert(key.clone(), Differing { key, in_force: Some(value), in_files: None, origin: None });
    }
    for EffectiveValue { key, value, origin } in in_files {
        let entry = by_key.entry(key.clone());
        let one = entry.or_insert_with(|| Differing { key, in_force: None, in_files: None, origin: None });
        (one.in_files, one.origin) = (Some(value), origin);
    }
    by_key.into_values().filter(|one| one.in_force != one.in_files).collect()
}

pub(super) async fn reload(
    pages: PageWriter,
    Extension(operator): ByOperator,
    connection: Option<Extension<Arc<ConnectionState>>>,
) -> Response {
    // Reading specifications takes longer than other requests may.
    if let Some(Extension(connection)) = connection {
        connection.take_any_time();
    }
    pages.acted(pages.admin().by(operator).reload().await, "/configuration")
}
