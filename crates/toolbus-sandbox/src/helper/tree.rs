//! The processes of a program, as a `/proc` shows them.

use std::collections::HashSet;
use std::io::Read as _;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::process::{Pid, Signal, getpid, kill_process};

/// Most rounds of killing while there are new processes.
const ROUNDS: usize = 200;
/// Most bytes of one `stat`.
const STAT: u64 = 1024;

/// The processes of a program, without this process.
pub(super) struct ProcessTree {
    proc: OwnedFd,
    /// Whether this `/proc` shows other processes, too.
    is_shared: bool,
}

/// What processes use together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProcessUsage {
    /// Resident memory, in bytes; what processes share is counted for each.
    pub(super) memory: u64,
    /// CPU time in milliseconds, with that of their ended children.
    pub(super) cpu_ms: u64,
    /// Processes and threads.
    pub(super) tasks: u64,
}

impl ProcessTree {
    /// All processes of a `/proc` that belongs to a PID namespace of their own.
    pub(super) const fn of_namespace(proc: OwnedFd) -> Self {
        Self { proc, is_shared: false }
    }

    /// The descendants of this process, in a `/proc` of the whole system.
    pub(super) const fn of_descendants(proc: OwnedFd) -> Self {
        Self { proc, is_shared: true }
    }

    /// What they use. `program` is set if the program can have no children; then only it is measured.
    pub(super) fn used(&self, program: Option<Pid>) -> ProcessUsage {
        let mut used = ProcessUsage::default();
        let stats = match program {
            Some(program) => self.stat(program.as_raw_nonzero().get()).into_iter().collect(),
            None => self.all(),
        };
        for stat in stats.iter().filter(|stat| !stat.is_dead) {
            used.memory += stat.memory;
            used.cpu_ms += stat.cpu_ms;
            used.tasks += stat.threads;
        }
        used
    }

    /// Kills all of them, until none is left.
    pub(super) fn kill(&self) {
        for _ in 0..ROUNDS {
            let living: Vec<ProcessStat> = self.all().into_iter().filter(|stat| !stat.is_dead).collect();
            if living.is_empty() {
                return;
            }
            for pid in living.iter().filter_map(|stat| Pid::from_raw(stat.pid)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    fn all(&self) -> Vec<ProcessStat> {
        // The descriptor itself may not be readable.
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let listed = openat(&self.proc, ".", flags, Mode::empty()).and_then(Dir::new);
        let Ok(entries) = listed else { return Vec::new() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok());
        let own = getpid().as_raw_nonzero().get();
        let stats: Vec<ProcessStat> = pids.filter_map(|pid| self.stat(pid)).filter(|stat| stat.pid != own).collect();
        if !self.is_shared {
            return stats;
        }
        let mut family = HashSet::from([own]);
        // Until a pass finds no further descendant.
        loop {
            let before = family.len();
            for stat in &stats {
                if family.contains(&stat.parent) {
                    family.insert(stat.pid);
                }
            }
            if family.len() == before {
                break;
            }
        }
        stats.into_iter().filter(|stat| family.contains(&stat.pid)).collect()
    }

    fn stat(&self, pid: i32) -> Option<ProcessStat> {
        let file = openat(&self.proc, format!("{pid}/stat"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = Vec::with_capacity(512);
        std::fs::File::from(file).take(STAT).read_to_end(&mut text).ok()?;
        parse(&String::from_utf8_lossy(&text))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    pid: i32,
    parent: i32,
    is_dead: bool,
    cpu_ms: u64,
    threads: u64,
    memory: u64,
}

/// Reads `pid (name) state parent …`. The name may contain anything, so the last parenthesis counts.
fn parse(stat: &str) -> Option<ProcessStat> {
    let (pid, rest) = stat.split_once(' ')?;
    let fields: Vec<&str> = rest.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    // Numbered as in proc_pid_stat(5), where the state is the third.
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok());
    let ticks: u64 = (14..=17).filter_map(field).sum();
    Some(ProcessStat {
        pid: pid.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        is_dead: matches!(*fields.first()?, "Z" | "X"),
        cpu_ms: ticks * 1000 / rustix::param::clock_ticks_per_second().max(1),
        threads: field(20)?,
        memory: field(24)? * rustix::param::page_size() as u64,
    })
}

#[cfg(test)]
mod tests {
    use rustix::fs::open;

    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 5 0 123 456 789 18446744073709551615";
        let memory = 789 * rustix::param::page_size() as u64;
        let expected = ProcessStat { pid: 7, parent: 1, is_dead: false, cpu_ms: 1000, threads: 5, memory };
        assert_eq!(parse(stat), Some(expected));
        assert_eq!(parse("7 (x) Z"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn what_descends_from_this_process_is_counted_and_ended() {
        let proc = open("/proc", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let tree = ProcessTree::of_descendants(proc);
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let pid = Pid::from_child(&child);
        // The kernel counts what a young process has only roughly.
        let patience = crate::now() + std::time::Duration::from_secs(30);
        while tree.used(Some(pid)).memory == 0 {
            assert!(crate::now() < patience, "a process has memory");
        }
        assert!(tree.used(None).tasks >= 1);
        tree.kill();
        assert!(!child.wait().unwrap().success());
    }
}
