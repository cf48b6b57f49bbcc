//! The files that a program returns.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags, fstat, open, openat};

/// Most returned files.
const MOST: usize = 64;
/// Longest name of a returned file, in bytes.
const LONGEST_NAME: usize = 200;
/// Most entries that are read.
const LOOKED_AT: usize = 10_000;

/// Returned files, and the number of those left out.
#[derive(Debug, Default)]
pub(super) struct CollectedFiles {
    pub(super) files: Vec<(String, Vec<u8>)>,
    pub(super) left_out: u64,
}

/// Reads the regular files of a folder, by name, as long as they are not more than `most` bytes together. Follows no link.
pub(super) fn collect(folder: &Path, most: u64) -> CollectedFiles {
    let mut collected = CollectedFiles::default();
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let Ok(folder) = open(folder, flags, Mode::empty()) else { return collected };
    let mut left = most;
    let (names, unfit) = names(&folder);
    collected.left_out = unfit;
    for name in names {
        let is_taken = collected.files.len() < MOST;
        match is_taken.then(|| read(&folder, &name, left)).flatten() {
            Some(bytes) => {
                left -= bytes.len() as u64;
                collected.files.push((name, bytes));
            }
            None => collected.left_out += 1,
        }
    }
    collected
}

/// Usable names in order, and the number of others.
fn names(folder: &OwnedFd) -> (Vec<String>, u64) {
    let (mut names, mut unfit) = (Vec::new(), 0);
    for entry in Dir::read_from(folder).into_iter().flatten().flatten().take(LOOKED_AT) {
        match entry.file_name().to_str() {
            Ok("." | "..") => {}
            Ok(name) if name.len() <= LONGEST_NAME && !name.chars().any(char::is_control) => {
                names.push(name.to_owned())
            }
            _ => unfit += 1,
        }
    }
    names.sort();
    (names, unfit)
}

fn read(folder: &OwnedFd, name: &str, most: u64) -> Option<Vec<u8>> {
    // A pipe without a writer must not hold this up.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::empty()).ok()?;
    let found = fstat(&file).ok()?;
    let is_regular = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    // Before it is read: a file of nothing but a hole is as large as it claims.
    if !is_regular || u64::try_from(found.st_size).ok()? > most {
        return None;
    }
    let mut bytes = Vec::new();
    File::from(file).take(most + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= most).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_come_back_in_order_and_within_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (name, size) in [("b", 3), ("a", 4), ("d", 90), ("e", 1)] {
            fs::write(at(name), vec![b'x'; size]).unwrap();
        }
        symlink("/etc/passwd", at("link")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), Mode::from_raw_mode(0o600)).unwrap();
        fs::write(at("new\nline"), "x").unwrap();
        fs::write(at(&"n".repeat(201)), "x").unwrap();
        let collected = collect(folder.path(), 10);
        let names: Vec<&str> = collected.files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((names, collected.left_out), (vec!["a", "b", "e"], 6));
    }

    #[test]
    fn files_of_nothing_but_a_hole_cost_no_time() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..200 {
            File::create(folder.path().join(number.to_string())).unwrap().set_len(1 << 40).unwrap();
        }
        let begun = crate::now();
        let collected = collect(folder.path(), 256 << 20);
        assert_eq!((collected.files.len(), collected.left_out), (0, 200));
        let elapsed = crate::now() - begun;
        assert!(elapsed < std::time::Duration::from_secs(2), "{elapsed:?}");
    }

    #[test]
    fn a_folder_that_was_replaced_by_a_link_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        symlink("/usr", folder.path().join("out")).unwrap();
        assert!(collect(&folder.path().join("out"), 1000).files.is_empty());
    }
}
