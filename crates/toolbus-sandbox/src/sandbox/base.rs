//! The folder that holds the work folders of one daemon.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::geteuid;

use crate::removal;

/// Prefix of its name; a process id and a number follow.
const PREFIX: &str = "toolbus-sandbox-";
/// The users that programs run as may enter the folder, and not list it.
const MODE: u32 = 0o711;
/// Attempts to remove it while helpers end, and the time between them.
const TRIES: usize = 100;
const BETWEEN: Duration = Duration::from_millis(20);

/// A folder that only this user may write to. Removed when dropped.
#[derive(Debug)]
pub(super) struct BaseFolder(PathBuf);

impl BaseFolder {
    /// Creates it, and removes the folders of daemons that ended without removing them.
    pub(super) fn make() -> io::Result<Self> {
        let temporary = std::env::temp_dir();
        remove_stale(&temporary);
        let own = std::process::id();
        // Another user may have used a name.
        let found = (0..1000).map(|number| temporary.join(format!("{PREFIX}{own}-{number}"))).find_map(|path| {
            match DirBuilder::new().mode(MODE).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                // Independent of the daemon's umask.
                made => {
                    Some(made.and_then(|()| fs::set_permissions(&path, Permissions::from_mode(MODE))).map(|()| path))
                }
            }
        });
        found.unwrap_or_else(|| Err(io::Error::other("every name for a work folder is taken"))).map(Self)
    }

    /// Creates it again if it is gone: systems remove temporary files that are not used for days.
    pub(super) fn make_again(&self) -> io::Result<()> {
        match fs::symlink_metadata(&self.0) {
            Ok(found) if found.is_dir() && found.uid() == geteuid().as_raw() => Ok(()),
            Ok(_) => Err(io::Error::other("it is not a folder of this user's")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().mode(MODE).create(&self.0)?;
                fs::set_permissions(&self.0, Permissions::from_mode(MODE))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for BaseFolder {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.0);
        // Not once more if the system has removed it: the next folder of this process may have its name.
        remove_soon(move || match fs::remove_dir(&path) {
            Err(error) => error.kind() == io::ErrorKind::NotFound,
            Ok(()) => true,
        });
    }
}

/// Removes what helpers that are ending may still have something in; they remove that first. The next daemon removes what
/// is left when this process ends.
pub(super) fn remove_soon(remove: impl Fn() -> bool + Send + 'static) {
    if !remove() {
        std::thread::spawn(move || {
            (0..TRIES).any(|_| {
                std::thread::park_timeout(BETWEEN);
                remove()
            })
        });
    }
}

fn remove_stale(temporary: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse::<u32>().ok());
        let is_own = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) && is_own {
            let _ = removal::remove(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_the_system_removed_is_made_again_and_that_of_another_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let base = BaseFolder(temporary.path().join("base"));
        base.make_again().unwrap();
        assert_eq!(base.path().metadata().unwrap().permissions().mode() & 0o777, MODE);
        base.make_again().unwrap();
        fs::remove_dir(base.path()).unwrap();
        std::os::unix::fs::symlink("/tmp", base.path()).unwrap();
        assert_eq!(base.make_again().unwrap_err().to_string(), "it is not a folder of this user's");
        fs::remove_file(base.path()).unwrap();
        base.make_again().unwrap();
    }

    #[test]
    fn folders_of_daemons_that_are_gone_are_removed_and_others_are_not() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = |name: &str| temporary.path().join(name);
        let mine = format!("{PREFIX}{}-0", std::process::id());
        for name in [&*mine, "toolbus-sandbox-4194305-0", "toolbus-sandbox-x-0", "other"] {
            fs::create_dir_all(folder(name).join("run-1")).unwrap();
        }
        remove_stale(temporary.path());
        let mut left: Vec<String> = fs::read_dir(temporary.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["other", &*mine, "toolbus-sandbox-x-0"]);
    }
}
