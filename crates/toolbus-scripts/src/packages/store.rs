//! Installed packages, on disk.
//!
//! ```text
//! sets/KEY         packages in certain versions, read-only; its time of change is that of its last use
//! asked/KEY.json   the set that a request resolved to, and when
//! new/ID           a set in the making or under removal, locked meanwhile
//! ```
//!
//! Several daemons may share one such folder: everything appears and disappears under its name at once.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use toolbus_core::Clock;
use toolbus_protocol::Random;

use super::tree;

/// Shortest time for which a set that was handed out counts as used.
const IN_USE: Duration = Duration::from_secs(60 * 60);

/// Most requests whose set is known. Many may lead to one set: `a>=1`, `a>=1.1` and so on.
pub(super) const MAX_RESOLUTIONS: usize = 10_000;

/// Entered by others, and not listed.
const HIDDEN: u32 = 0o711;

/// Most time between making a folder and locking it.
const UNLOCKED: Duration = Duration::from_secs(60);

/// The folder with everything.
#[derive(Debug, Clone)]
pub(super) struct PackageStore {
    root: PathBuf,
    /// Bytes of all sets together.
    most: u64,
    /// Time after which a set that was handed out is no longer in use.
    in_use: Duration,
    clock: Clock,
    random: Random,
}

/// Result of resolving a request.
#[derive(Debug, Serialize, Deserialize)]
struct Resolution {
    /// The key of the set.
    set: String,
    /// Names and versions, for an operator who reads the file.
    packages: Vec<String>,
    /// When, in seconds since 1970.
    at: u64,
}

/// A folder in which a set is made. Dropping it removes it.
#[derive(Debug)]
pub(super) struct BuildFolder {
    folder: PathBuf,
    /// Locks the folder while it is in use.
    _lock: File,
}

fn make_parts(root: &Path) -> io::Result<()> {
    for part in ["sets", "asked", "new"] {
        fs::create_dir_all(root.join(part))?;
    }
    // pip and scripts may run as other users, which reach a folder by its name and cannot list names; under any umask.
    ["sets", "new"].iter().try_for_each(|part| fs::set_permissions(root.join(part), Permissions::from_mode(HIDDEN)))
}

impl PackageStore {
    /// Opens a store, and removes what was left half done. `lifetime` is the longest time that a script has its packages.
    pub(super) fn open(root: &Path, most: u64, lifetime: Duration, clock: Clock, random: Random) -> io::Result<Self> {
        make_parts(root)?;
        let store = Self { root: fs::canonicalize(root)?, most, in_use: IN_USE.max(lifetime), clock, random };
        store.clear();
        Ok(store)
    }

    /// The set to which a request led, if that is not longer ago than `ttl`.
    pub(super) fn find(&self, request: &str, ttl: Option<Duration>) -> Option<PathBuf> {
        let resolution = self.resolution(&self.resolution_file(request))?;
        let age = self.clock.wall().duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(resolution.at));
        // A time to come is a clock that was wrong.
        let is_fresh = ttl.is_none_or(|ttl| age.is_ok_and(|age| age < ttl));
        let set = self.set(&resolution.set);
        (is_fresh && self.use_now(&set).is_ok()).then_some(set)
    }

    /// A folder for a new set.
    pub(super) fn build(&self) -> io::Result<BuildFolder> {
        // The system may have removed what was not used for days.
        make_parts(&self.root)?;
        let folder = self.root.join("new").join(self.random.id());
        DirBuilder::new().mode(HIDDEN).create(&folder)?;
        fs::set_permissions(&folder, Permissions::from_mode(HIDDEN))?;
        let lock = File::open(&folder)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        for part in ["target", "tmp"] {
            fs::create_dir(folder.join(part))?;
        }
        Ok(BuildFolder { folder, _lock: lock })
    }

    /// Keeps the set that was made, and returns where it is. `packages` are its names and versions, which may mean
    /// something else where `of` is different: the interpreter, and their source.
    pub(super) fn keep(
        &self,
        made: &BuildFolder,
        request: &str,
        of: &[&str],
        packages: &[String],
    ) -> io::Result<PathBuf> {
        let name = key(&packages.iter().map(String::as_str).chain(of.iter().copied()).collect::<Vec<_>>());
        let set = self.set(&name);
        match fs::rename(made.target(), &set) {
            // Another request led to the same packages.
            Err(_) if set.is_dir() => {}
            moved => moved.and_then(|()| tree::close(&set))?,
        }
        self.use_now(&set)?;
        let at = self.clock.since_epoch().as_secs();
        let resolution = serde_json::to_vec(&Resolution { set: name, packages: packages.to_vec(), at })?;
        let written = made.folder.join("answer");
        File::create(&written)?.write_all(&resolution)?;
        fs::rename(written, self.resolution_file(request))?;
        Ok(set)
    }

    /// Removes sets until the rest fits, those first that have not been used for the longest time. Those in use stay, and
    /// so does one that was just made.
    pub(super) fn trim(&self) {
        let mut sets: Vec<(SystemTime, PathBuf, u64)> = entries(&self.root.join("sets"))
            .filter_map(|set| Some((fs::metadata(&set).ok()?.modified().ok()?, tree::size(&set), set)))
            .map(|(used, size, set)| (used, set, size))
            .collect();
        sets.sort();
        let mut size: u64 = sets.iter().map(|(_, _, size)| size).sum();
        let now = self.clock.wall();
        let is_idle = |used: &SystemTime| now.duration_since(*used).is_ok_and(|idle| idle > self.in_use);
        for (_, set, bytes) in sets.iter().filter(|(used, ..)| is_idle(used)) {
            if size <= self.most {
                break;
            }
            tracing::info!(set = %set.display(), bytes, "packages of scripts that were not used any more are removed");
            size = size.saturating_sub(*bytes);
            self.discard(set);
        }
        self.trim_resolutions();
        self.clear();
    }

    /// Removes what led to sets that are gone, and of the rest all but the newest.
    fn trim_resolutions(&self) {
        let (mut kept, stale): (Vec<_>, Vec<_>) = entries(&self.root.join("asked"))
            .map(|file| (self.resolution(&file).filter(|it| self.set(&it.set).is_dir()).map(|it| it.at), file))
            .partition(|(at, _)| at.is_some());
        kept.sort_unstable_by(|one, other| other.cmp(one));
        let oldest = kept.into_iter().skip(MAX_RESOLUTIONS);
        stale.into_iter().chain(oldest).for_each(|(_, file)| drop(fs::remove_file(file)));
    }

    /// Removes a set atomically.
    fn discard(&self, set: &Path) {
        let Ok(build) = self.build() else { return };
        // A folder cannot be moved by others than root while it is read-only.
        let _ = tree::unclose(set);
        let _ = fs::rename(set, build.folder.join("old"));
    }

    /// Removes folders in `new` that are not locked.
    fn clear(&self) {
        // A folder that was made just now may not be locked yet.
        let is_old = |folder: &PathBuf| {
            let made = fs::metadata(folder).and_then(|metadata| metadata.modified());
            made.is_ok_and(|made| self.clock.wall().duration_since(made).is_ok_and(|age| age > UNLOCKED))
        };
        for folder in entries(&self.root.join("new")).filter(is_old) {
            let lock = File::open(&folder);
            if lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()) {
                let _ = tree::remove(&folder);
            }
        }
    }

    /// Notes that a set is used.
    fn use_now(&self, set: &Path) -> io::Result<()> {
        File::open(set)?.set_modified(self.clock.wall())
    }

    fn resolution(&self, file: &Path) -> Option<Resolution> {
        serde_json::from_slice(&fs::read(file).ok()?).ok()
    }

    fn set(&self, name: &str) -> PathBuf {
        self.root.join("sets").join(name)
    }

    fn resolution_file(&self, request: &str) -> PathBuf {
        self.root.join("asked").join(format!("{request}.json"))
    }
}

impl BuildFolder {
    /// Where the set is made.
    pub(super) fn target(&self) -> PathBuf {
        self.folder.join("target")
    }

    /// For files that are not kept.
    pub(super) fn tmp(&self) -> PathBuf {
        self.folder.join("tmp")
    }
}

impl Drop for BuildFolder {
    fn drop(&mut self) {
        let _ = tree::remove(&self.folder);
    }
}

/// A name for some strings that differs from that of any others: a hash with their lengths.
pub(super) fn key(texts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(text);
    }
    digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}
