//! All that gets no calls: tools, agents and sources that are switched off, and open circuit breakers.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::access::{Fields, Visitor};
use super::page::{Pages, Status, url_encoded};
use super::servers::open;
use super::{ByOperator, ConsoleState, PATH, done};
use crate::http::OpenBreaker;
use crate::http::admin::Admin;
use crate::http::admin::view::{ApiError, Switched};

pub(super) async fn page(State(console): ConsoleState, Extension(visitor): Extension<Arc<Visitor>>) -> Response {
    let pages = Pages::new(&console, &visitor);
    let main = html! {
        (parts(&pages, &console.admin))
        @if visitor.may_act {
            h2 { "Switch something off" }
            form.filter method="post" action=(format!("{PATH}/switches")) {
                (pages.proof())
                input type="hidden" name="off" value="true";
                label { "What " select name="kind" { @for kind in ["tool", "agent", "source"] { option { (kind) } } } }
                label { "Name " input name="name" required autocomplete="off"; }
                button { "Switch off" }
            }
            p.hint {
                "At once, for all callers, and also after a restart. Calls that run go on. A source is "
                code { "rest" } ", " code { "mcp:NAME" } " and so on."
            }
        }
    };
    pages.page("/switches", "Switches and circuit breakers", true, &main)
}

/// Switches that are off, and which circuit breakers are open, with what undoes it.
pub(super) fn parts(pages: &Pages<'_>, admin: &Admin) -> Markup {
    let (off, breakers) = (admin.disabled(), admin.breakers().breakers);
    html! {
        section #off data-part aria-label="Switched off" {
            h2 { "Switched off" }
            @if off.is_empty() { p.empty { "Nothing is switched off." } }
            @else { table tabindex="0" {
                thead { tr { th { "What" } th { "Name" } th { span.hidden { "Action" } } } }
                tbody { @for switch in &off { (switched(pages, switch)) } }
            } }
        }
        section #breakers data-part aria-label="Circuit breakers" {
            h2 { "Open circuit breakers" }
            @if breakers.is_empty() {
                p.empty { "No circuit breaker is open: no tool and no MCP server fails again and again." }
            }
            @else { table tabindex="0" {
                thead { tr { th { "Tool or server" } th { "State" } th { span.hidden { "Action" } } } }
                tbody { @for breaker in &breakers { (opened(pages, breaker)) } }
            } }
        }
    }
}

fn switched(pages: &Pages<'_>, Switched { kind, name }: &Switched) -> Markup {
    html! {
        tr {
            td { (Status::Off.mark()) " " (kind) }
            td { (link(pages, kind, name)) }
            td { (pages.action("/switches", "Switch on", &[("kind", kind), ("name", name), ("off", "false")])) }
        }
    }
}

fn opened(pages: &Pages<'_>, breaker: &OpenBreaker) -> Markup {
    let kind = if breaker.name.starts_with(MCP) { "source" } else { "tool" };
    html! {
        tr {
            td { (link(pages, kind, &breaker.name)) }
            td { (open(breaker)) }
            td { (pages.action("/switches/reset", "Reset", &[("name", &breaker.name)])) }
        }
    }
}

/// Prefix of the source names of MCP servers.
const MCP: &str = "mcp:";

fn link(pages: &Pages<'_>, kind: &str, name: &str) -> Markup {
    match (kind, name.strip_prefix(MCP)) {
        ("tool", _) => pages.link("tools", name),
        ("agent", _) => pages.link("agents", name),
        (_, Some(server)) => {
            html! { a.name href=(format!("{PATH}/servers/{}", url_encoded(server))) { (pages.text(name)) } }
        }
        (_, None) => pages.text(name),
    }
}

pub(super) async fn switch(
    State(console): ConsoleState,
    Extension(visitor): Extension<Arc<Visitor>>,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
) -> Response {
    let (kind, name) = (fields.get("kind"), fields.get("name").trim());
    let switched = console.admin.by(operator).switch(kind, name, fields.get("off") == "true").await;
    acted(&Pages::new(&console, &visitor), switched)
}

pub(super) async fn reset(
    State(console): ConsoleState,
    Extension(visitor): Extension<Arc<Visitor>>,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
) -> Response {
    acted(&Pages::new(&console, &visitor), console.admin.by(operator).reset_breaker(fields.get("name").to_owned()))
}

fn acted<T>(pages: &Pages<'_>, result: Result<T, ApiError>) -> Response {
    match result {
        Ok(_) => done(&format!("{PATH}/switches")),
        Err(error) => pages.refused(&error),
    }
}
