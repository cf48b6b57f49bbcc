//! The tools: a list, the agents that may use each, and calls as an agent.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, Query};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use toolbus_core::listing::{definition, render};
use toolbus_core::tool::{ToolDescriptor, time_text};
use toolbus_protocol::Format;

use super::access::Fields;
use super::form;
use super::page::{PageWriter, Status, explain_path, given, query, tool_path};
use super::paging::Paged;
use super::{ByOperator, PATH, PageResult};
use crate::http::admin::effect;
use crate::http::admin::recent::is_failure;
use crate::http::admin::view::CallerQuery;

/// Agents that may use a tool which its page names; the others are counted.
const MAX_USERS: usize = 50;

/// Filters of the list, as they are in its address. An empty one filters nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CatalogueFilter {
    text: String,
    source: String,
    agent: String,
    page: String,
}

pub(super) async fn list(pages: PageWriter, Query(filter): Query<CatalogueFilter>) -> Response {
    listed(&pages, &filter).unwrap_or_else(|error| pages.refused(&error))
}

fn listed(pages: &PageWriter, filter: &CatalogueFilter) -> PageResult {
    let all = pages.admin().gates.policy().current().tools();
    let agent = given(&filter.agent);
    let effective =
        agent.as_deref().map(|agent| pages.admin().effective(agent, &CallerQuery::default())).transpose()?;
    let allowed: Option<HashSet<&str>> = effective.as_ref().map(|effective| effective.names().collect());
    let text = filter.text.trim().to_lowercase();
    let is_meant = |tool: &&Arc<ToolDescriptor>| {
        (filter.source.is_empty() || *tool.source == *filter.source)
            && allowed.as_ref().is_none_or(|allowed| allowed.contains(&*tool.name))
            && (tool.name.to_lowercase().contains(&text) || tool.description.to_lowercase().contains(&text))
    };
    let meant: Vec<_> = all.iter().filter(is_meant).collect();
    let paged = Paged::new(&meant, &filter.page);
    let sources: BTreeSet<&str> = all.iter().map(|tool| &*tool.source).collect();
    let filters: [(&str, &str); 3] = [("text", &filter.text), ("source", &filter.source), ("agent", &filter.agent)];
    let is_filtered = filters.iter().any(|(_, value)| !value.is_empty());
    let (busy, used) = (busy(pages), used(pages));
    let main = html! {
        form.filter role="search" aria-label="Filter" {
            label { "Name or description " input name="text" type="search" value=(filter.text); }
            label { "Source " select name="source" {
                option value="" { "any" }
                @for source in sources { option value=(source) selected[source == filter.source] { (source) } }
            } }
            label { "That this agent may use " input name="agent" list="agents" value=(filter.agent); }
            button { "Filter" }
            @if is_filtered { a href=(format!("{PATH}/tools")) { "Show all" } }
        }
        (pages.agent_names())
        @if let Some(reason) = effective.as_ref().and_then(|effective| effective.empty_reason()) {
            p.problem {
                (Status::Off.mark()) " " (pages.link("agents", agent.as_deref().unwrap_or_default())) " has no tools. "
                (reason.to_string())
            }
        }
        (paged.links("/tools", &filters))
        @if all.is_empty() {
            p.empty #rows data-part {
                "The daemon has no tools. Its configuration says where they come from: "
                code { "toolbus init" } " writes an example."
            }
        } @else if meant.is_empty() {
            p.empty #rows data-part { "No tool has all of this." }
        } @else {
            table #rows data-part {
                caption.hidden { "Tools by name" }
                thead { tr {
                    th scope="col" { "Tool" } th scope="col" { "Source" } th scope="col" { "Effect" }
                    th scope="col" { "State" }
                    th.number scope="col" title="Calls that run now" { "Running" }
                    th.number scope="col" title="Calls that ended in the last one to two minutes" { "Lately" }
                    th.number scope="col" title="Calls among the last thousand of the daemon" { "Calls" }
                    th.number scope="col" title="Share of those calls that failed" { "Failed, %" }
                    th scope="col" { "Description" }
                } }
                tbody { @for tool in paged.rows { (row(pages, tool, busy.get(&tool.name), used.get(&tool.name))) } }
            }
        }
        (paged.links("/tools", &filters))
    };
    Ok(pages.page("/tools", "Tools", true, &main))
}

/// Calls of each tool that run now, and recently ended ones.
fn busy(pages: &PageWriter) -> HashMap<Arc<str>, (usize, u64)> {
    let busy = pages.admin().daemon.as_ref().map(|daemon| daemon.busy_tools()).unwrap_or_default();
    busy.into_iter().map(|tool| (tool.name, (tool.running, tool.recent))).collect()
}

/// Calls of a tool that ended, among the last thousand of the daemon.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    calls: usize,
    failed: usize,
}

impl Use {
    /// Share of the calls that failed, in per cent; `None` without calls.
    fn failed_share(self) -> Option<String> {
        (self.calls > 0).then(|| format!("{:.1}", self.failed as f64 / self.calls as f64 * 100.0))
    }
}

/// Recent calls of each tool.
fn used(pages: &PageWriter) -> HashMap<Arc<str>, Use> {
    let mut used = HashMap::<Arc<str>, Use>::new();
    for call in pages.admin().recent.newest(usize::MAX, |call| call.end.is_some() && call.source.is_some()) {
        let one = used.entry(call.tool).or_default();
        one.calls += 1;
        one.failed += usize::from(call.end.is_some_and(|end| is_failure(end.status)));
    }
    used
}

fn row(pages: &PageWriter, tool: &ToolDescriptor, busy: Option<&(usize, u64)>, used: Option<&Use>) -> Markup {
    html! {
        tr {
            td { (pages.link("tools", &tool.name)) }
            td { (pages.text(&tool.source)) }
            td { (effect(tool.effect)) }
            td { (state(pages, tool)) }
            td.number { @if let Some((running, _)) = busy { (running) } }
            td.number { @if let Some((_, recent)) = busy { (recent) } }
            td.number { @if let Some(used) = used { (used.calls) } }
            td.number { @if let Some(share) = used.and_then(|used| used.failed_share()) { (share) } }
            td.dim { (pages.text(&tool.description)) }
        }
    }
}

fn state(pages: &PageWriter, tool: &ToolDescriptor) -> Markup {
    html! {
        @match pages.admin().unavailable(tool) {
            None => { (Status::Ok.mark()) }
            Some(reason) => { (Status::Off.mark()) " " (pages.text(&reason)) }
        }
    }
}

pub(super) async fn one(pages: PageWriter, Path(name): Path<String>, Query(draft): Query<Fields>) -> Response {
    match pages.admin().tool(&name) {
        Ok(tool) => pages.page("/tools", &name, false, &shown(&pages, &tool, &draft)),
        Err(error) => pages.refused(&error),
    }
}

/// All that is known of a tool, and the form to call it as `draft` fills it in.
pub(super) fn shown(pages: &PageWriter, tool: &ToolDescriptor, draft: &Fields) -> Markup {
    let limit = |limit: Option<usize>| limit.map_or_else(|| "as the daemon's".to_owned(), |calls| calls.to_string());
    let (running, recent) = busy(pages).get(&tool.name).copied().unwrap_or_default();
    html! {
        dl {
            dt { "State" }
            dd { (state(pages, tool)) @if pages.admin().unavailable(tool).is_none() { " can be called" } }
            dt { "Source" }
            dd { a href=(listing("/tools", "source", &tool.source)) { (pages.text(&tool.source)) } }
            dt { "Provider" } dd { (tool.provider) }
            dt { "Effect" } dd { (effect(tool.effect)) }
            dt { "Timeout" } dd { (tool.timeout.map_or_else(|| "as the daemon's".to_owned(), time_text)) }
            dt { "At a time" } dd { (limit(tool.max_in_flight)) }
            dt { "Calls" } dd { (running) " running, " (recent) " lately" }
            dt { "Of the last thousand" }
            dd { (recent_use(pages, &tool.name)) }
            @if let Some(set) = &tool.toolset { dt { "Tool set" } dd { (pages.text(&set.set)) } }
            @if !tool.suspicions.is_empty() {
                dt { "Suspect" }
                dd { @for met in &*tool.suspicions { (Status::Slow.mark()) " " (met.rule.to_string()) " " } }
            }
        }
        (switch_form(pages, tool))
        @if !tool.description.is_empty() { (pages.block(&tool.description)) }
        (form::call(pages, tool, draft))
        h2 { "Definition" }
        @match tool.parameters.as_deref() {
            Some(schema) => { (pages.json("JSON Schema of the arguments", schema)) }
            None => { p.empty { "The tool has no schema: it takes any object." } }
        }
        @if let Some(schema) = &tool.output_schema { (pages.json("JSON Schema of structured results", schema)) }
        @let listed = definition(tool);
        @for format in Format::ALL { (pages.json(&format!("As models get it: {format}"), &render(&listed, format))) }
        (guides(pages, tool))
        h2 { "Who may use it" }
        (users(pages, &tool.name))
    }
}

/// Number of recent calls that are of a tool, and of those of them that failed.
fn recent_use(pages: &PageWriter, tool: &str) -> Markup {
    let used = used(pages).get(tool).copied().unwrap_or_default();
    let failed = query([("tool", tool), ("status", "failed")]);
    html! {
        a href=(listing("/calls", "tool", tool)) { (used.calls) " calls" }
        @if let Some(share) = used.failed_share() {
            ", " a href=(format!("{PATH}/calls{failed}")) { (used.failed) " failed" } ", " (share) " %"
        }
    }
}

/// The guides to its use, as models get them.
fn guides(pages: &PageWriter, tool: &ToolDescriptor) -> Markup {
    let guides = pages.admin().guides(tool);
    html! {
        @if !guides.is_empty() {
            h2 { "Guides" }
            @for guide in &guides {
                details {
                    summary { (pages.text(&guide.name)) " " span.dim { (pages.text(&guide.summary)) } }
                    (pages.block(&guide.text))
                }
            }
        }
    }
}

/// The address of a list with one filter.
fn listing(path: &str, filter: &str, value: &str) -> String {
    format!("{PATH}{path}{}", query([(filter, value)]))
}

fn switch_form(pages: &PageWriter, tool: &ToolDescriptor) -> Markup {
    let own = |switched: &crate::http::admin::view::Switched| switched.kind == "tool" && *switched.name == *tool.name;
    let is_off = pages.admin().disabled().iter().any(own);
    let (label, off) = if is_off { ("Switch on", "false") } else { ("Switch off", "true") };
    pages.action(&format!("{}/switch", tool_path(&tool.name)), label, &[("off", off)])
}

pub(super) async fn switch(
    pages: PageWriter,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
    Path(name): Path<String>,
) -> Response {
    pages.switch(operator, ("tool", &name), &fields, &tool_path(&name)).await
}

/// The agents that may use a tool, and why.
fn users(pages: &PageWriter, tool: &str) -> Markup {
    let policy = pages.admin().gates.policy();
    let callers = pages.admin().callers();
    let effective = callers.iter().map(|caller| policy.effective(caller));
    let allowed: Vec<_> = effective.filter(|effective| effective.get(tool).is_some()).collect();
    html! {
        @if allowed.is_empty() {
            p.empty { "No agent. The page of an agent says why." }
        } @else {
            p.hint { (allowed.len()) " of " (callers.len()) ", callers without a section counted as one." }
            table {
                thead { tr { th { "Agent" } th { "Because" } th {} } }
                tbody {
                    @for effective in allowed.iter().take(MAX_USERS) {
                        @let agent = effective.section_name();
                        tr {
                            td { (pages.link("agents", agent)) }
                            td { (pages.text(&effective.explain(tool).because.to_string())) }
                            td { a href=(explain_path(agent, tool, &[])) { "explain" } }
                        }
                    }
                }
            }
            @if allowed.len() > MAX_USERS { p.hint { "And " (allowed.len() - MAX_USERS) " more." } }
        }
    }
}
