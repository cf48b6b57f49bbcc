use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

/// Longest time that a test waits for a notice: others have the machine, too.
const PATIENCE: Duration = Duration::from_secs(30);
/// Looks so seldom that only announced changes are seen.
const ANNOUNCED: Pace = Pace { quiet: Duration::from_millis(50), period: Duration::from_secs(3600) };
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
async fn every_change_is_told(pace: Pace, is_announced: bool) {
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
async fn a_write_a_rename_a_removal_and_a_return_are_told_as_they_are_announced() {
    every_change_is_told(ANNOUNCED, true).await;
}

#[tokio::test]
async fn they_are_told_where_the_system_announces_nothing() {
    every_change_is_told(LOOKING, false).await;
}

#[tokio::test]
async fn the_swap_of_a_link_in_the_folder_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (version, text) in [("..1", "{}"), ("..2", "{\"a\": 2}")] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("mcp.json"), text).unwrap();
    }
    symlink("..1", at("..data")).unwrap();
    symlink("..data/mcp.json", at("mcp.json")).unwrap();
    let mut watch = FileWatch::with(&at("mcp.json"), ANNOUNCED, true);

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
    let mut watch = Watch {
        path: at("etc/mcp.json"),
        folder: at("etc"),
        watcher: announcer(Arc::default()),
        watched: None,
        seen: None,
    };
    watch.follow();
    assert_eq!(watch.watched, None);
    fs::create_dir(at("etc")).unwrap();
    watch.follow();
    let first = watch.watched.expect("a folder");
    fs::rename(at("etc"), at("old")).unwrap();
    fs::create_dir(at("etc")).unwrap();
    watch.follow();
    assert_ne!(watch.watched.expect("a folder"), first);
}

#[tokio::test]
async fn changes_in_quick_succession_are_told_once_or_twice() {
    let (_folder, file) = folder();
    let mut watch = FileWatch::start(&file);
    for length in 0..10 {
        fs::write(&file, " ".repeat(length)).unwrap();
    }
    notice(&mut watch).await;
    // What is told of this comes after everything that is told of the writes.
    fs::write(&file, "the last word").unwrap();
    notice(&mut watch).await;
    let told = *watch.notices.borrow();
    assert!((2..=3).contains(&told), "{told} notices");
}

#[tokio::test]
async fn changes_of_other_files_and_reading_are_not_told() {
    let (folder, file) = folder();
    let mut watch = FileWatch::with(&file, ANNOUNCED, true);
    fs::write(folder.path().join("other"), "x").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "{}");
    fs::write(&file, "{\"a\": 1}").unwrap();
    notice(&mut watch).await;
    assert_eq!(*watch.notices.borrow(), 1);
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
