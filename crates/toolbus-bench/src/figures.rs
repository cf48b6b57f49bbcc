//! Rows of figures, which every measurement prints alike.

use std::io::{self, Write};

use crate::summary::Figures;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use toolbus::cli::Output;
use toolbus::commands::as_json;

/// One side at one concurrency.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) side: &'static str,
    pub(crate) callers: u16,
    #[serde(flatten)]
    pub(crate) figures: Figures,
}

/// A column beside rate and latencies: its name, and what is in it.
pub(crate) type Column = (&'static str, fn(&Figures) -> String);

/// Processor time of the answering process.
pub(crate) fn cpu(figures: &Figures) -> String {
    format!("{:.4}", figures.cpu_seconds_per_1000)
}

/// Processor time of the calling process.
pub(crate) fn load_cpu(figures: &Figures) -> String {
    format!("{:.4}", figures.load_cpu_seconds_per_1000)
}

/// Most memory of the answering process.
pub(crate) fn peak(figures: &Figures) -> String {
    format!("{:.1}", figures.peak_mib)
}

/// The rows, with what calls are named here.
pub(crate) fn table(rows: &[Row], calls: &str, columns: &[Column]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let header = ["in flight".to_owned(), "side".to_owned(), format!("{calls}/s")].into_iter();
    let latencies = ["p50 ms", "p95 ms", "p99 ms"].map(str::to_owned);
    table.set_header(header.chain(latencies).chain(columns.iter().map(|(name, _)| (*name).to_owned())));
    for Row { side, callers, figures } in rows {
        let first = [callers.to_string(), (*side).to_owned(), format!("{:.0}", figures.calls_per_second)];
        let latencies = [figures.p50_ms, figures.p95_ms, figures.p99_ms].map(|latency| format!("{latency:.3}"));
        table.add_row(first.into_iter().chain(latencies).chain(columns.iter().map(|(_, of)| of(figures))));
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Prints a report: as JSON, or as `people` have it.
pub(crate) fn print<R: Serialize>(
    report: &R,
    output: Output,
    people: impl FnOnce(&R, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    match output {
        Output::Json => writeln!(out, "{}", as_json(report)),
        Output::Table => people(report, &mut out),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A row with these figures.
    pub(crate) fn row(side: &'static str, callers: u16, calls_per_second: f64, p50_ms: f64) -> Row {
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
        Row { side, callers, figures }
    }

    #[test]
    fn a_row_has_its_rate_its_latencies_and_the_columns_that_are_asked_for() {
        let rows = [row("floor", 1, 1234.4, 0.5), row("toolbus", 64, 9.6, 12.0)];
        let told = table(&rows, "calls", &[("CPU s/1000", cpu), ("peak MiB", peak)]).to_string();
        insta::assert_snapshot!(told, @r"
        | in flight | side    | calls/s | p50 ms | p95 ms | p99 ms | CPU s/1000 | peak MiB |
        |-----------|---------|---------|--------|--------|--------|------------|----------|
        | 1         | floor   |    1234 |  0.500 |  1.000 |  1.500 |     0.0100 |      3.0 |
        | 64        | toolbus |      10 | 12.000 | 24.000 | 36.000 |     0.0100 |      3.0 |
        ");
    }
}
