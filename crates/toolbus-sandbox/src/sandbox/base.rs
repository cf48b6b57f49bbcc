//! The folder that holds the work folders of one daemon.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::removal::{self, FOLDER};

/// Prefix of its name; a process id and a number follow.
const PREFIX: &str = "toolbus-sandbox-";
/// Most names that are tried.
pub(super) const NAMES: u32 = 1000;
/// The users that programs run as may enter the folder, and not list it.
const MODE: u32 = 0o711;
/// Attempts to remove it while helpers end, and the time between them.
const TRIES: usize = 100;
const BETWEEN: Duration = Duration::from_millis(20);

/// A folder that only this user may write to. Removed when dropped.
#[derive(Debug)]
pub(super) struct BaseFolder {
    path: PathBuf,
    /// `None` only between its removal by another program and its creation anew.
    lock: Mutex<Option<FolderLock>>,
}

/// Says to other daemons, also to those that do not see this process, that a folder is in use.
#[derive(Debug)]
pub(super) struct FolderLock {
    folder: File,
}

impl FolderLock {
    /// Locks a folder; `None` if another process has locked it, or it is gone.
    pub(super) fn take(path: &Path) -> io::Result<Option<Self>> {
        let folder = match open(path, OFlags::RDONLY | FOLDER, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            folder => File::from(folder?),
        };
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        let lock = Self { folder };
        // What removes a folder locks it first: it may have done so before this.
        Ok(lock.is_at(path).then_some(lock))
    }

    /// Whether the locked folder still has this path.
    fn is_at(&self, path: &Path) -> bool {
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let (locked, found) = (self.folder.metadata().map(identity), fs::symlink_metadata(path).map(identity));
        locked.is_ok_and(|locked| found.is_ok_and(|found| found == locked))
    }
}

impl BaseFolder {
    /// Creates it, and removes the folders of daemons that ended without removing them.
    pub(super) fn make() -> io::Result<Self> {
        let temporary = std::env::temp_dir();
        remove_stale(&temporary);
        let own = std::process::id();
        for path in (0..NAMES).map(|number| temporary.join(format!("{PREFIX}{own}-{number}"))) {
            match create(&path) {
                // Another user may have used the name, or another daemon that has the same process id in its namespace.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(None) => {}
                Ok(lock) => return Ok(Self { path, lock: Mutex::new(lock) }),
            }
        }
        Err(io::Error::other("every name for a work folder is taken"))
    }

    /// Creates it again if it is gone: systems remove temporary files that are not used for days.
    pub(super) fn make_again(&self) -> io::Result<()> {
        match fs::symlink_metadata(&self.path) {
            Ok(found) if found.is_dir() && found.uid() == geteuid().as_raw() => Ok(()),
            Ok(_) => Err(io::Error::other("it is not a folder of this user's")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // One at a time: another call may have made it meanwhile.
                let mut lock = self.lock.lock();
                if !self.path.exists() {
                    *lock = None;
                    *lock = create(&self.path)?;
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it when helpers that are ending have nothing in it any more; waits for that, not without end. A process
    /// that ends earlier leaves it to the next daemon.
    pub(super) async fn remove_when_empty(&self) {
        for _ in 0..TRIES {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => tokio::time::sleep(BETWEEN).await,
                Ok(()) | Err(_) => return,
            }
        }
    }
}

impl Drop for BaseFolder {
    fn drop(&mut self) {
        let (path, lock) = (std::mem::take(&mut self.path), self.lock.get_mut().take());
        // Not if it was removed before: the next folder of this process may have its name.
        remove_soon((), move || match &lock {
            Some(lock) if lock.is_at(&path) => fs::remove_dir(&path).is_ok(),
            _ => true,
        });
    }
}

/// Removes what helpers that are ending may still have something in; they remove that first. The next daemon removes what
/// is left when this process ends. `locks` are given up afterwards.
pub(super) fn remove_soon(locks: impl Send + 'static, remove: impl Fn() -> bool + Send + 'static) {
    if !remove() {
        std::thread::spawn(move || {
            let _ = (0..TRIES).any(|_| {
                std::thread::park_timeout(BETWEEN);
                remove()
            });
            drop(locks);
        });
    }
}

/// Creates a folder, with these permissions whatever the umask is, and locks it; `None` if another daemon has taken it for
/// one that is left.
fn create(path: &Path) -> io::Result<Option<FolderLock>> {
    DirBuilder::new().mode(MODE).create(path)?;
    let lock = FolderLock::take(path)?;
    if lock.is_some() {
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
    }
    Ok(lock)
}

fn remove_stale(temporary: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_own = || entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw());
        if name.to_str().is_some_and(|name| is_numbered(name, PREFIX)) && is_own() {
            // Held until it is removed.
            if let Ok(Some(_lock)) = FolderLock::take(&entry.path()) {
                let _ = removal::remove(&entry.path());
            }
        }
    }
}

/// Whether a name is a prefix, a process id and a number.
pub(super) fn is_numbered(name: &str, prefix: &str) -> bool {
    let numbers = name.strip_prefix(prefix).and_then(|rest| rest.split_once('-'));
    numbers.is_some_and(|(pid, number)| pid.parse::<u32>().is_ok() && number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_the_system_removed_is_made_again_and_that_of_another_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let base = BaseFolder { path: temporary.path().join("base"), lock: Mutex::default() };
        base.make_again().unwrap();
        assert_eq!(base.path().metadata().unwrap().permissions().mode() & 0o777, MODE);
        base.make_again().unwrap();
        assert!(FolderLock::take(base.path()).unwrap().is_none(), "it is locked again");
        fs::remove_dir(base.path()).unwrap();
        std::os::unix::fs::symlink("/tmp", base.path()).unwrap();
        assert_eq!(base.make_again().unwrap_err().to_string(), "it is not a folder of this user's");
        fs::remove_file(base.path()).unwrap();
        base.make_again().unwrap();
    }

    #[test]
    fn folders_that_are_locked_stay_whatever_process_made_them_and_others_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = |name: &str| temporary.path().join(name);
        // In another PID namespace the id of a living daemon may be another's, or none here.
        let (alive, gone) = (format!("{PREFIX}4194305-0"), format!("{PREFIX}{}-0", std::process::id()));
        for name in [&*alive, &*gone, "toolbus-sandbox-x-0", "toolbus-sandbox-1-x", "other"] {
            fs::create_dir_all(folder(name).join("run-1")).unwrap();
        }
        let lock = FolderLock::take(&folder(&alive)).unwrap().unwrap();
        let left = || {
            remove_stale(temporary.path());
            let entries = fs::read_dir(temporary.path()).unwrap();
            let mut left: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            left.sort();
            left
        };
        assert_eq!(left(), ["other", "toolbus-sandbox-1-x", &*alive, "toolbus-sandbox-x-0"]);
        drop(lock);
        assert_eq!(left(), ["other", "toolbus-sandbox-1-x", "toolbus-sandbox-x-0"]);
    }

    #[tokio::test]
    async fn a_folder_that_has_the_name_of_one_removed_before_stays() {
        // The next sandbox of a process takes the name while the last user of the one before is still being dropped.
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("base");
        let base = |lock| BaseFolder { path: path.clone(), lock: Mutex::new(lock) };
        let before = base(create(&path).unwrap());
        before.remove_when_empty().await;
        let next = base(create(&path).unwrap());
        drop(before);
        assert!(path.exists());
        drop(next);
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_that_is_removed_while_it_is_made_is_not_locked() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("base");
        assert!(FolderLock::take(&path).unwrap().is_none(), "gone");
        fs::create_dir(&path).unwrap();
        let _removing = FolderLock::take(&path).unwrap().unwrap();
        assert!(FolderLock::take(&path).unwrap().is_none(), "another is about to remove it");
        assert_eq!(create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[tokio::test]
    async fn the_folder_goes_when_the_last_helper_has_removed_what_it_had_there() {
        let temporary = tempfile::tempdir().unwrap();
        let base = BaseFolder { path: temporary.path().join("base"), lock: Mutex::default() };
        base.make_again().unwrap();
        let work = base.path().join("work");
        fs::create_dir(&work).unwrap();
        let ending = async { fs::remove_dir(&work).unwrap() };
        tokio::join!(biased; base.remove_when_empty(), ending);
        assert!(!base.path().exists());
        base.remove_when_empty().await;
        base.make_again().unwrap();
        assert!(base.path().exists(), "a program that is started later has its folder");
    }
}
