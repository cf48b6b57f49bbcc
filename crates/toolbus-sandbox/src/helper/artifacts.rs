//! The files that a program leaves.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, open, openat, statat};

use super::work_folder::{HOME, OUT};
use crate::outcome::Artifact;
use crate::removal::FOLDER;

/// Most returned files.
const MOST: usize = 64;
/// Longest name of a returned file, in bytes.
const LONGEST_NAME: usize = 200;
/// Most entries that are read.
const LOOKED_AT: usize = 10_000;
/// Most files that are named and not returned.
const MOST_NAMED: usize = 20;
/// Deepest folder in which files are named.
const DEEPEST: usize = 2;

/// The files in a work folder after a run.
#[derive(Debug, Default)]
pub struct CollectedFiles {
    /// Those in `out`, by name.
    pub artifacts: Vec<Artifact>,
    /// Number of files in `out` that do not come back.
    pub left_out: u64,
    /// See [`crate::Outcome::not_returned`].
    pub not_returned: Vec<String>,
}

impl CollectedFiles {
    /// Reads the regular files in `out` of a work folder, by name, as long as they are not more than `most` bytes together,
    /// and names those in `home` but for the `given` ones. Follows no link.
    #[must_use]
    pub fn of(work: &Path, most: u64, given: &[&str]) -> Self {
        Self::since(work, most, given, &mut SeenFiles::default())
    }

    /// The same of those that are not seen yet, and are then.
    pub(super) fn since(work: &Path, most: u64, given: &[&str], seen: &mut SeenFiles) -> Self {
        let mut collected = Self::default();
        if let Ok(out) = open(work.join(OUT), FOLDER, Mode::empty()) {
            collected.take(&out, most, seen);
        }
        if let Ok(home) = open(work.join(HOME), FOLDER, Mode::empty()) {
            let (mut found, mut to_look_at) = (Vec::new(), LOOKED_AT);
            add_names(&home, "", 0, &mut to_look_at, &mut |about, name| {
                if seen.is_new(&about) {
                    found.push(name);
                }
            });
            found.retain(|name| !given.contains(&name.as_str()));
            found.sort();
            found.truncate(MOST_NAMED + 1);
            collected.not_returned = found;
        }
        seen.keep();
        collected
    }

    fn take(&mut self, out: &OwnedFd, most: u64, seen: &mut SeenFiles) {
        let mut left = most;
        let (names, unfit) = names(out);
        self.left_out = unfit;
        for name in names {
            let about = statat(out, &name, AtFlags::SYMLINK_NOFOLLOW);
            if about.is_ok_and(|about| !seen.is_new(&about)) {
                continue;
            }
            let is_taken = self.artifacts.len() < MOST;
            match is_taken.then(|| read(out, &name, left)).flatten() {
                Some(bytes) => {
                    left -= bytes.len() as u64;
                    self.artifacts.push(Artifact { name, bytes: bytes.into() });
                }
                None => self.left_out += 1,
            }
        }
    }
}

/// Files as they were found before: by inode, size and the time of their last change, which no program can set.
#[derive(Debug, Default)]
pub(super) struct SeenFiles {
    before: HashSet<FileState>,
    now: HashSet<FileState>,
}

type FileState = (u64, i64, i64, u64);

impl SeenFiles {
    /// Whether a file was not found before as it is. All names of one that is new are.
    fn is_new(&mut self, about: &Stat) -> bool {
        let state = (about.st_ino, about.st_size, about.st_ctime, about.st_ctime_nsec);
        self.now.insert(state);
        !self.before.contains(&state)
    }

    /// Those that were found now have been before. What was not is gone, or has changed.
    fn keep(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}

/// Reports the paths of the regular files in a folder that a person would look for.
fn add_names(folder: &OwnedFd, path: &str, depth: usize, to_look_at: &mut usize, found: &mut impl FnMut(Stat, String)) {
    for entry in Dir::read_from(folder).into_iter().flatten().flatten() {
        let Some(left) = to_look_at.checked_sub(1) else { return };
        *to_look_at = left;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name.starts_with('.') || name == "__pycache__" || name.chars().any(char::is_control) {
            continue;
        }
        let Ok(about) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        match FileType::from_raw_mode(about.st_mode) {
            FileType::RegularFile => found(about, format!("{path}{name}")),
            FileType::Directory if depth < DEEPEST => {
                if let Ok(inner) = openat(folder, name, FOLDER, Mode::empty()) {
                    add_names(&inner, &format!("{path}{name}/"), depth + 1, to_look_at, found);
                }
            }
            _ => {}
        }
    }
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

    fn collect(out: &Path, most: u64) -> CollectedFiles {
        let mut collected = CollectedFiles::default();
        collected.take(&open(out, FOLDER, Mode::empty()).unwrap(), most, &mut SeenFiles::default());
        collected
    }

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
        let names: Vec<&str> = collected.artifacts.iter().map(|file| file.name.as_str()).collect();
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
        assert_eq!((collected.artifacts.len(), collected.left_out), (0, 200));
        let elapsed = crate::now() - begun;
        assert!(elapsed < std::time::Duration::from_secs(2), "{elapsed:?}");
    }

    #[test]
    fn a_file_that_was_seen_comes_back_once_it_has_changed() {
        let work = tempfile::tempdir().unwrap();
        for part in [HOME, OUT] {
            fs::create_dir(work.path().join(part)).unwrap();
        }
        let mut seen = SeenFiles::default();
        let mut look = || {
            let found = CollectedFiles::since(work.path(), 10, &[], &mut seen);
            let names: Vec<String> = found.artifacts.into_iter().map(|file| file.name).collect();
            (names.join(" "), found.left_out, found.not_returned.join(" "))
        };
        let write = |name: &str, text: &str| fs::write(work.path().join(name), text).unwrap();
        for name in ["out/a", "out/b", "home/c"] {
            write(name, "x");
        }
        write("out/large", "more than may come back");
        assert_eq!(look(), ("a b".to_owned(), 1, "c".to_owned()));
        assert_eq!(look(), (String::new(), 0, String::new()));
        write("out/b", "longer");
        write("home/d", "x");
        assert_eq!(look(), ("b".to_owned(), 0, "d".to_owned()));
        // A link changes the file, too.
        fs::hard_link(work.path().join("out/a"), work.path().join("out/again")).unwrap();
        assert_eq!(look(), ("a again".to_owned(), 0, String::new()));
        for length in 1..10 {
            write("out/a", &"x".repeat(length));
            look();
        }
        assert_eq!(seen.before.len(), 5, "of a file that changes, its last state is kept");
    }

    #[test]
    fn a_folder_that_was_replaced_by_a_link_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        symlink("/usr", folder.path().join("out")).unwrap();
        assert!(CollectedFiles::of(folder.path(), 1000, &[]).artifacts.is_empty());
    }

    #[test]
    fn files_in_the_current_folder_are_named_but_for_hidden_and_given_ones_and_links() {
        let work = tempfile::tempdir().unwrap();
        let home = work.path().join(HOME);
        for folder in ["data/deep/deeper", "__pycache__", ".cache"] {
            fs::create_dir_all(home.join(folder)).unwrap();
        }
        let files = [
            "b.txt",
            "given.csv",
            ".hidden",
            "__pycache__/m.pyc",
            ".cache/c",
            "data/a.csv",
            "data/deep/a",
            "new\nline",
        ];
        for file in files.iter().chain(&["data/deep/deeper/too-deep"]) {
            fs::write(home.join(file), "x").unwrap();
        }
        symlink("/etc", home.join("link")).unwrap();
        let found = CollectedFiles::of(work.path(), 10, &["given.csv"]);
        assert_eq!(found.not_returned, ["b.txt", "data/a.csv", "data/deep/a"]);
        (0..30).for_each(|number| fs::write(home.join(format!("file-{number:02}")), "").unwrap());
        let many = CollectedFiles::of(work.path(), 10, &[]).not_returned;
        assert_eq!((many.len(), many.last().map(String::as_str)), (21, Some("file-17")), "one more than is named");
    }
}
