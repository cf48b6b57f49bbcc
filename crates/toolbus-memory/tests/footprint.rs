//! The memory that cutting a large result takes. A program of its own: the kernel counts per process.

#![expect(clippy::unwrap_used, reason = "a figure that cannot be read should fail the test")]

use std::fs;

use toolbus_memory::chunk::{ChunkLimits, chunk};

const SIZE: usize = 50_000_000;

/// A figure of this process, in bytes.
fn status(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kilobytes: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes * 1024
}

#[test]
fn a_result_of_50_megabytes_is_cut_within_three_times_its_size_whatever_it_is() {
    let limits = ChunkLimits::new(20_000, 64_000);
    for part in [
        "# Heading\n\nA paragraph of some words.\n\n- an item\n\n```\ncode\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n",
        "# a\n",
        "- a\n\n  b\n\n",
        "> | a | b |\n> |---|---|\n> | 1 | 2 |\n",
    ] {
        let text = part.repeat(SIZE / part.len());
        let before = status("VmRSS");
        let chunked = chunk(&text, limits);
        // The most that there has been since the process began, so later parts are held to what earlier ones took.
        let taken = status("VmHWM").saturating_sub(before);
        assert!(taken <= 3 * SIZE, "{taken} bytes for {part:?}");
        assert!(chunked.chunks.len() > 700, "{}", chunked.chunks.len());
    }
}
