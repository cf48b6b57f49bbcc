//! The figures, for people and for programs, and whether they are good enough.

use std::fmt;
use std::io::{self, Write};

use crate::figures::Figures;
use serde::Serialize;

use super::footprint::Growth;
use super::sides::Names;
use crate::figures::{self, Row};
use crate::report::{Gate, Measured};

/// Longest that a cold start may take, as a multiple of the interpreter alone.
const COLD: f64 = 1.3;
/// Most CPU time that it may take, likewise.
const COLD_CPU: f64 = 1.45;
/// Longest that a forked interpreter may take, likewise.
const FORKED: f64 = 0.5;
/// Longest that one with numpy and pandas may take, in milliseconds.
const PACKAGES_MS: f64 = 15.0;
/// Fewest scripts a second in forked interpreters, as a multiple of the interpreters that the same cores start.
const FORKED_RATE: f64 = 1.4;
/// Time that a warm start has to stay below, as a multiple of the interpreter alone.
const WARM: f64 = 1.0;
/// Most memory that many scripts may leave with this process, in bytes.
const MEMORY: u64 = 2 << 20;

/// Cost of the sides.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ScriptReport {
    pub(super) rows: Vec<Row>,
    /// Sides that could not be measured, and why.
    pub(super) absent: Vec<(&'static str, String)>,
    pub(super) throughput: Vec<Throughput>,
    pub(super) growth: Vec<Growth>,
    pub(super) python: String,
    pub(super) max_in_flight: usize,
    #[serde(skip)]
    pub(super) names: Names,
}

/// Scripts a second, of the interpreters that the same cores start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Throughput {
    callers: u16,
    cold: f64,
    pool: f64,
    forked: f64,
}

impl Throughput {
    /// From the rows of one number of callers; absent where one is missing.
    pub(super) fn of(callers: u16, rows: &[Row]) -> Option<Self> {
        let rate = |side: &str| figures_of(rows, side).map(|figures| figures.calls_per_second);
        let plain = rate("plain")?;
        Some(Self {
            callers,
            cold: rate("cold")? / plain,
            pool: rate("pool")? / plain,
            forked: rate("forked")? / plain,
        })
    }
}

impl Measured for ScriptReport {
    const NAME: &'static str = "script";

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { rows, absent, throughput, growth, .. } = self;
        let columns: [figures::Column; 2] = [("CPU s/1000", figures::load_cpu), ("scripts' CPU s/1000", figures::cpu)];
        let mut table = figures::table(rows, "runs", &columns);
        for (side, _) in absent {
            table.add_row(["1", side, "–", "–", "–", "–", "–", "–"]);
        }
        writeln!(out, "{table}\n")?;
        for (side, why) in absent {
            writeln!(out, "{side}: {why}")?;
        }
        for Throughput { callers, cold, pool, forked } in throughput {
            writeln!(
                out,
                "{callers} in flight, scripts / plain: throughput {cold:.2} cold, {pool:.2} with the pool, {forked:.2} forked"
            )?;
        }
        for growth in growth {
            writeln!(out, "{growth}")?;
        }
        Ok(())
    }

    fn gates(&self) -> Vec<Gate> {
        starts(&self.names, &self.rows)
            .chain(self.throughput.iter().map(rate))
            .chain(self.growth.iter().flat_map(left))
            .collect()
    }

    fn conditions(&self, rounds: String) -> String {
        format!("Python {}, {} scripts at a time, {rounds}", self.python, self.max_in_flight)
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { side, scripts, seconds, before, after } = self;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "{scripts} scripts in a row, {side}, {seconds:.1} s: memory {:.1} to {:.1} MiB, descriptors {} to {}, processes {} \
             to {}, threads {} to {}, folders {} to {}, mounts {} to {}",
            mib(before.resident),
            mib(after.resident),
            before.descriptors,
            after.descriptors,
            before.processes,
            after.processes,
            before.threads,
            after.threads,
            before.folders,
            after.folders,
            before.mounts,
            after.mounts,
        )
    }
}

/// The first with this name: those of single runs come first.
fn figures_of(rows: &[Row], side: &str) -> Option<Figures> {
    rows.iter().find(|row| row.side == side).map(|row| row.figures)
}

/// Builds the gates for the cost of starting a script. What was not measured is not met, but for packages, which are
/// measured where there are some.
fn starts<'a>(names: &'a Names, rows: &'a [Row]) -> impl Iterator<Item = Gate> + 'a {
    let of = |side: &str, figure: fn(Figures) -> f64| figures_of(rows, side).map_or(f64::NAN, figure);
    let p50 = move |side: &str| of(side, |figures| figures.p50_ms);
    let cpu = move |side: &str| of(side, |it| it.cpu_seconds_per_1000 + it.load_cpu_seconds_per_1000);
    let plain = names.plain;
    let gate =
        |what: String, ratio: f64, wanted, is_met: bool| Gate { what, wanted, measured: format!("{ratio:.2}"), is_met };
    let cold = names.cold.iter().flat_map(move |side| {
        let (time, processor) = (p50(side) / p50(plain), cpu(side) / cpu(plain));
        [
            gate(format!("p50 of {side} / {plain}"), time, "≤ 1.30", time <= COLD),
            gate(format!("CPU time of {side} / {plain}"), processor, "≤ 1.45", processor <= COLD_CPU),
        ]
    });
    let (warm, forked) = (p50(names.warm) / p50(plain), p50(names.forked) / p50(plain));
    let warm = gate(format!("p50 of {} / {plain}", names.warm), warm, "< 1.00", warm < WARM);
    let forked = gate(format!("p50 of {} / {plain}", names.forked), forked, "≤ 0.50", forked <= FORKED);
    let packages = names.packages.map(|side| {
        let time = p50(side);
        gate(format!("p50 of {side}, in ms"), time, "≤ 15", time <= PACKAGES_MS)
    });
    cold.chain([warm, forked]).chain(packages)
}

/// Builds the gate for the rate of forked interpreters.
fn rate(throughput: &Throughput) -> Gate {
    let Throughput { callers, forked, .. } = *throughput;
    Gate {
        what: format!("throughput at {callers} in flight, forked / plain"),
        wanted: "≥ 1.40",
        measured: format!("{forked:.2}"),
        is_met: forked >= FORKED_RATE,
    }
}

/// Builds the gates for what many scripts may leave behind.
fn left(growth: &Growth) -> impl Iterator<Item = Gate> {
    let Growth { side, scripts, before, after, .. } = *growth;
    let gate = move |of: &str, wanted, measured, is_met| Gate {
        what: format!("{of} left by {scripts} scripts, {side}:"),
        wanted,
        measured,
        is_met,
    };
    let same =
        move |of, before: usize, after: usize| gate(of, "as before", format!("{before} to {after}"), before == after);
    let grown = after.resident.saturating_sub(before.resident);
    let memory = format!("{:.2} MiB", grown as f64 / f64::from(1 << 20));
    [
        gate("memory", "< 2 MiB", memory, grown < MEMORY),
        same("descriptors", before.descriptors, after.descriptors),
        same("processes", before.processes, after.processes),
        same("folders", before.folders, after.folders),
        same("mounts", before.mounts, after.mounts),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::footprint::Footprint;
    use super::*;
    use crate::BenchCli;
    use crate::figures::tests::row;
    use crate::report::Report;

    const BEFORE: Footprint =
        Footprint { resident: 20 << 20, descriptors: 12, processes: 2, threads: 5, folders: 1, mounts: 30 };

    fn names() -> Names {
        Names {
            plain: "plain",
            cold: vec!["cold, full", "cold, no-namespaces"],
            warm: "warm",
            forked: "forked",
            packages: None,
        }
    }

    fn rows(full: f64, weaker: f64, warm: f64) -> Vec<Row> {
        let times =
            [("plain", 10.0), ("cold, full", full), ("cold, no-namespaces", weaker), ("warm", warm), ("forked", 4.0)];
        let alone = times.map(|(side, p50)| row(side, 1, 1e3 / p50, p50));
        alone
            .into_iter()
            .chain([
                row("plain", 2, 200.0, 9.0),
                row("cold", 8, 150.0, 50.0),
                row("pool", 8, 100.0, 70.0),
                row("forked", 8, 300.0, 30.0),
            ])
            .collect()
    }

    fn growth(after: Footprint) -> Growth {
        Growth { side: "cold", scripts: 1000, seconds: 20.0, before: BEFORE, after }
    }

    fn report(rows: Vec<Row>, after: Footprint) -> Report<ScriptReport> {
        let throughput = Throughput::of(8, rows.get(5..).unwrap()).into_iter().collect();
        let absent = vec![("bwrap", "not installed".to_owned())];
        let (growth, python) = (vec![growth(after)], "3.11.7".to_owned());
        let measured = ScriptReport { rows, absent, throughput, growth, python, max_in_flight: 2, names: names() };
        Report::new(&BenchCli::try_parse_from(["toolbus-bench", "--script"]).unwrap().bench, measured)
    }

    fn missed(report: &Report<ScriptReport>) -> Vec<&str> {
        report.gates.iter().filter(|gate| !gate.is_met).map(|gate| &*gate.what).collect()
    }

    #[test]
    fn a_start_is_compared_with_the_interpreter_alone_at_one_in_flight() {
        assert!(report(rows(13.0, 12.9, 9.9), BEFORE).is_met());
        let slow = report(rows(13.1, 12.0, 10.0), BEFORE);
        assert!(!slow.is_met());
        assert_eq!(missed(&slow), ["p50 of cold, full / plain", "p50 of warm / plain"]);
        let unmeasured = report(rows(f64::NAN, 1.0, 1.0), BEFORE);
        assert_eq!(missed(&unmeasured), ["p50 of cold, full / plain"]);
    }

    #[test]
    fn leftovers_of_scripts_miss_a_gate_of_their_name_and_threads_may_come_and_go() {
        let harmless = Footprint { resident: (22 << 20) - 1, threads: 9, ..BEFORE };
        assert!(report(rows(1.0, 1.0, 1.0), harmless).is_met());
        let smaller = Footprint { resident: 1 << 20, ..BEFORE };
        assert!(report(rows(1.0, 1.0, 1.0), smaller).is_met());
        let worse = Footprint { resident: 22 << 20, descriptors: 13, processes: 1, threads: 5, folders: 2, mounts: 31 };
        let shown = report(rows(1.0, 1.0, 1.0), worse);
        let of = |name: &str| format!("{name} left by 1000 scripts, cold:");
        assert_eq!(missed(&shown), ["memory", "descriptors", "processes", "folders", "mounts"].map(of));
    }

    #[test]
    fn the_text_report_shows_missed_gates_and_absent_programs() {
        let shown = report(rows(16.0, 12.5, 5.0), Footprint { descriptors: 13, ..BEFORE });
        let mut out = Vec::new();
        shown.print(&mut out).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        | in flight | side                | runs/s | p50 ms |  p95 ms |  p99 ms | CPU s/1000 | scripts' CPU s/1000 |
        |-----------|---------------------|--------|--------|---------|---------|------------|---------------------|
        | 1         | plain               |    100 | 10.000 |  20.000 |  30.000 |     0.0200 |              0.0100 |
        | 1         | cold, full          |     62 | 16.000 |  32.000 |  48.000 |     0.0200 |              0.0100 |
        | 1         | cold, no-namespaces |     80 | 12.500 |  25.000 |  37.500 |     0.0200 |              0.0100 |
        | 1         | warm                |    200 |  5.000 |  10.000 |  15.000 |     0.0200 |              0.0100 |
        | 1         | forked              |    250 |  4.000 |   8.000 |  12.000 |     0.0200 |              0.0100 |
        | 2         | plain               |    200 |  9.000 |  18.000 |  27.000 |     0.0200 |              0.0100 |
        | 8         | cold                |    150 | 50.000 | 100.000 | 150.000 |     0.0200 |              0.0100 |
        | 8         | pool                |    100 | 70.000 | 140.000 | 210.000 |     0.0200 |              0.0100 |
        | 8         | forked              |    300 | 30.000 |  60.000 |  90.000 |     0.0200 |              0.0100 |
        | 1         | bwrap               |      – |      – |       – |       – |          – |                   – |

        bwrap: not installed
        8 in flight, scripts / plain: throughput 0.75 cold, 0.50 with the pool, 1.50 forked
        1000 scripts in a row, cold, 20.0 s: memory 20.0 to 20.0 MiB, descriptors 12 to 13, processes 2 to 2, threads 5 to 5, folders 1 to 1, mounts 30 to 30
        MISSED: p50 of cold, full / plain 1.60, wanted ≤ 1.30
        met: CPU time of cold, full / plain 1.00, wanted ≤ 1.45
        met: p50 of cold, no-namespaces / plain 1.25, wanted ≤ 1.30
        met: CPU time of cold, no-namespaces / plain 1.00, wanted ≤ 1.45
        met: p50 of warm / plain 0.50, wanted < 1.00
        met: p50 of forked / plain 0.40, wanted ≤ 0.50
        met: throughput at 8 in flight, forked / plain 1.50, wanted ≥ 1.40
        met: memory left by 1000 scripts, cold: 0.00 MiB, wanted < 2 MiB
        MISSED: descriptors left by 1000 scripts, cold: 12 to 13, wanted as before
        met: processes left by 1000 scripts, cold: 2 to 2, wanted as before
        met: folders left by 1000 scripts, cold: 1 to 1, wanted as before
        met: mounts left by 1000 scripts, cold: 30 to 30, wanted as before
        Python 3.11.7, 2 scripts at a time, 5 rounds of 3 s
        ");
    }

    #[test]
    fn the_json_report_shows_the_same() {
        let shown = serde_json::to_value(report(rows(13.0, 12.0, 5.0), BEFORE)).unwrap();
        assert_eq!(shown["throughput"], serde_json::json!([{"callers": 8, "cold": 0.75, "pool": 0.5, "forked": 1.5}]));
        assert_eq!(shown["absent"], serde_json::json!([["bwrap", "not installed"]]));
        assert_eq!(shown["rows"][0]["p50Ms"], 10.0);
        assert_eq!(shown["growth"][0]["before"]["descriptors"], 12);
        let first = serde_json::json!(
            {"what": "p50 of cold, full / plain", "wanted": "≤ 1.30", "measured": "1.30", "isMet": true}
        );
        assert_eq!(shown["gates"][0], first);
    }
}
