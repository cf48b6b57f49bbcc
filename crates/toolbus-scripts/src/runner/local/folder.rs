//! The work folder of one script.

use std::fs::{DirEntry, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use tempfile::TempDir;
use toolbus_sandbox::Artifact;

use crate::runner::Script;

/// A folder that is gone with this.
pub(super) struct Folder(TempDir);

impl Folder {
    pub(super) fn new(script: &Script) -> io::Result<Self> {
        let folder = Self(tempfile::Builder::new().prefix("toolbus-script-").tempdir()?);
        std::fs::create_dir(folder.temporary())?;
        std::fs::create_dir(folder.output())?;
        std::fs::write(folder.script(), &script.source)?;
        std::fs::write(folder.input(), script.input.as_deref().unwrap_or_default())?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    fn script(&self) -> PathBuf {
        self.path().join("script.py")
    }

    pub(super) fn input(&self) -> PathBuf {
        self.path().join("input.txt")
    }

    pub(super) fn temporary(&self) -> PathBuf {
        self.path().join("tmp")
    }

    pub(super) fn output(&self) -> PathBuf {
        self.path().join("out")
    }

    /// The regular files that are to come back, by name, at most `most` bytes together; and how many do not.
    pub(super) fn collect(self, most: u64) -> (Vec<Artifact>, u64) {
        let Ok(entries) = std::fs::read_dir(self.output()) else { return (Vec::new(), 0) };
        let mut entries: Vec<DirEntry> = entries.flatten().collect();
        entries.sort_by_key(DirEntry::file_name);
        let (mut artifacts, mut left_out, mut room) = (Vec::new(), 0, most);
        for entry in entries {
            let name = entry.file_name().into_string().ok();
            match name.and_then(|name| Some(Artifact { name, bytes: read(&entry.path(), room).ok()??.into() })) {
                Some(artifact) => {
                    room = room.saturating_sub(artifact.bytes.len() as u64);
                    artifacts.push(artifact);
                }
                None => left_out += 1,
            }
        }
        (artifacts, left_out)
    }
}

/// What is in a regular file of at most `most` bytes. Links are not followed, pipes not waited for.
fn read(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let about = file.metadata()?;
    if !about.is_file() || about.len() > most {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}
