//! `toolbus-sim`: runs schedules by seed, and reports what broke.

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use comfy_table::Table;
use parking_lot::Mutex;
use toolbus_sim::{Faults, ScheduleReport, run};

/// Seeds that failed, of which the violations are shown.
const MAX_SHOWN: usize = 20;

/// Runs the dispatcher through faults that a seed chooses, and checks what became of every request.
#[derive(Parser)]
struct Args {
    /// Runs one schedule, and prints everything that happens.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Runs the schedules of these seeds, the last excluded, on all processors.
    #[arg(long, value_parser = range, default_value = "0..1000", value_name = "FIRST..LAST")]
    seeds: Range<u64>,
    /// Keeps each ledger in a file of this folder, and removes it if all is well; otherwise in memory.
    #[arg(long)]
    folder: Option<PathBuf>,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let ends = text.split_once("..").and_then(|(first, last)| Some(first.parse().ok()?..last.parse().ok()?));
    ends.ok_or_else(|| "expected two numbers, as in `0..1000`".to_owned())
}

fn main() -> io::Result<ExitCode> {
    let args = Args::parse();
    match args.seed {
        Some(seed) => one(seed, args.folder.as_deref()),
        None => many(args.seeds, args.folder.as_deref()),
    }
}

fn run_in(folder: Option<&Path>, seed: u64) -> io::Result<ScheduleReport> {
    let file = folder.map(|folder| folder.join(format!("ledger-{seed}.db")));
    let report = run(seed, file.clone())?;
    if let Some(file) = file.filter(|_| report.violations.is_empty()) {
        std::fs::remove_file(file)?;
    }
    Ok(report)
}

fn one(seed: u64, folder: Option<&Path>) -> io::Result<ExitCode> {
    let report = run_in(folder, seed)?;
    print!("{}", report.trace);
    for violation in &report.violations {
        println!("VIOLATION: {violation}");
    }
    println!("{} requests, {} runs, {} violations", report.requests, report.executions, report.violations.len());
    Ok(exit(report.violations.is_empty()))
}

#[derive(Default)]
struct Totals {
    requests: usize,
    executions: usize,
    faults: Faults,
    failed: Vec<u64>,
}

fn many(seeds: Range<u64>, folder: Option<&Path>) -> io::Result<ExitCode> {
    let (next, totals) = (AtomicU64::new(seeds.start), Mutex::<Totals>::default());
    let work = || -> io::Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return Ok(());
            }
            let report = run_in(folder, seed)?;
            let mut totals = totals.lock();
            totals.requests += report.requests;
            totals.executions += report.executions;
            for (fault, times) in report.faults {
                *totals.faults.entry(fault).or_default() += times;
            }
            if !report.violations.is_empty() {
                totals.failed.push(seed);
                if totals.failed.len() <= MAX_SHOWN {
                    report.violations.iter().for_each(|violation| println!("seed {seed}: {violation}"));
                }
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|worker| {
            worker.join().map_err(|_| io::Error::other("a schedule panicked; the message above says where"))?
        })
    })?;
    let totals = totals.into_inner();
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(["fault", "times"]);
    for (fault, times) in &totals.faults {
        table.add_row([fault.as_str(), &times.to_string()]);
    }
    println!("{table}");
    let (schedules, failed) = (seeds.end.saturating_sub(seeds.start), totals.failed.len());
    println!("{schedules} schedules, {} requests, {} runs, {failed} failed", totals.requests, totals.executions);
    if let Some(seed) = totals.failed.iter().min() {
        println!("replay the first with: cargo run -p toolbus-sim -- --seed {seed}");
    }
    Ok(exit(totals.failed.is_empty()))
}

fn exit(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
