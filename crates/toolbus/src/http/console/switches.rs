//! All that gets no calls: tools, agents and sources that are switched off, and open circuit breakers.

use axum::Extension;
use axum::response::Response;
use maud::{Markup, html};

use super::access::Fields;
use super::page::{PageWriter, Status, url_encoded};
use super::servers::open;
use super::{ByOperator, PATH};
use crate::http::OpenBreaker;
use crate::http::admin::view::Switched;

/// The path of the page.
const PAGE: &str = "/switches";

pub(super) async fn page(pages: PageWriter) -> Response {
    let main = html! {
        (parts(&pages))
        @if pages.visitor.may_act {
            h2 { "Switch something off" }
            form.filter method="post" action=(format!("{PATH}{PAGE}")) {
                (pages.proof())
                input type="hidden" name="off" value="true";
                label { "What " select name="kind" { @for kind in ["tool", "agent", "source"] { option { (kind) } } } }
                label { "Name " input name="name" required autocomplete="off"; }
                button { "Switch off" }
            }
            p.hint {
                "At once, for all callers, and "
                (if pages.has_state_in_memory() { "until the daemon ends, as its state is in memory" } else { "also after a restart" })
                ". Calls that run go on. A source is "
                code { "rest" } ", " code { "mcp:NAME" } " and so on."
            }
        }
    };
    pages.page(PAGE, "Switches and circuit breakers", true, &main)
}

/// Switches that are off and open circuit breakers, with the buttons that undo them.
fn parts(pages: &PageWriter) -> Markup {
    let (off, breakers) = (pages.admin().disabled(), pages.admin().breakers().breakers);
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

fn switched(pages: &PageWriter, Switched { kind, name }: &Switched) -> Markup {
    html! {
        tr {
            td { (Status::Off.mark()) " " (kind) }
            td { (link(pages, kind, name)) }
            td { (pages.action(PAGE, "Switch on", &[("kind", kind), ("name", name), ("off", "false")])) }
        }
    }
}

fn opened(pages: &PageWriter, breaker: &OpenBreaker) -> Markup {
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

fn link(pages: &PageWriter, kind: &str, name: &str) -> Markup {
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
    pages: PageWriter,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
) -> Response {
    pages.switch(operator, (fields.get("kind"), fields.get("name").trim()), &fields, PAGE).await
}

pub(super) async fn reset(
    pages: PageWriter,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
) -> Response {
    pages.acted(pages.admin().by(operator).reset_breaker(fields.get("name").to_owned()), PAGE)
}
