//! The figures, for people and for programs, and whether they are good enough.

use std::io::{self, Write};

use crate::figures::Figures;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::McpServerSide;
use super::idle::Idle;
use super::peers::{Compared, PeerCalls};
use crate::figures::{self, Row};
use crate::report::{Gate, Measured};

/// Most that the MCP server may add to a call at the median, in milliseconds.
const ADDED: f64 = 0.5;
/// Least that it has to carry of what the page does.
const CARRIED: f64 = 0.7;
/// Most memory that a thousand idle sessions may take, in MiB.
const MEMORY: f64 = 20.0;

/// Cost of the sides.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct McpServerBench {
    pub(super) rows: Vec<Row>,
    pub(super) idle: Idle,
    pub(super) peers: Vec<Compared>,
}

impl Measured for McpServerBench {
    const NAME: &'static str = "mcp-server";

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { rows, idle, peers } = self;
        let columns: [figures::Column; 3] =
            [("CPU s/1000", figures::cpu), ("load CPU s/1000", figures::load_cpu), ("peak MiB", figures::peak)];
        writeln!(out, "{}\n", figures::table(rows, "calls", &columns))?;
        if !peers.is_empty() {
            writeln!(out, "{}\n", comparison(peers))?;
        }
        writeln!(out, "{idle}")
    }

    fn gates(&self) -> Vec<Gate> {
        added(&self.rows).into_iter().chain(carried(&self.rows)).chain([memory(&self.idle)]).collect()
    }
}

/// Both generations of the protocol.
const SIDES: [McpServerSide; 2] = [McpServerSide::Session, McpServerSide::Stateless];

fn figures_of(rows: &[Row], side: McpServerSide, callers: u16) -> Option<Figures> {
    rows.iter().find(|row| row.callers == callers && row.side == side.name()).map(|row| row.figures)
}

/// Builds the gates for the time that the MCP server adds to the call on the bus, where one call at a time was
/// measured.
fn added(rows: &[Row]) -> Vec<Gate> {
    let gate = |side: McpServerSide| {
        let added = figures_of(rows, side, 1)?.p50_ms - figures_of(rows, McpServerSide::Bus, 1)?.p50_ms;
        let what = format!("p50 of {}, beyond that on the bus", side.name());
        Some(Gate { what, wanted: "≤ 0.5 ms", measured: format!("{added:.3} ms"), is_met: added <= ADDED })
    };
    SIDES.into_iter().filter_map(gate).collect()
}

/// Builds the gates for the part of the page's throughput that the MCP server carries, with as many connections as were
/// measured at most.
fn carried(rows: &[Row]) -> Vec<Gate> {
    let Some(callers) = rows.iter().map(|row| row.callers).max().filter(|callers| *callers > 1) else {
        return Vec::new();
    };
    let gate = |side: McpServerSide| {
        let rate = |side| figures_of(rows, side, callers).map(|figures| figures.calls_per_second);
        let carried = rate(side)? / rate(McpServerSide::Page)?;
        let what = format!("{} at {callers} connections, of {}", side.name(), McpServerSide::Page.name());
        Some(Gate { what, wanted: "≥ 0.70", measured: format!("{carried:.2}"), is_met: carried >= CARRIED })
    };
    SIDES.into_iter().filter_map(gate).collect()
}

/// Builds the gate for the memory that idle sessions take, as if there were a thousand.
fn memory(idle: &Idle) -> Gate {
    let taken = idle.of_sessions() / f64::from(idle.sessions) * 1e3;
    let what = "memory of 1000 idle sessions".to_owned();
    Gate { what, wanted: "≤ 20 MiB", measured: format!("{taken:.1} MiB"), is_met: taken <= MEMORY }
}

fn comparison(peers: &[Compared]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let before = ["proxy", "in flight", "calls/s", "p50 ms", "p99 ms", "not good"];
    table.set_header(before.into_iter().chain(["memory MiB", "good after kill", "the same, new session"]));
    for Compared { name, calls, memory_mib, after_kill } in peers {
        for PeerCalls { callers, figures, failures } in calls {
            table.add_row([
                name.clone(),
                callers.to_string(),
                format!("{:.0}", figures.calls_per_second),
                format!("{:.3}", figures.p50_ms),
                format!("{:.3}", figures.p99_ms),
                failures.to_string(),
                format!("{memory_mib:.1}"),
                millis_or_never(after_kill.same_session_ms),
                millis_or_never(after_kill.new_session_ms),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn millis_or_never(time: Option<f64>) -> String {
    time.map_or_else(|| "never (30 s)".to_owned(), |time| format!("{time:.0} ms"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::peers::AfterKill;
    use super::*;
    use crate::BenchCli;
    use crate::figures::tests::row;
    use crate::report::Report;

    const MIB: u64 = 1 << 20;

    fn args() -> crate::args::MeasureArgs {
        BenchCli::try_parse_from(["toolbus-bench", "--mcp-server"]).unwrap().bench
    }

    fn rows(session: f64, stateless: f64, carried: f64) -> Vec<Row> {
        vec![
            row("bus", 1, 20_000.0, 0.05),
            row("/healthz", 1, 12_500.0, 0.08),
            row("MCP session", 1, 5_000.0, session),
            row("MCP stateless", 1, 5_000.0, stateless),
            row("bus", 32, 60_000.0, 0.5),
            row("/healthz", 32, 40_000.0, 0.8),
            row("MCP session", 32, carried, 1.1),
            row("MCP stateless", 32, 30_000.0, 1.1),
        ]
    }

    fn idle(with_sessions: u64) -> Idle {
        Idle { sessions: 500, before: 20 * MIB, with_sessions, with_streams: 60 * MIB }
    }

    fn peers() -> Vec<Compared> {
        let calls = |p50| {
            [1, 32].map(|callers| PeerCalls { callers, figures: row("", callers, 900.0, p50).figures, failures: 7 })
        };
        let compared = |name: &str, p50, after_kill| Compared {
            name: name.to_owned(),
            calls: calls(p50).into(),
            memory_mib: 55.55,
            after_kill,
        };
        let back = AfterKill { same_session_ms: Some(412.3), new_session_ms: Some(501.0) };
        let lost = AfterKill { same_session_ms: None, new_session_ms: None };
        vec![compared("toolbus", 0.2, back), compared("another", 2.0, lost)]
    }

    fn report(rows: Vec<Row>, idle: Idle) -> Report<McpServerBench> {
        Report::new(&args(), McpServerBench { rows, idle, peers: peers() })
    }

    fn missed(report: &Report<McpServerBench>) -> Vec<&str> {
        report.gates.iter().filter(|gate| !gate.is_met).map(|gate| &*gate.what).collect()
    }

    #[test]
    fn the_mcp_server_may_add_half_a_millisecond_and_has_to_carry_seven_tenths_with_little_memory() {
        assert!(report(rows(0.55, 0.5, 28_000.0), idle(30 * MIB)).is_met());
        let slow = report(rows(0.551, 0.6, 27_999.0), idle(30 * MIB + 1));
        assert_eq!(
            missed(&slow),
            [
                "p50 of MCP session, beyond that on the bus",
                "p50 of MCP stateless, beyond that on the bus",
                "MCP session at 32 connections, of /healthz",
                "memory of 1000 idle sessions"
            ]
        );
        assert!(!slow.is_met());
        assert!(missed(&report(rows(f64::NAN, 0.1, 30_000.0), idle(0))).len() == 1, "an unmeasured gate is not met");
    }

    #[test]
    fn an_unmeasured_side_has_no_gate() {
        let alone: Vec<Row> = rows(0.1, 0.1, 0.0).into_iter().filter(|row| row.callers == 1).collect();
        assert_eq!(report(alone, idle(0)).gates.len(), 3);
        let crowd: Vec<Row> = rows(9.0, 9.0, 30_000.0).into_iter().filter(|row| row.callers == 32).collect();
        assert_eq!(report(crowd, idle(0)).gates.len(), 3);
    }

    #[test]
    fn the_text_report_shows_all_figures() {
        let mut out = Vec::new();
        report(rows(0.2, 0.6, 30_000.0), idle(26 * MIB)).print(&mut out).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        | in flight | side          | calls/s | p50 ms | p95 ms | p99 ms | CPU s/1000 | load CPU s/1000 | peak MiB |
        |-----------|---------------|---------|--------|--------|--------|------------|-----------------|----------|
        | 1         | bus           |   20000 |  0.050 |  0.100 |  0.150 |     0.0100 |          0.0200 |      3.0 |
        | 1         | /healthz      |   12500 |  0.080 |  0.160 |  0.240 |     0.0100 |          0.0200 |      3.0 |
        | 1         | MCP session   |    5000 |  0.200 |  0.400 |  0.600 |     0.0100 |          0.0200 |      3.0 |
        | 1         | MCP stateless |    5000 |  0.600 |  1.200 |  1.800 |     0.0100 |          0.0200 |      3.0 |
        | 32        | bus           |   60000 |  0.500 |  1.000 |  1.500 |     0.0100 |          0.0200 |      3.0 |
        | 32        | /healthz      |   40000 |  0.800 |  1.600 |  2.400 |     0.0100 |          0.0200 |      3.0 |
        | 32        | MCP session   |   30000 |  1.100 |  2.200 |  3.300 |     0.0100 |          0.0200 |      3.0 |
        | 32        | MCP stateless |   30000 |  1.100 |  2.200 |  3.300 |     0.0100 |          0.0200 |      3.0 |

        | proxy   | in flight | calls/s | p50 ms | p99 ms | not good | memory MiB | good after kill | the same, new session |
        |---------|-----------|---------|--------|--------|----------|------------|-----------------|-----------------------|
        | toolbus |         1 |     900 |  0.200 |  0.600 |        7 |       55.5 |          412 ms |                501 ms |
        | toolbus |        32 |     900 |  0.200 |  0.600 |        7 |       55.5 |          412 ms |                501 ms |
        | another |         1 |     900 |  2.000 |  6.000 |        7 |       55.5 |    never (30 s) |          never (30 s) |
        | another |        32 |     900 |  2.000 |  6.000 |        7 |       55.5 |    never (30 s) |          never (30 s) |

        500 idle sessions: memory 20.0 to 26.0 MiB, 60.0 MiB with a stream open in each
        met: p50 of MCP session, beyond that on the bus 0.150 ms, wanted ≤ 0.5 ms
        MISSED: p50 of MCP stateless, beyond that on the bus 0.550 ms, wanted ≤ 0.5 ms
        met: MCP session at 32 connections, of /healthz 0.75, wanted ≥ 0.70
        met: MCP stateless at 32 connections, of /healthz 0.75, wanted ≥ 0.70
        met: memory of 1000 idle sessions 12.0 MiB, wanted ≤ 20 MiB
        5 rounds of 3 s
        ");
    }

    #[test]
    fn the_json_report_shows_the_same() {
        let shown = serde_json::to_value(report(rows(0.2, 0.2, 30_000.0), idle(26 * MIB))).unwrap();
        assert_eq!(shown["rows"][2]["side"], "MCP session");
        assert_eq!(
            shown["idle"],
            serde_json::json!({"sessions": 500, "before": 20 * MIB, "withSessions": 26 * MIB, "withStreams": 60 * MIB})
        );
        assert_eq!(shown["peers"][1]["afterKill"], serde_json::json!({"sameSessionMs": null, "newSessionMs": null}));
        assert_eq!(
            (&shown["peers"][0]["calls"][1]["callers"], &shown["peers"][0]["calls"][1]["failures"]),
            (&32.into(), &7.into())
        );
        assert_eq!(shown["gates"][0]["isMet"], true);
    }
}
