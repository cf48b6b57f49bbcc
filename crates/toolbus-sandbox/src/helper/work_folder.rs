//! The work folder of a run without a mount namespace.

use std::ffi::CStr;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, open, openat, statat};
use rustix::io::Errno;

use super::name_of;
use crate::removal::{self, FOLDER};
use crate::wire::SandboxSpec;

/// The parts of a work folder: the current directory, temporary files, returned files, and the job's files.
pub(super) const PARTS: [&str; 4] = [HOME, TEMPORARY, OUT, JOB];
/// The current directory.
pub(super) const HOME: &str = "home";
/// Temporary files.
pub(super) const TEMPORARY: &str = "tmp";
/// Returned files.
pub(super) const OUT: &str = "out";
/// The job's files.
pub(super) const JOB: &str = "job";

/// Deepest folder that is measured.
const DEEPEST: usize = 64;

/// The folder of one run on a disk. Removed when dropped.
#[derive(Debug)]
pub(super) struct WorkFolder(PathBuf);

impl WorkFolder {
    /// Creates it, for its user alone.
    pub(super) fn make(order: &SandboxSpec) -> io::Result<Self> {
        let path = order.base.join(name_of(order.number));
        let mut private = DirBuilder::new();
        private.mode(0o700).create(&path)?;
        let folder = Self(path);
        for part in PARTS {
            private.create(folder.0.join(part))?;
        }
        if let Some(user) = order.user {
            for path in PARTS.iter().map(|part| folder.0.join(part)).chain([folder.0.clone()]) {
                chown(path, Some(user), Some(user))?;
            }
        }
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes it, if it is still there.
    pub(super) fn remove(&self) {
        let _ = removal::remove(&self.0);
    }

    /// Files and folders in it, and their bytes on disk. Stops after `most` files.
    pub(super) fn size(&self, most: u64) -> FolderSize {
        let mut size = FolderSize::default();
        match open(&self.0, FOLDER, Mode::empty()) {
            Ok(folder) => add(&folder, most, 0, &mut size),
            Err(_) => size.files = most + 1,
        }
        size
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Amount of files and bytes in a folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FolderSize {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// Adds the content of a folder. A folder that cannot be read counts as too much. Entries may be replaced meanwhile, so no
/// link is followed.
fn add(folder: &OwnedFd, most: u64, depth: usize, size: &mut FolderSize) {
    let entries = match Dir::read_from(folder) {
        Ok(entries) if depth <= DEEPEST => entries,
        _ => {
            size.files = most + 1;
            return;
        }
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        // Of the entry itself, not of a link's target. A missing one was removed meanwhile.
        let Ok(found) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        size.files += 1;
        size.bytes += u64::try_from(found.st_blocks).unwrap_or_default() * 512;
        if size.files <= most && FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            match enter(folder, name) {
                Ok(within) => add(&within, most, depth + 1, size),
                // Removed or replaced meanwhile.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(_) => size.files = most + 1,
            }
        }
        if size.files > most {
            return;
        }
    }
}

/// Opens a folder in another, also one without permissions.
fn enter(parent: &OwnedFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    match openat(parent, name, FOLDER, Mode::empty()) {
        Err(Errno::ACCESS) => {
            removal::unlock(parent, name)?;
            openat(parent, name, FOLDER, Mode::empty())
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::plan::{Layers, Level, Plan};

    fn order(base: &Path) -> SandboxSpec {
        let (plan, layers) = (Plan::least(), Layers::of(Level::NoNamespaces));
        SandboxSpec { number: 7, plan, layers, user: None, base: base.to_owned(), cgroup: None }
    }

    #[test]
    fn a_folder_is_measured_without_following_links_and_removed_whatever_is_in_it() {
        let base = tempfile::tempdir().unwrap();
        let folder = WorkFolder::make(&order(base.path())).unwrap();
        let home = folder.path().join(HOME);
        fs::write(home.join("data"), vec![1; 10_000]).unwrap();
        std::os::unix::fs::symlink("/usr", home.join("usr")).unwrap();
        fs::create_dir(home.join("closed")).unwrap();
        fs::write(home.join("closed/file"), "x").unwrap();
        fs::set_permissions(home.join("closed"), Permissions::from_mode(0o0)).unwrap();
        let size = folder.size(100);
        assert!(size.files >= 7 && size.files <= 8, "{size:?}");
        assert!(size.bytes >= 10_000 && size.bytes < 100_000, "{size:?}");
        assert_eq!(folder.size(3).files, 4, "no more is counted than is needed");
        drop(folder);
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }
}
