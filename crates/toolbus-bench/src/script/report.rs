//! The figures, for people and for programs, and whether they are good enough.

use std::fmt;
use std::io::{self, Write};

use crate::figures::Figures;
use serde::Serialize;

use super::footprint::Growth;
use super::sides::Names;
use crate::figures::{self, Row};
use crate::report::{Gate, Measured};

/// Most that a cold start may cost, as a multiple of the interpreter alone.
const COLD: f64 = 1.5;
/// What a warm start has to stay below, likewise.
const WARM: f64 = 1.0;
/// Most memory that many scripts may leave with this process, in bytes.
const MEMORY: u64 = 2 << 20;

/// What the sides cost.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Scripts {
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
}

impl Throughput {
    /// From the rows of one number of callers; absent where one is missing.
    pub(super) fn of(callers: u16, rows: &[Row]) -> Option<Self> {
        let rate = |side: &str| figures_of(rows, side).map(|figures| figures.calls_per_second);
        let plain = rate("plain")?;
        Some(Self { callers, cold: rate("cold")? / plain, pool: rate("pool")? / plain })
    }
}

impl Measured for Scripts {
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
        for Throughput { callers, cold, pool } in throughput {
            writeln!(out, "{callers} in flight, scripts / plain: throughput {cold:.2} cold, {pool:.2} with the pool")?;
        }
        for growth in growth {
            writeln!(out, "{growth}")?;
        }
        Ok(())
    }

    fn gates(&self) -> Vec<Gate> {
        starts(&self.names, &self.rows).chain(self.growth.iter().flat_map(left)).collect()
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

/// What starting a script may cost. What was not measured is not met.
fn starts<'a>(names: &'a Names, rows: &'a [Row]) -> impl Iterator<Item = Gate> + 'a {
    let p50 = |side: &str| figures_of(rows, side).map_or(f64::NAN, |figures| figures.p50_ms);
    let plain = p50(names.plain);
    let gate = move |side: &str, wanted, is_met: fn(f64) -> bool| {
        let ratio = p50(side) / plain;
        let what = format!("p50 of {side} / {}", names.plain);
        Gate { what, wanted, measured: format!("{ratio:.2}"), is_met: is_met(ratio) }
    };
    let cold = names.cold.iter().map(move |side| gate(side, "≤ 1.50", |ratio| ratio <= COLD));
    cold.chain(std::iter::once_with(move || gate(names.warm, "< 1.00", |ratio| ratio < WARM)))
}

/// What many scripts may leave behind.
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
        Names { plain: "plain", cold: vec!["cold, full", "cold, no-namespaces"], warm: "warm" }
    }

    fn rows(full: f64, weaker: f64, warm: f64) -> Vec<Row> {
        let times = [("plain", 10.0), ("cold, full", full), ("cold, no-namespaces", weaker), ("warm", warm)];
        let alone = times.map(|(side, p50)| row(side, 1, 1e3 / p50, p50));
        alone
            .into_iter()
            .chain([row("plain", 2, 200.0, 9.0), row("cold", 8, 150.0, 50.0), row("pool", 8, 100.0, 70.0)])
            .collect()
    }

    fn growth(after: Footprint) -> Growth {
        Growth { side: "cold", scripts: 1000, seconds: 20.0, before: BEFORE, after }
    }

    fn report(rows: Vec<Row>, after: Footprint) -> Report<Scripts> {
        let throughput = Throughput::of(8, rows.get(4..).unwrap()).into_iter().collect();
        let absent = vec![("bwrap", "not installed".to_owned())];
        let (growth, python) = (vec![growth(after)], "3.11.7".to_owned());
        let measured = Scripts { rows, absent, throughput, growth, python, max_in_flight: 2, names: names() };
        Report::new(&BenchCli::try_parse_from(["toolbus-bench", "--script"]).unwrap().bench, measured)
    }

    fn missed(report: &Report<Scripts>) -> Vec<&str> {
        report.gates.iter().filter(|gate| !gate.is_met).map(|gate| &*gate.what).collect()
    }

    #[test]
    fn a_start_is_compared_with_the_interpreter_alone_at_one_in_flight() {
        assert!(report(rows(15.0, 14.9, 9.9), BEFORE).is_met());
        let slow = report(rows(15.1, 14.0, 10.0), BEFORE);
        assert!(!slow.is_met());
        assert_eq!(missed(&slow), ["p50 of cold, full / plain", "p50 of warm / plain"]);
        let unmeasured = report(rows(f64::NAN, 1.0, 1.0), BEFORE);
        assert_eq!(missed(&unmeasured), ["p50 of cold, full / plain"]);
    }

    #[test]
    fn what_scripts_leave_behind_is_missed_by_its_name_and_threads_may_come_and_go() {
        let harmless = Footprint { resident: (22 << 20) - 1, threads: 9, ..BEFORE };
        assert!(report(rows(1.0, 1.0, 1.0), harmless).is_met());
        let smaller = Footprint { resident: 1 << 20, ..BEFORE };
        assert!(report(rows(1.0, 1.0, 1.0), smaller).is_met());
        let worse = Footprint { resident: 22 << 20, descriptors: 13, processes: 1, threads: 5, folders: 2, mounts: 31 };
        let told = report(rows(1.0, 1.0, 1.0), worse);
        let of = |name: &str| format!("{name} left by 1000 scripts, cold:");
        assert_eq!(missed(&told), ["memory", "descriptors", "processes", "folders", "mounts"].map(of));
    }

    #[test]
    fn people_are_told_what_was_missed_and_what_was_not_there() {
        let told = report(rows(16.0, 14.0, 5.0), Footprint { descriptors: 13, ..BEFORE });
        let mut out = Vec::new();
        told.print(&mut out).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        | in flight | side                | runs/s | p50 ms |  p95 ms |  p99 ms | CPU s/1000 | scripts' CPU s/1000 |
        |-----------|---------------------|--------|--------|---------|---------|------------|---------------------|
        | 1         | plain               |    100 | 10.000 |  20.000 |  30.000 |     0.0200 |              0.0100 |
        | 1         | cold, full          |     62 | 16.000 |  32.000 |  48.000 |     0.0200 |              0.0100 |
        | 1         | cold, no-namespaces |     71 | 14.000 |  28.000 |  42.000 |     0.0200 |              0.0100 |
        | 1         | warm                |    200 |  5.000 |  10.000 |  15.000 |     0.0200 |              0.0100 |
        | 2         | plain               |    200 |  9.000 |  18.000 |  27.000 |     0.0200 |              0.0100 |
        | 8         | cold                |    150 | 50.000 | 100.000 | 150.000 |     0.0200 |              0.0100 |
        | 8         | pool                |    100 | 70.000 | 140.000 | 210.000 |     0.0200 |              0.0100 |
        | 1         | bwrap               |      – |      – |       – |       – |          – |                   – |

        bwrap: not installed
        8 in flight, scripts / plain: throughput 0.75 cold, 0.50 with the pool
        1000 scripts in a row, cold, 20.0 s: memory 20.0 to 20.0 MiB, descriptors 12 to 13, processes 2 to 2, threads 5 to 5, folders 1 to 1, mounts 30 to 30
        MISSED: p50 of cold, full / plain 1.60, wanted ≤ 1.50
        met: p50 of cold, no-namespaces / plain 1.40, wanted ≤ 1.50
        met: p50 of warm / plain 0.50, wanted < 1.00
        met: memory left by 1000 scripts, cold: 0.00 MiB, wanted < 2 MiB
        MISSED: descriptors left by 1000 scripts, cold: 12 to 13, wanted as before
        met: processes left by 1000 scripts, cold: 2 to 2, wanted as before
        met: folders left by 1000 scripts, cold: 1 to 1, wanted as before
        met: mounts left by 1000 scripts, cold: 30 to 30, wanted as before
        Python 3.11.7, 2 scripts at a time, 5 rounds of 3 s
        ");
    }

    #[test]
    fn programs_are_told_the_same() {
        let told = serde_json::to_value(report(rows(15.0, 14.0, 5.0), BEFORE)).unwrap();
        assert_eq!(told["throughput"], serde_json::json!([{"callers": 8, "cold": 0.75, "pool": 0.5}]));
        assert_eq!(told["absent"], serde_json::json!([["bwrap", "not installed"]]));
        assert_eq!(told["rows"][0]["p50Ms"], 10.0);
        assert_eq!(told["growth"][0]["before"]["descriptors"], 12);
        let first = serde_json::json!(
            {"what": "p50 of cold, full / plain", "wanted": "≤ 1.50", "measured": "1.50", "isMet": true}
        );
        assert_eq!(told["gates"][0], first);
    }
}
