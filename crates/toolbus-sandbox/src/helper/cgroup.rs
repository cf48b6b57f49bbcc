//! The cgroup of one run: its memory is limited and its CPU time is counted by the kernel, also what no process shows.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use crate::plan::Limits;
use crate::wire::CgroupSpec;

/// Memory of the kernel for a program, in bytes, beside what the program may use: its tables, buffers and descriptors.
const OF_KERNEL: u64 = 32 * 1024 * 1024;
/// Longest file of a cgroup that is read, in bytes.
const LONGEST: usize = 4096;
/// The file of a cgroup by which whole processes are moved, in version 2 the only one.
const PROCESSES: &str = "cgroup.procs";
/// The file of version 1 by which threads are moved. To move a whole process, the kernel waits until no process anywhere is
/// about to start a thread or to end: for milliseconds. A thread that moves itself waits for nothing.
const TASKS: &str = "tasks";

/// Removed when dropped; all its processes must have ended.
#[derive(Debug)]
pub(super) struct Cgroup {
    /// Closed before the folders are removed.
    pub(super) files: CgroupFiles,
    /// One in version 2; in version 1 one that limits memory, and one that counts CPU time.
    _folders: Vec<Folder>,
}

/// Files of a cgroup, which also processes use that do not see its folder.
#[derive(Debug)]
pub(super) struct CgroupFiles {
    events: File,
    usage: File,
    /// One in version 2, two in version 1. A process that writes a zero here moves itself, one that writes another's id
    /// that one.
    movers: Vec<File>,
}

impl Cgroup {
    /// Makes it, in the folders that the daemon may write to.
    pub(super) fn make(order: &CgroupSpec, name: &str, limits: &Limits) -> io::Result<Self> {
        let memory = Folder::make(order.memory.join(name))?;
        let most = most(limits).to_string();
        if order.memory == order.cpu {
            memory.write("memory.max", &most)?;
            // Absent where the kernel has no swap.
            let _ = memory.write("memory.swap.max", "0");
            let movers = vec![memory.open_mover(PROCESSES)?];
            let (events, usage) = (memory.open("memory.events")?, memory.open("cpu.stat")?);
            return Ok(Self { files: CgroupFiles { events, usage, movers }, _folders: vec![memory] });
        }
        memory.write("memory.limit_in_bytes", &most)?;
        // With it what is swapped out counts; absent where that is switched off.
        let _ = memory.write("memory.memsw.limit_in_bytes", &most);
        let cpu = Folder::make(order.cpu.join(name))?;
        let movers = vec![memory.open_mover(TASKS)?, cpu.open_mover(TASKS)?];
        let (events, usage) = (memory.open("memory.oom_control")?, cpu.open("cpuacct.usage")?);
        Ok(Self { files: CgroupFiles { events, usage, movers }, _folders: vec![memory, cpu] })
    }
}

/// Memory that a cgroup may have, in bytes: the files of a work folder in memory count, too.
pub(super) const fn most(limits: &Limits) -> u64 {
    limits.memory.saturating_add(limits.disk).saturating_add(OF_KERNEL)
}

impl CgroupFiles {
    /// Those that another process has sent, in the order of [`Self::descriptors`]; `None` if it has none.
    pub(super) fn received(descriptors: impl IntoIterator<Item = OwnedFd>) -> Option<Self> {
        let mut files = descriptors.into_iter().map(File::from);
        let (events, usage, movers) = (files.next()?, files.next()?, files.collect::<Vec<_>>());
        (!movers.is_empty()).then_some(Self { events, usage, movers })
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [&self.events, &self.usage].into_iter().chain(&self.movers).map(|file| file.as_fd())
    }

    /// Moves this process, which has one thread, into it.
    pub(super) fn join(&self) -> io::Result<()> {
        self.add(0)
    }

    /// Moves a process into it.
    pub(super) fn add(&self, process: i32) -> io::Result<()> {
        self.movers.iter().try_for_each(|mut mover| mover.write_all(process.to_string().as_bytes()))
    }

    /// The files to which a process that may not open them writes a zero to move itself: none in version 2, where that is
    /// not faster.
    pub(super) fn self_movers(&self) -> &[File] {
        if self.movers.len() > 1 { &self.movers } else { &[] }
    }

    /// Whether a process is in it. To be asked once: version 1 keeps what it has shown for a second.
    pub(super) fn has(&self, process: i32) -> bool {
        let is_in = |mover: &File| read(mover).is_some_and(|text| text.lines().any(|line| line.parse() == Ok(process)));
        self.movers.iter().all(is_in)
    }

    /// Whether the kernel has ended a process because there was too much memory.
    pub(super) fn is_out_of_memory(&self) -> bool {
        read(&self.events).and_then(|text| value(&text, "oom_kill")).is_some_and(|kills| kills > 0)
    }

    /// CPU time of all processes that have been in it, in milliseconds.
    pub(super) fn cpu_ms(&self) -> Option<u64> {
        let text = read(&self.usage)?;
        match self.movers.len() {
            1 => Some(value(&text, "usage_usec")? / 1000),
            _ => Some(text.trim().parse::<u64>().ok()? / 1_000_000),
        }
    }
}

/// The folder of a cgroup. Removed when dropped; that fails while it has processes, and the daemon removes it later.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn make(path: PathBuf) -> io::Result<Self> {
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn open(&self, name: &str) -> io::Result<File> {
        File::open(self.0.join(name))
    }

    fn open_mover(&self, name: &str) -> io::Result<File> {
        File::options().read(true).write(true).open(self.0.join(name))
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        fs::write(self.0.join(name), text)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn read(file: &File) -> Option<String> {
    let mut bytes = [0; LONGEST];
    let count = file.read_at(&mut bytes, 0).ok()?;
    Some(String::from_utf8_lossy(bytes.get(..count)?).into_owned())
}

/// The number in a line such as `oom_kill 0`.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[test]
    fn a_line_of_a_cgroups_file_is_read_by_its_whole_name() {
        let events = "low 0\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(value(events, "oom_kill"), Some(2));
        assert_eq!(value("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "oom_kill"), Some(1));
        assert_eq!(value("usage_usec 1500\n", "oom_kill"), None);
    }

    #[test]
    fn in_version_two_one_cgroup_limits_memory_and_counts_cpu_time() {
        let base = tempfile::tempdir().unwrap();
        let order = CgroupSpec { memory: base.path().to_owned(), cpu: base.path().to_owned() };
        let limits = Limits { memory: 100, disk: 20, ..Plan::least().limits };
        // The files of a real cgroup come with its folder; here none does.
        Cgroup::make(&order, "run-7", &limits).unwrap_err();
        let folder = base.path().join("run-7");
        assert_eq!(fs::read_to_string(folder.join("memory.max")).unwrap(), (120 + OF_KERNEL).to_string());
    }
}
