//! The overview: health, latency, failures and the busiest agents.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::response::Response;
use maud::{Markup, html};
use toolbus_mcp_client::status::PhaseName;
use toolbus_sandbox::Level;
use toolbus_scripts::runner::RunnerStatus;
use toolbus_store::StoreUrl;

use super::PATH;
use super::charts::{ChartLine, chart};
use super::history::{STEP, Step};
use super::page::{PageWriter, Status, duration, url_encoded};
use crate::http::admin::recent::RecentQuery;
use crate::http::admin::view::DaemonStatus;
use crate::http::{Blocker, McpServerHealth};

/// Failures that are listed.
const MAX_FAILURES: usize = 10;

pub(super) async fn page(pages: PageWriter) -> Response {
    let steps = pages.console.history.steps();
    let main = match pages.admin().daemon.as_ref().map(|daemon| daemon.status()) {
        Some(status) => html! {
            div.overview {
                (works(&pages, &status))
                (slow(&steps))
                (fails(&pages, &steps))
                (busy(&pages, &status))
            }
        },
        None => html! { p.empty { "There is no daemon." } },
    };
    pages.page("", "Overview", true, &main)
}

fn works(pages: &PageWriter, status: &DaemonStatus) -> Markup {
    let health = &status.status;
    html! {
        section aria-labelledby="works" {
            h2 #works { "Does it work" }
            div #blockers data-part {
                @if status.blocked_by.is_empty() {
                    p { (Status::Ok.mark()) " Ready: calls are taken." }
                }
                @for blocker in &status.blocked_by {
                    p { (Status::Failed.mark()) " " (pages.text(&in_words(blocker))) }
                }
                @for server in health.mcp.iter().filter(|server| server.phase.is_failing()) {
                    p { (Status::Slow.mark()) " MCP server " (pages.link("servers", &server.name)) ": " (pages.text(server.last_error.as_deref().unwrap_or_default())) }
                }
                @for problem in &health.mcp_problems { p { (Status::Slow.mark()) " " (pages.text(problem)) } }
                @for breaker in &health.breakers {
                    p { (Status::Slow.mark()) " " (pages.text(&breaker.name)) " gets no calls: it failed " (breaker.failures) " times in a row." }
                }
                @if health.counts.held_back > 0 {
                    p { (Status::Slow.mark()) " Tools that are quarantined: " (health.counts.held_back) "." }
                }
                @if pages.has_state_in_memory() {
                    p { (Status::Slow.mark()) " State is in memory: when the daemon ends, it forgets which calls have run, switches, schedules and working memory. " code { "store.url" } " names a place for it." }
                }
                @for off in &status.disabled { p { (Status::Off.mark()) " The " (off.kind) " " (pages.text(&off.name)) " is switched off." } }
            }
            (facts(pages, status))
        }
    }
}

/// The parts that the daemon needs, and how each is.
fn facts(pages: &PageWriter, status: &DaemonStatus) -> Markup {
    let health = &status.status;
    let broker = &health.broker;
    let either = |is_good| if is_good { Status::Ok.mark() } else { Status::Failed.mark() };
    html! {
        dl #facts data-part {
            dt { "Broker" }
            dd {
                (either(broker.connected)) @if broker.connected { " connected" } @else { " away" }
                ", reconnects: " (broker.reconnects)
            }
            dt { "Queues" }
            dd { @for queue in &broker.consumers { div { (either(queue.confirmed)) " " (pages.text(&queue.queue)) } } }
            @if let Some(dead_letters) = broker.dead_letters {
                dt { "Dead letters" }
                dd {
                    @if dead_letters > 0 { (Status::Slow.mark()) " " }
                    a href=(format!("{PATH}/dead-letters")) { (dead_letters) }
                }
            }
            dt { "Store" } dd { (store(pages, status)) }
            @if let Some(script) = &health.script {
                dt { "Sandbox" } dd { (sandbox(&script.runner)) }
                dt { "Scripts" } dd { (script.running) " running, " (script.waiting) " waiting" }
            }
            dt { "MCP servers" } dd { (servers(&health.mcp)) }
            dt { "Tools" } dd { a href=(format!("{PATH}/tools")) { (health.counts.tools) } }
            dt { "Up for" } dd { (up_for(health.uptime_seconds)) }
            dt { "Version" } dd { (health.build.version) " " span.dim { (health.build.commit) } }
        }
    }
}

/// The kind of store, and whether it can be used.
fn store(pages: &PageWriter, status: &DaemonStatus) -> Markup {
    let is_away = status.blocked_by.iter().any(|blocker| matches!(blocker, Blocker::StoreAway { .. }));
    let (mark, kind) = match pages.store() {
        StoreUrl::Memory => (Status::Slow, "in memory"),
        StoreUrl::Sqlite(_) => (Status::Ok, "SQLite"),
        StoreUrl::Redis(_) => (Status::Ok, "Redis"),
    };
    let mark = if is_away { Status::Failed } else { mark };
    html! { (mark.mark()) " " (kind) @if is_away { ", cannot be used" } }
}

/// Level at which scripts are confined.
fn sandbox(runner: &RunnerStatus) -> Markup {
    let mark = match runner.level {
        Some(Level::Full) => Some(Status::Ok),
        Some(Level::NoNamespaces | Level::LimitsOnly) => Some(Status::Slow),
        // The isolation of scripts there is not this machine's.
        None => None,
    };
    html! {
        @if let Some(mark) = mark { (mark.mark()) " " }
        a href=(format!("{PATH}/servers#scripts")) {
            @match runner.level { Some(level) => { (level.to_string()) }, None => { "none, runner: " (runner.runner) } }
        }
    }
}

/// Numbers of servers by phase, those that are ready first.
fn servers(servers: &[McpServerHealth]) -> Markup {
    let count = |phase| servers.iter().filter(|server| server.phase == phase).count();
    let mark = if servers.iter().any(|server| server.phase.is_failing()) { Status::Slow } else { Status::Ok };
    let others = PhaseName::ALL.into_iter().filter(|phase| *phase != PhaseName::Ready && count(*phase) > 0);
    html! {
        @if !servers.is_empty() { (mark.mark()) " " }
        a href=(format!("{PATH}/servers")) { (count(PhaseName::Ready)) " of " (servers.len()) " ready" }
        @for phase in others { ", " (count(phase)) " " (phase.as_str().replace('-', " ")) }
    }
}

fn slow(steps: &[Arc<Step>]) -> Markup {
    let line = |name, value: &dyn Fn(&Step) -> Option<f64>| ChartLine {
        name,
        values: steps.iter().map(|step| value(step)).collect(),
    };
    let per_second = |count: u64| count as f64 / STEP.as_secs_f64();
    let failed = |step: &Step| step.calls() - step.by_status.get("ok").copied().unwrap_or_default();
    html! {
        section aria-labelledby="slow" {
            h2 #slow { "Is it slow" }
            @if steps.is_empty() { p.empty #charts data-part { "The first figures come ten seconds after the start." } }
            @else {
                div #charts data-part {
                    (chart("Calls per second", &[
                        line("all", &|step| Some(per_second(step.calls()))),
                        line("failed", &|step| Some(per_second(failed(step)))),
                    ], |value| format!("{value:.1}")))
                    (chart("Time of a call", &[
                        line("p50", &|step| step.times_ms.map(|times| times[0])),
                        line("p95", &|step| step.times_ms.map(|times| times[1])),
                        line("p99", &|step| step.times_ms.map(|times| times[2])),
                    ], duration))
                    (chart("Calls", &[
                        line("running", &|step| Some(step.in_flight as f64)),
                        line("waiting", &|step| Some(step.waiting as f64)),
                    ], |value| format!("{value:.0}")))
                }
            }
        }
    }
}

/// Failures of the last hour by code, and among the recent calls by tool and agent.
fn fails(pages: &PageWriter, steps: &[Arc<Step>]) -> Markup {
    let mut by_status = BTreeMap::<&str, u64>::new();
    for (status, count) in steps.iter().flat_map(|step| &step.by_status) {
        *by_status.entry(status).or_default() += count;
    }
    let all: u64 = by_status.values().sum();
    by_status.remove("ok");
    let recent = pages.admin().recent(&RecentQuery { status: Some("failed".to_owned()), ..RecentQuery::default() });
    let mut groups = BTreeMap::<(&str, &str, &str), usize>::new();
    for call in &recent.calls {
        *groups.entry((&call.tool, &call.agent, &call.status)).or_default() += 1;
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    groups.truncate(MAX_FAILURES);
    html! {
        section aria-labelledby="fails" {
            h2 #fails { "What fails" }
            div #failures data-part {
                @if by_status.is_empty() && groups.is_empty() { p.empty { "No call has failed in the last hour." } }
                @if !by_status.is_empty() {
                    table {
                        thead { tr { th scope="col" { "In the last hour" } th.number scope="col" { "Calls" } th.number scope="col" { "Share, %" } } }
                        tbody { @for (status, count) in &by_status { tr {
                            td { a href=(format!("{PATH}/calls?status={}", url_encoded(status))) { (status.replace('_', " ")) } }
                            td.number { (count) }
                            td.number { (format!("{:.1}", *count as f64 / all as f64 * 100.0)) }
                        } } }
                    }
                }
                @if !groups.is_empty() {
                    table {
                        thead { tr { th scope="col" { "Lately" } th scope="col" { "Agent" } th scope="col" { "Outcome" } th.number scope="col" { "Calls" } } }
                        tbody { @for ((tool, agent, status), count) in &groups { tr {
                            td { (pages.link("tools", tool)) }
                            td { (pages.link("agents", agent)) }
                            td { (status.replace('_', " ")) }
                            td.number { (count) }
                        } } }
                    }
                }
            }
        }
    }
}

fn busy(pages: &PageWriter, status: &DaemonStatus) -> Markup {
    let head = |name: &str| {
        html! { thead { tr { th scope="col" { (name) } th.number scope="col" { "Running" } th.number scope="col" { "Waiting" } th.number scope="col" { "Ended in the last 1 to 2 min" } } } }
    };
    html! {
        section aria-labelledby="busy" {
            h2 #busy { "Who is busy" }
            div #busiest data-part {
                @if status.busiest_agents.is_empty() && status.busiest_tools.is_empty() {
                    p.empty { "No call has been made in the last two minutes." }
                }
                @if !status.busiest_agents.is_empty() {
                    table { (head("Agent")) tbody { @for busy in &status.busiest_agents { tr {
                        td { (pages.link("agents", &busy.agent)) } td.number { (busy.running) } td.number { (busy.waiting) } td.number { (busy.recent) }
                    } } } }
                }
                @if !status.busiest_tools.is_empty() {
                    table { (head("Tool")) tbody { @for busy in &status.busiest_tools { tr {
                        td { (pages.link("tools", &busy.tool)) } td.number { (busy.running) } td.number {} td.number { (busy.recent) }
                    } } } }
                }
            }
        }
    }
}

/// Days, hours and minutes; seconds in the first minute.
fn up_for(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Sentence on something that blocks readiness.
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
