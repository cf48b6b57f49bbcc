//! The figures, for people and for programs.

use std::io::{self, Write};
use std::time::Duration;

use crate::usage::Usage;
use serde::Serialize;

use super::BARE;
use super::ledger::LedgerSizes;
use super::others::{REMOTE, SQLITE};
use crate::args::MeasureArgs;
use crate::daemon::TOOLBUS;
use crate::figures::{self, Row};
use crate::report::{Gate, Measured};
use toolbus::commands::Context;

/// Cost of the sides.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Broker {
    queue_type: String,
    tools: u16,
    trace_ratio: Option<f64>,
    span_bytes: Option<u64>,
    idle_mib: f64,
    ready_ms: f64,
    rows: Vec<Row>,
    ratios: Vec<Ratio>,
    /// Other daemons against the one that only replies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<OtherRatio>,
    /// Size of a million entries of a ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    million_entries: Option<LedgerSizes>,
}

/// Calls that are recorded, or passed on, against those that are neither.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OtherRatio {
    side: &'static str,
    callers: u16,
    throughput: f64,
    p50: f64,
}

/// Figure that a gate looks at.
#[derive(Debug, Clone, Copy)]
enum Bound {
    /// Throughput is at least this.
    Throughput(f64),
    /// The median is at most this.
    P50(f64),
}

/// Requirements for the other daemons: side, calls in flight, bound, and that as text.
const WANTED: [(&str, u16, Bound, &str); 3] = [
    (SQLITE, 64, Bound::Throughput(0.6), "≥ 0.6"),
    (REMOTE, 64, Bound::Throughput(0.45), "≥ 0.45"),
    (REMOTE, 1, Bound::P50(2.2), "≤ 2.2"),
];

/// The daemon against the floor.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Ratio {
    callers: u16,
    throughput: f64,
    p50: f64,
    cpu: f64,
}

impl Broker {
    pub(super) fn new(
        args: &MeasureArgs,
        context: &Context,
        rows: Vec<Row>,
        idle: Usage,
        ready_after: Duration,
        span_bytes: Option<u64>,
        million_entries: Option<LedgerSizes>,
    ) -> Self {
        Self {
            others: others(&rows),
            million_entries,
            queue_type: format!("{:?}", context.config.bus.queue_type).to_lowercase(),
            tools: args.tools,
            trace_ratio: args.trace_ratio,
            span_bytes,
            idle_mib: idle.resident as f64 / f64::from(1 << 20),
            ready_ms: ready_after.as_secs_f64() * 1e3,
            ratios: args.callers.iter().filter_map(|callers| ratio(&rows, *callers)).collect(),
            rows,
        }
    }
}

impl Measured for Broker {
    const NAME: &'static str = "broker";

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns: [figures::Column; 3] =
            [("CPU s/1000", figures::cpu), ("load CPU s/1000", figures::load_cpu), ("peak MiB", figures::peak)];
        writeln!(out, "{}\n", figures::table(&self.rows, "calls", &columns))?;
        for Ratio { callers, throughput, p50, cpu } in &self.ratios {
            writeln!(
                out,
                "{callers} in flight, toolbus / bare: throughput {throughput:.2}, p50 {p50:.2}, CPU per call {cpu:.2}"
            )?;
        }
        for OtherRatio { side, callers, throughput, p50 } in &self.others {
            writeln!(out, "{callers} in flight, {side} / toolbus: throughput {throughput:.2}, p50 {p50:.2}")?;
        }
        if let Some(LedgerSizes { memory_mib, file_mib }) = &self.million_entries {
            writeln!(out, "a million entries: {memory_mib:.0} MiB in memory, {file_mib:.0} MiB in SQLite")?;
        }
        Ok(())
    }

    fn gates(&self) -> Vec<Gate> {
        let gate = |(side, callers, bound, wanted)| {
            let OtherRatio { throughput, p50, .. } =
                self.others.iter().find(|ratio| (ratio.side, ratio.callers) == (side, callers))?;
            let (figure, measured, is_met) = match bound {
                Bound::Throughput(least) => ("throughput", throughput, *throughput >= least),
                Bound::P50(most) => ("p50", p50, *p50 <= most),
            };
            let what = format!("{figure} of calls {side}, of others, {callers} in flight");
            Some(Gate { what, wanted, measured: format!("{measured:.2}"), is_met })
        };
        WANTED.into_iter().filter_map(gate).collect()
    }

    fn conditions(&self, rounds: String) -> String {
        let Self { queue_type, tools, idle_mib, ready_ms, .. } = self;
        format!(
            "{queue_type} queue, {rounds}, {tools} extra tools; idle memory {idle_mib:.1} MiB, ready after {ready_ms:.0} ms"
        )
    }
}

fn ratio(rows: &[Row], callers: u16) -> Option<Ratio> {
    let side = |name: &str| rows.iter().find(|row| row.callers == callers && row.side == name).map(|row| row.figures);
    let (bare, toolbus) = (side(BARE)?, side(TOOLBUS)?);
    Some(Ratio {
        callers,
        throughput: toolbus.calls_per_second / bare.calls_per_second,
        p50: toolbus.p50_ms / bare.p50_ms,
        cpu: toolbus.cpu_seconds_per_1000 / bare.cpu_seconds_per_1000,
    })
}

/// The other daemons against the one that only replies.
fn others(rows: &[Row]) -> Vec<OtherRatio> {
    let of = |row: &Row| {
        let toolbus = rows.iter().find(|other| other.callers == row.callers && other.side == TOOLBUS)?;
        let throughput = row.figures.calls_per_second / toolbus.figures.calls_per_second;
        let p50 = row.figures.p50_ms / toolbus.figures.p50_ms;
        Some(OtherRatio { side: row.side, callers: row.callers, throughput, p50 })
    };
    rows.iter().filter(|row| ![BARE, TOOLBUS].contains(&row.side)).filter_map(of).collect()
}
