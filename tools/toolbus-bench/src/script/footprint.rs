//! Resources that scripts leave behind in the process that ran them.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::usage::Usage;
use serde::Serialize;
use tokio::time::sleep;
use toolbus_scripts::runner::sandbox::SandboxRunner;

use super::sides::filled;
use super::subject;
use crate::error::MeasureError;

/// Scripts before the first count, at most: what is made once is there then.
const WARM_UP: u32 = 50;
/// Time without a change after which what is made ready after a script is there, and what ends after it is gone.
const STILL: Duration = Duration::from_millis(300);
/// Interval at which the footprint is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Longest wait for that.
const STILL_TIME: Duration = Duration::from_secs(10);

/// Resources that this process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Footprint {
    /// Resident memory, in bytes.
    pub(super) resident: u64,
    /// Open file descriptors.
    pub(super) descriptors: usize,
    /// Children and theirs, ended ones that no parent waited for included.
    pub(super) processes: usize,
    pub(super) threads: usize,
    /// Folders of the sandbox, with those in them.
    pub(super) folders: usize,
    pub(super) mounts: usize,
}

/// Resources that this process has before many scripts and after them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Growth {
    pub(super) side: &'static str,
    pub(super) scripts: u32,
    pub(super) seconds: f64,
    pub(super) before: Footprint,
    pub(super) after: Footprint,
}

impl Growth {
    /// Runs so many scripts, one after the other without a pause, after some that do not count.
    pub(super) async fn measure(
        side: &'static str,
        runner: &SandboxRunner,
        ready: usize,
        scripts: u32,
    ) -> Result<Self, MeasureError> {
        for _ in 0..WARM_UP.min(scripts) {
            subject::run(runner, None).await?;
        }
        let before = settled(runner, ready).await?;
        let begun = Instant::now();
        for _ in 0..scripts {
            subject::run(runner, None).await?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Self { side, scripts, seconds, before, after: settled(runner, ready).await? })
    }
}

/// Returns the footprint once all is ready that will be, and all has ended that does.
async fn settled(runner: &SandboxRunner, ready: usize) -> Result<Footprint, MeasureError> {
    filled(runner, ready).await?;
    let begun = Instant::now();
    let (mut seen, mut since) = (Footprint::read()?, Instant::now());
    while since.elapsed() < STILL && begun.elapsed() < STILL_TIME {
        sleep(LOOK_EVERY).await;
        let now = Footprint::read()?;
        if !now.is_like(&seen) {
            since = Instant::now();
        }
        seen = now;
    }
    Ok(seen)
}

impl Footprint {
    fn read() -> Result<Self, MeasureError> {
        let this = std::process::id();
        Ok(Self {
            resident: Usage::read(this)?.resident,
            descriptors: entries("/proc/self/fd")?,
            processes: descendants(this)?.len(),
            threads: entries("/proc/self/task")?,
            folders: folders(&std::env::temp_dir(), this)?,
            mounts: std::fs::read_to_string("/proc/self/mountinfo")?.lines().count(),
        })
    }

    /// Whether nothing that scripts have is there more or less.
    fn is_like(&self, other: &Self) -> bool {
        let counts = |of: &Self| (of.descriptors, of.processes, of.folders, of.mounts);
        counts(self) == counts(other)
    }
}

fn entries(folder: impl AsRef<Path>) -> io::Result<usize> {
    Ok(std::fs::read_dir(folder)?.count())
}

/// The processes under this one.
pub(super) fn descendants(of: u32) -> io::Result<HashSet<u32>> {
    let processes = std::fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // One that ends meanwhile is none.
    let pairs: Vec<(u32, u32)> = processes.filter_map(|process| Some((process, parent(process)?))).collect();
    let mut found = HashSet::from([of]);
    loop {
        let more: Vec<u32> = pairs
            .iter()
            .filter(|(process, parent)| found.contains(parent) && !found.contains(process))
            .map(|(process, _)| *process)
            .collect();
        if more.is_empty() {
            found.remove(&of);
            return Ok(found);
        }
        found.extend(more);
    }
}

fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is the program's name, which may hold spaces and brackets.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Folders that the sandbox of this process has for the work of scripts, and what is in them.
fn folders(temporary: &Path, process: u32) -> io::Result<usize> {
    let prefix = format!("toolbus-sandbox-{process}-");
    let own = std::fs::read_dir(temporary)?.flatten();
    let own = own.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    // One that goes meanwhile is none.
    Ok(own.map(|entry| 1 + entries(entry.path()).unwrap_or_default()).sum())
}

#[cfg(test)]
mod tests {
    use toolbus_sandbox::{Level, Sandbox};

    use super::*;

    #[test]
    fn folders_of_the_sandbox_are_counted_with_what_is_in_them() {
        let this = std::process::id();
        let _sandbox = Sandbox::new(Level::LimitsOnly).unwrap();
        assert!(folders(&std::env::temp_dir(), this).unwrap() >= 1, "its folder has another name");
        let temporary = tempfile::tempdir().unwrap();
        for folder in ["toolbus-sandbox-7-0/work", "toolbus-sandbox-7-1", "toolbus-sandbox-71-0", "other"] {
            std::fs::create_dir_all(temporary.path().join(folder)).unwrap();
        }
        assert_eq!(folders(temporary.path(), 7).unwrap(), 3);
    }

    #[test]
    fn children_are_counted_until_they_were_waited_for() {
        let shell = std::process::Command::new("sh")
            .args(["-c", "sleep 1000 & echo; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn();
        let mut shell = shell.unwrap();
        // Once it has written it has its child.
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert_eq!(descendants(shell.id()).unwrap().len(), 1);
        let this = descendants(std::process::id()).unwrap().len();
        assert!(this >= 2, "{this}");
        let child = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.id())).unwrap();
        std::process::Command::new("kill").arg(child.trim()).status().unwrap();
        shell.wait().unwrap();
        assert!(descendants(shell.id()).unwrap().is_empty());
    }

    #[test]
    fn memory_and_threads_may_change_without_anything_being_left() {
        let footprint = Footprint::read().unwrap();
        assert!(footprint.descriptors > 0 && footprint.threads > 0 && footprint.mounts > 0);
        assert!(footprint.is_like(&Footprint { resident: 0, threads: 0, ..footprint }));
        assert!(!footprint.is_like(&Footprint { descriptors: footprint.descriptors + 1, ..footprint }));
    }
}
