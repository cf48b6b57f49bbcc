//! The cgroup of one daemon, in which each run has its own.

use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use super::base::{FolderLock, NAMES, is_numbered, remove_soon};
use crate::wire::CgroupSpec;

/// Prefix of its name; a process id and a random number follow.
const PREFIX: &str = "toolbus-";
/// Controllers that a run needs in version 2.
const CONTROLLERS: &str = "+memory";

/// Cgroups that this process may write to. Removed when dropped, as far as their processes have ended.
#[derive(Debug)]
pub(super) struct CgroupBase {
    spec: CgroupSpec,
    /// Of each hierarchy.
    locks: Vec<FolderLock>,
}

impl CgroupBase {
    /// Makes them beside or below the cgroup of this process, and removes those of daemons that are gone.
    ///
    /// # Errors
    ///
    /// If no hierarchy limits memory, or this process may not write to it.
    pub(super) fn make() -> io::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let found = Hierarchies::parse(&own, &mounts);
        match found {
            Hierarchies { memory: Some(memory), cpu: Some(cpu), .. } => {
                let (memory, lock) = make_in(&memory)?;
                let (cpu, other) = make_in(&cpu).inspect_err(|_| _ = remove(&memory))?;
                Ok(Self { spec: CgroupSpec { memory, cpu }, locks: vec![lock, other] })
            }
            Hierarchies { memory: None, unified: Some(unified), .. } => {
                let (memory, lock) = make_unified(&unified)?;
                Ok(Self { spec: CgroupSpec { cpu: memory.clone(), memory }, locks: vec![lock] })
            }
            _ => Err(io::Error::new(io::ErrorKind::NotFound, "no cgroups limit memory and count CPU time")),
        }
    }

    pub(super) fn spec(&self) -> &CgroupSpec {
        &self.spec
    }
}

impl Drop for CgroupBase {
    fn drop(&mut self) {
        let folders = [self.spec.memory.clone(), self.spec.cpu.clone()];
        remove_soon(std::mem::take(&mut self.locks), move || folders.iter().all(|folder| remove(folder)));
    }
}

/// Where the cgroup of this process is, in each hierarchy of interest.
#[derive(Debug, Default, PartialEq, Eq)]
struct Hierarchies {
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    unified: Option<PathBuf>,
}

impl Hierarchies {
    /// Reads `/proc/self/cgroup` (`number:controllers:path`) and `/proc/self/mountinfo`, as cgroups(7) and proc(5) say.
    fn parse(own: &str, mounts: &str) -> Self {
        let mut found = Self::default();
        for line in own.lines() {
            let mut parts = line.splitn(3, ':');
            let (_, Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
            for controller in controllers.split(',') {
                let (kind, place) = match controller {
                    "" => ("cgroup2", &mut found.unified),
                    "memory" => ("cgroup", &mut found.memory),
                    "cpuacct" => ("cgroup", &mut found.cpu),
                    _ => continue,
                };
                *place = mounted(mounts, kind, controller).map(|(at, root)| {
                    // In a container the mount may show a part of the hierarchy alone.
                    let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
                    Path::new(at).join(below.strip_prefix("/").unwrap_or(below))
                });
            }
        }
        found
    }
}

/// Where a hierarchy is mounted, and which of its folders is there.
fn mounted<'a>(mounts: &'a str, kind: &str, controller: &str) -> Option<(&'a str, &'a str)> {
    mounts.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let system: Vec<&str> = system.split(' ').collect();
        let [found, _, options, ..] = system[..] else { return None };
        let mount: Vec<&str> = mount.split(' ').collect();
        let fits = found == kind && (controller.is_empty() || options.split(',').any(|option| option == controller));
        fits.then_some((*mount.get(4)?, *mount.get(3)?))
    })
}

fn make_in(parent: &Path) -> io::Result<(PathBuf, FolderLock)> {
    remove_stale(parent);
    for _ in 0..NAMES {
        let path = parent.join(format!("{PREFIX}{}-{}", std::process::id(), chance()));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        if let Some(lock) = FolderLock::take(&path)? {
            return Ok((path, lock));
        }
    }
    Err(io::Error::other("every name for a cgroup is taken"))
}

/// Makes it unlikely that a folder has the name of an earlier one of this process, whose watchdogs may end later, and
/// remove what they have made by its path.
fn chance() -> u32 {
    let [a, b, c, d, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// In version 2 a cgroup with processes has no limited ones below it, unless it is the root: then the one above is tried,
/// which systemd lets a unit with `Delegate=yes` and `DelegateSubgroup=` use.
fn make_unified(own: &Path) -> io::Result<(PathBuf, FolderLock)> {
    let mut refused = io::Error::new(io::ErrorKind::NotFound, "no cgroup is above this one");
    for parent in own.ancestors().take(2).filter(|parent| parent.join("cgroup.procs").exists()) {
        match make_limited_in(parent) {
            Ok(made) => return Ok(made),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn make_limited_in(parent: &Path) -> io::Result<(PathBuf, FolderLock)> {
    fs::write(parent.join("cgroup.subtree_control"), CONTROLLERS)?;
    let (made, lock) = make_in(parent)?;
    let enabled = fs::write(made.join("cgroup.subtree_control"), CONTROLLERS);
    if enabled.is_err() {
        remove(&made);
    }
    enabled.map(|()| (made, lock))
}

fn remove_stale(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| is_numbered(name, PREFIX))
            && let Ok(Some(_lock)) = FolderLock::take(&entry.path())
        {
            remove(&entry.path());
        }
    }
}

/// Removes a cgroup and those in it, whose files go with it; `false` while one of them has processes.
fn remove(folder: &Path) -> bool {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let _ = fs::remove_dir(entry.path());
    }
    let _ = fs::remove_dir(folder);
    !folder.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroups_of_a_process_are_found_in_both_versions() {
        let mounts = "\
30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 30 0:28 /docker/a /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
";
        let first = Hierarchies::parse("4:memory:/a/b\n2:cpu,cpuacct:/docker/a/c\n1:name=systemd:/x\n0::/\n", mounts);
        let expected = Hierarchies {
            memory: Some("/sys/fs/cgroup/memory/a/b".into()),
            cpu: Some("/sys/fs/cgroup/cpu,cpuacct/c".into()),
            unified: Some("/sys/fs/cgroup".into()),
        };
        assert_eq!(first, expected);
        let second = Hierarchies::parse("0::/system.slice/toolbus.service/daemon\n", mounts);
        let unified = Some("/sys/fs/cgroup/system.slice/toolbus.service/daemon".into());
        assert_eq!(second, Hierarchies { unified, ..Hierarchies::default() });
        assert_eq!(Hierarchies::parse("4:memory:/a", ""), Hierarchies::default(), "not mounted");
    }

    #[test]
    fn cgroups_of_daemons_that_are_gone_are_removed_and_others_are_not() {
        let parent = tempfile::tempdir().unwrap();
        // A living daemon in another PID namespace may have an id that is none here.
        let names =
            [format!("{PREFIX}4194305-0"), format!("{PREFIX}{}-0", std::process::id()), "other-4194305-0".into()];
        let paths = names.map(|name| parent.path().join(name));
        for path in &paths {
            fs::create_dir_all(path.join("run-1")).unwrap();
        }
        let _lock = FolderLock::take(&paths[0]).unwrap().unwrap();
        let (made, _made) = make_in(parent.path()).unwrap();
        assert!(!paths.contains(&made), "{made:?}");
        assert_eq!(paths.map(|path| path.exists()), [true, false, true]);
    }

    #[test]
    fn in_version_two_the_cgroup_above_is_used_where_this_one_has_processes() {
        let unit = tempfile::tempdir().unwrap();
        let own = unit.path().join("daemon");
        fs::create_dir(&own).unwrap();
        for folder in [unit.path(), &own] {
            fs::write(folder.join("cgroup.procs"), "").unwrap();
        }
        // As the kernel refuses it with EBUSY.
        fs::create_dir(own.join("cgroup.subtree_control")).unwrap();
        let (made, _lock) = make_unified(&own).unwrap();
        assert_eq!(made.parent(), Some(unit.path()));
        assert_eq!(fs::read_to_string(made.join("cgroup.subtree_control")).unwrap(), CONTROLLERS);
        make_unified(&own.join("missing")).unwrap_err();
    }
}
