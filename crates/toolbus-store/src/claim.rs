//! The claim of one process on a file: a lock on another file beside it, which the system takes away when the process ends,
//! in whatever way.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, lchown};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

/// Ending that the name of the lock's file adds to that of the file.
const ENDING: &str = ".lock";
/// Longest description of a holder that is read, in bytes.
const MAX_HOLDER: u64 = 4096;

/// A file that is this process's own, until this is dropped.
#[derive(Debug)]
pub struct FileClaim {
    _lock: File,
}

/// Reason why this process does not hold a file.
#[derive(Debug, thiserror::Error)]
pub enum FileClaimError {
    /// Another process holds the file; with its description of itself.
    #[error("another process uses it: {0}")]
    Taken(String),
    /// The lock's file cannot be used.
    #[error("`{0}` cannot be locked: {1}")]
    Unusable(PathBuf, io::Error),
}

impl FileClaim {
    /// Claims a file for this process. `holder` names the owner to other processes. A process can claim a file once
    /// only.
    ///
    /// # Errors
    ///
    /// If another process has claimed it, or the lock's file cannot be used.
    pub fn new(path: &Path, holder: &str) -> Result<Self, FileClaimError> {
        let (name, mut lock) = open(path)?;
        let unusable = |error| FileClaimError::Unusable(name.clone(), error);
        if !try_lock(&lock).map_err(unusable)? {
            return Err(FileClaimError::Taken(read(&mut lock).map_err(unusable)?));
        }
        // Not before: it would be that of the holder.
        lock.set_len(0).and_then(|()| lock.write_all(holder.as_bytes())).map_err(unusable)?;
        Ok(Self { _lock: lock })
    }

    /// Returns the description that another process gives of itself that has claimed a file; `None` if no other has. A
    /// process that has claimed the file itself loses its claim by asking.
    ///
    /// # Errors
    ///
    /// If the lock's file cannot be used.
    pub fn holder(path: &Path) -> Result<Option<String>, FileClaimError> {
        if !name(path).exists() {
            return Ok(None);
        }
        let (name, mut lock) = open(path)?;
        let holder = match try_lock(&lock) {
            Ok(true) => Ok(None),
            Ok(false) => read(&mut lock).map(Some),
            Err(error) => Err(error),
        };
        holder.map_err(|error| FileClaimError::Unusable(name, error))
    }
}

fn name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ENDING);
    name.into()
}

fn open(path: &Path) -> Result<(PathBuf, File), FileClaimError> {
    let name = name(path);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    match options.open(&name) {
        Ok(file) => {
            hand_over(&name);
            Ok((name, file))
        }
        Err(error) => Err(FileClaimError::Unusable(name, error)),
    }
}

/// Gives a file or folder to the owner of the folder that it is in, where this process may: what root makes in the state of
/// a daemon with its own user must not lock that daemon out.
pub fn hand_over(path: &Path) {
    let folder = std::path::absolute(path).and_then(|path| path.parent().unwrap_or(&path).metadata());
    // A process that is not root may not give its files away.
    drop(folder.and_then(|folder| lchown(path, Some(folder.uid()), Some(folder.gid()))));
}

/// A lock of the process, which programs that it starts do not have.
fn try_lock(file: &File) -> io::Result<bool> {
    match fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn read(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let mut text = String::new();
    file.take(MAX_HOLDER).read_to_string(&mut text)?;
    Ok(text)
}
