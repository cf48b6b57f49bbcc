//! `toolbus status` and `toolbus reload`: the running daemon as a whole.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use axum::http::Method;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::Value;

use super::agents::switches;
use super::target::{DaemonArgs, Operator, TargetError};
use super::{as_json, one_line, plain};
use crate::http::admin::view::{BusyAgent, BusyTool, DaemonStatus};
use crate::http::{Blocker, ReloadReport};
use crate::terminal::OutputFormat;
use crate::terminal::ignore_broken_pipe;

/// Longest wait for a reload: it may have files to read, and programs to look for.
const RELOAD_TIME: Duration = Duration::from_secs(120);
/// Most tools that are named.
const MAX_NAMED: usize = 20;

/// Shows how the running daemon is: its files, the broker, its tools, the busiest agents, MCP servers and the last reload.
///
/// The exit code is 0 when it is ready, 1 when it is not, 7 when no daemon answers.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Has the running daemon read its configuration again, waits until it has, and tells what changed.
///
/// The exit code is 0 when the configuration is in force, 1 when it was refused: then everything stays as it was.
#[derive(Debug, clap::Args)]
pub struct ReloadArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Prints the state of the daemon.
///
/// # Errors
///
/// If no daemon responds, or nothing can be printed.
pub async fn status(args: StatusArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let response: Value = args.daemon.open(operator).await?.send(Method::GET, "/v1/status").await?;
    let is_ready = response.get("ready").and_then(Value::as_bool).unwrap_or_default();
    let text = match operator.output {
        OutputFormat::Json => as_json(&response),
        OutputFormat::Table => {
            let unreadable = |error| TargetError::Usage(format!("the daemon is of another version: {error}"));
            shown(&serde_json::from_value(response).map_err(unreadable)?)
        }
    };
    ignore_broken_pipe(writeln!(io::stdout(), "{text}"))?;
    Ok(ExitCode::from(u8::from(!is_ready)))
}

/// Reloads, and prints the report.
///
/// # Errors
///
/// If no daemon responds, or nothing can be printed.
pub async fn reload(args: ReloadArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let client = args.daemon.open(operator).await?;
    let report: ReloadReport = client.send_within(RELOAD_TIME, Method::POST, "/v1/reload").await?;
    let printed = match operator.output {
        OutputFormat::Json => writeln!(io::stdout(), "{}", as_json(&report)),
        OutputFormat::Table => writeln!(io::stdout(), "{}", reloaded(&report)),
    };
    ignore_broken_pipe(printed)?;
    Ok(ExitCode::from(u8::from(!report.applied)))
}

fn shown(daemon: &DaemonStatus) -> String {
    let DaemonStatus { files, blocked_by, state_in_memory, busiest_agents, busiest_tools, disabled, status } = daemon;
    let mut table = Table::new();
    table.load_style(NOTHING);
    let mut add = |name: &str, value: String| {
        table.add_row([name, &one_line(&value)]);
    };
    let build = &status.build;
    add("version", format!("{} ({}), up for {}", build.version, build.commit, in_words(status.uptime_seconds)));
    let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    add("files", if files.is_empty() { "none: defaults".to_owned() } else { files.join(", ") });
    add("ready", if status.ready { "yes".to_owned() } else { "no".to_owned() });
    for blocker in blocked_by {
        add("", reason(blocker));
    }
    if *state_in_memory {
        add("state", "in memory, and lost when the daemon ends".to_owned());
    }
    let broker = &status.broker;
    let connected = if broker.connected { "connected" } else { "not connected" };
    let confirmed = broker.consumers.iter().filter(|consumer| consumer.confirmed).count();
    let lost = broker.reconnects;
    add(
        "broker",
        format!("{connected}, {confirmed} of {} queues consumed, {lost} connections lost", broker.consumers.len()),
    );
    let counts = status.counts;
    add("tools", format!("{}, {} quarantined", counts.tools, counts.held_back));
    add("calls", format!("{} running, {} waiting", counts.in_flight, counts.waiting));
    for (number, busy) in busiest_agents.iter().enumerate() {
        let BusyAgent { agent, running, waiting, recent } = busy;
        let text = format!("{agent}: {running} running, {waiting} waiting, {recent} ended lately");
        add(if number == 0 { "busiest agents" } else { "" }, text);
    }
    for (number, busy) in busiest_tools.iter().enumerate() {
        let BusyTool { tool, running, recent } = busy;
        add(
            if number == 0 { "busiest tools" } else { "" },
            format!("{tool}: {running} running, {recent} ended lately"),
        );
    }
    if !disabled.is_empty() {
        add("switched off", switches(disabled));
    }
    for (number, replica) in status.replicas.iter().enumerate() {
        let differs = if replica.differs { ", with another configuration" } else { "" };
        let up = in_words(replica.uptime_seconds);
        let text = format!("{} {} ({}), up for {up}{differs}", replica.name, replica.version, replica.config_digest);
        add(if number == 0 { "replicas" } else { "" }, text);
    }
    for (number, other) in status.other_daemons.iter().enumerate() {
        let text = format!(
            "{} {} ({}) shares {} with this one, under another configuration",
            other.name,
            other.version,
            other.config_digest,
            other.shares.as_str()
        );
        add(if number == 0 { "others" } else { "" }, text);
    }
    for (number, breaker) in status.breakers.iter().enumerate() {
        let text = format!("{} gets no calls after {} failures in a row", breaker.name, breaker.failures);
        add(if number == 0 { "breakers" } else { "" }, text);
    }
    for (number, server) in status.mcp.iter().enumerate() {
        let error = server.last_error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
        add(if number == 0 { "servers" } else { "" }, format!("{} {}{error}", server.name, server.phase.as_str()));
    }
    for (number, set) in status.remote.iter().enumerate() {
        let error = set.last_error.as_deref().map(|error| format!(": {error}")).unwrap_or_default();
        let rivals = set.rivals.join(", ");
        let rivals = if rivals.is_empty() { rivals } else { format!("; calls also run at {rivals}") };
        let age = set.list_age_seconds.map(|age| format!(" ({} ago)", in_words(age))).unwrap_or_default();
        let text = format!("{} {}{age}, {} tools{rivals}{error}", set.name, set.phase.as_str(), set.tools);
        add(if number == 0 { "remote sets" } else { "" }, text);
    }
    for problem in &status.mcp_problems {
        add("problem", problem.clone());
    }
    match &status.reload {
        None => add("reload", "none since the start".to_owned()),
        Some(last) => {
            let outcome = if last.report.applied { "applied" } else { "refused" };
            add("reload", format!("{outcome} {} ago", in_words(last.seconds_ago)));
        }
    }
    let mut text = plain(&table);
    if let Some(last) = &status.reload {
        text = format!("{text}\n\n{}", reloaded(&last.report));
    }
    text
}

/// Lines on the outcome of a reload.
fn reloaded(report: &ReloadReport) -> String {
    let mut lines = Vec::new();
    match &report.error {
        Some(error) => {
            lines.push(format!("refused, everything stays as it was:\n{}", crate::terminal::printable(error)))
        }
        None if !report.applied => lines.push("refused, everything stays as it was".to_owned()),
        None => {
            let changed = if report.changed.is_empty() { "nothing" } else { &report.changed.join(", ") };
            lines.push(format!("applied: {} tools; changed: {changed}", report.tools));
        }
    }
    let listed = |what: &str, names: &[String]| {
        let shown = one_line(&names.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", "));
        let more = if names.len() > MAX_NAMED { ", …" } else { "" };
        (!names.is_empty()).then(|| format!("{what}: {shown}{more}"))
    };
    lines.extend(listed("tools added", &report.added));
    lines.extend(listed("tools removed", &report.removed));
    lines.extend(listed("changed, and waits for a restart", &report.waiting));
    lines.extend(report.warnings.iter().map(|warning| format!("warning: {}", one_line(warning))));
    lines.join("\n")
}

/// The reason why a daemon is not ready.
pub(super) fn reason(blocker: &Blocker) -> String {
    match blocker {
        Blocker::Draining => "it finishes its calls and takes no new ones".to_owned(),
        Blocker::BusClosed => "the bus has ended".to_owned(),
        Blocker::Disconnected { detail } => {
            format!("no connection to the broker{}", detail.as_ref().map(|it| format!(": {it}")).unwrap_or_default())
        }
        Blocker::BrokerBlocked { detail } => format!("the broker takes no messages: {detail}"),
        Blocker::Misconfigured { detail } => detail.clone(),
        Blocker::StoreAway { detail } => detail.clone(),
        Blocker::NoConsumer => "no queue is consumed".to_owned(),
        Blocker::ConsumerNotConfirmed { queue } => format!("the broker has not confirmed the consumer of {queue}"),
        Blocker::ToolMissing { tool } => format!("the required tool {tool} is missing"),
        Blocker::McpServerMissing { server } => format!("the required MCP server {server} is missing"),
        Blocker::McpServerNotReady { server, phase, detail } => {
            let detail = detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
            format!("the required MCP server {server} is {}{detail}", phase.as_str())
        }
        Blocker::ToolHeldBack { tool } => format!("the required tool {tool} is quarantined"),
    }
}

/// A time in its two largest units.
fn in_words(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}
