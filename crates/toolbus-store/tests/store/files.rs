use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Barrier;

use rusqlite::Connection;
use toolbus_core::store::{Store, StoreError};
use toolbus_store::Sqlite;

use crate::file_in_folder;

fn refusal(path: &Path) -> String {
    Sqlite::open(path).expect_err("a refusal").to_string()
}

#[tokio::test]
async fn values_survive_reopening() {
    let (_folder, path) = file_in_folder("store.db");
    Sqlite::open(&path).unwrap().put("switches", "tool:echo", b"off".to_vec()).await.unwrap();
    let again = Sqlite::open(&path).unwrap();
    assert_eq!(again.get("switches", "tool:echo").await, Ok(Some(b"off".to_vec())));
}

#[tokio::test]
async fn two_handles_on_one_file_see_each_others_writes() {
    let (_folder, path) = file_in_folder("store.db");
    let (one, other) = (Sqlite::open(&path).unwrap(), Sqlite::open(&path).unwrap());
    for number in 0..20 {
        one.put("a", "key", vec![number]).await.unwrap();
        assert_eq!(other.get("a", "key").await, Ok(Some(vec![number])));
        other.put("a", &number.to_string(), Vec::new()).await.unwrap();
    }
    assert_eq!(one.list("a").await.unwrap().len(), 21);
    assert_eq!(one.delete("a", "key").await, Ok(true));
    assert_eq!(other.get("a", "key").await, Ok(None));
}

#[test]
fn a_refused_second_open_leaves_the_file_locked_by_its_holder() {
    let (_folder, path) = file_in_folder("store.db");
    let held = Connection::open(&path).unwrap();
    held.execute_batch("BEGIN EXCLUSIVE").unwrap();
    insta::assert_snapshot!(refusal(&path), @"another process has held it for 5 s");
    // SQLite distinguishes connections of one process by itself; what the system knows is seen by another process only.
    let inode = format!(":{} ", std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap()));
    // While other processes give up theirs, the system leaves out locks of what is read in pieces.
    let is_locked = || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|lock| lock.contains(&inode) && lock.contains("WRITE"))
    };
    assert!((0..100).any(|_| is_locked()));
}

#[test]
fn a_new_file_can_be_opened_by_many_at_once() {
    for _ in 0..5 {
        let (_folder, path) = file_in_folder("store.db");
        let together = Barrier::new(8);
        std::thread::scope(|scope| {
            let open = || {
                together.wait();
                Sqlite::open(&path).map(drop).map_err(|error| error.to_string())
            };
            let opened: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            for opened in opened {
                assert_eq!(opened.join().unwrap(), Ok(()));
            }
        });
    }
}

#[tokio::test]
async fn only_the_daemons_user_can_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&folder.path().join("store.db")).unwrap();
    store.put("a", "b", Vec::new()).await.unwrap();
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap).collect();
    assert!(files.len() > 1, "a log is kept beside the file: {files:?}");
    for file in files {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
    }
}

#[test]
fn a_missing_folder_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(refusal(&folder.path().join("no/store.db")), @"its folder does not exist; create it, for the daemon's user alone");
    insta::assert_snapshot!(refusal(folder.path()), @"it is no regular file");
}

#[test]
fn a_file_that_is_no_database_is_refused_unchanged() {
    let (_folder, path) = file_in_folder("store.db");
    for text in ["x".repeat(10_000), "short".to_owned()] {
        std::fs::write(&path, &text).unwrap();
        insta::allow_duplicates! {
            insta::assert_snapshot!(refusal(&path), @"it is not a database of SQLite; name another file");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn a_database_of_another_program_is_refused_unchanged() {
    let (_folder, path) = file_in_folder("store.db");
    let other = Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE theirs (id INTEGER)").unwrap();
    insta::assert_snapshot!(refusal(&path), @"it is a database of another program; name another file");
    other.execute_batch("DROP TABLE theirs; PRAGMA application_id = 7").unwrap();
    insta::assert_snapshot!(refusal(&path), @"it is a database of another program; name another file");
    let tables: i64 = other.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0)).unwrap();
    assert_eq!(tables, 0);
}

#[test]
fn a_file_of_a_later_version_is_refused() {
    let (_folder, path) = file_in_folder("store.db");
    drop(Sqlite::open(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 5).unwrap();
    insta::assert_snapshot!(refusal(&path), @"it has version 5, and this program knows 4: use the program that wrote it, or name another file");
}

#[tokio::test]
async fn a_failure_of_sqlite_is_an_error_of_the_call() {
    let (_folder, path) = file_in_folder("store.db");
    let store = Sqlite::open(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("DROP TABLE entries").unwrap();
    let error = store.get("a", "b").await.unwrap_err();
    assert!(matches!(&error, StoreError::Failed(why) if why.contains("no such table: entries")), "{error}");
}
