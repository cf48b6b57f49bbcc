//! `toolbus trace`: the outcomes of recent calls, and the steps of one with their times.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use axum::http::Method;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde_json::{Map, Value};

use super::target::{DaemonArgs, Operator, TargetError, query_of};
use super::{as_json, note, one_line, plain};
use crate::audit;
use crate::config::{Config, HumanDuration};
use crate::http::admin::recent::{CallTrace, RecentFound, in_rfc3339};
use crate::terminal::{OutputFormat, ignore_broken_pipe};

/// Header of a table of calls.
const HEADER: [&str; 6] = ["ARRIVED", "AGENT", "TOOL", "STATUS", "TOOK", "CALL"];

/// Shows the calls of the last minutes, newest first; with an id, the steps of that call with their times, of those that
/// have its trace, and the calls that its tool made.
///
/// The daemon keeps the last thousand calls in memory. Of an older call of the id, and where no daemon answers, the
/// records in the `audit.file` of the configuration are shown, unless --socket or --daemon names the daemon. Arguments
/// and results are not shown. The exit code is 1 if there is nothing about the id.
#[derive(Debug, clap::Args)]
pub struct TraceArgs {
    /// Id of the call, of its message or of its trace, or its correlation id.
    id: Option<String>,
    /// Only calls of this agent.
    #[arg(long)]
    agent: Option<String>,
    /// Only calls of this tool.
    #[arg(long)]
    tool: Option<String>,
    /// Only calls with this status: `ok`, `error`, `in_flight`, `requeued`, `attached`, a code such as `timeout`, or
    /// `failed` for every one that went wrong.
    #[arg(long)]
    status: Option<String>,
    /// Only calls that took this long or longer, such as `500ms`.
    #[arg(long, value_name = "TIME")]
    slower_than: Option<HumanDuration>,
    /// Show this many calls, 200 at most.
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    limit: usize,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Sends the request, and prints the calls.
///
/// # Errors
///
/// If the daemon refuses, or does not respond and the audit file has no record; or standard output is closed.
pub async fn run(args: TraceArgs, operator: &Operator) -> Result<ExitCode, TargetError> {
    let slower = args.slower_than.map(|time| time.get().as_millis().to_string());
    let limit = Some(args.limit.to_string());
    let given = [
        ("id", &args.id),
        ("agent", &args.agent),
        ("tool", &args.tool),
        ("status", &args.status),
        ("slower_ms", &slower),
        ("limit", &limit),
    ];
    let path = format!("/v1/calls?{}", query_of(given));
    let queried = async || -> Result<RecentFound, TargetError> {
        Ok(args.daemon.open(operator).await?.send(Method::GET, &path).await?)
    };
    // The audit file of the configuration is not that of a daemon which is named besides.
    let is_of_configuration = matches!(args.daemon.named(operator), Ok(None));
    let (mut found, absence) = match queried().await {
        Ok(found) => (found, None),
        Err(error) if is_of_configuration && error.is_absence() => (RecentFound::default(), Some(error)),
        Err(error) => return Err(error),
    };
    if let Some(id) = args.id.as_deref().filter(|_| is_of_configuration && found.calls.is_empty()) {
        found.recorded = recorded(operator, id);
    }
    match absence {
        Some(error) if found.recorded.is_empty() => return Err(error),
        Some(error) => note(&format!("no daemon is asked, the audit file alone is looked at: {error}")),
        None => {}
    }
    let is_missing = args.id.is_some() && found.calls.is_empty() && found.recorded.is_empty();
    let text = match (operator.output, args.id) {
        (OutputFormat::Json, _) => as_json(&found),
        (OutputFormat::Table, Some(_)) if is_missing => {
            "no recent call has this id: the daemon keeps the last thousand, since its start".to_owned()
        }
        (OutputFormat::Table, Some(_)) if found.calls.is_empty() => {
            found.recorded.iter().map(as_facts).collect::<Vec<_>>().join("\n\n")
        }
        (OutputFormat::Table, Some(_)) => found.calls.iter().map(in_steps).collect::<Vec<_>>().join("\n\n"),
        (OutputFormat::Table, None) => listed(&found),
    };
    ignore_broken_pipe(writeln!(io::stdout(), "{text}"))?;
    Ok(ExitCode::from(u8::from(is_missing)))
}

/// The last records of a call in the audit file; none where there is no such file, which is noted on standard error if
/// it cannot be read.
fn recorded(operator: &Operator, call_id: &str) -> Vec<Map<String, Value>> {
    let Some(file) = Config::audit_file_as_written(&operator.sources) else { return Vec::new() };
    audit::records_of(&file, call_id).unwrap_or_else(|error| {
        note(&format!("the audit file `{}` cannot be read: {error}", file.display()));
        Vec::new()
    })
}

/// A record of the audit as a table of its fields.
fn as_facts(record: &Map<String, Value>) -> String {
    let mut facts = Table::new();
    facts.load_style(NOTHING);
    for (name, value) in record {
        let (name, value) = match (name.as_str(), value) {
            ("time_unix_ms", Value::Number(time)) => {
                let time = UNIX_EPOCH.checked_add(Duration::from_millis(time.as_u64().unwrap_or_default()));
                ("ended", time.map(in_rfc3339).unwrap_or_default())
            }
            (name, Value::String(text)) => (name, text.clone()),
            (name, value) => (name, value.to_string()),
        };
        facts.add_row([one_line(name), one_line(&value)]);
    }
    plain(&facts)
}

fn listed(found: &RecentFound) -> String {
    if found.calls.is_empty() {
        return "there is no such call among the last thousand since the daemon's start".to_owned();
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(HEADER);
    for call in &found.calls {
        table.add_row(cells(call));
    }
    plain(&table)
}

/// A call as a row of a table; ids and names are made safe.
pub(super) fn cells(call: &CallTrace) -> [String; 6] {
    let took = call.total_ms.map(in_words).unwrap_or_default();
    let id = call.call_id.as_deref().unwrap_or_default();
    [call.arrived.clone(), one_line(&call.agent), one_line(&call.tool), status(call), took, one_line(id)]
}

fn status(call: &CallTrace) -> String {
    let cause = call.cause.as_deref().filter(|cause| *cause != call.status);
    let cause = cause.map(|cause| format!(" ({cause})")).unwrap_or_default();
    format!("{}{cause}{}", call.status, call.repeated())
}

fn in_steps(call: &CallTrace) -> String {
    let mut facts = Table::new();
    facts.load_style(NOTHING);
    let mut add = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            facts.add_row([name, &one_line(value)]);
        }
    };
    add("tool", Some(&call.tool));
    add("source", call.source.as_deref());
    add("agent", Some(&call.agent));
    add("status", Some(&status(call)));
    add("refusal", call.refusal.as_deref());
    add("arrived", Some(&call.arrived));
    add("queue", call.queue.as_deref());
    add("call", call.call_id.as_deref());
    add("message", call.message_id.as_deref());
    add("correlation", call.correlation_id.as_deref());
    add("idempotency key", call.idempotency_key.as_deref());
    add("attempt", call.attempt().as_deref());
    add("trace", call.trace_id.as_deref());
    add("called by", call.around.map(|around| format!("number {around}")).as_deref());
    let mut steps = Table::new();
    steps.load_style(NOTHING).set_header(["STEP", "FROM", "TOOK"]);
    for step in &call.steps {
        let took = step.took_ms.map_or_else(|| "goes on".to_owned(), in_words);
        steps.add_row([step.name.clone(), in_words(step.from_ms), took]);
    }
    if let Some(total) = call.total_ms {
        steps.add_row(["total".to_owned(), in_words(0.0), in_words(total)]);
    }
    let mut parts = vec![plain(&facts), plain(&steps)];
    if !call.inner.is_empty() {
        let mut inner = Table::new();
        inner.load_style(NOTHING).set_header(["INNER CALL", "STATUS", "TOOK"]);
        add_inner(&mut inner, &call.inner, 0);
        parts.push(plain(&inner));
    }
    parts.join("\n\n")
}

fn add_inner(table: &mut Table, calls: &[CallTrace], depth: usize) {
    for call in calls {
        let took = call.total_ms.map_or_else(|| "goes on".to_owned(), in_words);
        table.add_row([format!("{}{}", "  ".repeat(depth), one_line(&call.tool)), status(call), took]);
        add_inner(table, &call.inner, depth + 1);
    }
}

fn in_words(milliseconds: f64) -> String {
    format!("{milliseconds:.2} ms")
}

#[cfg(test)]
mod tests {
    use crate::http::admin::recent::TraceStep;

    use super::*;

    fn call(status: &str, cause: Option<&str>, total_ms: Option<f64>) -> CallTrace {
        let step = |name: &str, from_ms, took_ms| TraceStep { name: name.to_owned(), from_ms, took_ms };
        CallTrace {
            number: 7,
            arrived: "2026-01-01T00:00:00.000Z".to_owned(),
            queue: Some("toolbus.invoke".to_owned()),
            message_id: Some("m-1".to_owned()),
            call_id: Some("call\n1".to_owned()),
            agent: "ana".to_owned(),
            tool: "get_weather".to_owned(),
            source: Some("rest".to_owned()),
            status: status.to_owned(),
            cause: cause.map(str::to_owned),
            total_ms,
            steps: vec![step("check", 0.0, Some(0.25)), step("run", 0.25, total_ms)],
            ..CallTrace::default()
        }
    }

    #[test]
    fn calls_are_listed_with_their_outcomes() {
        let calls = vec![
            call("in_flight", None, None),
            call("timeout", Some("expired"), Some(30_000.0)),
            CallTrace { replayed: true, ..call("ok", None, Some(1.04)) },
        ];
        insta::assert_snapshot!(listed(&RecentFound { calls, ..RecentFound::default() }), @"
        ARRIVED                   AGENT  TOOL         STATUS               TOOK         CALL
        2026-01-01T00:00:00.000Z  ana    get_weather  in_flight                         call 1
        2026-01-01T00:00:00.000Z  ana    get_weather  timeout (expired)    30000.00 ms  call 1
        2026-01-01T00:00:00.000Z  ana    get_weather  ok (repeated reply)  1.04 ms      call 1
        ");
    }

    #[test]
    fn a_call_is_shown_with_its_steps() {
        let keyed = CallTrace { idempotency_key: Some("order-7".to_owned()), ..call("in_flight", None, None) };
        insta::assert_snapshot!(in_steps(&keyed), @"
        tool             get_weather
        source           rest
        agent            ana
        status           in_flight
        arrived          2026-01-01T00:00:00.000Z
        queue            toolbus.invoke
        call             call 1
        message          m-1
        idempotency key  order-7
        attempt          first

        STEP   FROM     TOOK
        check  0.00 ms  0.25 ms
        run    0.25 ms  goes on
        ");
    }

    #[test]
    fn inner_calls_are_shown_in_the_call_that_made_them() {
        let innermost = call("timeout", Some("expired"), Some(5.0));
        let inner = CallTrace { inner: vec![innermost], ..call("in_flight", None, None) };
        let outer = CallTrace { inner: vec![inner, call("ok", None, Some(1.0))], ..call("ok", None, Some(9.0)) };
        let text = in_steps(&CallTrace { around: Some(3), ..outer });
        assert!(text.contains("called by  number 3"), "{text}");
        insta::assert_snapshot!(text.split_once("\n\nINNER").unwrap().1, @"
         CALL     STATUS             TOOK
        get_weather    in_flight          goes on
          get_weather  timeout (expired)  5.00 ms
        get_weather    ok                 1.00 ms
        ");
    }
}
