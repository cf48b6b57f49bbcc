//! Findings of a working memory in a file about its file.

use std::path::Path;

use rusqlite::Connection;
use toolbus_core::Clock;
use toolbus_memory::working_memory::WorkingMemory as _;
use toolbus_store::SqliteMemory;

use crate::file_in_folder;
use crate::memory_contract::{ROOMY, entry, key, owner};

fn open(path: &Path) -> SqliteMemory {
    SqliteMemory::open(path, ROOMY, Clock::SYSTEM).unwrap()
}

#[tokio::test]
async fn a_check_leaves_no_visible_entry_and_keeps_the_others() {
    let (_folder, path) = file_in_folder("store.db-memory");
    let memory = open(&path);
    memory.save(owner("ana"), vec![entry("a/b", "kept")]).await.unwrap();
    for _ in 0..3 {
        assert_eq!(memory.check().await, Ok(()));
    }
    assert_eq!(memory.get(owner(""), key("check/file")).await, Ok(None));
    assert_eq!(&*memory.get(owner("ana"), key("a/b")).await.unwrap().unwrap().value, "kept");
    let rows =
        Connection::open(&path).unwrap().query_row("SELECT count(*) FROM memory", (), |row| row.get::<_, i64>(0));
    assert_eq!(rows, Ok(2), "one of the check, which the next one replaces");
}

#[tokio::test]
async fn a_removed_or_replaced_file_is_an_error_until_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("store.db-memory"), folder.path().join("moved"));
    let memory = open(&path);
    std::fs::rename(&path, &other).unwrap();
    let error = memory.check().await.unwrap_err().to_string();
    assert_eq!(error, format!("the store failed: the file `{}` was removed or replaced", path.display()));
    std::fs::copy(&other, &path).unwrap();
    assert!(memory.check().await.is_err());
    std::fs::rename(&other, &path).unwrap();
    assert_eq!(memory.check().await, Ok(()));
}
