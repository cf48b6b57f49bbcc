//! The overview: does it work, what fails, who is busy.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::ConsoleState;
use super::access::Visitor;
use super::page::{Pages, Status};
use crate::http::Blocker;
use crate::http::admin::view::DaemonStatus;

pub(super) async fn page(State(console): ConsoleState, Extension(visitor): Extension<Arc<Visitor>>) -> Response {
    let pages = Pages::new(&console, &visitor);
    let main = match console.admin.daemon.as_ref().map(|daemon| daemon.status()) {
        Some(status) => shown(&pages, &status),
        None => html! { p.empty { "There is no daemon." } },
    };
    pages.page("", "Overview", true, &main)
}

fn shown(pages: &Pages<'_>, status: &DaemonStatus) -> Markup {
    let health = &status.status;
    let up = std::time::Duration::from_secs(health.uptime_seconds);
    html! {
        section aria-labelledby="works" {
            h2 #works { "Does it work" }
            div #blockers data-part {
                @if status.blocked_by.is_empty() {
                    p { (Status::Ok.mark()) " Ready: calls are taken." }
                } @else {
                    ul { @for blocker in &status.blocked_by { li { (Status::Failed.mark()) " " (pages.text(&in_words(blocker))) } } }
                }
            }
            dl #facts data-part {
                dt { "Up for" } dd { (format!("{up:?}")) }
                dt { "Version" } dd { (health.build.version) " " span.dim { (health.build.commit) } }
                dt { "Running" } dd.number { (health.counts.in_flight) }
                dt { "Waiting" } dd.number { (health.counts.waiting) }
                dt { "Tools" } dd.number { (health.counts.tools) }
                dt { "Quarantined" } dd.number { (health.counts.held_back) }
            }
        }
    }
}

/// What blocks readiness, as a sentence.
pub(super) fn in_words(blocker: &Blocker) -> String {
    match blocker {
        Blocker::Draining => "The daemon finishes its calls and takes no new ones.".to_owned(),
        Blocker::BusClosed => "The connection to the broker has ended for good.".to_owned(),
        Blocker::Disconnected { detail } => format!(
            "There is no connection to the broker{}",
            detail.as_deref().map(|detail| format!(": {detail}")).unwrap_or_default()
        ),
        Blocker::BrokerBlocked { detail } => format!("The broker takes no messages: {detail}"),
        Blocker::Misconfigured { detail } => detail.clone(),
        Blocker::StoreAway { detail } => format!("The store cannot be used: {detail}"),
        Blocker::NoConsumer => "No queue is consumed.".to_owned(),
        Blocker::ConsumerNotConfirmed { queue } => format!("The broker has not confirmed the consumer of {queue}."),
        Blocker::ToolMissing { tool } => format!("The tool {tool}, which tools.required names, is not there."),
        Blocker::ToolHeldBack { tool } => format!("The tool {tool}, which tools.required names, is quarantined."),
        Blocker::McpServerMissing { server } => {
            format!("The MCP server {server}, which mcp.required names, is not there.")
        }
        Blocker::McpServerNotReady { server, detail, .. } => format!(
            "The MCP server {server}, which mcp.required names, takes no calls{}",
            detail.as_deref().map(|detail| format!(": {detail}")).unwrap_or_default()
        ),
    }
}
