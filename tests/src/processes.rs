//! Processes below a process, from `/proc`.

use std::collections::BTreeSet;
use std::fs;

/// A process: its id, and when it began, because ids are used again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pid: u32,
    began: u64,
}

impl Process {
    /// The command of one that still runs.
    pub(crate) fn command(&self) -> Option<String> {
        let now = stat(self.pid)?;
        let is_it = now.began == self.began && !matches!(now.state, 'Z' | 'X');
        let words = is_it.then(|| fs::read(format!("/proc/{}/cmdline", self.pid)).ok())??;
        Some(format!("{} {}", self.pid, String::from_utf8_lossy(&words).replace('\0', " ")))
    }
}

struct Stat {
    state: char,
    parent: u32,
    began: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may have spaces.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let state = fields.first()?.chars().next()?;
    Some(Stat { state, parent: u32::try_from(number(1)?).ok()?, began: number(19)? })
}

/// The children of a process, theirs, and so on.
pub(crate) fn below(pid: u32) -> BTreeSet<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<(u32, Stat)> = pids.filter_map(|pid| Some((pid, stat(pid)?))).collect();
    let (mut found, mut parents) = (BTreeSet::new(), vec![pid]);
    while let Some(parent) = parents.pop() {
        for (pid, stat) in all.iter().filter(|(_, stat)| stat.parent == parent) {
            if found.insert(Process { pid: *pid, began: stat.began }) {
                parents.push(*pid);
            }
        }
    }
    found
}
