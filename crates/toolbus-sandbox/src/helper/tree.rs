//! The processes of a program, as a `/proc` shows them.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::mounts::Proc;
use crate::now;

/// Longest time of killing while there are new processes.
const KILLING: Duration = Duration::from_secs(10);
/// Most bytes that one socket holds: what the system lets it hold before its sender waits, 208 KiB by default, and one more
/// message.
const SOCKET: u64 = 320 * 1024;
/// Most bytes of one file of `/proc` that is read.
const LONGEST: u64 = 8192;
/// Most record locks that processes may hold together. The kernel counts their memory for no process and no cgroup, and
/// takes microseconds to list each.
pub(super) const MOST_LOCKS: u64 = 4096;

/// The processes of a program, without this process.
pub(super) struct ProcessTree {
    proc: OwnedFd,
    /// This process, as this `/proc` numbers it.
    own: i32,
    /// Whether this process is the first of a PID namespace, which has no processes but these.
    is_namespace: bool,
    /// If set, processes in namespaces within this one are not among them: how many numbers the others have.
    depth: Option<usize>,
}

/// Resources that processes use together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProcessUsage {
    /// Resident memory and page tables, in bytes; what processes share is counted for each.
    pub(super) memory: u64,
    /// CPU time in milliseconds, with that of children that they have waited for.
    pub(super) cpu_ms: u64,
    /// CPU time of each process alone, in microseconds.
    pub(super) own_cpu_us: HashMap<i32, u64>,
    /// Processes and threads.
    pub(super) tasks: u64,
    /// Record locks, up to one more than [`MOST_LOCKS`].
    pub(super) locks: u64,
}

impl ProcessTree {
    /// All processes of the PID namespace of which this process is the first.
    pub(super) fn of_namespace(proc: Proc) -> io::Result<Self> {
        let (Proc::Own(proc) | Proc::Outer(proc)) = proc;
        Ok(Self { is_namespace: true, ..Self::of_descendants(proc)? })
    }

    /// The descendants of this process, in a `/proc` of the whole system.
    pub(super) fn of_descendants(proc: OwnedFd) -> io::Result<Self> {
        let own = readlinkat(&proc, "self", Vec::new())?.into_string().map_err(io::Error::other)?;
        Ok(Self { proc, own: own.parse().map_err(io::Error::other)?, is_namespace: false, depth: None })
    }

    /// Leaves out processes of other namespaces than that of a process.
    pub(super) fn keep_to_namespace_of(&mut self, pid: i32) -> io::Result<()> {
        self.depth = Some(self.depth_of(pid).ok_or(io::ErrorKind::NotFound)?);
        Ok(())
    }

    /// Whether processes of namespaces within this one are left out.
    pub(super) const fn is_of_one_namespace(&self) -> bool {
        self.depth.is_some()
    }

    /// Whether a process has memory that its forks and others can write to, too.
    pub(super) fn shares_memory(&self, pid: i32) -> bool {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        // One whose memory cannot be looked at may have some.
        let Ok(maps) = openat(&self.proc, format!("{pid}/maps"), flags, Mode::empty()) else { return true };
        let is_shared = |line: &str| {
            let rights = line.split_ascii_whitespace().nth(1).unwrap_or_default();
            rights.contains('w') && rights.ends_with('s')
        };
        let mut lines = BufReader::new(std::fs::File::from(maps)).split(b'\n').map_while(Result::ok);
        lines.any(|line| is_shared(&String::from_utf8_lossy(&line)))
    }

    /// The highest number of a descriptor of a process; `None` if it has none, or they cannot be looked at.
    pub(super) fn highest_descriptor(&self, pid: i32) -> Option<i32> {
        self.numbers(&format!("{pid}/fd")).into_iter().max()
    }

    /// Measures what the processes use. `program` is set if the program can have no children; then only it is measured.
    pub(super) fn used(&self, program: Option<Pid>) -> ProcessUsage {
        let mut used = ProcessUsage::default();
        for stat in self.stats(program) {
            // Also that of a process that no parent waits for.
            used.cpu_ms += stat.cpu_ms;
            used.own_cpu_us.insert(stat.pid, stat.own_cpu_ms * 1000);
            if !stat.is_dead {
                used.memory += stat.memory + self.page_tables(stat.pid);
                used.tasks += stat.threads;
                used.locks += self.locks_of(&stat, MOST_LOCKS.saturating_add(1).saturating_sub(used.locks));
            }
        }
        used
    }

    /// Locks that a process holds on files, at most so many: all of them are on files that it has open.
    fn locks_of(&self, stat: &ProcessStat, most: u64) -> u64 {
        let Some(folder) = self.folder_of(stat, "fdinfo") else { return 0 };
        let mut locks = 0;
        for entry in Dir::read_from(&folder).into_iter().flatten().flatten() {
            if locks >= most {
                break;
            }
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let Ok(file) = openat(&folder, entry.file_name(), flags, Mode::empty()) else { continue };
            let lines = BufReader::new(std::fs::File::from(file)).split(b'\n').map_while(Result::ok);
            let left = usize::try_from(most - locks).unwrap_or(usize::MAX);
            locks += lines.filter(|line| line.starts_with(b"lock:")).take(left).count() as u64;
        }
        locks
    }

    /// A folder of a process, as a living thread of it has it.
    fn folder_of(&self, stat: &ProcessStat, name: &str) -> Option<OwnedFd> {
        let path = match stat.has_ended_leader.then(|| self.threads(stat.pid).into_iter().next()).flatten() {
            Some(thread) => format!("{}/task/{thread}/{name}", stat.pid),
            None => format!("{}/{name}", stat.pid),
        };
        openat(&self.proc, path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Most memory that their sockets hold, in bytes, which is not part of the resident memory. `has_network`: whether they
    /// have a network namespace of their own, in which no other process has sockets.
    pub(super) fn socket_buffers(&self, program: Option<Pid>, has_network: bool) -> u64 {
        let sockets = if has_network {
            let used = self.read("net/sockstat").and_then(|text| value(&text, "sockets: used"));
            used.unwrap_or_default()
        } else {
            self.stats(program).iter().map(|stat| self.sockets_of(stat)).sum()
        };
        sockets * SOCKET
    }

    fn sockets_of(&self, stat: &ProcessStat) -> u64 {
        let Some(folder) = self.folder_of(stat, "fd") else { return 0 };
        let entries = Dir::read_from(&folder).into_iter().flatten().flatten();
        let is_socket = |name: &std::ffi::CStr| {
            readlinkat(&folder, name, Vec::new()).is_ok_and(|target| target.to_bytes().starts_with(b"socket:"))
        };
        entries.filter(|entry| is_socket(entry.file_name())).count() as u64
    }

    /// CPU time of the first thread of a process, in microseconds: other files of `/proc` round it to 10 ms.
    pub(super) fn scheduled_us(&self, pid: i32) -> Option<u64> {
        let nanoseconds: u64 = self.read(&format!("{pid}/schedstat"))?.split_ascii_whitespace().next()?.parse().ok()?;
        Some(nanoseconds / 1000)
    }

    /// The number of the newest process or thread in the namespace of this process.
    pub(super) fn newest(&self) -> Option<u64> {
        self.read("loadavg")?.split_ascii_whitespace().next_back()?.parse().ok()
    }

    /// Resident memory of all of them, in bytes; what processes share is counted once. Reads all page tables, of those
    /// that it comes to before the deadline.
    pub(super) fn proportional_memory(&self, deadline: Option<Instant>) -> u64 {
        let of = |stat: &ProcessStat| {
            let rollup = self.read(&format!("{}/smaps_rollup", stat.pid)).and_then(|text| kilobytes(&text, "Pss:"));
            // It may have ended meanwhile, or hide its memory.
            let resident = || self.stat(stat.pid).filter(|stat| !stat.is_dead).map_or(0, |stat| stat.memory);
            rollup.unwrap_or_else(resident) + self.page_tables(stat.pid)
        };
        let in_time = |_: &&ProcessStat| deadline.is_none_or(|deadline| now() < deadline);
        self.living().iter().take_while(in_time).map(of).sum()
    }

    /// Kills all of them, until none is left.
    pub(super) fn kill(&self) {
        if self.is_namespace && kill_all() == Err(Errno::SRCH) {
            return;
        }
        let deadline = now() + KILLING;
        while now() < deadline {
            let living = self.living();
            if living.is_empty() {
                return;
            }
            if self.is_namespace {
                // All at once, so that none can be started meanwhile.
                let _ = kill_all();
                continue;
            }
            for pid in living.iter().filter_map(|stat| Pid::from_raw(stat.pid)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Kills each of them, until none is left. Returns whether that succeeded.
    pub(super) fn kill_each(&self) -> bool {
        let deadline = now() + KILLING;
        while now() < deadline {
            let living = self.living();
            if living.is_empty() {
                return true;
            }
            for pid in living.iter().filter_map(|stat| self.inner(stat.pid)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        false
    }

    /// Stops `program`, a child of this process, and kills all others until none is left. Returns whether that succeeded.
    pub(super) fn stop(&self, program: Pid) -> bool {
        let deadline = now() + KILLING;
        while now() < deadline && kill_process(program, Signal::STOP).is_ok() {
            let living = self.living();
            // A process that has not stopped yet may start others.
            let is_stopped = living.iter().any(|stat| stat.is_stopped && self.inner(stat.pid) == Some(program));
            let others = living.iter().filter_map(|stat| self.inner(stat.pid)).filter(|pid| *pid != program);
            let others: Vec<Pid> = others.collect();
            if is_stopped && others.is_empty() {
                return true;
            }
            for other in others {
                let _ = kill_process(other, Signal::KILL);
            }
        }
        false
    }

    /// A process as this one numbers it, whose `/proc` may be that of an outer namespace.
    fn inner(&self, pid: i32) -> Option<Pid> {
        if !self.is_namespace {
            return Pid::from_raw(pid);
        }
        Pid::from_raw(self.numbers_of(pid)?.split_ascii_whitespace().next_back()?.parse().ok()?)
    }

    /// The numbers of a process, from the namespace of this `/proc` to its own.
    fn numbers_of(&self, pid: i32) -> Option<String> {
        let status = self.read(&format!("{pid}/status"))?;
        status.lines().find_map(|line| line.strip_prefix("NSpid:")).map(str::to_owned)
    }

    fn depth_of(&self, pid: i32) -> Option<usize> {
        Some(self.numbers_of(pid)?.split_ascii_whitespace().count())
    }

    /// The numbers of the living ones, as this `/proc` has them.
    pub(super) fn living_pids(&self) -> Vec<i32> {
        self.living().into_iter().map(|stat| stat.pid).collect()
    }

    fn living(&self) -> Vec<ProcessStat> {
        self.all().into_iter().filter(|stat| !stat.is_dead).collect()
    }

    fn stats(&self, program: Option<Pid>) -> Vec<ProcessStat> {
        match program {
            Some(program) => self.stat(program.as_raw_nonzero().get()).into_iter().collect(),
            None => self.all(),
        }
    }

    fn all(&self) -> Vec<ProcessStat> {
        let own = self.own;
        let pids = self.numbers(".").into_iter();
        let stats: Vec<ProcessStat> = pids.filter_map(|pid| self.stat(pid)).filter(|stat| stat.pid != own).collect();
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
        let is_kept = |pid| self.depth.is_none_or(|depth| self.depth_of(pid) == Some(depth));
        stats.into_iter().filter(|stat| family.contains(&stat.pid) && is_kept(stat.pid)).collect()
    }

    fn stat(&self, pid: i32) -> Option<ProcessStat> {
        let mut stat = parse(&self.read(&format!("{pid}/stat"))?)?;
        if stat.has_ended_leader {
            // The kernel shows the memory of such a process for its other threads alone.
            stat.memory = self.memory_of_threads(pid);
        }
        Some(stat)
    }

    /// Resident memory as the threads of a process see it.
    fn memory_of_threads(&self, pid: i32) -> u64 {
        let memory = |thread| Some(parse(&self.read(&format!("{pid}/task/{thread}/stat"))?)?.memory);
        self.threads(pid).into_iter().filter_map(memory).max().unwrap_or_default()
    }

    /// The threads of a process but its first.
    fn threads(&self, pid: i32) -> Vec<i32> {
        let mut threads = self.numbers(&format!("{pid}/task"));
        threads.retain(|thread| *thread != pid);
        threads
    }

    /// The numbers that a folder has as names.
    fn numbers(&self, folder: &str) -> Vec<i32> {
        // The descriptor of `/proc` itself may not be readable.
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let listed = openat(&self.proc, folder, flags, Mode::empty()).and_then(Dir::new);
        listed
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok())
            .collect()
    }

    /// Memory for page tables, in bytes, which is not part of the resident memory.
    fn page_tables(&self, pid: i32) -> u64 {
        self.read(&format!("{pid}/status")).and_then(|text| kilobytes(&text, "VmPTE:")).unwrap_or_default()
    }

    fn read(&self, path: &str) -> Option<String> {
        let file = openat(&self.proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = Vec::with_capacity(2048);
        std::fs::File::from(file).take(LONGEST).read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

/// CPU time of processes as it was last seen. The kernel forgets that of a child whose parent ignores `SIGCHLD`.
#[derive(Debug, Default)]
pub(super) struct SeenCpuTime {
    last: HashMap<i32, u64>,
    of_ended_us: u64,
}

impl SeenCpuTime {
    /// Takes over what the living processes have used, and returns what all have used that were seen, in microseconds.
    pub(super) fn update(&mut self, now: HashMap<i32, u64>) -> u64 {
        // A smaller number is that of another process with the same id.
        let ended = self.last.iter().filter(|(pid, last)| now.get(pid).is_none_or(|now| now < last));
        self.of_ended_us += ended.map(|(_, last)| last).sum::<u64>();
        self.last = now;
        self.of_ended_us + self.last.values().sum::<u64>()
    }
}

/// Kills every process of the PID namespace of which this one is the first. Fails with `ESRCH` if there is no other, not
/// even one that has ended and that no parent has waited for.
#[expect(unsafe_code, reason = "there is no safe interface to kill(2) of all processes")]
fn kill_all() -> rustix::io::Result<()> {
    // SAFETY: takes no pointers. -1 is every process of the namespace that this one may signal, without this one.
    match unsafe { libc::kill(-1, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().map_or(Errno::PERM, Errno::from_raw_os_error)),
    }
}

/// The bytes in a line such as `VmPTE:       44 kB`.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    Some(value(text, name)? * 1024)
}

/// The number that follows a name at the beginning of a line.
fn value(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    pid: i32,
    parent: i32,
    is_dead: bool,
    /// Whether a signal has stopped it.
    is_stopped: bool,
    /// Whether its first thread has ended while others go on.
    has_ended_leader: bool,
    own_cpu_ms: u64,
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
    let milliseconds = |fields: RangeInclusive<usize>| {
        fields.filter_map(field).sum::<u64>() * 1000 / rustix::param::clock_ticks_per_second().max(1)
    };
    let threads = field(20)?;
    let (is_zombie, is_gone) = (*fields.first()? == "Z", *fields.first()? == "X");
    Some(ProcessStat {
        pid: pid.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        is_stopped: *fields.first()? == "T",
        is_dead: is_gone || (is_zombie && threads <= 1),
        has_ended_leader: is_zombie && threads > 1,
        own_cpu_ms: milliseconds(14..=15),
        cpu_ms: milliseconds(14..=17),
        threads,
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
        let expected = ProcessStat {
            pid: 7,
            parent: 1,
            is_dead: false,
            is_stopped: false,
            has_ended_leader: false,
            own_cpu_ms: 300,
            cpu_ms: 1000,
            threads: 5,
            memory,
        };
        assert_eq!(parse(stat), Some(expected));
        assert_eq!(parse("7 (x) Z"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn cpu_time_of_a_process_counts_as_it_was_last_seen() {
        let mut seen = SeenCpuTime::default();
        assert_eq!(seen.update(HashMap::from([(2, 10), (3, 5)])), 15);
        assert_eq!(seen.update(HashMap::from([(2, 20)])), 25);
        assert_eq!(seen.update(HashMap::from([(2, 1)])), 26, "another process with the same id");
        assert_eq!(seen.update(HashMap::new()), 26);
    }

    #[test]
    fn a_process_is_dead_once_its_last_thread_has_ended() {
        let of = |state: &str, threads: u64| {
            let stat = format!("7 (a) {state} 1 7 7 0 -1 0 1 2 3 4 10 20 30 40 20 0 {threads} 0 123 456 789");
            parse(&stat).map(|stat| (stat.is_dead, stat.has_ended_leader)).unwrap()
        };
        assert_eq!(of("Z", 1), (true, false));
        assert_eq!(of("Z", 2), (false, true), "its first thread called exit(2)");
        assert_eq!(of("X", 0), (true, false));
        assert_eq!(of("S", 2), (false, false));
    }

    #[test]
    fn a_line_of_status_is_read_in_bytes() {
        let status = "Name:\ta\nVmPTE:\t      44 kB\nVmSwap:\t 0 kB\n";
        assert_eq!(kilobytes(status, "VmPTE:"), Some(44 * 1024));
        assert_eq!(kilobytes(status, "Pss:"), None);
    }

    #[test]
    fn what_descends_from_this_process_is_counted_and_ended() {
        let proc = open("/proc", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let tree = ProcessTree::of_descendants(proc).unwrap();
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let pid = Pid::from_child(&child);
        // The kernel counts what a young process has only roughly. What a shell starts while it is killed descends from it
        // no more.
        let patience = crate::now() + std::time::Duration::from_secs(30);
        while tree.used(Some(pid)).memory == 0 || tree.used(None).tasks < 2 {
            assert!(crate::now() < patience, "a process has memory, and a child");
        }
        tree.kill();
        assert!(!child.wait().unwrap().success());
    }
}
