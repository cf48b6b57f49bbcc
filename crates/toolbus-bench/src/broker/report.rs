//! The figures, for people and for programs.

use std::io::{self, Write};
use std::time::Duration;

use crate::usage::Usage;
use serde::Serialize;

use super::{BARE, TOOLBUS};
use crate::args::BenchArgs;
use crate::figures::{self, Row};
use toolbus::cli::Output;
use toolbus::commands::Context;

/// Everything that was measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    version: &'static str,
    queue_type: String,
    rounds: u16,
    seconds: u64,
    tools: u16,
    trace_ratio: Option<f64>,
    span_bytes: Option<u64>,
    idle_mib: f64,
    ready_ms: f64,
    rows: Vec<Row>,
    ratios: Vec<Ratio>,
}

/// The daemon against the floor.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Ratio {
    callers: u16,
    throughput: f64,
    p50: f64,
    cpu: f64,
}

impl Report {
    pub(super) fn new(
        args: &BenchArgs,
        context: &Context,
        rows: Vec<Row>,
        idle: Usage,
        ready_after: Duration,
        span_bytes: Option<u64>,
    ) -> Self {
        Self {
            version: toolbus::VERSION,
            queue_type: format!("{:?}", context.config.bus.queue_type).to_lowercase(),
            rounds: args.rounds,
            seconds: args.seconds,
            tools: args.tools,
            trace_ratio: args.trace_ratio,
            span_bytes,
            idle_mib: idle.resident as f64 / f64::from(1 << 20),
            ready_ms: ready_after.as_secs_f64() * 1e3,
            ratios: args.callers.iter().filter_map(|callers| ratio(&rows, *callers)).collect(),
            rows,
        }
    }

    pub(super) fn print(&self, output: Output) -> io::Result<()> {
        figures::print(self, output, Self::print_table)
    }

    fn print_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns: [figures::Column; 3] =
            [("CPU s/1000", figures::cpu), ("load CPU s/1000", figures::load_cpu), ("peak MiB", figures::peak)];
        writeln!(out, "{}\n", figures::table(&self.rows, "calls", &columns))?;
        for Ratio { callers, throughput, p50, cpu } in &self.ratios {
            writeln!(
                out,
                "{callers} in flight, toolbus / bare: throughput {throughput:.2}, p50 {p50:.2}, CPU per call {cpu:.2}"
            )?;
        }
        writeln!(
            out,
            "{} queue, {} rounds of {} s, {} extra tools; idle memory {:.1} MiB, ready after {:.0} ms",
            self.queue_type, self.rounds, self.seconds, self.tools, self.idle_mib, self.ready_ms
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
