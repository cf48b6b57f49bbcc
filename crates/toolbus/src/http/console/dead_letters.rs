//! Dead letters, read from the broker when the page is requested, and their replay and removal.

use axum::Extension;
use axum::extract::Query;
use axum::response::Response;
use maud::{Markup, html};
use toolbus_core::telemetry::DeadReason;

use super::access::Fields;
use super::page::{PageWriter, Status, query, size, time};
use super::{ByOperator, PATH};
use crate::dead_letters::{Letter, reasons};
use crate::http::admin::{Actor, LetterAction, LetterQuery, MAX_LETTERS};

/// The path of the page.
const PAGE: &str = "/dead-letters";
/// The paths of the actions.
const REPLAY: &str = "/dead-letters/replay";
const DROP: &str = "/dead-letters/drop";

pub(super) async fn list(pages: PageWriter, Query(filter): Query<LetterQuery>) -> Response {
    let is_filtered = !filter.queue.is_empty() || !filter.reason.is_empty();
    let address = page_of(&filter.queue, &filter.reason);
    let found = pages.admin().letters(filter.clone()).await;
    let main = html! {
        (filter_form(&pages, &filter))
        p { a href=(format!("{PATH}{address}")) { "Reload" } " " span.hint { "This page does not renew itself." } }
        @match &found {
            Err(error) => p.problem { (Status::Failed.mark()) " " (pages.text(&error.to_string())) }
            Ok(found) if found.letters.is_empty() => p.empty {
                (Status::Ok.mark())
                @if is_filtered { " No dead letter has all of this." }
                @else { " No message is dead: all were answered or delivered." }
                @if !found.is_whole { " There are more letters, which were not read." }
            }
            Ok(found) => {
                (all(&pages, &filter, &found.letters))
                table tabindex="0" {
                    caption.hidden { "Dead letters by queue, the oldest first" }
                    thead { tr {
                        th { "Queue" } th { "Reason" } th { "Agent" } th { "Tool" } th { "Id" } th { "Since" }
                        th.number { "Size" } th { span.hidden { "Actions" } }
                    } }
                    tbody { @for (letter, name) in &found.letters { (row(&pages, &filter, letter, name)) } }
                }
                @if !found.is_whole { p.hint { "There are more. The oldest " (MAX_LETTERS) " are shown." } }
            }
        }
    };
    // Each look opens a connection to the broker, and hides the letters from others as long as it reads.
    pages.page(PAGE, "Dead letters", false, &main)
}

fn filter_form(pages: &PageWriter, filter: &LetterQuery) -> Markup {
    let choices = |label: &str, name: &str, chosen: &str, all: Vec<(String, String)>| {
        html! {
            label { (label) select name=(name) {
                option value="" { "any" }
                @for (value, label) in all { option value=(value) selected[value == chosen] { (label) } }
            } }
        }
    };
    let queues = pages.admin().letter_queues().into_iter().map(|queue| (queue.clone(), end_of(&queue).to_owned()));
    let reasons = reasons().into_iter().map(|reason| (reason.to_owned(), in_words(reason)));
    html! {
        form.filter role="search" aria-label="Filter" {
            (choices("Queue ", "queue", &filter.queue, queues.collect()))
            (choices("Reason ", "reason", &filter.reason, reasons.collect()))
            button { "Filter" }
            @if !filter.queue.is_empty() || !filter.reason.is_empty() { a href=(format!("{PATH}{PAGE}")) { "Show all" } }
        }
    }
}

/// The actions on all letters that are shown.
fn all(pages: &PageWriter, filter: &LetterQuery, letters: &[(Letter, String)]) -> Markup {
    let names: Vec<&str> = letters.iter().map(|(_, name)| name.as_str()).collect();
    let (count, names) = (names.len(), names.join(" "));
    html! {
        @if pages.visitor.may_act && count > 1 {
            div #all {
                (action(pages, filter, (REPLAY, &format!("Replay these {count}")), (&filter.queue, &names)))
                details {
                    summary { "Drop these " (count) }
                    "They are gone for ever. " (action(pages, filter, (DROP, "Drop"), (&filter.queue, &names)))
                }
            }
        }
    }
}

fn row(pages: &PageWriter, filter: &LetterQuery, letter: &Letter, name: &str) -> Markup {
    html! {
        tr data-id=(name) {
            td title=(pages.clean(&letter.queue)) { (pages.text(end_of(&letter.queue))) }
            td { (pages.text(&in_words(&letter.reason))) }
            td { @if let Some(agent) = &letter.agent { (pages.link("agents", agent)) } }
            td { @if let Some(tool) = &letter.tool { (pages.link("tools", tool)) } }
            td {
                @if let Some(id) = &letter.id { code { (pages.text(id)) } " " }
                @if let Some(call) = &letter.call_id { "of call " (pages.link("calls", call)) }
            }
            td { @if let Some(since) = letter.since { (time(since)) } }
            td.number { (size(letter.bytes)) }
            td.actions {
                @if letter.reason != DeadReason::Malformed.as_str() {
                    (action(pages, filter, (REPLAY, "Replay"), (&letter.queue, name))) " "
                }
                (action(pages, filter, (DROP, "Drop"), (&letter.queue, name)))
            }
        }
    }
}

/// An action on letters of a queue, or of all; it leads back to the list as it is filtered.
fn action(
    pages: &PageWriter,
    filter: &LetterQuery,
    (path, label): (&str, &str),
    (of, letters): (&str, &str),
) -> Markup {
    let fields = [("of", of), ("letters", letters), ("queue", &*filter.queue), ("reason", &*filter.reason)];
    pages.action(path, label, &fields)
}

/// The end of a queue's name, which differs.
fn end_of(queue: &str) -> &str {
    queue.rsplit_once('.').map_or(queue, |(_, end)| end)
}

fn in_words(reason: &str) -> String {
    reason.replace('_', " ")
}

fn page_of(queue: &str, reason: &str) -> String {
    format!("{PAGE}{}", query([("queue", queue), ("reason", reason)]))
}

pub(super) async fn replay(
    pages: PageWriter,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
) -> Response {
    act(&pages, operator, &fields, LetterAction::Replay).await
}

pub(super) async fn drop(
    pages: PageWriter,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
) -> Response {
    act(&pages, operator, &fields, LetterAction::Drop).await
}

async fn act(pages: &PageWriter, operator: Actor, fields: &Fields, action: LetterAction) -> Response {
    let names = fields.get("letters").split_whitespace().map(str::to_owned).collect();
    let done = pages.admin().by(operator).act_on_letters(action, fields.get("of"), names).await;
    pages.acted(done, &page_of(fields.get("queue"), fields.get("reason")))
}
