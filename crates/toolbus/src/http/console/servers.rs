//! MCP servers, tool sets of other daemons, and the runner of scripts.

use axum::Extension;
use axum::extract::{Path, Query};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use toolbus_mcp_client::status::{PhaseName, ServerStatus};

use super::access::Fields;
use super::page::{PageWriter, Status, duration, tool_path, url_encoded};
use super::paging::Paged;
use super::{ByOperator, PATH};
use crate::http::admin::view::McpServerList;
use crate::http::{OpenBreaker, RemotePhase, RemoteSetHealth, ScriptStatus};

/// Microseconds in a millisecond.
const MICROSECONDS: f64 = 1_000.0;

pub(super) async fn list(pages: PageWriter) -> Response {
    let McpServerList { servers, problems } = pages.admin().servers();
    let health = pages.admin().daemon.as_ref().map(|daemon| daemon.status().status);
    let (remote, scripts) = health.map(|health| (health.remote, health.script)).unwrap_or_default();
    let main = html! {
        section #problems data-part {
            @if !problems.is_empty() {
                h2 { "Left out" }
                ul { @for problem in &problems { li { (Status::Failed.mark()) " " (pages.text(problem)) } } }
            }
        }
        @if servers.is_empty() {
            p.empty #servers data-part {
                "There is no MCP server. "
                code { "toolbus mcp add files -- npx -y @modelcontextprotocol/server-filesystem ." } " adds one to the file of " code { "mcp.servers_file" } ", which is read at once; the section "
                code { "[mcp.servers.NAME]" } " of the configuration does so with the next reload."
            }
        } @else {
            table #servers data-part {
                caption.hidden { "MCP servers" }
                thead { tr {
                    th { "Server" } th { "Phase" } th.number { "Tools" } th.number { "Hidden" } th.number { "Shadowed" }
                    th.number { "Suspect" } th.number { "Running" } th.number { "Restarts" } th { "Last error" }
                } }
                tbody { @for server in &servers { (row(&pages, server)) } }
            }
        }
        (remote_sets(&pages, &remote))
        (script_runner(&pages, scripts.as_ref()))
    };
    pages.page("/servers", "MCP servers", true, &main)
}

fn row(pages: &PageWriter, server: &ServerStatus) -> Markup {
    html! {
        tr data-id=(server.name) {
            td { (pages.link("servers", &server.name)) }
            td { (phase(server.phase)) }
            td.number { (server.tools.len()) }
            td.number { (server.hidden.len()) }
            td.number { (server.shadowed_total) }
            td.number { (server.suspect_total) }
            td.number { (server.in_flight) }
            td.number { (server.restarts) }
            td { @if let Some(error) = &server.last_error { (pages.text(error)) } }
        }
    }
}

fn phase(phase: PhaseName) -> Markup {
    let status = match phase {
        PhaseName::Ready => Status::Ok,
        PhaseName::Connecting => Status::Slow,
        PhaseName::Waiting | PhaseName::Parked | PhaseName::AuthRequired => Status::Failed,
        PhaseName::Idle | PhaseName::Disabled | PhaseName::Stopped => Status::Off,
    };
    html! {
        (status.mark()) " " (phase.as_str().replace('-', " "))
        @if let Some(why) = in_words(phase) { " " span.dim { (why) } }
    }
}

/// The next step of a server that takes no calls now.
const fn in_words(phase: PhaseName) -> Option<&'static str> {
    match phase {
        PhaseName::Idle => Some("(its first call starts it)"),
        PhaseName::Waiting => Some("(tried again soon)"),
        PhaseName::Parked => Some("(tried again rarely; restart it to try now)"),
        PhaseName::AuthRequired => Some("(needs credentials)"),
        PhaseName::Disabled => Some("(in the configuration)"),
        PhaseName::Ready | PhaseName::Connecting | PhaseName::Stopped => None,
    }
}

fn remote_sets(pages: &PageWriter, sets: &[RemoteSetHealth]) -> Markup {
    let status = |phase| match phase {
        RemotePhase::Ready => Status::Ok,
        RemotePhase::Waiting => Status::Slow,
        RemotePhase::Away => Status::Failed,
    };
    html! {
        section #remote data-part {
            @if !sets.is_empty() {
                h2 { "Tool sets of other daemons" }
                table tabindex="0" {
                    thead { tr {
                        th { "Tool set" } th { "Phase" } th.number { "Tools" } th.number { "Hidden" }
                        th.number { "Suspect" } th.number { "Listed" } th { "Problems" }
                    } }
                    tbody { @for set in sets { tr {
                        td { (pages.text(&set.name)) }
                        td { (status(set.phase).mark()) " " (set.phase.as_str()) }
                        td.number { (set.tools) }
                        td.number { (set.hidden) }
                        td.number { (set.suspect) }
                        td.number { @match set.list_age_seconds { Some(age) => { (seconds(age)) " ago" } None => "never" } }
                        td {
                            @if let Some(error) = &set.last_error { (pages.text(error)) }
                            @if !set.rivals.is_empty() {
                                " also run by " (pages.text(&set.rivals.join(", "))) ", whose replies are dropped"
                            }
                        }
                    } } }
                }
            }
        }
    }
}

fn script_runner(pages: &PageWriter, status: Option<&ScriptStatus>) -> Markup {
    html! {
        section #scripts data-part {
            @if let Some(ScriptStatus { runner, running, waiting, sessions }) = status {
                h2 { "Runner of scripts" }
                dl {
                    dt { "Runner" }
                    dd { (runner.runner) @if let Some(level) = runner.level { ", level " (level.to_string()) } }
                    dt { "Confined by" }
                    dd {
                        @if runner.layers.is_empty() { (Status::Slow.mark()) " nothing of the daemon's" }
                        @else { (runner.layers.join(", ")) }
                    }
                    @if let Some(python) = &runner.python { dt { "Python" } dd { (pages.text(python)) } }
                    dt { "Running" } dd.number { (running) }
                    dt { "Waiting" } dd.number { (waiting) }
                    dt { "Interpreters" } dd.number { (sessions) " kept by sessions, " (runner.warm) " ready" }
                }
            }
        }
    }
}

/// Which tools of a server are shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Shown {
    page: String,
}

pub(super) async fn one(pages: PageWriter, Path(name): Path<String>, Query(Shown { page }): Query<Shown>) -> Response {
    let server = match pages.admin().server(&name) {
        Ok(server) => server,
        Err(error) => return pages.refused(&error),
    };
    let main = html! {
        (facts(&pages, &server))
        (tools(&pages, &server, &page))
        (shadowed(&pages, &server))
        (hidden(&pages, &server))
        (suspect(&pages, &server))
        (cleaned(&pages, &server))
        section #stderr data-part {
            h2 { "Standard error, its end" }
            @if server.stderr.is_empty() { p.empty { "It wrote nothing, or it is no program of this machine." } }
            @else { (pages.block(&server.stderr.join("\n"))) }
        }
    };
    pages.page("/servers", &format!("MCP server {}", server.name), true, &main)
}

fn facts(pages: &PageWriter, server: &ServerStatus) -> Markup {
    let source = source(&server.name);
    let path = path(&server.name);
    let breaker = pages.admin().breakers().breakers.into_iter().find(|breaker| breaker.name == source);
    let is_off = pages.admin().disabled().iter().any(|switch| switch.kind == "source" && switch.name == source);
    let switch = |label: &str, off: &str| pages.action(&format!("{path}/switch"), label, &[("off", off)]);
    let text = |name: &str, value: Option<&str>| {
        html! { @if let Some(value) = value { dt { (name) } dd { (pages.text(value)) } } }
    };
    html! {
        dl #facts data-part {
            dt { "Phase" } dd { (phase(server.phase)) " " (pages.action(&format!("{path}/restart"), "Restart", &[])) }
            (text("Last error", server.last_error.as_deref()))
            dt { "Switch" }
            dd {
                @if is_off { (Status::Off.mark()) " its tools are switched off " (switch("Switch on", "false")) }
                @else { "on " (switch("Switch off", "true")) }
            }
            dt { "Circuit breaker" }
            dd { @match &breaker {
                None => "closed",
                Some(breaker) => { (open(breaker)) " " (pages.action(&format!("{path}/reset"), "Reset", &[])) }
            } }
            (text("Transport", Some(&server.transport)))
            (text("Protocol", server.protocol_version.as_deref()))
            (text("Calls itself", server.implementation.as_deref()))
            (text("Origin", Some(&server.origin)))
            (text("Tool set", server.toolset.as_deref()))
            @if server.sessions > 0 { dt { "Sessions" } dd.number { (server.sessions) } }
            @if let Some(pid) = server.pid { dt { "Process" } dd.number { (pid) } }
            @if let Some(ready) = server.ready_seconds { dt { "Ready for" } dd { (seconds(ready)) } }
            dt { "Restarts" } dd.number { (server.restarts) }
            dt { "Running calls" } dd.number { (server.in_flight) }
            @if let Some(latency) = server.latency_us {
                dt { "Last response in" } dd { (duration(milliseconds(latency))) }
            }
        }
    }
}

/// An open circuit breaker, and when its next trial is.
pub(super) fn open(breaker: &OpenBreaker) -> Markup {
    let OpenBreaker { failures, open_ms, next_trial_ms, on_trial, .. } = breaker;
    html! {
        (Status::Failed.mark()) " open for " (seconds(open_ms / 1_000)) " after " (failures) " failures; "
        @if *on_trial { "a trial is under way" }
        @else if *next_trial_ms == 0 { "the next call is a trial" }
        @else { "next trial in " (seconds(next_trial_ms.div_ceil(1_000))) }
    }
}

fn tools(pages: &PageWriter, server: &ServerStatus, page: &str) -> Markup {
    let paged = Paged::new(&server.tools, page);
    html! {
        section #tools data-part {
            h2 { "Tools" }
            @if server.tools.is_empty() { p.empty { "None is offered now." } }
            @else {
                (paged.links(&format!("/servers/{}", url_encoded(&server.name)), &[]))
                ul.columns { @for tool in paged.rows { li {
                    (pages.link("tools", tool))
                    @if pages.visitor.may_act { " " a href=(format!("{PATH}{}#call", tool_path(tool))) { "try" } }
                } } }
            }
        }
    }
}

fn shadowed(pages: &PageWriter, server: &ServerStatus) -> Markup {
    let hint = html! {
        "Another source has their names. Give the server a " code { "prefix" } ", or " code { "rename" } " the tools."
    };
    let rows = server.shadowed.iter().map(|tool| [&tool.name, &tool.owner].map(|text| pages.text(text)));
    let section = Section { id: "shadowed", title: "Shadowed tools", hint: Some(hint), total: server.shadowed_total };
    section.table(["Tool", "The name belongs to"], rows)
}

fn hidden(pages: &PageWriter, server: &ServerStatus) -> Markup {
    let rows = server.hidden.iter().map(|tool| [&tool.name, &tool.reason].map(|text| pages.text(text)));
    let section = Section { id: "hidden", title: "Hidden tools", hint: None, total: server.hidden.len() };
    section.table(["Tool", "Reason"], rows)
}

fn suspect(pages: &PageWriter, server: &ServerStatus) -> Markup {
    let rows = server.suspect.iter().flat_map(|texts| {
        texts.suspicions.iter().map(|suspicion| {
            let texts = [&*texts.name, &*suspicion.rule, &*suspicion.place, &*suspicion.excerpt];
            texts.map(|text| pages.text(text))
        })
    });
    let section = Section { id: "suspect", title: "Suspect definitions", hint: None, total: server.suspect_total };
    section.table(["Tool", "Rule", "Place", "Text"], rows)
}

fn cleaned(pages: &PageWriter, server: &ServerStatus) -> Markup {
    let rows =
        server.cleaned.iter().map(|texts| [&texts.name, &texts.removed.to_string()].map(|text| pages.text(text)));
    let section = Section { id: "cleaned", title: "Cleaned texts", hint: None, total: server.cleaned_total };
    section.table(["Tool", "Removed"], rows)
}

/// A part of a server's page with one table.
struct Section {
    id: &'static str,
    title: &'static str,
    hint: Option<Markup>,
    /// Number of rows that there are, which may be more than are given.
    total: usize,
}

impl Section {
    /// The part with its rows; an empty element without rows.
    fn table<const N: usize>(&self, heads: [&str; N], rows: impl Iterator<Item = [Markup; N]>) -> Markup {
        let rows: Vec<_> = rows.collect();
        html! {
            section id=(self.id) data-part { @if !rows.is_empty() {
                h2 { (self.title) }
                @if let Some(hint) = &self.hint { p.hint { (hint) } }
                table tabindex="0" {
                    thead { tr { @for head in heads { th { (head) } } } }
                    tbody { @for row in &rows { tr { @for cell in row { td { (cell) } } } } }
                }
                @if self.total > rows.len() { p.dim { "and " (self.total - rows.len()) " more" } }
            } }
        }
    }
}

/// The source of a server's tools.
fn source(server: &str) -> String {
    format!("mcp:{server}")
}

#[expect(clippy::cast_precision_loss, reason = "a latency has far fewer than 2^52 microseconds")]
fn milliseconds(microseconds: u64) -> f64 {
    microseconds as f64 / MICROSECONDS
}

/// Seconds for people.
#[expect(clippy::cast_precision_loss, reason = "a time of the daemon has far fewer than 2^52 milliseconds")]
pub(super) fn seconds(seconds: u64) -> String {
    if seconds < 60 { format!("{seconds} s") } else { duration(seconds as f64 * 1_000.0) }
}

/// The path of a server's page.
fn path(name: &str) -> String {
    format!("/servers/{}", url_encoded(name))
}

pub(super) async fn restart(pages: PageWriter, Extension(operator): ByOperator, Path(name): Path<String>) -> Response {
    pages.acted(pages.admin().by(operator).restart_server(&name), &path(&name))
}

pub(super) async fn reset(pages: PageWriter, Extension(operator): ByOperator, Path(name): Path<String>) -> Response {
    pages.acted(pages.admin().by(operator).reset_breaker(source(&name)), &path(&name))
}

pub(super) async fn switch(
    pages: PageWriter,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
    Path(name): Path<String>,
) -> Response {
    pages.switch(operator, ("source", &source(&name)), &fields, &path(&name)).await
}
