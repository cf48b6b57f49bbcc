//! Figures of rounds, their medians, and rows of them as every measurement prints them.

use std::time::Duration;

use crate::broker::load::Sample;
use crate::usage::Usage;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Measurements of one round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Figures {
    /// Calls completed per second.
    pub(crate) calls_per_second: f64,
    /// Median latency in milliseconds.
    pub(crate) p50_ms: f64,
    /// 95th percentile in milliseconds.
    pub(crate) p95_ms: f64,
    /// 99th percentile in milliseconds.
    pub(crate) p99_ms: f64,
    /// Processor seconds of the responding process per 1 000 calls.
    pub(crate) cpu_seconds_per_1000: f64,
    /// Processor seconds of the calling process per 1 000 calls.
    pub(crate) load_cpu_seconds_per_1000: f64,
    /// Most resident memory of the responding process so far, in MiB.
    pub(crate) peak_mib: f64,
}

impl Figures {
    /// Puts a sample and the use of both processes before and after it together.
    #[must_use]
    pub(crate) fn new(mut sample: Sample, responder: [Usage; 2], load: [Usage; 2]) -> Self {
        sample.latencies.sort_unstable();
        let calls = sample.latencies.len() as f64;
        let percentile = |share: f64| {
            let index = ((calls - 1.0) * share).round() as usize;
            sample.latencies.get(index).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e3)
        };
        let cpu = |[before, after]: [Usage; 2]| after.cpu.saturating_sub(before.cpu).as_secs_f64() * 1e3 / calls;
        Self {
            calls_per_second: calls / sample.elapsed.max(Duration::from_nanos(1)).as_secs_f64(),
            p50_ms: percentile(0.5),
            p95_ms: percentile(0.95),
            p99_ms: percentile(0.99),
            cpu_seconds_per_1000: cpu(responder),
            load_cpu_seconds_per_1000: cpu(load),
            peak_mib: responder[1].peak as f64 / f64::from(1 << 20),
        }
    }
}

/// The rounds of one side at one concurrency.
#[derive(Debug, Clone, Default)]
pub(crate) struct SideSummary {
    rounds: Vec<Figures>,
}

impl SideSummary {
    /// Adds a round.
    pub(crate) fn add(&mut self, round: Figures) {
        self.rounds.push(round);
    }

    /// The median of every figure over the rounds; absent without rounds.
    #[must_use]
    pub(crate) fn median(&self) -> Option<Figures> {
        let of = |figure: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = self.rounds.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            let upper = values.len() / 2;
            let lower = upper.saturating_sub(1 - values.len() % 2);
            Some((values.get(lower)? + values.get(upper)?) / 2.0)
        };
        Some(Figures {
            calls_per_second: of(|f| f.calls_per_second)?,
            p50_ms: of(|f| f.p50_ms)?,
            p95_ms: of(|f| f.p95_ms)?,
            p99_ms: of(|f| f.p99_ms)?,
            cpu_seconds_per_1000: of(|f| f.cpu_seconds_per_1000)?,
            load_cpu_seconds_per_1000: of(|f| f.load_cpu_seconds_per_1000)?,
            peak_mib: of(|f| f.peak_mib)?,
        })
    }
}

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

/// CPU time of the responding process.
pub(crate) fn cpu(figures: &Figures) -> String {
    format!("{:.4}", figures.cpu_seconds_per_1000)
}

/// CPU time of the calling process.
pub(crate) fn load_cpu(figures: &Figures) -> String {
    format!("{:.4}", figures.load_cpu_seconds_per_1000)
}

/// Most memory of the responding process.
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
    fn a_row_has_its_rate_its_latencies_and_the_requested_columns() {
        let rows = [row("floor", 1, 1234.4, 0.5), row("toolbus", 64, 9.6, 12.0)];
        let text = table(&rows, "calls", &[("CPU s/1000", cpu), ("peak MiB", peak)]).to_string();
        insta::assert_snapshot!(text, @r"
        | in flight | side    | calls/s | p50 ms | p95 ms | p99 ms | CPU s/1000 | peak MiB |
        |-----------|---------|---------|--------|--------|--------|------------|----------|
        | 1         | floor   |    1234 |  0.500 |  1.000 |  1.500 |     0.0100 |      3.0 |
        | 64        | toolbus |      10 | 12.000 | 24.000 | 36.000 |     0.0100 |      3.0 |
        ");
    }

    fn figures(milliseconds: &[u64]) -> Figures {
        let latencies = milliseconds.iter().copied().map(Duration::from_millis).collect();
        let sample = Sample { latencies, elapsed: Duration::from_secs(2) };
        let used = |seconds| Usage { cpu: Duration::from_secs(seconds), peak: 3 << 20, ..Usage::default() };
        Figures::new(sample, [used(1), used(2)], [used(0), used(3)])
    }

    #[test]
    fn a_sample_becomes_rates_percentiles_and_costs() {
        let milliseconds: Vec<u64> = (1..=100).rev().collect();
        let figures = figures(&milliseconds);
        assert_eq!((figures.calls_per_second, figures.peak_mib), (50.0, 3.0));
        assert_eq!((figures.p50_ms, figures.p95_ms, figures.p99_ms), (51.0, 95.0, 99.0));
        assert_eq!((figures.cpu_seconds_per_1000, figures.load_cpu_seconds_per_1000), (10.0, 30.0));
    }

    #[test]
    fn rounds_are_put_together_by_their_median() {
        let mut summary = SideSummary::default();
        assert_eq!(summary.median(), None);
        for latency in [1, 90, 3] {
            summary.add(figures(&[latency]));
        }
        assert_eq!(summary.median().unwrap().p50_ms, 3.0);
        summary.add(figures(&[5]));
        assert_eq!(summary.median().unwrap().p50_ms, 4.0);
    }
}
