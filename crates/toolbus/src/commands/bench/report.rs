//! The figures, for people and for programs.

use std::io::{self, Write};
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use toolbus_bench::{Figures, Usage};

use super::{BARE, BenchArgs, TOOLBUS};
use crate::cli::Output;
use crate::commands::Context;

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

/// One side at one concurrency.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) side: &'static str,
    pub(super) callers: u16,
    #[serde(flatten)]
    pub(super) figures: Figures,
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
            version: crate::VERSION,
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
        let mut out = anstream::stdout().lock();
        match output {
            Output::Json => {
                let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
                writeln!(out, "{text}")
            }
            Output::Table => self.print_table(&mut out),
        }
    }

    fn print_table(&self, out: &mut impl Write) -> io::Result<()> {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "in flight",
            "side",
            "calls/s",
            "p50 ms",
            "p95 ms",
            "p99 ms",
            "CPU s/1000",
            "load CPU s/1000",
            "peak MiB",
        ]);
        for Row { side, callers, figures } in &self.rows {
            table.add_row([
                callers.to_string(),
                (*side).to_owned(),
                format!("{:.0}", figures.calls_per_second),
                format!("{:.3}", figures.p50_ms),
                format!("{:.3}", figures.p95_ms),
                format!("{:.3}", figures.p99_ms),
                format!("{:.4}", figures.cpu_seconds_per_1000),
                format!("{:.4}", figures.load_cpu_seconds_per_1000),
                format!("{:.1}", figures.peak_mib),
            ]);
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(out, "{table}\n")?;
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
