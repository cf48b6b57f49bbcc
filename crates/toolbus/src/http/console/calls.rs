//! Recent calls, and the steps of one with their times.

use std::collections::BTreeSet;
use std::time::SystemTime;

use axum::Extension;
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use toolbus_core::{Clock, StepName};
use toolbus_protocol::{Code, large_integers};
use toolbus_telemetry::RecentPayload;

use super::access::Fields;
use super::page::{PageWriter, Status, duration, explain_path, given, query, size, tool_path, url_encoded};
use super::{ByOperator, PATH, form};
use crate::http::admin::recent::{CallTrace, MAX_INNER, RecentQuery, TraceStep};

/// Filters of the list, as they are in its address. An empty one filters nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CallFilter {
    id: String,
    agent: String,
    tool: String,
    source: String,
    status: String,
    slower_ms: String,
}

impl CallFilter {
    fn query(&self) -> RecentQuery {
        RecentQuery {
            id: given(&self.id),
            number: None,
            agent: given(&self.agent),
            tool: given(&self.tool),
            source: given(&self.source),
            status: given(&self.status),
            slower_ms: self.slower_ms.trim().parse().ok(),
            limit: None,
        }
    }
}

pub(super) async fn list(pages: PageWriter, Query(filter): Query<CallFilter>) -> Response {
    let query = filter.query();
    let found = pages.admin().recent(&query);
    let main = html! {
        form.filter role="search" aria-label="Filter" {
            label { "Agent " input name="agent" value=(filter.agent); }
            label { "Tool " input name="tool" value=(filter.tool); }
            label { "Source " select name="source" { (choices(&sources(&pages), &filter.source)) } }
            label { "Status " select name="status" { (choices(&statuses(), &filter.status)) } }
            label { "Slower than, ms " input name="slower_ms" type="number" min="0" value=(filter.slower_ms); }
            label { "Id " input name="id" value=(filter.id); }
            button { "Filter" }
            @if query != RecentQuery::default() { a href=(format!("{PATH}/calls")) { "Show all" } }
        }
        @if found.calls.is_empty() {
            p.empty #rows data-part {
                @if query == RecentQuery::default() { "No call has been made since the daemon's start. " code { "toolbus call echo text=hi" } " makes one." }
                @else { "No call of the last thousand has all of this." }
            }
        } @else {
            table #rows data-part data-rows {
                caption.hidden { "Recent calls, newest first" }
                thead { tr {
                    @for name in ["Time", "Agent", "Tool", "Outcome"] { th scope="col" { (name) } }
                    @for name in ["Total", "Wait", "Run"] { th.number scope="col" { (name) } }
                } }
                tbody { @for call in &found.calls { (row(&pages, call)) } }
            }
        }
    };
    pages.page("/calls", "Calls", true, &main)
}

/// Statuses that can be filtered by, and their labels.
fn statuses() -> Vec<(String, String)> {
    let named =
        [("failed", "all that failed"), ("in_flight", "in flight"), ("ok", "ok"), ("error", "error of the tool")];
    let codes = Code::ALL.map(Code::as_str).into_iter().chain(["requeued", "attached"]).map(|code| (code, code));
    let readable = |(value, label): (&str, &str)| (value.to_owned(), label.replace('_', " "));
    named.into_iter().chain(codes).map(readable).collect()
}

/// Sources of the tools that there are.
fn sources(pages: &PageWriter) -> Vec<(String, String)> {
    let tools = pages.admin().gates.policy().current().tools();
    let sources: BTreeSet<&str> = tools.iter().map(|tool| &*tool.source).collect();
    sources.into_iter().map(|source| (source.to_owned(), pages.clean(source))).collect()
}

/// Options of a filter: any, and the values with their names. A chosen value that is not among them is added.
fn choices(values: &[(String, String)], chosen: &str) -> Markup {
    let is_known = chosen.is_empty() || values.iter().any(|(value, _)| value == chosen);
    html! {
        option value="" { "any" }
        @for (value, label) in values { option value=(value) selected[value == chosen] { (label) } }
        @if !is_known { option value=(chosen) selected { (chosen) } }
    }
}

/// The gates before the permit in their order, and the cause of calls that each refuses.
const GATES: [(StepName, &str); 5] = [
    (StepName::Resolve, "tool_not_found"),
    (StepName::Arguments, "invalid_arguments"),
    (StepName::Recipients, "not_allowed"),
    (StepName::Breaker, "breaker_open"),
    (StepName::RateLimit, "rate_limited"),
];

/// Cause of calls whose request cannot be read.
const MALFORMED: &str = "malformed_request";

fn row(pages: &PageWriter, call: &CallTrace) -> Markup {
    // An inner call has the id of its outer one.
    let row = call.around.map_or_else(|| id_of(call).to_owned(), |_| format!("{} {}", id_of(call), call.number));
    html! {
        tr data-id=(row) {
            td { a href=(call_path(call)) { (time(&call.arrived)) } }
            td { (pages.link("agents", &call.agent)) }
            td { (pages.link("tools", &call.tool)) }
            td {
                (outcome(call))
                // No other part of the row has the error of a malformed request.
                @if let (Some(MALFORMED), Some(refusal)) = (call.cause.as_deref(), &call.refusal) {
                    " " span.dim { (pages.text(refusal)) }
                }
            }
            td.number { (call.total_ms.map(duration).unwrap_or_default()) }
            td.number { (took(call, "wait")) }
            td.number { (took(call, "run")) }
        }
    }
}

fn id_of(call: &CallTrace) -> &str {
    let ids = [&call.message_id, &call.call_id, &call.trace_id, &call.correlation_id];
    ids.into_iter().flatten().next().map_or("", String::as_str)
}

/// The address of a call's page: inner calls have the ids of their outer one, and a number besides.
fn call_path(call: &CallTrace) -> String {
    let number = call.around.map(|_| call.number.to_string()).unwrap_or_default();
    format!("{PATH}/calls/{}{}", url_encoded(id_of(call)), query([("number", &*number)]))
}

/// Time of the day, with the whole time for scripts and when it is pointed at.
fn time(arrived: &str) -> Markup {
    let clock = arrived.split_once('T').map_or(arrived, |(_, clock)| clock.trim_end_matches('Z'));
    html! { time datetime=(arrived) title=(arrived) { (clock) } }
}

fn status(call: &CallTrace) -> Status {
    match call.status.as_str() {
        "ok" => Status::Ok,
        "in_flight" => Status::Slow,
        "requeued" | "attached" => Status::Off,
        _ => Status::Failed,
    }
}

fn outcome(call: &CallTrace) -> Markup {
    let cause = call.cause.as_deref().filter(|cause| *cause != call.status);
    html! {
        (status(call).mark()) " " (call.status.replace('_', " "))
        @if let Some(cause) = cause { " " span.dim { "(" (cause) ")" } }
        span.dim { (call.repeated()) }
    }
}

fn took(call: &CallTrace, step: &str) -> String {
    let step = call.steps.iter().find(|own| own.name == step);
    step.and_then(|step| step.took_ms).map(duration).unwrap_or_default()
}

/// The number that distinguishes calls of the same id.
#[derive(Deserialize)]
pub(super) struct CallNumber {
    #[serde(default)]
    number: String,
}

pub(super) async fn one(
    pages: PageWriter,
    Path(id): Path<String>,
    Query(CallNumber { number }): Query<CallNumber>,
) -> Response {
    let number = number.parse().ok();
    let mut found = pages.admin().recent(&RecentQuery { id: Some(id.clone()), number, ..RecentQuery::default() }).calls;
    // Callers choose ids: a repeated one leads to the call to which the lists link it.
    found.sort_by_key(|call| id_of(call) != id);
    let Some((call, others)) = found.split_first() else {
        let absence = "No call of the last thousand has this id. The daemon keeps those since its start alone.";
        return pages.refusal(StatusCode::NOT_FOUND, absence);
    };
    let fact = |name: &str, value: Option<Markup>| {
        html! { @if let Some(value) = value { dt { (name) } dd { (value) } } }
    };
    let id = |id: &Option<String>| id.as_deref().map(|id| html! { code data-copy { (pages.text(id)) } });
    let main = html! {
        dl #facts data-part {
            (fact("Tool", Some(pages.link("tools", &call.tool))))
            (fact("Source", call.source.as_deref().map(|source| source_link(&pages, source))))
            (fact("Called by", call.around.map(|around| outer(&pages, around))))
            (fact("Agent", Some(pages.link("agents", &call.agent))))
            (fact("Outcome", Some(outcome(call))))
            (fact("Arrived", Some(time(&call.arrived))))
            (fact("Queue", call.queue.as_deref().map(|queue| pages.text(queue))))
            (fact("Attempt", call.attempt().map(|attempt| html! { (attempt) })))
            (fact("Idempotency key", id(&call.idempotency_key)))
            (fact("Call", id(&call.call_id)))
            (fact("Message", id(&call.message_id)))
            (fact("Correlation", id(&call.correlation_id)))
            (fact("Trace", call.trace_id.as_deref().map(|trace| trace_link(&pages, trace))))
        }
        p {
            a href=(explain_path(&call.agent, &call.tool, &[])) { "Explain a call like it" } " "
            @if !call.tool.is_empty() && pages.visitor.may_act {
                @let draft = query([("agent", &*call.agent), (form::EARLIER, &*call.number.to_string())]);
                a href=(format!("{PATH}{}{draft}#call", tool_path(&call.tool))) { "Call the tool again" }
            }
        }
        div #cancel data-part {
            @if let (None, Some(own)) = (call.total_ms, &call.call_id) {
                (pages.action(&format!("/calls/{}/cancel", url_encoded(id_of(call))), "Cancel", &[("agent", &call.agent), ("call", own)]))
            }
        }
        div #gates data-part { (gates(&pages, call)) }
        h2 { "Where its time went" }
        (waterfall(call, Clock::SYSTEM.wall()))
        div #inner data-part {
            @if !call.inner.is_empty() {
                h2 { "Calls that its tool made" }
                (tree(&pages, &call.inner))
                @if count(&call.inner) >= MAX_INNER { p.hint { "The first " (MAX_INNER) " are shown." } }
            }
        }
        h2 { "Arguments and result" }
        div #payloads data-part { (payloads(&pages, call)) }
        @if !others.is_empty() {
            h2 { "Others with this id" }
            table { tbody { @for other in others { (row(&pages, other)) } } }
        }
    };
    pages.page("/calls", "A call", call.total_ms.is_none(), &main)
}

/// A source, which leads to its tools.
fn source_link(pages: &PageWriter, source: &str) -> Markup {
    html! { a href=(format!("{PATH}/tools{}", query([("source", source)]))) { (pages.text(source)) } }
}

/// The gates that a call passed, and the one that refused it, as far as they are recorded.
fn gates(pages: &PageWriter, call: &CallTrace) -> Markup {
    let has = |name: &str| call.steps.iter().any(|step| step.name == name);
    let cause = call.cause.as_deref().unwrap_or_default();
    // Arguments that cannot be read are refused before the gates.
    let is_read = call.source.is_some() || cause == "tool_not_found";
    let refusing = GATES.iter().enumerate().find(|(_, (_, refused))| is_read && *refused == cause);
    let (passed, refused_by) = match refusing {
        _ if has("run") => (GATES.len(), None),
        Some((before, (gate, _))) => (before, Some(gate.as_str())),
        None if has("wait") => (GATES.len(), Some(cause)),
        None => (0, None),
    };
    html! {
        @if passed > 0 || refused_by.is_some() {
            h2 { "Gates" }
            ul {
                @for (gate, _) in GATES.iter().take(passed) { li { (Status::Ok.mark()) " " (gate.as_str()) } }
                @if has("run") { li { (Status::Ok.mark()) " " (StepName::Permit.as_str()) } }
                @if let Some(refused_by) = refused_by { li { (Status::Failed.mark()) " " (refused_by.replace('_', " ")) } }
            }
        }
        @if let Some(refusal) = &call.refusal { (pages.block(refusal)) }
    }
}

/// The call around an inner one.
fn outer(pages: &PageWriter, number: u64) -> Markup {
    let found = pages.admin().recent(&RecentQuery { number: Some(number), ..RecentQuery::default() }).calls;
    html! {
        @match found.first() {
            Some(call) => { a.name href=(call_path(call)) { (pages.text(&call.tool)) } }
            None => { "a call that is no longer kept" }
        }
    }
}

fn tree(pages: &PageWriter, calls: &[CallTrace]) -> Markup {
    html! {
        ul.tree {
            @for call in calls {
                li {
                    a.name href=(call_path(call)) { (pages.text(&call.tool)) } " " (outcome(call)) " "
                    span.dim { (call.total_ms.map_or_else(|| "goes on".to_owned(), duration)) }
                    @if !call.inner.is_empty() { (tree(pages, &call.inner)) }
                }
            }
        }
    }
}

fn count(calls: &[CallTrace]) -> usize {
    calls.iter().map(|call| 1 + count(&call.inner)).sum()
}

pub(super) async fn cancel(
    pages: PageWriter,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
    Path(id): Path<String>,
) -> Response {
    let calls = &pages.console.calls;
    let done = pages.admin().by(operator).cancel(calls, fields.get("agent"), fields.get("call"));
    pages.acted(done, &format!("/calls/{}", url_encoded(&id)))
}

fn trace_link(pages: &PageWriter, trace: &str) -> Markup {
    let address =
        pages.console.trace_url.as_deref().map(|template| template.replace("{trace_id}", &url_encoded(trace)));
    html! {
        @match address {
            Some(address) => { a href=(address) rel="noreferrer" target="_blank" { code { (trace) } } }
            None => { code data-copy { (trace) } }
        }
    }
}

/// Arguments and result of a call, folded but for the result of a failed call.
fn payloads(pages: &PageWriter, call: &CallTrace) -> Markup {
    if !pages.console.keeps_payloads {
        return html! { p.hint { "Not kept: " code { "http.console_payloads" } " is " code { "\"none\"" } "." } };
    }
    let kept = pages.admin().recent.newest(1, |kept| kept.number == call.number);
    let is_failed = status(call) == Status::Failed;
    let payloads =
        kept.first().map(|call| [("Arguments", false, &call.arguments), ("Result", is_failed, &call.result)]);
    let known = payloads.into_iter().flatten();
    let shown =
        known.filter_map(|(name, is_open, payload)| Some(self::payload(pages, name, is_open, payload.as_ref()?)));
    let shown: Vec<_> = shown.collect();
    html! {
        @for payload in &shown { (payload) }
        @if shown.is_empty() {
            p.empty {
                @if call.replayed || call.attached { "Not kept: the tool did not run, and the reply is another call's." }
                @else { "The call has neither." }
            }
        }
    }
}

fn payload(pages: &PageWriter, name: &str, is_open: bool, payload: &RecentPayload) -> Markup {
    let RecentPayload { text, size: whole, is_cut } = payload;
    // As JSON in lines, a large integer would be rounded.
    let json = Some(text).filter(|text| text.starts_with(['{', '[']) && large_integers(text).next().is_none());
    html! {
        details open[is_open] {
            summary { (name) }
            @match json.and_then(|text| serde_json::from_str(text).ok()) {
                Some(value) => { (pages.json_text(&value)) }
                None => {
                    (pages.block(text))
                    @if *is_cut { p.hint { "The first " (size(text.len())) " of " (size(*whole)) "." } }
                }
            }
        }
    }
}

/// The steps of a call as bars on one scale, which ends `now` where the call goes on.
fn waterfall(call: &CallTrace, now: SystemTime) -> Markup {
    let end = |step: &TraceStep| step.from_ms + step.took_ms.unwrap_or_default();
    let arrived = call.arrived.parse().map(|arrived: jiff::Timestamp| SystemTime::from(arrived));
    let since =
        arrived.ok().and_then(|arrived| now.duration_since(arrived).ok()).map(|since| since.as_secs_f64() * 1e3);
    let total = call.total_ms.or(since);
    let whole = call.steps.iter().map(end).chain(total).fold(f64::MIN_POSITIVE, f64::max);
    html! {
        table.waterfall #steps data-part tabindex="0" {
            thead { tr { th { "Step" } th.number { "From" } th.number { "Took" } th aria-hidden="true" {} } }
            tbody {
                @for step in &call.steps {
                    @let (from, width) = (step.from_ms / whole * 100.0, step.took_ms.unwrap_or(whole - step.from_ms) / whole * 100.0);
                    tr {
                        td { (step.name) }
                        td.number { (duration(step.from_ms)) }
                        td.number { (step.took_ms.map_or_else(|| "goes on".to_owned(), duration)) }
                        td.bar aria-hidden="true" {
                            svg viewBox="0 0 100 4" preserveAspectRatio="none" { rect x=(format!("{from:.2}")) width=(format!("{:.2}", width.max(0.3))) height="4" {} }
                        }
                    }
                }
                @if let Some(total) = call.total_ms { tr { th { "total" } td.number {} th.number { (duration(total)) } td {} } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_bar_of_a_step_that_goes_on_reaches_to_the_present() {
        let step = |name: &str, from_ms, took_ms| TraceStep { name: name.to_owned(), from_ms, took_ms };
        let arrived = "2026-01-01T00:00:00.000Z";
        let steps = vec![step("check", 0.0, Some(500.0)), step("run", 500.0, None)];
        let call = CallTrace { arrived: arrived.to_owned(), steps, ..CallTrace::default() };
        let now = SystemTime::from(arrived.parse::<jiff::Timestamp>().unwrap()) + Duration::from_secs(2);
        let shown = waterfall(&call, now).into_string();
        assert!(shown.contains(r#"x="25.00" width="75.00""#), "{shown}");
    }
}
