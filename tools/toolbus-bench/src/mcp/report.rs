//! The figures, for people and for programs.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

use super::crowd::Crowd;
use super::sides::McpSide;
use crate::args::MeasureArgs;
use crate::figures::{self, Row};
use crate::report::Measured;

/// Cost of the sides.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Bridge {
    rows: Vec<Row>,
    comparisons: Vec<McpComparison>,
    recovery_ms: f64,
    crowd: Crowd,
}

/// The daemon against the server alone.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct McpComparison {
    callers: u16,
    throughput: f64,
    added_p50_ms: f64,
}

impl Bridge {
    pub(super) fn new(args: &MeasureArgs, rows: Vec<Row>, recovery: Duration, crowd: Crowd) -> Self {
        Self {
            comparisons: args.callers.iter().filter_map(|callers| comparison(&rows, *callers)).collect(),
            rows,
            recovery_ms: recovery.as_secs_f64() * 1e3,
            crowd,
        }
    }
}

impl Measured for Bridge {
    const NAME: &'static str = "mcp";

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns: [figures::Column; 2] = [("CPU s/1000", figures::load_cpu), ("server CPU s/1000", figures::cpu)];
        writeln!(out, "{}\n", figures::table(&self.rows, "calls", &columns))?;
        for McpComparison { callers, throughput, added_p50_ms } in &self.comparisons {
            writeln!(
                out,
                "{callers} in flight, toolbus / direct: throughput {throughput:.2}, p50 {added_p50_ms:+.3} ms"
            )?;
        }
        writeln!(out, "good answer {:.0} ms after a server was killed", self.recovery_ms)?;
        writeln!(out, "{}", self.crowd)
    }
}

fn comparison(rows: &[Row], callers: u16) -> Option<McpComparison> {
    let side = |side: McpSide| {
        let row = rows.iter().find(|row| row.callers == callers && row.side == side.name());
        row.map(|row| row.figures)
    };
    let (direct, bridge) = (side(McpSide::Direct)?, side(McpSide::Bridge)?);
    Some(McpComparison {
        callers,
        throughput: bridge.calls_per_second / direct.calls_per_second,
        added_p50_ms: bridge.p50_ms - direct.p50_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::row;

    #[test]
    fn the_daemon_is_compared_with_the_server_alone_at_the_same_concurrency() {
        let rows = [
            row(McpSide::Direct.name(), 1, 1_000.0, 1.0),
            row(McpSide::Bridge.name(), 1, 800.0, 1.25),
            row(McpSide::Direct.name(), 32, 10_000.0, 3.0),
        ];
        let expected = McpComparison { callers: 1, throughput: 0.8, added_p50_ms: 0.25 };
        assert_eq!(comparison(&rows, 1), Some(expected));
        assert_eq!(comparison(&rows, 32), None);
    }
}
