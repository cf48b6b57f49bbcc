//! The figures, for people and for programs.

use std::io::{self, Write};
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use toolbus_bench::Figures;

use super::crowd::Crowd;
use super::sides::Side;
use crate::cli::Output;
use crate::commands::as_json;
use crate::commands::bench::BenchArgs;

/// Everything that was measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    version: &'static str,
    rounds: u16,
    seconds: u64,
    rows: Vec<Row>,
    comparisons: Vec<Comparison>,
    recovery_ms: f64,
    crowd: Crowd,
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

/// The daemon against the server alone.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Comparison {
    callers: u16,
    throughput: f64,
    added_p50_ms: f64,
}

impl Report {
    pub(super) fn new(args: &BenchArgs, rows: Vec<Row>, recovery: Duration, crowd: Crowd) -> Self {
        Self {
            version: crate::VERSION,
            rounds: args.rounds,
            seconds: args.seconds,
            comparisons: args.callers.iter().filter_map(|callers| comparison(&rows, *callers)).collect(),
            rows,
            recovery_ms: recovery.as_secs_f64() * 1e3,
            crowd,
        }
    }

    pub(super) fn print(&self, output: Output) -> io::Result<()> {
        let mut out = anstream::stdout().lock();
        match output {
            Output::Json => writeln!(out, "{}", as_json(self)),
            Output::Table => self.print_table(&mut out),
        }
    }

    fn print_table(&self, out: &mut impl Write) -> io::Result<()> {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        let costs = ["CPU s/1000", "server CPU s/1000"];
        table.set_header(["in flight", "side", "calls/s", "p50 ms", "p95 ms", "p99 ms"].into_iter().chain(costs));
        for Row { side, callers, figures } in &self.rows {
            table.add_row([
                callers.to_string(),
                (*side).to_owned(),
                format!("{:.0}", figures.calls_per_second),
                format!("{:.3}", figures.p50_ms),
                format!("{:.3}", figures.p95_ms),
                format!("{:.3}", figures.p99_ms),
                format!("{:.4}", figures.load_cpu_seconds_per_1000),
                format!("{:.4}", figures.cpu_seconds_per_1000),
            ]);
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(out, "{table}\n")?;
        for Comparison { callers, throughput, added_p50_ms } in &self.comparisons {
            writeln!(
                out,
                "{callers} in flight, toolbus / direct: throughput {throughput:.2}, p50 {added_p50_ms:+.3} ms"
            )?;
        }
        writeln!(out, "good answer {:.0} ms after a server was killed", self.recovery_ms)?;
        writeln!(out, "{}", self.crowd)?;
        writeln!(out, "{} rounds of {} s", self.rounds, self.seconds)
    }
}

fn comparison(rows: &[Row], callers: u16) -> Option<Comparison> {
    let side = |side: Side| {
        let row = rows.iter().find(|row| row.callers == callers && row.side == side.name());
        row.map(|row| row.figures)
    };
    let (direct, bridge) = (side(Side::Direct)?, side(Side::Bridge)?);
    Some(Comparison {
        callers,
        throughput: bridge.calls_per_second / direct.calls_per_second,
        added_p50_ms: bridge.p50_ms - direct.p50_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(side: Side, callers: u16, calls_per_second: f64, p50_ms: f64) -> Row {
        let (p95_ms, p99_ms) = (p50_ms * 2.0, p50_ms * 3.0);
        let (cpu_seconds_per_1000, load_cpu_seconds_per_1000, peak_mib) = (0.01, 0.02, 3.0);
        let figures = Figures {
            calls_per_second,
            p50_ms,
            p95_ms,
            p99_ms,
            cpu_seconds_per_1000,
            load_cpu_seconds_per_1000,
            peak_mib,
        };
        Row { side: side.name(), callers, figures }
    }

    #[test]
    fn the_daemon_is_compared_with_the_server_alone_at_the_same_concurrency() {
        let rows = [
            row(Side::Direct, 1, 1_000.0, 1.0),
            row(Side::Bridge, 1, 800.0, 1.25),
            row(Side::Direct, 32, 10_000.0, 3.0),
        ];
        let expected = Comparison { callers: 1, throughput: 0.8, added_p50_ms: 0.25 };
        assert_eq!(comparison(&rows, 1), Some(expected));
        assert_eq!(comparison(&rows, 32), None);
    }
}
