//! The mount namespace of a program: the paths that it may read, a work folder in memory, and nothing else.
#![allow(unsafe_code, reason = "there is no safe interface to mount_setattr")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, mkdirat, open, openat, statat, symlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree, unmount,
};
use rustix::process::{fchdir, pivot_root};
use rustix::system::sethostname;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::work_folder::{PARTS, TEMPORARY};
use crate::plan::Limits;
use crate::wire::SandboxSpec;

/// The work folder.
pub(super) const WORK: &str = "/work";
/// User and group of a program in its namespace.
pub(super) const INSIDE: u32 = 1000;
/// Host name in its namespace.
const HOST_NAME: &[u8] = b"sandbox";
/// Where the new root is built; the mount hides what is there from this process alone.
const BUILT_AT: &str = "/tmp";
/// Devices that every program may use.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// A mount that was detached from the old root, and its place in the new one.
struct DetachedMount {
    tree: OwnedFd,
    at: PathBuf,
    is_folder: bool,
}

/// The error if the system allows no namespaces.
pub(super) fn unavailable(error: io::Error) -> io::Error {
    let cause = match error.kind() == io::ErrorKind::PermissionDenied && is_filtered() {
        true => {
            "; a seccomp profile is in force, as in containers: allow clone with namespaces, mount, umount2, pivot_root, \
             fsopen, fsconfig, fsmount, move_mount, open_tree and mount_setattr"
        }
        false => "",
    };
    io::Error::new(error.kind(), format!("no namespaces of its own: {error}{cause}"))
}

/// Whether this process has a seccomp filter (proc_pid_status(5)).
fn is_filtered() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
}

/// A `/proc` that is not attached to any path.
pub(super) enum Proc {
    /// Of the namespace alone.
    Own(OwnedFd),
    /// Of the system outside, where a new one is refused: containers cover parts of theirs, so that no other may show them.
    Outer(OwnedFd),
}

impl Proc {
    /// The same for a namespace within this one.
    pub(super) fn outer(&self) -> io::Result<Self> {
        let (Self::Own(proc) | Self::Outer(proc)) = self;
        Ok(Self::Outer(proc.try_clone()?))
    }
}

impl AsFd for Proc {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let (Self::Own(proc) | Self::Outer(proc)) = self;
        proc.as_fd()
    }
}

/// Moves this process into its own mount namespace, with a work folder in memory, as the one user of its namespace.
/// Returns a `/proc` in which its processes are seen.
pub(super) fn enter(order: &SandboxSpec) -> io::Result<Proc> {
    let plan = &order.plan;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // With the rights of the user that started this process.
    let mut taken = Vec::new();
    let mut links = Vec::new();
    for (paths, is_writable) in [(&plan.write, true), (&plan.read, false)] {
        for path in outermost(paths) {
            match fs::symlink_metadata(&path) {
                Ok(found) if found.is_symlink() => links.push((fs::read_link(&path)?, path)),
                Ok(found) => taken.push(take(&path, found.is_dir(), !is_writable)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(about(&path, error)),
            }
        }
    }
    for device in DEVICES {
        let path = Path::new("/dev").join(device);
        let tree = open_tree(CWD, &path, cloned()).map_err(|error| about(&path, error.into()))?;
        taken.push(DetachedMount { tree, at: path, is_folder: false });
    }
    let proc = match memory("proc", &[]) {
        Ok(proc) => Proc::Own(proc),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Proc::Outer(open("/proc", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
        }
        Err(error) => return Err(error),
    };

    become_inside(order.user.is_some())?;
    // Containers refuse it; then the name is that of the container.
    let _ = sethostname(HOST_NAME);
    let root = memory("tmpfs", &[("size", "1m"), ("nr_inodes", "4096"), ("mode", "0755")])?;
    let work = work_folder(&plan.limits)?;
    let mut new_root = NewRoot { root: &root, folders: BTreeMap::new() };
    new_root.attach(&work, Path::new(WORK), true)?;
    // The shortest path first, so that a mount is not hidden by its parent, nor put into a folder that is.
    taken.sort_by_key(|taken| taken.at.as_os_str().len());
    for DetachedMount { tree, at, is_folder } in taken {
        new_root.attach(&tree, &at, is_folder).map_err(|error| about(&at, error))?;
    }
    links.push((Path::new(WORK).join(TEMPORARY), "/tmp".into()));
    links.push((Path::new(WORK).join(TEMPORARY), "/dev/shm".into()));
    for (target, path) in links {
        new_root.link(&target, &path)?;
    }
    drop(new_root);
    // Of this mount alone, not of those below.
    set_attributes(&root, libc::MOUNT_ATTR_RDONLY, 0)?;

    move_mount(&root, "", CWD, BUILT_AT, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    fchdir(&root)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir(WORK)?;
    Ok(proc)
}

/// Covers the work folder of a template by one for a fork of it, in a mount namespace that is a copy of the template's, as
/// the one user of its namespace.
pub(super) fn enter_fork(order: &SandboxSpec) -> io::Result<()> {
    become_inside(order.user.is_some())?;
    let _ = sethostname(HOST_NAME);
    let work = work_folder(&order.plan.limits)?;
    move_mount(&work, "", CWD, WORK, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    std::env::set_current_dir(WORK)
}

/// A work folder in memory.
fn work_folder(limits: &Limits) -> io::Result<OwnedFd> {
    let (size, files) = (limits.disk.to_string(), (limits.files + 8).to_string());
    let work = memory("tmpfs", &[("size", &size), ("nr_inodes", &files), ("mode", "0755")])?;
    set_attributes(&work, libc::MOUNT_ATTR_NOEXEC, 0)?;
    for part in PARTS {
        mkdirat(&work, part, Mode::from_raw_mode(0o700))?;
    }
    Ok(work)
}

/// The paths that are not below another of them.
fn outermost(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut outer: Vec<PathBuf> = Vec::new();
    let mut sorted: Vec<&PathBuf> = paths.iter().collect();
    sorted.sort_by_key(|path| path.as_os_str().len());
    for path in sorted {
        if !outer.iter().any(|outer| path.starts_with(outer)) {
            outer.push(path.clone());
        }
    }
    outer
}

const fn cloned() -> OpenTreeFlags {
    OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC).union(OpenTreeFlags::AT_RECURSIVE)
}

fn take(path: &Path, is_folder: bool, read_only: bool) -> io::Result<DetachedMount> {
    let tree = open_tree(CWD, path, cloned()).map_err(|error| about(path, error.into()))?;
    let read_only = if read_only { libc::MOUNT_ATTR_RDONLY } else { 0 };
    set_attributes(&tree, read_only, libc::AT_RECURSIVE).map_err(|error| about(path, error))?;
    Ok(DetachedMount { tree, at: path.to_owned(), is_folder })
}

/// A file system that is not attached to anything.
fn memory(kind: &str, options: &[(&str, &str)]) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|error| naming(kind, error.into()))?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, *value)?;
    }
    fsconfig_create(&context).map_err(|error| naming(kind, error.into()))?;
    let hardened = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, hardened).map_err(|error| naming(kind, error.into()))
}

/// Changes to the user of the namespace; the capabilities in the namespace stay.
fn become_inside(drops_groups: bool) -> io::Result<()> {
    if drops_groups {
        set_thread_groups(&[])?;
    }
    let (user, group) = (Uid::from_raw(INSIDE), Gid::from_raw(INSIDE));
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

/// Folders of a new root, by their paths in it: each is created and opened once, and most places are in few of them.
struct NewRoot<'a> {
    root: &'a OwnedFd,
    folders: BTreeMap<PathBuf, OwnedFd>,
}

impl NewRoot<'_> {
    fn attach(&mut self, tree: &OwnedFd, at: &Path, is_folder: bool) -> io::Result<()> {
        let (parent, name) = self.place(at)?;
        match is_folder {
            true => ignore_existing(mkdirat(parent, name, Mode::from_raw_mode(0o755)))?,
            // In a folder that is only read it is there already, and cannot be created.
            false if statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() => {}
            false => {
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                openat(parent, name, flags, Mode::from_raw_mode(0o644))?;
            }
        }
        Ok(move_mount(tree, "", parent, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    }

    fn link(&mut self, target: &Path, path: &Path) -> io::Result<()> {
        let (parent, name) = self.place(path)?;
        ignore_existing(symlinkat(target, parent, name))
    }

    /// The folder of a path, and its name there.
    fn place<'a>(&mut self, path: &'a Path) -> io::Result<(BorrowedFd<'_>, &'a OsStr)> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::other("the root itself cannot be shown"));
        };
        Ok((self.folder(parent)?, name))
    }

    /// A folder. It must not be covered by a mount later.
    fn folder(&mut self, path: &Path) -> io::Result<BorrowedFd<'_>> {
        if !self.folders.contains_key(path) {
            if path.parent().is_none() {
                return Ok(self.root.as_fd());
            }
            let (parent, name) = self.place(path)?;
            ignore_existing(mkdirat(parent, name, Mode::from_raw_mode(0o755)))?;
            let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let folder = openat(parent, name, flags, Mode::empty())?;
            self.folders.insert(path.to_owned(), folder);
        }
        Ok(self.folders.get(path).unwrap_or(self.root).as_fd())
    }
}

fn ignore_existing(made: rustix::io::Result<()>) -> io::Result<()> {
    match made {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        made => Ok(made?),
    }
}

/// Adds attributes to a mount, with `AT_RECURSIVE` also to all below it. Never removes any.
fn set_attributes(mount: &OwnedFd, attributes: u64, depth: libc::c_int) -> io::Result<()> {
    let set = libc::mount_attr {
        attr_set: attributes | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let mount: BorrowedFd<'_> = mount.as_fd();
    let flags = libc::AT_EMPTY_PATH | depth;
    // SAFETY: the path is a string that ends with NUL, and the attributes are what the size says.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const set,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn about(path: &Path, error: io::Error) -> io::Error {
    naming(&path.display().to_string(), error)
}

fn naming(what: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_within_another_is_shown_with_it() {
        let paths = ["/usr/lib/python3", "/usr/lib", "/lib64", "/usr/library"].map(PathBuf::from);
        assert_eq!(outermost(&paths), ["/lib64", "/usr/lib", "/usr/library"].map(PathBuf::from));
    }
}
