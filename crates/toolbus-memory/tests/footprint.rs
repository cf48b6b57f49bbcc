//! The memory that cutting a large result takes. A program of its own: the kernel counts per process.

#![expect(clippy::unwrap_used, reason = "a figure that cannot be read should fail the test")]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use toolbus_config::ByteSize;
use toolbus_core::Clock;
use toolbus_core::caller::Caller;
use toolbus_core::results::{LongResult, ResultSplitter as _};
use toolbus_memory::MemoryConfig;
use toolbus_memory::chunk::{ChunkLimits, chunk};
use toolbus_memory::results::MemorySplitter;
use toolbus_store::VolatileMemory;

const SIZE: usize = 50_000_000;

/// A figure of this process, in bytes.
fn status(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kilobytes: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes * 1024
}

#[test]
fn a_result_of_50_megabytes_is_cut_and_kept_within_three_times_its_size_whatever_it_is() {
    let limits = ChunkLimits::new(20_000, 64_000);
    for part in [
        "# Heading\n\nA paragraph of some words.\n\n- an item\n\n```\ncode\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n",
        "# a\n",
        "- a\n\n  b\n\n",
        "> | a | b |\n> |---|---|\n> | 1 | 2 |\n",
        "{\"id\": 1, \"labels\": [\"a\", \"b\"], \"text\": \"some words\"},\n",
    ] {
        let text = match part.strip_prefix('{') {
            Some(_) => format!("[{}null]", part.repeat(SIZE / part.len())),
            None => part.repeat(SIZE / part.len()),
        };
        let before = status("VmRSS");
        let chunked = chunk(&text, limits);
        // The most that there has been since the process began, so later parts are held to what earlier ones took.
        let taken = status("VmHWM").saturating_sub(before);
        assert!(taken <= 3 * SIZE, "{taken} bytes for {part:?}");
        assert!(chunked.chunks.len() > 700, "{}", chunked.chunks.len());
    }
    let text = "# Heading\n\nA paragraph of some words.\n\n".repeat(SIZE / 39);
    let limits = MemoryConfig { max_size: ByteSize::from_mib(128), ..MemoryConfig::default() }.limits();
    let memory = Arc::new(VolatileMemory::new(limits, Clock::SYSTEM));
    let splitter = MemorySplitter { memory, ttl: Duration::from_secs(60) };
    let caller = Arc::new(Caller { login: Some("ana".into()), ..Caller::unknown() });
    let result = LongResult { caller, tool: "t".into(), run: "1".to_owned(), text, max: 64_000, rule: None };
    let before = status("VmRSS");
    let split = splitter.split(result).now_or_never().unwrap().unwrap();
    let taken = status("VmHWM").saturating_sub(before);
    assert!(taken <= 3 * SIZE, "{taken} bytes for a result that is kept");
    assert!(split.parts.len() > 700, "{}", split.parts.len());
}
