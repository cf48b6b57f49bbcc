//! Tasks of agents for others: for sub-agents of a pool, and for other agents by their skills.

use axum::extract::Query;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use toolbus_agents::Overview;
use toolbus_agents::a2a::AgentTaskSummary;
use toolbus_agents::subagent::{SubagentState, SubagentSummary};
use toolbus_core::Clock;
use toolbus_protocol::AgentTaskState;

use super::page::{PageWriter, Status, given, is_off, size, time};
use crate::http::admin::view::ApiError;

/// The path of the page.
const PAGE: &str = "/tasks";
/// Tasks of a kind that are shown.
const MAX_SHOWN: usize = 100;

/// Filter of the lists, as it is in their address.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TaskFilter {
    agent: String,
}

pub(super) async fn list(pages: PageWriter, Query(filter): Query<TaskFilter>) -> Response {
    let agent = given(&filter.agent);
    let is_meant = |names: [Option<&str>; 2]| agent.as_deref().is_none_or(|agent| names.contains(&Some(agent)));
    let subagents = pages.admin().subagents().await.map(|tasks| {
        let is_meant = |task: &SubagentSummary| is_meant([Some(&task.agent), task.worker.as_deref()]);
        tasks.map(|tasks| shown(tasks, is_meant))
    });
    let agents = pages.admin().agent_tasks().await.map(|tasks| {
        let is_meant = |task: &AgentTaskSummary| is_meant([Some(&task.caller), Some(&task.agent)]);
        tasks.map(|tasks| shown(tasks, is_meant))
    });
    let main = html! {
        (pages.agent_filter(PAGE, &filter.agent))
        section #subagents data-part aria-label="Sub-agents" {
            h2 { "Sub-agents" }
            (part(&pages, subagents, ("No agent gives tasks to sub-agents", "subagents"), of_subagents))
        }
        section #agents-tasks data-part aria-label="Other agents" {
            h2 { "Other agents" }
            (part(&pages, agents, ("No agent gives tasks to others", "a2a"), of_agents))
        }
    };
    pages.page(PAGE, "Tasks", true, &main)
}

/// Returns the matching tasks, at most [`MAX_SHOWN`].
fn shown<T>(tasks: Overview<T>, is_meant: impl Fn(&T) -> bool) -> Overview<T> {
    let mut rows: Vec<T> = tasks.rows.into_iter().filter(is_meant).collect();
    let is_whole = tasks.is_whole && rows.len() <= MAX_SHOWN;
    rows.truncate(MAX_SHOWN);
    Overview { rows, is_whole }
}

/// A list of tasks, or why there is none: `off` names what is off without which section.
fn part<T>(
    pages: &PageWriter,
    tasks: Result<Option<Overview<T>>, ApiError>,
    off: (&str, &str),
    table: impl FnOnce(&PageWriter, &[T]) -> Markup,
) -> Markup {
    html! {
        @match &tasks {
            Err(error) => p.problem { (Status::Failed.mark()) " " (pages.text(&error.to_string())) }
            Ok(None) => (is_off(off.0, off.1)),
            Ok(Some(tasks)) if tasks.rows.is_empty() => p.empty { "There is no task." }
            Ok(Some(tasks)) => {
                (table(pages, &tasks.rows))
                @if !tasks.is_whole { p.hint { "There are more tasks, which are not shown." } }
            }
        }
    }
}

fn of_subagents(pages: &PageWriter, tasks: &[SubagentSummary]) -> Markup {
    html! {
        table tabindex="0" {
            caption.hidden { "Tasks for sub-agents, those that go on first" }
            thead { tr {
                th { "Task" } th { "From" } th { "Pool" } th { "Worker" } th { "State" } th { "Given" } th { "Until" }
                th { "Ended" } th.number { "Result" }
            } }
            tbody { @for task in tasks {
                tr {
                    td { code { (pages.text(&task.id)) } }
                    td { (pages.link("agents", &task.agent)) }
                    td { (pages.text(&task.pool)) }
                    td { @if let Some(worker) = &task.worker { (pages.link("agents", worker)) } }
                    td { (state_of_subagent(task)) }
                    (times(task.created, task.deadline, task.ended))
                    td.number { @if task.ended.is_some() { (size(task.output)) } }
                }
            } }
        }
    }
}

fn state_of_subagent(task: &SubagentSummary) -> Markup {
    let (status, word) = match task.state {
        SubagentState::Offered => (Status::Slow, "offered"),
        SubagentState::Working => (Status::Slow, "working"),
        SubagentState::Done => (Status::Ok, "done"),
        SubagentState::Failed => (Status::Failed, "failed"),
    };
    html! { (status.mark()) " " (word) @if !task.is_told { span.dim { ", not delivered yet" } } }
}

fn of_agents(pages: &PageWriter, tasks: &[AgentTaskSummary]) -> Markup {
    html! {
        table tabindex="0" {
            caption.hidden { "Tasks for other agents, those that go on first" }
            thead { tr {
                th { "Task" } th { "From" } th { "To" } th { "Skill" } th { "State" } th { "Given" } th { "Until" }
                th { "Ended" }
            } }
            tbody { @for task in tasks {
                tr {
                    td { code { (pages.text(&task.id)) } }
                    td { (pages.link("agents", &task.caller)) }
                    td { (pages.link("agents", &task.agent)) }
                    td { (pages.text(&task.skill)) }
                    td {
                        (status_of_agent(task.state).mark()) " " (task.state.as_str())
                        @if task.is_late { span.dim { ", too late" } }
                    }
                    (times(task.begun, task.deadline, task.ended))
                }
            } }
        }
    }
}

const fn status_of_agent(state: AgentTaskState) -> Status {
    match state {
        AgentTaskState::Submitted | AgentTaskState::Working | AgentTaskState::InputRequired => Status::Slow,
        AgentTaskState::Completed => Status::Ok,
        AgentTaskState::Failed => Status::Failed,
        AgentTaskState::Canceled => Status::Off,
    }
}

/// The cells with the times at which a task was given, has to end, and ended.
fn times(given: u64, deadline: u64, ended: Option<u64>) -> Markup {
    let is_over = deadline <= Clock::SYSTEM.since_epoch().as_secs();
    html! {
        td { (time(given)) }
        td { @if ended.is_none() { @if is_over { (Status::Failed.mark()) " " } (time(deadline)) } }
        td { @if let Some(ended) = ended { (time(ended)) } }
    }
}
