//! Schedules of many seeds, in which nothing may be lost, doubled or left over.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;

use toolbus_sim::{Fault, run};

/// Runs these seeds; gives the faults that happened.
fn hold(seeds: Range<u64>, folder: Option<&Path>) -> io::Result<BTreeSet<Fault>> {
    let mut faults = BTreeSet::new();
    for seed in seeds {
        let report = run(seed, folder.map(|folder| folder.join(format!("{seed}.db"))))?;
        let broken: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
        assert!(broken.is_empty(), "cargo run -p toolbus-sim -- --seed {seed}\n{}", broken.join("\n"));
        faults.extend(report.faults.into_keys());
    }
    Ok(faults)
}

#[test]
fn one_seed_gives_the_same_bytes_each_time() {
    for seed in 0..50 {
        let (first, second) = (run(seed, None).unwrap(), run(seed, None).unwrap());
        let differing = first.trace.lines().zip(second.trace.lines()).find(|(first, second)| first != second);
        assert_eq!(differing, None, "seed {seed}");
        assert_eq!(first, second);
    }
    assert_ne!(run(0, None).unwrap().trace, run(1, None).unwrap().trace);
}

#[test]
fn every_request_of_a_thousand_schedules_has_one_reply() {
    assert_eq!(hold(0..1_000, None).unwrap(), Fault::ALL.into());
}

#[test]
fn every_request_of_another_thousand_schedules_has_one_reply() {
    assert_eq!(hold(1_000_000..1_001_000, None).unwrap(), Fault::ALL.into());
}

#[test]
fn schedules_hold_with_a_file_that_each_process_opens() {
    let folder = tempfile::tempdir().unwrap();
    hold(0..100, Some(folder.path())).unwrap();
}

#[test]
fn a_file_gives_the_trace_that_memory_gives() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..10 {
        let of_file = run(seed, Some(folder.path().join(format!("{seed}.db")))).unwrap();
        assert_eq!(of_file, run(seed, None).unwrap(), "seed {seed}");
    }
}

#[test]
fn a_redelivery_of_what_another_daemon_ran_does_not_end_with_the_refusal_of_its_copy() {
    hold(82_682..82_683, None).unwrap();
}

#[test]
fn an_unrecorded_redelivery_is_not_reported_as_not_started_while_another_daemon_begins_it() {
    hold(694_030..694_031, None).unwrap();
}
