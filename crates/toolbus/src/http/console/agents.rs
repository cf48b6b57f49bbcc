//! The agents: which tools each may use and why, the gates of a call, and a comparison of two.

use axum::Extension;
use axum::extract::{Path, Query};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::value::to_raw_value;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::policy::UnknownCallers;

use super::access::Fields;
use super::page::{PageWriter, Status, agent_path, explain_path, given, query, tool_path};
use super::paging::Paged;
use super::{ByOperator, PATH, PageResult};
use crate::http::admin::DEFAULT_SECTION;
use crate::http::admin::view::{
    AgentSummary, AgentTools, AppliedRules, CallerQuery, Explained, GateResult, NamedRule, Question, ToolVerdict,
};

/// Filters of the list, as they are in its address.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AgentFilter {
    text: String,
    page: String,
}

pub(super) async fn list(pages: PageWriter, Query(filter): Query<AgentFilter>) -> Response {
    let callers = pages.admin().callers();
    let text = filter.text.trim().to_lowercase();
    let name = |caller: &Caller| caller.agent.as_ref().map_or(DEFAULT_SECTION, AgentName::as_str).to_lowercase();
    let meant: Vec<_> = callers.iter().filter(|caller| name(caller).contains(&text)).collect();
    let paged = Paged::new(&meant, &filter.page);
    let filters = [("text", filter.text.as_str())];
    let unknown = match pages.admin().gates.policy().unknown_callers() {
        UnknownCallers::Denied => "have no tools",
        UnknownCallers::Restricted => "have the tools that agents.default leaves them",
        UnknownCallers::Open => "have every tool that is in no tool set",
    };
    let main = html! {
        form.filter role="search" aria-label="Filter" {
            label { "Name " input name="text" type="search" value=(filter.text); }
            button { "Filter" }
            @if !text.is_empty() { a href=(format!("{PATH}/agents")) { "Show all" } }
        }
        @if callers.len() == 1 {
            p.empty { "No agent has a section. " code { "[agents.NAME]" } " in the configuration adds one." }
        }
        p.hint { "Callers without a section " (unknown) ": " (pages.link("agents", DEFAULT_SECTION)) "." }
        (paged.links("/agents", &filters))
        @if meant.is_empty() {
            p.empty #rows data-part { "No agent has this in its name." }
        } @else {
            table #rows data-part {
                caption.hidden { "Agents by name" }
                thead { tr {
                    th { "Agent" } th { "State" } th.number { "Tools" } th { "Profile" }
                    th.number title="Calls that run now, of those that may" { "Running" }
                    th.number title="Calls that wait now, of those that may" { "Waiting" }
                    th { "Rate limits" } th.number { "Bindings" }
                } }
                tbody { @for caller in paged.rows { (row(&pages, &pages.admin().summary(caller))) } }
            }
        }
        (paged.links("/agents", &filters))
    };
    pages.page("/agents", "Agents", true, &main)
}

fn row(pages: &PageWriter, agent: &AgentSummary) -> Markup {
    html! {
        tr {
            td { (pages.link("agents", &agent.agent)) }
            td {
                @if agent.disabled { (Status::Off.mark()) " switched off" }
                @else if agent.tools == 0 { (Status::Off.mark()) " no tools" }
                @else { (Status::Ok.mark()) }
            }
            td.number { (agent.tools) " of " (agent.total) }
            td { @if let Some(profile) = &agent.profile { (pages.text(profile)) } }
            td.number { (used(agent.running, agent.max_in_flight)) }
            td.number { (used(agent.waiting, agent.max_queued)) }
            td { (pages.text(&agent.rate_limits.join(", "))) }
            td.number { (agent.bindings.len()) }
        }
    }
}

fn used(now: Option<usize>, most: usize) -> Markup {
    html! { (now.unwrap_or_default()) " of " (most) }
}

/// The identity of the agent and the selection of its tools in the query.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Role {
    binding: String,
    profile: String,
    text: String,
    page: String,
    with: String,
}

impl Role {
    fn query(&self) -> CallerQuery {
        CallerQuery { binding: given(&self.binding), profile: given(&self.profile), session: None }
    }
}

pub(super) async fn one(pages: PageWriter, Path(name): Path<String>, Query(role): Query<Role>) -> Response {
    match pages.admin().agent(&name, &role.query()) {
        Ok(agent) => pages.page("/agents", &name, true, &shown(&pages, &agent, &role)),
        Err(error) => pages.refused(&error),
    }
}

fn shown(pages: &PageWriter, agent: &AgentTools, role: &Role) -> Markup {
    let name = agent.agent.as_str();
    let is_off = pages.admin().disabled().iter().any(|switched| switched.kind == "agent" && switched.name == name);
    let (label, off) = if is_off { ("Switch on", "false") } else { ("Switch off", "true") };
    let used = pages.admin().effective(name, &role.query()).map(|effective| effective.used()).unwrap_or_default();
    html! {
        @if !agent.configured {
            p.hint {
                "The agent has no section in the configuration: the rules of "
                (pages.link("agents", DEFAULT_SECTION)) " hold."
            }
        }
        @if let Some(nothing) = &agent.nothing {
            p.problem { (Status::Off.mark()) " It has no tools. " (pages.text(nothing)) }
        }
        div {
            @if name != DEFAULT_SECTION {
                a href=(format!("{PATH}/calls{}", query([("agent", name)]))) { "Recent calls" } " "
            }
            (pages.action(&format!("{}/switch", agent_path(name)), label, &[("off", off)]))
        }
        (rules(pages, name, &agent.rules, used))
        h2 { "Would a call pass" }
        (explain_form(&Question {
            agent: name.to_owned(),
            tool: String::new(),
            arguments: None,
            binding: role.query().binding,
            profile: role.query().profile,
            session: None,
        }, ""))
        h2 { "Another agent" }
        form.filter action=(format!("{PATH}{}/compare", agent_path(name))) {
            label { "Compare with " input name="with" list="agents" required; }
            button { "Compare" }
        }
        (pages.agent_names())
        h2 { "Its tools" }
        (tools(pages, agent, role))
    }
}

/// The rules of an agent beside its tools, in words.
fn rules(pages: &PageWriter, name: &str, rules: &AppliedRules, (running, waiting): (usize, usize)) -> Markup {
    let each = |title: &str, rules: &[NamedRule]| {
        html! {
            @if !rules.is_empty() {
                dt { (title) }
                dd { @for rule in rules { div { code { (pages.text(&rule.name)) } " " (pages.text(&rule.value)) } } }
            }
        }
    };
    html! {
        dl #rules data-part {
            dt { "Calls now" }
            dd { (running) " of " (rules.max_in_flight) " running, " (waiting) " of " (rules.max_queued) " waiting" }
            dt { "Profile" }
            dd { (pages.text(rules.profile.as_deref().unwrap_or("the one that a request names"))) }
            @if !rules.tool_sets.is_empty() { dt { "Tool sets" } dd { (pages.text(&rules.tool_sets.join(", "))) } }
            (each("Rate limits", &rules.rate_limits))
            (each("Whom it may address", &rules.recipients))
            (each("Arguments that are set for it", &rules.arguments))
            @if !rules.bindings.is_empty() {
                dt { "Bindings" }
                dd { @for binding in &rules.bindings {
                    @let under = query([("binding", binding.as_str())]);
                    div { a href=(format!("{PATH}{}{under}", agent_path(name))) { (pages.text(binding)) } }
                } }
            }
        }
    }
}

/// The tools of an agent, usable ones first.
fn tools(pages: &PageWriter, agent: &AgentTools, role: &Role) -> Markup {
    let text = role.text.trim().to_lowercase();
    let is_meant =
        |tool: &&ToolVerdict| tool.tool.to_lowercase().contains(&text) || tool.source.to_lowercase().contains(&text);
    let mut meant: Vec<_> = agent.tools.iter().filter(is_meant).collect();
    meant.sort_by_key(|tool| !tool.allowed);
    let allowed = agent.tools.iter().filter(|tool| tool.allowed).count();
    let paged = Paged::new(&meant, &role.page);
    let own = agent_path(&agent.agent);
    let filters: [(&str, &str); 3] = [("text", &role.text), ("binding", &role.binding), ("profile", &role.profile)];
    html! {
        form.filter role="search" aria-label="Filter" {
            label { "Name or source " input name="text" type="search" value=(role.text); }
            label { "Under binding " input name="binding" value=(role.binding) placeholder="channel:account"; }
            label { "Under profile " input name="profile" value=(role.profile); }
            button { "Filter" }
        }
        p.hint { "It may use " (allowed) " of " (agent.tools.len()) "." }
        (paged.links(&own, &filters))
        @if meant.is_empty() {
            p.empty {
                @if agent.tools.is_empty() { "The daemon has no tools." } @else { "No tool has this in its name." }
            }
        } @else {
            table {
                thead { tr { th { "Tool" } th { "Source" } th { "Because" } th {} } }
                tbody { @for tool in paged.rows { (verdict(pages, &agent.agent, tool)) } }
            }
        }
        (paged.links(&own, &filters))
    }
}

fn verdict(pages: &PageWriter, agent: &str, tool: &ToolVerdict) -> Markup {
    html! {
        tr {
            td { (mark(tool.allowed)) " " (pages.link("tools", &tool.tool)) }
            td { (pages.text(&tool.source)) }
            td {
                (pages.text(&tool.because))
                @if !tool.shadows.is_empty() {
                    " " span.dim { "hides the one of " (pages.text(&tool.shadows.join(", "))) }
                }
                @if !tool.suspect.is_empty() {
                    " " (Status::Slow.mark()) " suspect: " (pages.text(&tool.suspect.join(", ")))
                }
            }
            td { a href=(explain_path(agent, &tool.tool, &[])) { "explain" } }
        }
    }
}

fn mark(allowed: bool) -> Markup {
    if allowed { Status::Ok.mark() } else { Status::Off.mark() }
}

pub(super) async fn switch(
    pages: PageWriter,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
    Path(name): Path<String>,
) -> Response {
    pages.switch(operator, ("agent", &name), &fields, &agent_path(&name)).await
}

pub(super) async fn explain(pages: PageWriter, Path(name): Path<String>, Query(fields): Query<Fields>) -> Response {
    explained(&pages, name, &fields).unwrap_or_else(|error| pages.refused(&error))
}

fn explained(pages: &PageWriter, agent: String, fields: &Fields) -> PageResult {
    let given = |field: &str| given(fields.get(field));
    let arguments = fields.get("arguments");
    let question = Question {
        agent,
        tool: given("tool").unwrap_or_default(),
        // As a text, so that the gate of arguments reports its mistakes.
        arguments: given("arguments").and_then(|text| to_raw_value(&text).ok()),
        binding: given("binding"),
        profile: given("profile"),
        session: given("session"),
    };
    let explained = (!question.tool.is_empty()).then(|| pages.admin().explain(&question)).transpose()?;
    let main = html! {
        p { "The gates that a call of " (pages.link("agents", &question.agent)) " would pass. Nothing is called." }
        (explain_form(&question, arguments))
        @if let Some(explained) = &explained { (gates(pages, explained, fields)) }
    };
    Ok(pages.page("/agents", &format!("Explain a call of {}", question.agent), false, &main))
}

fn explain_form(question: &Question, arguments: &str) -> Markup {
    let value = |text: &Option<String>| text.clone().unwrap_or_default();
    html! {
        form.filter action=(format!("{PATH}{}/explain", agent_path(&question.agent))) aria-label="Explain" {
            label { "Tool " input name="tool" required value=(question.tool); }
            label { "Arguments, JSON " textarea name="arguments" rows="1" spellcheck="false" { "\n" (arguments) } }
            label { "Binding " input name="binding" value=(value(&question.binding)) placeholder="channel:account"; }
            label { "Profile " input name="profile" value=(value(&question.profile)); }
            label { "Session " input name="session" value=(value(&question.session)); }
            button { "Explain" }
        }
    }
}

/// The gates, in order, up to the first that refuses.
fn gates(pages: &PageWriter, explained: &Explained, fields: &Fields) -> Markup {
    let for_caller = |gate: &GateResult| gate.told.clone().filter(|text| *text != gate.text);
    let role = ["binding", "profile", "session"].map(|field| (field, fields.get(field)));
    let draft = [("agent", explained.agent.as_str()), ("json", fields.get("arguments")), ("form", "json")];
    let draft = role.into_iter().chain(draft);
    html! {
        h2 { (pages.link("tools", &explained.tool)) }
        table tabindex="0" {
            thead { tr { th { "Gate" } th { "Why" } } }
            tbody {
                @for gate in &explained.steps {
                    tr {
                        td { @if gate.passes { (Status::Ok.mark()) } @else { (Status::Failed.mark()) } " " (gate.step) }
                        td {
                            @if gate.passes { (pages.text(&gate.text)) } @else { (pages.block(&gate.text)) }
                            @if let Some(text) = for_caller(gate) { "The caller is told:" (pages.block(&text)) }
                        }
                    }
                }
            }
        }
        @if explained.passes {
            p {
                (Status::Ok.mark()) " The call would be run. "
                @if pages.visitor.may_act {
                    a href=(format!("{PATH}{}{}#call", tool_path(&explained.tool), query(draft))) { "Call it" }
                }
            }
        } @else {
            p { (Status::Failed.mark()) " The call would be refused." }
        }
    }
}

pub(super) async fn compare(pages: PageWriter, Path(name): Path<String>, Query(role): Query<Role>) -> Response {
    compared(&pages, &name, &role).unwrap_or_else(|error| pages.refused(&error))
}

/// A tool that two agents may not use alike: the verdict of each.
type Difference<'a> = (&'a ToolVerdict, &'a ToolVerdict);

fn compared(pages: &PageWriter, name: &str, role: &Role) -> PageResult {
    let other = role.with.trim();
    let form = html! {
        form.filter {
            label { "Compare with " input name="with" list="agents" required value=(other); }
            button { "Compare" }
        }
        (pages.agent_names())
    };
    let title = format!("Compare {name}");
    if other.is_empty() {
        return Ok(pages.page("/agents", &title, false, &form));
    }
    let (one, two) = (pages.admin().agent(name, &role.query())?, pages.admin().agent(other, &role.query())?);
    let differences = differences(&one.tools, &two.tools);
    let paged = Paged::new(&differences, &role.page);
    let own = format!("{}/compare", agent_path(name));
    let filters = [("with", other)];
    let main = html! {
        (form)
        @if differences.is_empty() {
            p.empty {
                (pages.link("agents", name)) " and " (pages.link("agents", other))
                " may use the same tools, for the same reasons."
            }
        } @else {
            (paged.links(&own, &filters))
            table tabindex="0" {
                thead { tr {
                    th { "Tool" } th { (pages.link("agents", name)) } th { (pages.link("agents", other)) }
                } }
                tbody { @for (one, two) in paged.rows {
                    tr {
                        td { (pages.link("tools", &one.tool)) }
                        @for verdict in [one, two] { td { (mark(verdict.allowed)) " " (pages.text(&verdict.because)) } }
                    }
                } }
            }
            (paged.links(&own, &filters))
        }
    };
    Ok(pages.page("/agents", &title, false, &main))
}

/// The tools of which two verdicts differ: those that only the first allows, those of the second, then other reasons.
/// Both lists are sorted by name.
fn differences<'a>(one: &'a [ToolVerdict], two: &'a [ToolVerdict]) -> Vec<Difference<'a>> {
    let other = |tool: &ToolVerdict| {
        let index = two.binary_search_by(|other| other.tool.cmp(&tool.tool)).ok()?;
        two.get(index)
    };
    let pairs = one.iter().filter_map(|tool| Some((tool, other(tool)?)));
    let mut differences: Vec<_> =
        pairs.filter(|(one, two)| (one.allowed, &one.because) != (two.allowed, &two.because)).collect();
    differences.sort_by_key(|(one, two)| match (one.allowed, two.allowed) {
        (true, false) => 0,
        (false, true) => 1,
        _ => 2,
    });
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(tool: &str, allowed: bool, because: &str) -> ToolVerdict {
        let (tool, because) = (tool.to_owned(), because.to_owned());
        ToolVerdict { tool, source: String::new(), allowed, because, shadows: Vec::new(), suspect: Vec::new() }
    }

    #[test]
    fn a_comparison_begins_with_the_tools_that_only_one_of_two_may_use() {
        let one = [verdict("a", true, "x"), verdict("b", true, "x"), verdict("c", false, "x"), verdict("d", true, "x")];
        let two = [verdict("a", true, "x"), verdict("b", true, "y"), verdict("c", true, "x"), verdict("d", false, "x")];
        let names: Vec<_> = differences(&one, &two).iter().map(|(one, _)| one.tool.as_str()).collect();
        assert_eq!(names, ["d", "c", "b"]);
    }
}
