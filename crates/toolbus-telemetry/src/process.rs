//! The daemon's own process, by OpenTelemetry's conventions for processes. Systems without `/proc` have none of it.

use std::fs;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use rustix::param::{clock_ticks_per_second, page_size};

/// Processor time and threads, from `/proc/self/stat`.
struct ProcessStat {
    /// Seconds.
    user: f64,
    /// Seconds.
    system: f64,
    threads: i64,
}

/// Registers memory, processor time, threads and descriptors of the process, which are read at each export.
pub(crate) fn observe(meter: &Meter) {
    let cpu = meter.f64_observable_counter("process.cpu.time").with_unit("s");
    let cpu = cpu.with_description("Processor time of the process.").with_callback(|counter| {
        let Some(stat) = stat() else { return };
        counter.observe(stat.user, &[KeyValue::new("cpu.mode", "user")]);
        counter.observe(stat.system, &[KeyValue::new("cpu.mode", "system")]);
    });
    cpu.build();
    let up_down = |name: &'static str, unit: &'static str, description: &'static str, look: fn() -> Option<i64>| {
        let counter = meter.i64_observable_up_down_counter(name).with_unit(unit).with_description(description);
        counter.with_callback(move |counter| look().into_iter().for_each(|value| counter.observe(value, &[]))).build();
    };
    up_down("process.memory.usage", "By", "Physical memory in use.", resident);
    up_down("process.thread.count", "{thread}", "Threads of the process.", || Some(stat()?.threads));
    up_down("process.unix.file_descriptor.count", "{file_descriptor}", "Open file descriptors.", descriptors);
}

fn stat() -> Option<ProcessStat> {
    parsed(&fs::read_to_string("/proc/self/stat").ok()?)
}

fn parsed(stat: &str) -> Option<ProcessStat> {
    // The name of the program comes second, in parentheses, and may have any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // By the numbers of proc(5), of which the first is 3 here.
    let field = |number: usize| fields.get(number - 3)?.parse::<i64>().ok();
    #[expect(clippy::cast_precision_loss, reason = "exact for 285 000 years")]
    let seconds = |number: usize| Some(field(number)? as f64 / clock_ticks_per_second() as f64);
    Some(ProcessStat { user: seconds(14)?, system: seconds(15)?, threads: field(20)? })
}

fn resident() -> Option<i64> {
    let pages: i64 = fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(i64::try_from(page_size()).ok()?))
}

fn descriptors() -> Option<i64> {
    // One of them is the folder that is read.
    let open = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    i64::try_from(open).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_have_any_name() {
        let stat = "7 (a) R 1 (b) S 1 7 7 0 -1 4194304 90 0 0 0 250 125 0 0 20 0 11 0 5 6 7";
        let stat = parsed(stat).unwrap();
        let ticks = clock_ticks_per_second() as f64;
        assert_eq!((stat.user * ticks, stat.system * ticks, stat.threads), (250.0, 125.0, 11));
    }

    #[test]
    fn this_process_has_memory_and_descriptors() {
        let before = descriptors().unwrap();
        let _open = fs::File::open("/proc/self/stat").unwrap();
        // Other tests open and close some at the same time.
        assert!(before > 2 && descriptors().unwrap() > 2);
        assert!((1_i64 << 20..1 << 40).contains(&resident().unwrap()));
    }
}
