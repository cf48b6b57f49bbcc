//! Removes the files of a program, at any depth.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, chmod, open, openat, renameat, rmdir, statat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;

/// Most times that the top folder is listed.
const ROUNDS: usize = 1_000_000;

/// Removes a folder with its content, also what an ending process still adds. Follows no link. Moves nested folders up
/// before it removes them, so that thousands of levels exhaust neither descriptors nor the stack.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let top = enter(&open(parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?, name)?;
    let mut brought_up: u64 = 0;
    for _ in 0..ROUNDS {
        let names = names(&top)?;
        if names.is_empty() {
            match rmdir(folder) {
                Err(Errno::NOTEMPTY) => continue,
                removed => return Ok(removed?),
            }
        }
        for name in names {
            if !is_folder(&top, &name)? {
                unlinkat(&top, &*name, AtFlags::empty())?;
                continue;
            }
            // Most are empty.
            if unlinkat(&top, &*name, AtFlags::REMOVEDIR).is_ok() {
                continue;
            }
            let within = enter(&top, &*name)?;
            for name in self::names(&within)? {
                if is_folder(&within, &name)? {
                    // Another parent is written into the folder itself.
                    let _ = unlock(&within, &*name);
                    bring_up(&within, &name, &top, &mut brought_up)?;
                } else {
                    unlinkat(&within, &*name, AtFlags::empty())?;
                }
            }
            match unlinkat(&top, &*name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOTEMPTY) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Err(io::Error::other("it never becomes empty"))
}

fn bring_up(from: &OwnedFd, name: &[u8], top: &OwnedFd, number: &mut u64) -> io::Result<()> {
    loop {
        *number += 1;
        match renameat(from, name, top, format!("up-{number}")) {
            // The program has used this name.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            moved => return Ok(moved?),
        }
    }
}

pub(crate) const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a folder in another, with all permissions of it.
fn enter(parent: &OwnedFd, name: impl Arg + Copy) -> io::Result<OwnedFd> {
    // The program may have removed its permissions.
    let _ = unlock(parent, name);
    Ok(openat(parent, name, FOLDER, Mode::empty())?)
}

/// Gives this user all permissions of a folder. Follows no link, also none that replaces the folder meanwhile.
pub(crate) fn unlock(parent: &OwnedFd, name: impl Arg) -> rustix::io::Result<()> {
    let found = openat(parent, name, FOLDER.union(OFlags::PATH), Mode::empty())?;
    chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::RWXU)
}

fn names(folder: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

pub(crate) fn is_folder(parent: &OwnedFd, name: &[u8]) -> io::Result<bool> {
    let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::fs::mkdirat;

    use super::*;

    #[test]
    fn thousands_of_folders_in_each_other_are_removed_and_what_a_link_leads_to_is_not() {
        let base = tempfile::tempdir().unwrap();
        let (folder, other) = (base.path().join("folder"), base.path().join("other"));
        fs::create_dir(&folder).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("kept"), "x").unwrap();
        let mut deepest = open(&folder, FOLDER, Mode::empty()).unwrap();
        for name in ["up-1", "up-3"] {
            fs::write(folder.join(name), "x").unwrap();
        }
        for _ in 0..5_000 {
            mkdirat(&deepest, "d", Mode::RWXU).unwrap();
            rustix::fs::symlinkat(&other, &deepest, "link").unwrap();
            deepest = openat(&deepest, "d", FOLDER, Mode::empty()).unwrap();
        }
        mkdirat(&deepest, "closed", Mode::empty()).unwrap();
        remove(&folder).unwrap();
        assert!(!folder.exists() && other.join("kept").exists());
    }

    #[test]
    fn permissions_of_what_a_link_leads_to_stay() {
        // A process that survived may replace a folder by a link between two looks at it.
        let base = tempfile::tempdir().unwrap();
        let other = base.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o750)).unwrap();
        std::os::unix::fs::symlink(&other, base.path().join("folder")).unwrap();
        let within = open(base.path(), FOLDER, Mode::empty()).unwrap();
        enter(&within, c"folder").unwrap_err();
        assert_eq!(other.metadata().unwrap().permissions().mode() & 0o777, 0o750);
    }
}
