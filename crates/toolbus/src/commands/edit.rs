//! Files that commands write for people: whole, or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use toolbus_config::ConfigFormat;

use super::target::TargetError;

/// Largest file that is changed, in bytes.
const MAX_FILE: u64 = 8 << 20;
/// Permissions of a new file that may hold a secret: for its owner alone.
const PRIVATE: u32 = 0o600;
/// Permissions of another new file, before the mask of the process.
const PUBLIC: u32 = 0o666;

/// The next content of a file, written beside it; removed unless [`Self::keep`] renames it.
pub(super) struct NewFile {
    target: PathBuf,
    path: PathBuf,
}

/// The text of a file; `None` if there is none.
///
/// # Errors
///
/// If it cannot be read, is no text, or has more than 8 MiB.
pub(super) fn read(path: &Path) -> Result<Option<String>, TargetError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
    match read {
        Ok(size) if u64::try_from(size).is_ok_and(|size| size <= MAX_FILE) => Ok(Some(text)),
        Ok(_) => Err(failed(path, "read", &io::Error::other("it is larger than 8 MiB"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path, "read", &error)),
    }
}

/// Refuses a configuration that is not TOML: commands write nothing else.
///
/// # Errors
///
/// If the extension of the file is that of another format, or of none.
pub(super) fn expect_toml(file: &Path) -> Result<(), TargetError> {
    let shown = file.display();
    match ConfigFormat::of(file) {
        Ok(ConfigFormat::Toml) => Ok(()),
        Ok(ConfigFormat::Json | ConfigFormat::Yaml) => Err(TargetError::Usage(format!(
            "`{shown}` is not TOML, which alone this command writes: change it by hand, or name a TOML file that is laid \
             over it with one more --config"
        ))),
        Err(error) => Err(TargetError::Usage(format!("`{shown}`: {error}"))),
    }
}

impl NewFile {
    /// Writes the next content of `target`, with the owner and permissions of the file that is there: another user, such as
    /// root beside a daemon with its own user, must not lock the owner out.
    ///
    /// # Errors
    ///
    /// If nothing can be written beside it, or the file cannot be given to the owner.
    pub(super) fn new(target: &Path, text: &str, is_private: bool) -> Result<Self, TargetError> {
        // A link stays one, and leads to the new file.
        let target = target.canonicalize().unwrap_or_else(|_| target.to_owned());
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = target.with_file_name(format!(".{}.{name}", std::process::id()));
        let wrong = |error| failed(&target, "written", &error);
        if let Some(folder) = target.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(wrong)?;
        }
        let mode = if is_private { PRIVATE } else { PUBLIC };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path).map_err(wrong)?;
        let draft = Self { target: target.clone(), path };
        if let Ok(before) = fs::metadata(&target) {
            let own = file.metadata().map_err(wrong)?;
            let (user, group, mut permissions) = (before.uid(), before.gid(), before.permissions());
            if (own.uid(), own.gid()) != (user, group)
                && let Err(error) = fchown(&file, Some(user), Some(group))
            {
                if own.uid() != user {
                    return Err(TargetError::Usage(format!(
                        "`{}` stays as it is: what is new could not be given to its owner, user {user} of group {group}: \
                         {error}; change it as that user",
                        target.display()
                    )));
                }
                permissions.set_mode(for_any_group(permissions.mode()));
            }
            file.set_permissions(permissions).map_err(wrong)?;
        }
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(wrong)?;
        Ok(draft)
    }

    /// The path of the draft.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the draft to its target, where it replaces a file only if it `may_replace` one.
    ///
    /// # Errors
    ///
    /// If there is a file that it may not replace, or the system refuses.
    pub(super) fn keep(self, may_replace: bool) -> Result<(), TargetError> {
        let kept = match may_replace {
            true => fs::rename(&self.path, &self.target),
            false => fs::hard_link(&self.path, &self.target),
        };
        kept.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                TargetError::Usage(format!("`{}` is there already: --force replaces it", self.target.display()))
            }
            _ => failed(&self.target, "written", &error),
        })
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn failed(path: &Path, what: &str, error: &io::Error) -> TargetError {
    TargetError::Usage(format!("`{}` cannot be {what}: {error}", path.display()))
}

/// The permissions of a file that its owner cannot give to its group: another group may do no more than others.
fn for_any_group(mode: u32) -> u32 {
    mode & !0o070 | (mode & 0o007) << 3 & mode
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn a_draft_replaces_a_file_only_if_it_may_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("new/a"), folder.path().join("link"));
        NewFile::new(&file, "one", true).unwrap().keep(false).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, PRIVATE);
        let refused = NewFile::new(&file, "two", false).unwrap().keep(false).unwrap_err().to_string();
        assert!(refused.contains("--force"), "{refused}");
        assert_eq!(read(&file).unwrap().as_deref(), Some("one"));
        symlink(&file, &link).unwrap();
        NewFile::new(&link, "two", false).unwrap().keep(true).unwrap();
        assert_eq!(read(&file).unwrap().as_deref(), Some("two"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, PRIVATE);
        assert!(link.is_symlink() && fs::read_dir(folder.path().join("new")).unwrap().count() == 1);
        assert_eq!(read(&folder.path().join("none")).unwrap(), None);
    }

    #[test]
    fn a_file_keeps_its_owner_group_and_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "one").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        // Only root can do this; the test needs no more than that nothing changes.
        let _ = chown(&path, Some(12_345), Some(12_346));
        let state = || fs::metadata(&path).map(|file| (file.uid(), file.gid(), file.mode() & 0o777)).unwrap();
        let before = state();
        NewFile::new(&path, "two", true).unwrap().keep(true).unwrap();
        assert_eq!((state(), read(&path).unwrap().as_deref()), (before, Some("two")));
    }

    #[test]
    fn a_changed_group_gets_no_more_rights_than_others() {
        for (before, after) in [(0o640, 0o600), (0o644, 0o644), (0o664, 0o644), (0o600, 0o600), (0o604, 0o604)] {
            assert_eq!(for_any_group(before), after, "{before:o}");
        }
    }
}
