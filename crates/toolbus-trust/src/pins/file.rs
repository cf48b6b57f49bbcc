//! The file of pins: read whole, and replaced whole.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use toolbus_core::Clock;

use super::definition::{Definition, Digest};
use super::record::{PinRecord, VERSION, digest_of};

/// Largest file, in bytes.
const MAX_FILE: usize = 64 << 20;
/// Longest wait for another process that holds the file.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Permissions of a new file: for its owner alone.
const PRIVATE: u32 = 0o600;
/// User id of root.
const ROOT: u32 = 0;
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Reason why the pin file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the pin file `{}` {problem}", path.display())]
pub struct PinFileError {
    path: PathBuf,
    problem: FileProblem,
}

impl PinFileError {
    /// Whether there is too much to write.
    pub(super) const fn is_full(&self) -> bool {
        matches!(self.problem, FileProblem::Full)
    }
}

/// Problem with a file.
#[derive(Debug, thiserror::Error)]
enum FileProblem {
    #[error("cannot be written: its folder does not exist; create it, or set pins.file")]
    NoFolder,
    #[error("is a symbolic link; name the file itself")]
    Link,
    #[error("is no regular file")]
    NoFile,
    #[error("is larger than {} MiB", MAX_FILE >> 20)]
    TooLarge,
    #[error("would be larger than {} MiB", MAX_FILE >> 20)]
    Full,
    #[error("is broken: {0}; put back a copy of it, or, to pin everything as it is now, move it away")]
    Broken(String),
    #[error(
        "is of version {0}, and this program reads version {VERSION} alone; use the program that wrote it, or move it away"
    )]
    Version(u64),
    #[error("is held by another process for too long")]
    Locked,
    #[error(
        "cannot be written: it could not be given to its owner, user {0} of group {1}: {2}; write it as that user, or set pins.file"
    )]
    Owner(u32, u32, io::Error),
    #[error("cannot be read: {0}")]
    Reading(io::Error),
    #[error("cannot be written: {0}; set pins.file to a file that this user may write")]
    Writing(io::Error),
}

/// The pin file.
#[derive(Debug, Clone)]
pub(super) struct PinFile {
    path: PathBuf,
}

/// Locks the file against other processes until it is dropped.
pub(super) struct Lock(#[expect(dead_code, reason = "its end releases the lock")] File);

impl PinFile {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The record of the file; `None` if there is no file.
    pub(super) fn read(&self) -> Result<Option<PinRecord>, PinFileError> {
        let Some(text) = self.text().map_err(|problem| self.error(problem))? else { return Ok(None) };
        parse(&text).map(Some).map_err(|problem| self.error(problem))
    }

    /// Whether the file has a folder in which it can be written.
    pub(super) fn check_folder(&self) -> Result<(), PinFileError> {
        if self.folder().is_dir() { Ok(()) } else { Err(self.error(FileProblem::NoFolder)) }
    }

    /// Waits until no other process changes the file.
    pub(super) fn lock(&self) -> Result<Lock, PinFileError> {
        let file = self.open_lock().map_err(|problem| self.error(problem))?;
        let end = Clock::SYSTEM.now() + MAX_WAIT;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock(file)),
                Err(Errno::WOULDBLOCK) if Clock::SYSTEM.now() >= end => return Err(self.error(FileProblem::Locked)),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::park_timeout(PAUSE),
                Err(error) => return Err(self.error(FileProblem::Writing(error.into()))),
            }
        }
    }

    /// Replaces the file atomically.
    pub(super) fn write(&self, record: &PinRecord, _lock: &Lock) -> Result<(), PinFileError> {
        let mut text =
            serde_json::to_vec_pretty(record).map_err(|error| self.error(FileProblem::Broken(error.to_string())))?;
        text.push(b'\n');
        if text.len() > MAX_FILE {
            return Err(self.error(FileProblem::Full));
        }
        self.replace(&text).map_err(|problem| self.error(problem))
    }

    fn open_lock(&self) -> Result<File, FileProblem> {
        let path = beside(&self.path, ".lock");
        match create(&path, OFlags::EXCL) {
            Err(FileProblem::Writing(error)) if error.kind() == io::ErrorKind::AlreadyExists => {
                create(&path, OFlags::empty())
            }
            new => {
                let file = new?;
                // Another user must be able to take the lock.
                self.hand_over(&file).inspect_err(|_| drop(fs::remove_file(&path)))?;
                Ok(file)
            }
        }
    }

    /// Gives a new file the owner and permissions of the pin file, or else the owner of its folder: another user, such
    /// as root beside a daemon with its own user, must not lock the owner out.
    fn hand_over(&self, new: &File) -> Result<(), FileProblem> {
        let before = fs::symlink_metadata(&self.path).ok();
        let heir = match &before {
            Some(before) => before.clone(),
            None => fs::metadata(self.folder()).map_err(FileProblem::Writing)?,
        };
        let own = new.metadata().map_err(FileProblem::Writing)?;
        if (own.uid(), own.gid()) != (heir.uid(), heir.gid())
            && let Err(error) = fchown(new, Some(heir.uid()), Some(heir.gid()))
        {
            // Root is never locked out, nor is the owner of a folder by other users who may write to it.
            let is_locked_out = heir.uid() != ROOT && (before.is_some() || own.uid() == ROOT);
            if is_locked_out {
                return Err(FileProblem::Owner(heir.uid(), heir.gid(), error));
            }
        }
        let mode = before.map_or(PRIVATE, |before| before.mode() & 0o777 | PRIVATE);
        new.set_permissions(Permissions::from_mode(mode)).map_err(FileProblem::Writing)
    }

    fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    fn replace(&self, text: &[u8]) -> Result<(), FileProblem> {
        let next = beside(&self.path, ".new");
        // A file left by a crash may belong to another user.
        let _ = fs::remove_file(&next);
        let mut file = create(&next, OFlags::EXCL)?;
        self.hand_over(&file)?;
        file.write_all(text).and_then(|()| file.sync_all()).map_err(FileProblem::Writing)?;
        fs::rename(&next, &self.path).map_err(FileProblem::Writing)?;
        // The new name must survive a crash, too. Not every file system supports that.
        let _ = File::open(self.folder()).and_then(|folder| folder.sync_all());
        Ok(())
    }

    fn text(&self) -> Result<Option<String>, FileProblem> {
        // Not blocking: opening a pipe would wait for its other end.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(&self.path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(FileProblem::Link),
            Err(error) => return Err(FileProblem::Reading(error.into())),
        };
        if !file.metadata().map_err(FileProblem::Reading)?.is_file() {
            return Err(FileProblem::NoFile);
        }
        let mut text = Vec::new();
        file.take(MAX_FILE as u64 + 1).read_to_end(&mut text).map_err(FileProblem::Reading)?;
        if text.len() > MAX_FILE {
            return Err(FileProblem::TooLarge);
        }
        String::from_utf8(text).map(Some).map_err(|_| FileProblem::Broken("it is no text in UTF-8".to_owned()))
    }

    fn error(&self, problem: FileProblem) -> PinFileError {
        PinFileError { path: self.path.clone(), problem }
    }
}

/// The file of the same name with something after it.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(end);
    path.with_file_name(name)
}

/// Opens a file to write, for this user alone.
fn create(path: &Path, more: OFlags) -> Result<File, FileProblem> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | more;
    let opened = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    opened.map(File::from).map_err(|error| match error {
        Errno::NOENT => FileProblem::NoFolder,
        Errno::LOOP => FileProblem::Link,
        other => FileProblem::Writing(other.into()),
    })
}

/// Parses a record, and checks its fingerprints.
fn parse(text: &str) -> Result<PinRecord, FileProblem> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u64,
    }
    let broken = |error: serde_json::Error| FileProblem::Broken(error.to_string());
    let Versioned { version } = serde_json::from_str(text).map_err(broken)?;
    if version != VERSION {
        return Err(FileProblem::Version(version));
    }
    let mut record: PinRecord = serde_json::from_str(text).map_err(broken)?;
    for (name, source) in &mut record.sources {
        let wrong = |tool: &str| {
            FileProblem::Broken(format!("the fingerprint of tool {tool:?} of source {name:?} is not its own"))
        };
        for (tool, pin) in &mut source.tools {
            pin.definition = fitting(&pin.definition, pin.digest).ok_or_else(|| wrong(tool))?;
            if let Some(before) = &mut pin.before {
                before.definition = fitting(&before.definition, before.digest).ok_or_else(|| wrong(tool))?;
            }
        }
        for (tool, seen) in &mut source.pending {
            seen.definition = fitting(&seen.definition, seen.digest).ok_or_else(|| wrong(tool))?;
        }
        if digest_of(&source.tools) != source.digest {
            return Err(FileProblem::Broken(format!("the fingerprint of source {name:?} is not its own")));
        }
    }
    Ok(record)
}

fn fitting(definition: &Definition, digest: Digest) -> Option<Definition> {
    definition.clone().with_digest(digest)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use toolbus_core::tool::ToolDescriptor;

    use super::super::record::{Pin, SourceRecord};
    use super::super::tests::pin_file;
    use super::*;

    fn record() -> PinRecord {
        let descriptor =
            ToolDescriptor { description: "Reads.".to_owned(), ..ToolDescriptor::new("read", "rest", "rest") };
        let tools = [("read".to_owned(), Pin::new(&Definition::of(&descriptor), "1", false))].into();
        let source = SourceRecord {
            since: "1".to_owned(),
            digest: digest_of(&tools),
            held: true,
            reached: None,
            tools,
            pending: [].into(),
        };
        PinRecord { sources: [("rest".to_owned(), source)].into(), ..PinRecord::default() }
    }

    fn refusal(text: &str) -> String {
        let (_folder, path) = pin_file();
        fs::write(&path, text).unwrap();
        let error = PinFile::new(path.clone()).read().unwrap_err().to_string();
        error.replace(&path.display().to_string(), "FILE")
    }

    #[test]
    fn a_written_file_is_private_and_leaves_no_temporary_file() {
        let (folder, path) = pin_file();
        let file = PinFile::new(path.clone());
        assert_eq!(file.read().unwrap(), None);
        for _ in 0..2 {
            file.write(&record(), &file.lock().unwrap()).unwrap();
            assert_eq!(file.read().unwrap(), Some(record()));
        }
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["pins.json", "pins.json.lock"]);
    }

    /// Owner, group and permissions.
    fn rights(path: &Path) -> (u32, u32, u32) {
        let metadata = path.metadata().unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o777)
    }

    #[test]
    fn a_replaced_file_keeps_its_owner_and_permissions() {
        let (_folder, path) = pin_file();
        fs::write(&path, serde_json::to_vec(&PinRecord::default()).unwrap()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        // Only root can; for others the permissions are all that there is to keep.
        let _ = chown(&path, Some(12_345), Some(12_346));
        let before = rights(&path);
        let file = PinFile::new(path.clone());
        file.write(&record(), &file.lock().unwrap()).unwrap();
        assert_eq!(file.read().unwrap(), Some(record()));
        assert_eq!(rights(&path), before);
        assert_eq!(rights(&beside(&path, ".lock")), before);
    }

    #[test]
    fn a_new_file_has_the_owner_of_its_folder() {
        let (folder, path) = pin_file();
        let _ = chown(folder.path(), Some(12_345), Some(12_346));
        let file = PinFile::new(path.clone());
        file.write(&record(), &file.lock().unwrap()).unwrap();
        let (user, group, _) = rights(folder.path());
        assert_eq!(rights(&path), (user, group, 0o600));
        assert_eq!(rights(&beside(&path, ".lock")), (user, group, 0o600));
    }

    #[test]
    fn a_half_written_file_of_a_crash_is_ignored() {
        let (_folder, path) = pin_file();
        fs::write(beside(&path, ".new"), "half of a much longer file that was being written".repeat(100)).unwrap();
        let file = PinFile::new(path);
        file.write(&record(), &file.lock().unwrap()).unwrap();
        assert_eq!(file.read().unwrap(), Some(record()));
    }

    #[test]
    fn a_file_that_is_broken_is_refused_and_named() {
        insta::assert_snapshot!(refusal(""), @"the pin file `FILE` is broken: EOF while parsing a value at line 1 column 0; put back a copy of it, or, to pin everything as it is now, move it away");
        insta::assert_snapshot!(refusal("{}"), @"the pin file `FILE` is broken: missing field `version` at line 1 column 2; put back a copy of it, or, to pin everything as it is now, move it away");
        insta::assert_snapshot!(refusal(r#"{"version": 2, "sources": {}}"#), @"the pin file `FILE` is of version 2, and this program reads version 1 alone; use the program that wrote it, or move it away");
        let written = serde_json::to_string(&record()).unwrap();
        for (wrong, what) in [
            (
                written.replace("Reads.", "Reads all."),
                "the fingerprint of tool \"read\" of source \"rest\" is not its own",
            ),
            (written.replace(r#""read":{"#, r#""reed":{"#), "the fingerprint of source \"rest\" is not its own"),
            (written.replace("since", "sense"), "unknown field `sense`"),
            (written[..written.len() / 2].to_owned(), "EOF while parsing"),
        ] {
            let error = refusal(&wrong);
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn a_file_that_was_laid_out_in_another_way_is_read() {
        let (_folder, path) = pin_file();
        let value: serde_json::Value = serde_json::from_str(&serde_json::to_string(&record()).unwrap()).unwrap();
        fs::write(&path, format!("{value:#}")).unwrap();
        assert_eq!(PinFile::new(path).read().unwrap(), Some(record()));
    }

    #[test]
    fn a_foreign_file_is_neither_read_nor_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("elsewhere", &link).unwrap();
        let error = |path: &Path| PinFile::new(path.to_owned()).read().unwrap_err().to_string();
        assert!(error(&link).ends_with("is a symbolic link; name the file itself"));
        assert!(error(folder.path()).ends_with("is no regular file"));
        let nowhere = PinFile::new(folder.path().join("none/pins.json"));
        assert_eq!(nowhere.read().unwrap(), None);
        let refused = nowhere.lock().err().unwrap().to_string();
        assert!(
            refused.ends_with("cannot be written: its folder does not exist; create it, or set pins.file"),
            "{refused}"
        );
    }

    #[test]
    fn the_error_for_an_unwritable_file_names_the_configuration_key() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let error = PinFile::new(folder.path().join("file/pins.json")).lock().err().unwrap().to_string();
        assert!(error.contains("cannot be written") && error.contains("set pins.file"), "{error}");
    }

    #[test]
    fn one_process_at_a_time_has_the_file() {
        let (_folder, path) = pin_file();
        let file = PinFile::new(path);
        let held = file.lock().unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| file.lock().map(drop));
            assert!(!other.is_finished());
            drop(held);
            other.join().unwrap().unwrap();
        });
    }
}
