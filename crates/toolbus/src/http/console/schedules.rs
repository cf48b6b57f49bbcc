//! Scheduled tasks: their agents, descriptions and times.

use axum::Extension;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tokio::task::spawn_blocking;
use toolbus_agents::schedule::ScheduledTask;

use super::ByOperator;
use super::access::Fields;
use super::page::{PageWriter, Status, given, time};
use super::paging::Paged;

/// The path of the page.
const PAGE: &str = "/schedules";
/// Times that are shown after the next one.
const LATER: usize = 2;

/// Filter of the list, as it is in its address.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ScheduleFilter {
    agent: String,
    page: String,
}

pub(super) async fn list(pages: PageWriter, Query(filter): Query<ScheduleFilter>) -> Response {
    let mut tasks = match pages.admin().schedules().await {
        Ok(Some(tasks)) => tasks,
        Ok(None) => return pages.off(PAGE, "Schedules", "Agents schedule nothing", "schedule"),
        Err(error) => return pages.refused(&error),
    };
    let agent = given(&filter.agent);
    tasks.rows.retain(|task| agent.as_ref().is_none_or(|agent| task.agent == *agent));
    let paged = Paged::new(&tasks.rows, &filter.page);
    let shown = paged.rows.to_vec();
    let with_times = spawn_blocking(move || {
        let later = |task: ScheduledTask| (task.later(LATER), task);
        shown.into_iter().map(later).collect::<Vec<_>>()
    });
    let Ok(shown) = with_times.await else {
        return pages.refusal(StatusCode::INTERNAL_SERVER_ERROR, "The next times could not be found.");
    };
    let filters = [("agent", filter.agent.as_str())];
    let main = html! {
        (pages.agent_filter(PAGE, &filter.agent))
        (paged.links(PAGE, &filters))
        @if tasks.rows.is_empty() {
            p.empty #rows data-part {
                @if agent.is_some() { "No scheduled task is this agent's." }
                @else {
                    "No task is scheduled. Agents schedule them with " (pages.link("tools", "schedule_task")) "."
                }
            }
        } @else {
            table #rows data-part tabindex="0" {
                caption.hidden { "Scheduled tasks, those that are due first before others" }
                thead { tr {
                    th { "Task" } th { "Agent" } th { "Then" } th { "Next" } th { "Cron" } th { "Last" } th { "Made" }
                    th { span.hidden { "Action" } }
                } }
                tbody { @for (later, task) in &shown { (row(&pages, task, later)) } }
            }
        }
        @if !tasks.is_whole { p.hint { "There are more tasks, which are not read." } }
    };
    pages.page(PAGE, "Schedules", true, &main)
}

fn row(pages: &PageWriter, task: &ScheduledTask, later: &[u64]) -> Markup {
    let fields = [("share", task.share.as_str()), ("id", task.id.as_str())];
    html! {
        tr data-id=(task.id) {
            td { (pages.text(&task.name)) }
            td { (pages.link("agents", &task.agent)) }
            td {
                @if let Some(tool) = &task.tool { "calls " (pages.link("tools", tool)) " " }
                span.dim { (pages.text(&task.description)) }
            }
            td {
                @if task.is_running { (Status::Slow.mark()) " runs" }
                @else if let Some(retry) = task.retry { (Status::Slow.mark()) " waits, next try " (time(retry)) }
                @else { (time(task.next)) }
                @for at in later { span.dim { ", " (time(*at)) } }
            }
            td {
                code { (pages.text(&task.cron)) } " " (pages.text(&task.zone))
                @if task.run_once { span.dim { ", once" } }
            }
            td {
                @if let Some(last) = task.last { (time(last)) } @else { span.dim { "never" } }
                @if let Some(failure) = &task.failure { " " (Status::Failed.mark()) " " (pages.text(failure)) }
            }
            td { (time(task.created)) }
            td { (pages.action("/schedules/cancel", "Cancel", &fields)) }
        }
    }
}

pub(super) async fn cancel(
    pages: PageWriter,
    Extension(operator): ByOperator,
    Extension(fields): Extension<Fields>,
) -> Response {
    let done = pages.admin().by(operator).cancel_schedule(fields.get("share"), fields.get("id")).await;
    pages.acted(done, PAGE)
}
