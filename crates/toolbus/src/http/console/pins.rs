//! Pinned tools, the changes of their definitions, and their approval.

use axum::Extension;
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tokio::task::spawn_blocking;
use toolbus_trust::pins::{ToolState, Unified};

use super::access::Fields;
use super::page::{PageWriter, Status, given, query, url_encoded};
use super::paging::Paged;
use super::{ByOperator, PATH};
use crate::http::admin::view::{ApiError, Approval, Changed, Changes, Pinned, PinnedTools};

/// Filter for every state in which a tool is quarantined.
const QUARANTINED: &str = "quarantined";
/// States that can be filtered by, and their labels.
const STATES: [(&str, &str); 9] = [
    ("", "any"),
    (QUARANTINED, "quarantined"),
    ("changed", "changed"),
    ("new", "new"),
    ("missing", "missing"),
    ("suspect", "suspect"),
    ("pinned", "pinned"),
    ("recorded", "recorded"),
    ("unrecorded", "unrecorded"),
];

/// Filters of the list, as they are in its address. An empty one filters nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PinFilter {
    source: String,
    state: String,
    page: String,
}

impl PinFilter {
    fn means(&self, tool: &Pinned) -> bool {
        match &*self.state {
            "" => true,
            QUARANTINED => tool.held,
            state => tool.state.as_str() == state,
        }
    }
}

pub(super) async fn list(pages: PageWriter, Query(filter): Query<PinFilter>) -> Response {
    let source = given(&filter.source);
    let PinnedTools { file, problem, mut tools } = match pages.admin().pins(source.as_deref()) {
        Ok(pinned) => pinned,
        Err(error) => return pages.refused(&error),
    };
    tools.retain(|tool| filter.means(tool));
    tools.sort_by_key(|tool| (!tool.held, !tool.state.is_open(), tool.shadowed_by.is_none()));
    let paged = Paged::new(&tools, &filter.page);
    let is_filtered = source.is_some() || !filter.state.is_empty();
    let main = html! {
        form.filter role="search" aria-label="Filter" {
            label { "Source " input name="source" value=(filter.source) placeholder="rest, mcp:files"; }
            label { "State " select name="state" {
                @for (value, label) in STATES { option value=(value) selected[value == filter.state] { (label) } }
            } }
            button { "Filter" }
            @if is_filtered { a href=(format!("{PATH}/pins")) { "Show all" } }
        }
        @if let Some(problem) = &problem {
            p.problem { (Status::Failed.mark()) " Pins are not kept: " (pages.text(problem)) }
        }
        @if tools.is_empty() {
            p.empty #rows data-part {
                @if is_filtered { "No tool has all of this." }
                @else {
                    "No tool is pinned yet: the daemon pins what it sees first. The section " code { "[pins]" }
                    " of the configuration says of which sources changes are quarantined."
                }
            }
        } @else {
            (paged.links("/pins", &[("source", &filter.source), ("state", &filter.state)]))
            table #rows data-part {
                caption.hidden { "Pinned tools, those that need a look first" }
                thead { tr { th { "Tool" } th { "Source" } th { "State" } th { "Since" } th { "Why" } } }
                tbody { @for tool in paged.rows { (row(&pages, tool)) } }
            }
        }
        p.hint { @match &file {
            Some(file) => { "Kept in " (pages.text(file)) }
            None => "Kept in memory: forgotten when the daemon ends.",
        } }
    };
    pages.page("/pins", "Pinned tools", true, &main)
}

fn row(pages: &PageWriter, tool: &Pinned) -> Markup {
    html! {
        tr {
            td { a.name href=(format!("{PATH}{}", path(&tool.name, Some(&tool.source)))) { (pages.text(&tool.name)) } }
            td { (source_link(pages, &tool.source)) }
            td { (state(tool)) @if let Some(owner) = &tool.shadowed_by { ", shadowed by " (pages.text(owner)) } }
            td { @if let Some(since) = &tool.since { time datetime=(since) { (since) } } }
            td { @if let Some(reason) = &tool.reason { (pages.text(reason)) } }
        }
    }
}

/// The path of the page of a tool, or of a source.
fn path(name: &str, source: Option<&str>) -> String {
    format!("/pins/{}{}", url_encoded(name), query([("source", source.unwrap_or_default())]))
}

/// The source, which is an MCP server or has tools that can be looked at together.
fn source_link(pages: &PageWriter, source: &str) -> Markup {
    html! { a.name href=(format!("{PATH}{}", path(source, None))) { (pages.text(source)) } }
}

fn state(tool: &Pinned) -> Markup {
    let status = match tool.state {
        _ if tool.held => Status::Failed,
        ToolState::Changed | ToolState::New | ToolState::Suspect => Status::Slow,
        ToolState::Missing | ToolState::Unrecorded => Status::Off,
        ToolState::Pinned | ToolState::Recorded => Status::Ok,
    };
    html! { (status.mark()) " " (tool.state.as_str()) @if tool.held { ", quarantined" } }
}

/// The source that has the tool; empty: the only one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PinSource {
    source: String,
}

pub(super) async fn one(pages: PageWriter, Path(name): Path<String>, Query(of): Query<PinSource>) -> Response {
    let changes = match pages.admin().pin_changes(&name, given(&of.source).as_deref()) {
        Ok(changes) => changes,
        Err(error) => return pages.refused(&error),
    };
    let differing = spawn_blocking(move || {
        let differences: Vec<Unified> = changes.changes.iter().map(Changed::unified).collect();
        (changes, differences)
    });
    let Ok((changes, differences)) = differing.await else {
        return pages.refusal(StatusCode::INTERNAL_SERVER_ERROR, "The definitions could not be compared.");
    };
    let differences: Vec<(&Changed, Unified)> = changes.changes.iter().zip(differences).collect();
    let is_whole = changes.more == 0 && differences.iter().all(|(_, difference)| difference.left_out == 0);
    let is_open = changes.changes.iter().any(|change| change.is.state.is_open());
    let (digest, approval) = (changes.digest.to_string(), format!("/pins/{}/approve", url_encoded(&name)));
    let main = html! {
        @for (change, difference) in &differences { (one_change(&pages, change, difference)) }
        @if changes.more > 0 { p.empty { "And " (changes.more) " more tools: look at them one by one." } }
        @if !is_open { p.empty { (Status::Ok.mark()) " Nothing waits for an approval here." } }
        @else if !is_whole { p.problem { (how_to_see_all(&changes)) } }
        @else if pages.visitor.may_act {
            p { "The approval is for exactly what is shown here, digest " code { (digest) } "." }
            (pages.action(&approval, "Approve", &[("source", &of.source), ("digest", &digest)]))
            @if changes.changes.iter().any(|change| change.is.held) {
                p.hint {
                    "Without it nothing changes: what is quarantined stays so, and no agent can list or call it, until "
                    "its definition is as pinned again."
                }
            }
        } @else { p.hint { "A session that was opened with http.admin_token may approve this." } }
    };
    // The approval must be of the shown changes: a page that renews itself could change below the button.
    pages.page("/pins", &format!("Pins of {name}"), false, &main)
}

/// An approval is offered only for shown changes.
fn how_to_see_all(changes: &Changes) -> &'static str {
    match changes.more {
        0 => {
            "More changed than is shown here. `toolbus pins diff NAME --output json` prints all of it, and its digest."
        }
        _ => "More changed than is shown here. Approve the tools one by one.",
    }
}

fn one_change(pages: &PageWriter, change: &Changed, difference: &Unified) -> Markup {
    let Changed { is, .. } = change;
    let text = pages.console.redactor.text(&difference.text);
    html! {
        section {
            h2 { (pages.link("tools", &is.name)) " of " (source_link(pages, &is.source)) }
            p {
                (state(is))
                @if let Some(since) = &is.since { " since " time datetime=(since) { (since) } }
                @if let Some(pinned) = &is.pinned { "; pinned " time datetime=(pinned) { (pinned) } }
                @if let Some(owner) = &is.shadowed_by { "; shadowed by " (pages.text(owner)) }
            }
            @if let Some(reason) = &is.reason { p { (pages.text(reason)) } }
            @if !text.is_empty() {
                pre.diff dir="ltr" tabindex="0" aria-label="Difference of the pinned and the present definition" {
                    @for line in text.lines() { (diff_line(line)) }
                }
            }
        }
    }
}

/// A line with its sign, the rest isolated: text that runs from right to left does not move the sign.
fn diff_line(line: &str) -> Markup {
    let class = match line.chars().next() {
        Some('+') => "added",
        Some('-') => "removed",
        Some('@') => "dim",
        _ => "",
    };
    let (sign, rest) = line.split_at(line.chars().next().map_or(0, char::len_utf8));
    html! { span class=(class) { (sign) bdi { (rest) } "\n" } }
}

pub(super) async fn approve(
    pages: PageWriter,
    Path(name): Path<String>,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
) -> Response {
    let source = given(fields.get("source"));
    let approved = match fields.get("digest").parse() {
        Ok(digest) => pages.admin().by(operator).approve_pin(&name, Approval { source: source.clone(), digest }).await,
        Err(error) => Err(ApiError::bad_request(format!("the digest is none: {error}"))),
    };
    pages.acted(approved, &path(&name, source.as_deref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_marked_by_its_sign_and_its_text_moves_nothing() {
        let line = |line: &str| diff_line(line).into_string();
        assert_eq!(line("+  <b>"), "<span class=\"added\">+<bdi>  &lt;b&gt;</bdi>\n</span>");
        assert_eq!(line("- א"), "<span class=\"removed\">-<bdi> א</bdi>\n</span>");
        assert_eq!(line("… and 3 more lines"), "<span class=\"\">…<bdi> and 3 more lines</bdi>\n</span>");
        assert_eq!(line(""), "<span class=\"\"><bdi></bdi>\n</span>");
    }
}
