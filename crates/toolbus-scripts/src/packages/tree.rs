//! Folders full of files that others wrote.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use rustix::process::{getegid, geteuid};

/// Folders, and files that may be executed.
const OPEN: u32 = 0o555;
/// All other files.
const CLOSED: u32 = 0o444;
/// Folders that are taken apart.
const WRITABLE: u32 = 0o700;

/// Makes everything in a folder this user's and read-only, and returns how many bytes it is. The folder itself stays as
/// it is.
///
/// Everything must be a file or a folder: a link could lead elsewhere.
pub(super) fn seal(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0_u64;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        let mode = if metadata.is_dir() {
            bytes = bytes.saturating_add(seal(&path)?);
            OPEN
        } else if metadata.is_file() {
            bytes = bytes.saturating_add(metadata.len());
            if metadata.permissions().mode() & 0o111 == 0 { CLOSED } else { OPEN }
        } else {
            return Err(io::Error::other("a package has something that is neither a file nor a folder"));
        };
        if metadata.uid() != geteuid().as_raw() {
            // A later program that runs as that user must not be able to change it.
            chown(&path, Some(geteuid().as_raw()), Some(getegid().as_raw()))?;
        }
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
    }
    Ok(bytes)
}

/// Makes the folder itself read-only.
pub(super) fn close(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(OPEN))
}

/// Makes the folder itself writable again.
pub(super) fn unclose(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(WRITABLE))
}

/// Bytes of all files in a folder; what cannot be read counts nothing.
pub(super) fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// Removes a folder and everything in it, also without write permission. A missing folder counts as removed.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    open(folder);
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        ended => ended,
    }
}

/// Makes a folder and all folders in it writable, as far as that is possible.
fn open(folder: &Path) {
    let _ = fs::set_permissions(folder, Permissions::from_mode(WRITABLE));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_sealed_folder_cannot_be_written_to_and_can_be_removed() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("set");
        fs::create_dir_all(folder.join("a/b")).unwrap();
        fs::write(folder.join("a/b/module.py"), "12345").unwrap();
        fs::write(folder.join("tool"), "123").unwrap();
        fs::set_permissions(folder.join("tool"), Permissions::from_mode(0o755)).unwrap();

        assert_eq!((seal(&folder).unwrap(), size(&folder)), (8, 8));
        close(&folder).unwrap();
        assert_eq!(["", "a", "a/b", "tool"].map(|name| mode(&folder.join(name))), [OPEN; 4]);
        assert_eq!(mode(&folder.join("a/b/module.py")), CLOSED);

        remove(&folder).unwrap();
        assert!(!folder.exists());
        remove(&folder).unwrap();
    }

    #[test]
    fn a_link_is_not_taken() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("set")).unwrap();
        symlink("/etc/passwd", root.path().join("set/link")).unwrap();
        assert!(seal(&root.path().join("set")).is_err());
    }
}
