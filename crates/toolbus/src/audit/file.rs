//! The file of audit records: a regular file, appended to, for this user alone.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Reason why a file cannot be used. The texts follow the file's name.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file's folder is missing.
    #[error("its folder does not exist; create it, for the daemon's user alone")]
    NoFolder,
    /// The file is a symbolic link, which another user may have made.
    #[error("it is a symbolic link; name the file itself")]
    Link,
    /// A folder, a pipe or a device.
    #[error("it is no regular file")]
    NoFile,
    /// An error of the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Access to a file that records are appended to.
const APPENDED: OFlags = OFlags::RDWR.union(OFlags::APPEND);
/// Most bytes at the end of a file in which records are looked up.
const LOOKED_AT: u64 = 64 << 20;

/// An open file of lines.
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    pub(super) fn open(path: &Path) -> Result<Self, FileError> {
        Ok(Self { path: path.to_owned(), file: open(path)? })
    }

    /// Opens the file anew by its name; on failure the old one stays in use.
    pub(super) fn reopen(&mut self) -> Result<(), FileError> {
        self.file = open(&self.path)?;
        Ok(())
    }

    /// Appends some of these bytes, and returns how many.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    /// Waits until the appended bytes are on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Checks whether [`LogFile::open`] would refuse the file, without creating it or writing to it.
pub(super) fn check(path: &Path) -> Result<(), FileError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match opened(path, APPENDED) {
        Err(FileError::NoFolder) if folder.is_dir() => Ok(()),
        opened => opened.map(drop),
    }
}

/// The whole lines among the last bytes of a file.
pub(super) fn last_lines(path: &Path) -> Result<Vec<u8>, FileError> {
    let file = match opened(path, OFlags::RDONLY) {
        // Nothing has been recorded.
        Err(FileError::NoFolder) => return Ok(Vec::new()),
        opened => opened?,
    };
    let length = file.metadata()?.len();
    let mut bytes = vec![0; usize::try_from(length.min(LOOKED_AT)).unwrap_or_default()];
    let from = length.saturating_sub(LOOKED_AT);
    file.read_exact_at(&mut bytes, from)?;
    if from > 0 {
        let cut = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        bytes.drain(..cut);
    }
    Ok(bytes)
}

fn open(path: &Path) -> Result<File, FileError> {
    let mut file = opened(path, APPENDED | OFlags::CREATE)?;
    // A line that a crash or a full disk cut short must not swallow the next one.
    let mut last = [b'\n'];
    if let Some(end) = file.metadata()?.len().checked_sub(1) {
        file.read_exact_at(&mut last, end)?;
    }
    if last != [b'\n'] {
        file.write_all(b"\n")?;
    }
    Ok(file)
}

fn opened(path: &Path, access: OFlags) -> Result<File, FileError> {
    // Not blocking: opening a pipe would wait for its other end.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | access;
    let opened = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(opened.map_err(|error| match error {
        Errno::NOENT => FileError::NoFolder,
        Errno::LOOP => FileError::Link,
        Errno::ISDIR | Errno::NXIO => FileError::NoFile,
        other => FileError::Io(other.into()),
    })?);
    if !file.metadata()?.is_file() {
        return Err(FileError::NoFile);
    }
    Ok(file)
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn refusal(path: &Path) -> String {
        LogFile::open(path).err().expect("a refusal").to_string()
    }

    /// A file of this name on a disk that is full.
    pub(in crate::audit) fn on_a_full_disk(path: &Path) -> LogFile {
        let file = File::options().append(true).open("/dev/full").unwrap();
        LogFile { path: path.to_owned(), file }
    }

    #[test]
    fn the_file_is_made_for_its_user_alone_and_appended_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        for line in ["one\n", "two\n"] {
            assert_eq!(LogFile::open(&path).unwrap().append(line.as_bytes()).unwrap(), line.len());
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_line_that_was_cut_short_is_ended_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        std::fs::write(&path, "whole\ncut sh").unwrap();
        drop(LogFile::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole\ncut sh\n");
    }

    #[test]
    fn links_folders_and_devices_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [target, link, dangling] = ["target", "link", "dangling"].map(|name| folder.path().join(name));
        std::fs::write(&target, "").unwrap();
        symlink(&target, &link).unwrap();
        symlink(folder.path().join("nothing"), &dangling).unwrap();
        insta::assert_snapshot!(refusal(&link), @"it is a symbolic link; name the file itself");
        insta::assert_snapshot!(refusal(&dangling), @"it is a symbolic link; name the file itself");
        insta::assert_snapshot!(refusal(folder.path()), @"it is no regular file");
        insta::assert_snapshot!(refusal(Path::new("/dev/null")), @"it is no regular file");
        insta::assert_snapshot!(refusal(&folder.path().join("no/audit.jsonl")), @"its folder does not exist; create it, for the daemon's user alone");
        assert!(!folder.path().join("nothing").exists());
    }

    #[test]
    fn a_pipe_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        insta::assert_snapshot!(refusal(&path), @"it is no regular file");
    }
}
