//! Watching one file for changes, however it is changed.
//!
//! Editors truncate and write, deployments rename over, Kubernetes swaps a link in the folder. So the folder is watched,
//! and what counts is whether the file that the path leads to is another one than before. The file is looked at from time
//! to time as well: not every change is announced (network file systems, links into other folders, folders that are not
//! there yet), and not every system has watches left.

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::task::AbortOnDropHandle;

/// How often a file is looked at that goes on changing, before its change is told all the same.
const MAX_ROUNDS: usize = 10;

/// Watches a file until it is dropped.
#[derive(Debug)]
pub struct FileWatch {
    notices: watch::Receiver<u64>,
    _task: AbortOnDropHandle<()>,
}

/// How patient a watch is.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Time without a change after which the change is told.
    quiet: Duration,
    /// Time after which the file is looked at without cause.
    period: Duration,
}

const PACE: Pace = Pace { quiet: Duration::from_millis(300), period: Duration::from_secs(5) };

impl FileWatch {
    /// Watches the file at `path`, which may be missing, as its folder may. Start before reading it, so that no change is
    /// missed in between. Needs a Tokio runtime.
    #[must_use]
    pub fn start(path: &Path) -> Self {
        Self::with(path, PACE, true)
    }

    /// Waits until the file has changed since the last notice, appeared or gone. Changes in quick succession are told once.
    pub async fn changed(&mut self) {
        if self.notices.changed().await.is_err() {
            std::future::pending().await
        }
    }

    fn with(path: &Path, pace: Pace, is_announced: bool) -> Self {
        let woken = Arc::<Notify>::default();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let mut watcher = Watch {
            path: path.to_owned(),
            folder: parent.unwrap_or(Path::new(".")).to_owned(),
            watcher: is_announced.then(|| announcer(Arc::clone(&woken))).flatten(),
            watched: None,
            seen: stamp(path),
        };
        watcher.follow();
        let (sender, notices) = watch::channel(0);
        let task = AbortOnDropHandle::new(tokio::spawn(watcher.run(pace, woken, sender)));
        Self { notices, _task: task }
    }
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    /// Last change of the content, in seconds and nanoseconds.
    modified: (i64, i64),
    /// Last change of anything, permissions included.
    changed: (i64, i64),
}

/// The state of the file that a path leads to; none while there is no such file.
fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some(Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        length: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

/// Wakes whenever something is changed in a folder that is watched; none where the system has no watches left.
fn announcer(woken: Arc<Notify>) -> Option<RecommendedWatcher> {
    let announce = move |event: notify::Result<Event>| {
        // Reading changes nothing; errors, a queue that overflowed among them, may hide a change.
        if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
            woken.notify_one();
        }
    };
    match notify::recommended_watcher(announce) {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::warn!(%error, "changes of files are not announced by the system; looking for them instead");
            None
        }
    }
}

struct Watch {
    path: PathBuf,
    folder: PathBuf,
    watcher: Option<RecommendedWatcher>,
    /// Device and inode of the folder that is watched.
    watched: Option<(u64, u64)>,
    /// The state of the file that was told last.
    seen: Option<Stamp>,
}

impl Watch {
    async fn run(mut self, pace: Pace, woken: Arc<Notify>, notices: watch::Sender<u64>) {
        let mut looks = interval(pace.period);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = woken.notified() => {}
                _ = looks.tick() => {}
            }
            self.follow();
            let settled = self.settled(pace.quiet).await;
            if settled != self.seen {
                self.seen = settled;
                notices.send_modify(|notices| *notices = notices.wrapping_add(1));
            }
        }
    }

    /// The state of the file once it stays the same for a while.
    async fn settled(&self, quiet: Duration) -> Option<Stamp> {
        let mut now = stamp(&self.path);
        for _ in 0..MAX_ROUNDS {
            if now == self.seen {
                break;
            }
            sleep(quiet).await;
            let next = stamp(&self.path);
            if next == now {
                break;
            }
            now = next;
        }
        now
    }

    /// Watches the folder that is at its path now, if that is another than before.
    fn follow(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let found = fs::metadata(&self.folder).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        if found == self.watched {
            return;
        }
        if self.watched.take().is_some() {
            // The system has ended the watch itself, where the folder is gone.
            let _ = watcher.unwatch(&self.folder);
        }
        let result = found.map(|_| watcher.watch(&self.folder, RecursiveMode::NonRecursive));
        match result {
            None => {}
            Some(Ok(())) => self.watched = found,
            Some(Err(error)) if is_missing(&error) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "changes of files are not announced by the system; looking for them instead");
                self.watcher = None;
            }
        }
    }
}

fn is_missing(error: &notify::Error) -> bool {
    match &error.kind {
        notify::ErrorKind::PathNotFound => true,
        notify::ErrorKind::Io(error) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}
