//! Removes the files of a program, at any depth.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, open, openat, renameat, rmdir, statat, unlinkat};
use rustix::io::Errno;

/// Most times that the top folder is listed.
const ROUNDS: usize = 1_000_000;

/// Removes a folder with its content, also what an ending process still adds. Follows no link. Moves nested folders up
/// before it removes them, so that thousands of levels exhaust neither descriptors nor the stack.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    let top = open_folder(folder)?;
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
            let within = enter(&top, &name)?;
            for name in self::names(&within)? {
                if is_folder(&within, &name)? {
                    // Another parent is written into the folder itself.
                    let _ = chmodat(&within, &*name, Mode::RWXU, AtFlags::empty());
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

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    match open(path, FOLDER, Mode::empty()) {
        Err(Errno::ACCESS) => {
            chmodat(CWD, path, Mode::RWXU, AtFlags::empty())?;
            Ok(open(path, FOLDER, Mode::empty())?)
        }
        opened => Ok(opened?),
    }
}

fn enter(parent: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
    // The program may have removed all permissions.
    let _ = chmodat(parent, name, Mode::RWXU, AtFlags::empty());
    Ok(openat(parent, name, FOLDER, Mode::empty())?)
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

fn is_folder(parent: &OwnedFd, name: &[u8]) -> io::Result<bool> {
    let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::mkdirat;

    use super::*;

    #[test]
    fn thousands_of_folders_in_each_other_are_removed_and_what_a_link_leads_to_is_not() {
        let base = tempfile::tempdir().unwrap();
        let (folder, other) = (base.path().join("folder"), base.path().join("other"));
        fs::create_dir(&folder).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("kept"), "x").unwrap();
        let mut deepest = open_folder(&folder).unwrap();
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
}
