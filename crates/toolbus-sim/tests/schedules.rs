//! Schedules of many seeds, in which nothing may be lost, doubled or left over.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use toolbus_sim::{Fault, run};

/// Runs these seeds; gives the faults that happened.
fn hold(seeds: Range<u64>) -> io::Result<BTreeSet<Fault>> {
    let mut faults = BTreeSet::new();
    for seed in seeds {
        let report = run(seed)?;
        let broken: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
        assert!(broken.is_empty(), "cargo run -p toolbus-sim -- --seed {seed}\n{}", broken.join("\n"));
        faults.extend(report.faults.into_keys());
    }
    Ok(faults)
}

#[test]
fn one_seed_gives_the_same_bytes_each_time() {
    for seed in 0..50 {
        let (first, second) = (run(seed).unwrap(), run(seed).unwrap());
        let differing = first.trace.lines().zip(second.trace.lines()).find(|(first, second)| first != second);
        assert_eq!(differing, None, "seed {seed}");
        assert_eq!(first, second);
    }
    assert_ne!(run(0).unwrap().trace, run(1).unwrap().trace);
}

#[test]
fn every_request_of_a_thousand_schedules_has_one_answer() {
    assert_eq!(hold(0..1_000).unwrap(), Fault::ALL.into());
}

#[test]
fn every_request_of_another_thousand_schedules_has_one_answer() {
    assert_eq!(hold(1_000_000..1_001_000).unwrap(), Fault::ALL.into());
}
