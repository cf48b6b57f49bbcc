//! Watching one file for changes, however it is changed.
//!
//! Editors truncate and write, deployments rename over, Kubernetes swaps a link in the folder. So the folder is
//! watched, and a change is a file at the end of the path that differs from before. The file is also polled from time
//! to time: not every change is announced (network file systems, links into other folders, folders that are not there
//! yet), and not every system has watches left.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::select_all;
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::task::AbortOnDropHandle;

/// Most checks of a file that goes on changing before its change is reported.
const MAX_ROUNDS: usize = 10;
/// Bytes of events that are read at once; the longest event has 272.
const EVENTS: usize = 4096;
/// Events of a folder that are watched. Single writes are not: a database beside the file may be written all the time.
const ANNOUNCED: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Watches a file until it is dropped.
#[derive(Debug)]
pub(super) struct FileWatch {
    notices: watch::Receiver<u64>,
    _task: AbortOnDropHandle<()>,
}

/// Times of a watch.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Time without a further change after which a change is reported.
    quiet: Duration,
    /// Time between polls of the file.
    period: Duration,
}

const PACE: Pace = Pace { quiet: Duration::from_millis(300), period: Duration::from_secs(5) };

impl FileWatch {
    /// Watches the file at `path`, which may be missing, as its folder may. Start before reading it, so that no change is
    /// missed in between. Needs a Tokio runtime.
    #[must_use]
    pub(super) fn start(path: &Path) -> Self {
        Self::with(path, PACE, true)
    }

    /// Waits until the file has changed since the last notice, appeared or gone. Changes in quick succession are
    /// reported once.
    pub(super) async fn changed(&mut self) {
        if self.notices.changed().await.is_err() {
            std::future::pending().await
        }
    }

    #[expect(clippy::disallowed_methods, reason = "dropping the watch ends the task")]
    fn with(path: &Path, pace: Pace, is_announced: bool) -> Self {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let mut watcher = Watch {
            path: path.to_owned(),
            folder: parent.unwrap_or(Path::new(".")).to_owned(),
            events: is_announced.then(events).flatten(),
            watched: None,
            seen: stamp(path),
        };
        watcher.follow();
        let (sender, notices) = watch::channel(0);
        let task = AbortOnDropHandle::new(tokio::spawn(watcher.run(pace, sender)));
        Self { notices, _task: task }
    }
}

/// Waits for the next change of `file`; without a file, forever.
pub(super) async fn changed(file: &mut Option<FileWatch>) {
    match file {
        Some(file) => file.changed().await,
        None => std::future::pending().await,
    }
}

/// Waits for the next change of one of `files`; without files, forever.
pub(super) async fn any_changed(files: &mut [FileWatch]) {
    if files.is_empty() {
        std::future::pending().await
    }
    select_all(files.iter_mut().map(|file| Box::pin(file.changed()))).await;
}

/// Identity and state of a file, to detect a change.
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

/// A queue for events of folders; none where the system has none left.
#[expect(
    deprecated,
    reason = "what replaces it is `unsafe`; an `OwnedFd` keeps its descriptor, which is all that it asks"
)]
fn events() -> Option<AsyncFd<OwnedFd>> {
    let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(io::Error::from);
    match queue.and_then(|queue| AsyncFd::with_interest(queue, Interest::READABLE)) {
        Ok(queue) => Some(queue),
        Err(error) => {
            warn_of_looking(&error);
            None
        }
    }
}

/// Waits for events; without a queue, forever.
async fn announced(queue: Option<&AsyncFd<OwnedFd>>) {
    let mut events = [0; EVENTS];
    let read = async {
        let queue = queue?;
        // The named file does not matter: the path may lead through others.
        queue.async_io(Interest::READABLE, |queue| Ok(rustix::io::read(queue, &mut events)?)).await.ok()
    };
    if read.await.is_none() {
        std::future::pending().await
    }
}

fn warn_of_looking(error: &io::Error) {
    tracing::warn!(%error, "changes of files are not announced by the system; looking for them instead");
}

/// A folder that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WatchedFolder {
    /// The number that the queue has for it.
    number: i32,
    device: u64,
    inode: u64,
}

struct Watch {
    path: PathBuf,
    folder: PathBuf,
    events: Option<AsyncFd<OwnedFd>>,
    watched: Option<WatchedFolder>,
    /// The state of the file that was reported last.
    seen: Option<Stamp>,
}

impl Watch {
    async fn run(mut self, pace: Pace, notices: watch::Sender<u64>) {
        let mut looks = interval(pace.period);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = announced(self.events.as_ref()) => {}
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
        let Some(events) = &self.events else { return };
        let found = fs::metadata(&self.folder).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        if found == self.watched.map(|watched| (watched.device, watched.inode)) {
            return;
        }
        if let Some(watched) = self.watched.take() {
            // The system has ended the watch itself, where the folder is gone.
            let _ = inotify::remove_watch(events.get_ref(), watched.number);
        }
        let Some((device, inode)) = found else { return };
        match inotify::add_watch(events.get_ref(), &self.folder, ANNOUNCED) {
            Ok(number) => self.watched = Some(WatchedFolder { number, device, inode }),
            Err(Errno::NOENT) => {}
            Err(error) => {
                warn_of_looking(&error.into());
                self.events = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// Longest time that a test waits for a notice: others have the machine, too.
    const PATIENCE: Duration = Duration::from_secs(30);
    /// Looks so seldom that only announced changes are seen.
    const SELDOM: Pace = Pace { quiet: Duration::from_millis(50), period: Duration::from_secs(3600) };
    /// Looks so often that no announcement is needed.
    const LOOKING: Pace = Pace { quiet: Duration::from_millis(20), period: Duration::from_millis(10) };

    fn folder() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mcp.json");
        fs::write(&file, "{}").unwrap();
        (folder, file)
    }

    async fn notice(watch: &mut FileWatch) {
        tokio::time::timeout(PATIENCE, watch.changed()).await.expect("a notice");
    }

    /// Every way in which a file changes, one after the other.
    async fn every_change_is_noticed(pace: Pace, is_announced: bool) {
        let (folder, file) = folder();
        let mut watch = FileWatch::with(&file, pace, is_announced);

        fs::write(&file, "{\"a\": 1}").unwrap();
        notice(&mut watch).await;

        let other = folder.path().join("new");
        fs::write(&other, "{\"a\": 2}").unwrap();
        fs::rename(&other, &file).unwrap();
        notice(&mut watch).await;

        fs::remove_file(&file).unwrap();
        notice(&mut watch).await;

        fs::write(&file, "{}").unwrap();
        notice(&mut watch).await;
    }

    #[tokio::test]
    async fn a_write_a_rename_a_removal_and_a_return_are_noticed_as_they_are_announced() {
        every_change_is_noticed(SELDOM, true).await;
    }

    #[tokio::test]
    async fn changes_are_noticed_where_the_system_announces_nothing() {
        every_change_is_noticed(LOOKING, false).await;
    }

    #[tokio::test]
    async fn the_swap_of_a_link_in_the_folder_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (version, text) in [("..1", "{}"), ("..2", "{\"a\": 2}")] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("mcp.json"), text).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/mcp.json", at("mcp.json")).unwrap();
        let mut watch = FileWatch::with(&at("mcp.json"), SELDOM, true);

        symlink("..2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        notice(&mut watch).await;
        assert_eq!(fs::read_to_string(at("mcp.json")).unwrap(), "{\"a\": 2}");
    }

    #[tokio::test]
    async fn a_folder_may_appear_later_and_be_replaced() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("etc");
        let file = inner.join("mcp.json");
        let mut watch = FileWatch::with(&file, LOOKING, true);
        for text in ["{}", "{\"a\": 2}"] {
            fs::create_dir(&inner).unwrap();
            fs::write(&file, text).unwrap();
            notice(&mut watch).await;
            fs::remove_dir_all(&inner).unwrap();
            notice(&mut watch).await;
        }
    }

    #[tokio::test]
    async fn a_replaced_folder_is_watched_and_not_its_predecessor() {
        let outer = tempfile::tempdir().unwrap();
        let at = |name: &str| outer.path().join(name);
        let mut watch =
            Watch { path: at("etc/mcp.json"), folder: at("etc"), events: events(), watched: None, seen: None };
        watch.follow();
        assert_eq!(watch.watched, None);
        fs::create_dir(at("etc")).unwrap();
        watch.follow();
        let first = watch.watched.expect("a folder");
        fs::rename(at("etc"), at("old")).unwrap();
        fs::create_dir(at("etc")).unwrap();
        watch.follow();
        let second = watch.watched.expect("a folder");
        assert_ne!((second.device, second.inode), (first.device, first.inode));
    }

    #[tokio::test]
    async fn changes_in_quick_succession_give_one_or_two_notices() {
        let (_folder, file) = folder();
        let mut watch = FileWatch::start(&file);
        for length in 0..10 {
            fs::write(&file, " ".repeat(length)).unwrap();
        }
        notice(&mut watch).await;
        // The event of this write arrives after those of the earlier ones.
        fs::write(&file, "the last word").unwrap();
        notice(&mut watch).await;
        let count = *watch.notices.borrow();
        assert!((2..=3).contains(&count), "{count} notices");
    }

    #[tokio::test]
    async fn changes_of_other_files_and_reading_are_not_noticed() {
        let (folder, file) = folder();
        let mut watch = FileWatch::with(&file, SELDOM, true);
        fs::write(folder.path().join("other"), "x").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "{}");
        fs::write(&file, "{\"a\": 1}").unwrap();
        notice(&mut watch).await;
        assert_eq!(*watch.notices.borrow(), 1);
    }

    /// A database in the folder, whose log is written for each call, woke the watch each time.
    #[tokio::test]
    async fn writes_to_a_file_beside_it_that_stays_open_are_not_announced() {
        let (folder, file) = folder();
        let queue = events().unwrap();
        inotify::add_watch(queue.get_ref(), folder.path(), ANNOUNCED).unwrap();
        let mut log = fs::File::create(folder.path().join("log")).unwrap();
        announced(Some(&queue)).await;
        for _ in 0..10 {
            std::io::Write::write_all(&mut log, b"frame").unwrap();
        }
        assert_eq!(rustix::io::read(queue.get_ref(), &mut [0; EVENTS]), Err(Errno::AGAIN));
        fs::write(&file, "{\"a\": 1}").unwrap();
        tokio::time::timeout(PATIENCE, announced(Some(&queue))).await.expect("an event");
    }

    #[tokio::test]
    async fn a_watch_ends_when_it_is_dropped() {
        let (_folder, file) = folder();
        let watch = FileWatch::start(&file);
        let notices = watch.notices.clone();
        drop(watch);
        toolbus_testing::patience::eventually("the end of the watch", async || {
            notices.has_changed().is_err().then_some(())
        })
        .await;
    }
}
