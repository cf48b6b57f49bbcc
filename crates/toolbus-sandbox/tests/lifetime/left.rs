//! Processes, folders, descriptors, mounts and memory besides the test's own.

use std::fs;
use std::path::PathBuf;

use parking_lot::Mutex;
use rustix::process::{Pid, getpid, set_child_subreaper};
use toolbus_testing::patience::eventually;

/// Possessions of a process that scripts could leave it.
#[derive(Debug, PartialEq, Eq)]
struct Possessions {
    processes: Vec<String>,
    folders: Vec<PathBuf>,
    cgroups: Vec<PathBuf>,
    descriptors: Vec<String>,
    mounts: String,
}

/// Runs a test while no other one does. Orphans of what it starts become children of this process, where they are seen.
pub(crate) fn alone(test: impl Future<Output = ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock();
    set_child_subreaper(Some(getpid())).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test);
    drop(runtime);
    drop(guard);
}

/// The same for a test after which the process must have what it had before.
pub(crate) fn leaves_nothing(when: &str, test: impl Future<Output = ()>) {
    alone(async {
        let before = Possessions::now();
        test.await;
        before.are_back(when).await;
    });
}

impl Possessions {
    fn now() -> Self {
        let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let mut descriptors: Vec<String> = descriptors
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .map(|target| target.to_string_lossy().split(':').next().unwrap().to_owned())
            .filter(|target| !target.starts_with("/proc/"))
            .collect();
        descriptors.sort();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        Self {
            processes: descendants(),
            folders: work_folders(),
            cgroups: cgroups(std::process::id()),
            descriptors,
            mounts,
        }
    }

    /// Waits until everything is again as it was.
    async fn are_back(&self, when: &str) {
        let is_back = async || (Self::now() == *self).then_some(());
        if tokio::time::timeout(std::time::Duration::from_secs(60), eventually(when, is_back)).await.is_err() {
            assert_eq!(Self::now(), *self, "{when}");
        }
    }
}

/// Folders of this process's sandboxes.
pub(crate) fn work_folders() -> Vec<PathBuf> {
    let own = format!("toolbus-sandbox-{}-", std::process::id());
    let found = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    found.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).map(|entry| entry.path()).collect()
}

/// Cgroups of a process's sandboxes, where they are mounted by the names of their controllers.
pub(crate) fn cgroups(of: u32) -> Vec<PathBuf> {
    let own = format!("toolbus-{of}-");
    let lines = fs::read_to_string("/proc/self/cgroup").unwrap();
    let folders = lines.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        Some(PathBuf::from("/sys/fs/cgroup").join(controllers).join(path.trim_start_matches('/')))
    });
    let entries = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).map(|entry| entry.path()).collect()
}

/// Processes that this one started, and those that they did, with their names.
pub(crate) fn descendants() -> Vec<String> {
    let mut known = vec![std::process::id().to_string()];
    let stats: Vec<(String, String, String)> = stats().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(parent) = known.get(at).cloned() {
        for (pid, name, _) in stats.iter().filter(|(.., of)| *of == parent) {
            known.push(pid.clone());
            found.push(format!("{pid} {name}"));
        }
        at += 1;
    }
    found
}

/// The processes of this name, each with its parent and the parent of that.
pub(crate) fn lineages(name: &str) -> Vec<[Pid; 3]> {
    let stats: Vec<(String, String, String)> = stats().collect();
    let parent = |pid: &str| stats.iter().find(|(own, ..)| own == pid).map(|(.., parent)| parent.clone());
    let pid = |text: String| Pid::from_raw(text.parse().ok()?);
    let named = stats.iter().filter(|(_, found, _)| found == name);
    let lineages = named.filter_map(|(program, ..)| {
        let init = parent(program)?;
        let watchdog = parent(&init)?;
        Some([pid(program.clone())?, pid(init)?, pid(watchdog)?])
    });
    lineages.collect()
}

/// The parent of a process.
pub(crate) fn parent(of: Pid) -> Option<Pid> {
    let of = of.as_raw_nonzero().to_string();
    stats().find(|(own, ..)| *own == of).and_then(|(.., parent)| Pid::from_raw(parent.parse().ok()?))
}

/// Id, name and parent of every living process.
fn stats() -> impl Iterator<Item = (String, String, String)> {
    let texts = fs::read_dir("/proc").unwrap().flatten().map(|entry| fs::read_to_string(entry.path().join("stat")));
    texts.flatten().filter_map(|stat| {
        let (pid, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?;
        (state != "Z" && state != "X").then_some((pid.to_owned(), name.to_owned(), fields.next()?.to_owned()))
    })
}

/// Resident memory of this process, in bytes.
pub(crate) fn memory() -> u64 {
    let pages: u64 = fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
