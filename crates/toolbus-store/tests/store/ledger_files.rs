//! Entries that a ledger in a file keeps when its process ends.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::Connection;
use toolbus_core::Clock;
use toolbus_core::ledger::{Begun, ENTRY_BYTES, EntryState, Finished, Ledger, LedgerLimits};
use toolbus_core::store::{Store, StoreError};
use toolbus_store::{Sqlite, SqliteLedger};

use crate::file_in_folder;
use crate::ledger_contract::{begin, key, token};

fn open(path: &Path) -> SqliteLedger {
    let limits = LedgerLimits { max_entries: 100, max_bytes: 1024 * 1024 };
    SqliteLedger::open(path, limits, Clock::SYSTEM).unwrap()
}

#[tokio::test]
async fn runs_and_their_replies_survive_reopening() {
    let (_folder, path) = file_in_folder("store.db");
    assert_eq!(open(&path).begin(begin(1, 2)).await, Ok(Begun::Begun));
    let again = open(&path);
    let started = EntryState::Started { run: token(2), instance: "one".into(), is_live: false };
    assert_eq!(again.look_up(key(1)).await.unwrap().unwrap().state, started);
    assert_eq!(again.usage().bytes, ENTRY_BYTES);
    assert_eq!(again.finish(key(1), token(2), Bytes::from_static(b"paid")).await, Ok(Finished::Stored));
    drop(again);
    let third = open(&path);
    let answered = EntryState::Answered(Bytes::from_static(b"paid"));
    assert_eq!(third.look_up(key(1)).await.unwrap().unwrap().state, answered);
    assert_eq!((third.usage().entries, third.usage().bytes), (1, ENTRY_BYTES + 4));
}

#[tokio::test]
async fn of_two_processes_on_one_file_one_begins_and_one_replies() {
    let (_folder, path) = file_in_folder("store.db");
    let (one, other) = (open(&path), open(&path));
    assert_eq!(one.begin(begin(1, 2)).await, Ok(Begun::Begun));
    assert!(matches!(other.begin(begin(1, 9)).await, Ok(Begun::Known(_))));
    one.renew("one".into(), Duration::from_secs(60)).await.unwrap();
    let state = other.look_up(key(1)).await.unwrap().unwrap().state;
    assert!(matches!(state, EntryState::Started { is_live: true, .. }), "{state:?}");
    assert_eq!(other.finish(key(1), token(2), Bytes::from_static(b"unknown")).await, Ok(Finished::Stored));
    let first = Bytes::from_static(b"unknown");
    assert_eq!(one.finish(key(1), token(2), Bytes::from_static(b"paid")).await, Ok(Finished::Superseded(first)));
}

#[tokio::test]
async fn a_ledger_joins_the_file_of_a_store_that_has_none() {
    let (_folder, path) = file_in_folder("store.db");
    let store = Sqlite::open(&path).unwrap();
    store.put("a", "key", b"one".to_vec()).await.unwrap();
    drop(store);
    Connection::open(&path)
        .unwrap()
        .execute_batch("DROP TABLE ledger; DROP TABLE ledger_leases; DROP TABLE ledger_usage; PRAGMA user_version = 1")
        .unwrap();
    assert_eq!(open(&path).begin(begin(1, 2)).await, Ok(Begun::Begun));
    assert_eq!(Sqlite::open(&path).unwrap().get("a", "key").await, Ok(Some(b"one".to_vec())));
}

#[tokio::test]
async fn a_failed_operation_is_an_error_and_changes_nothing() {
    let (_folder, path) = file_in_folder("store.db");
    let ledger = open(&path);
    let other = Connection::open(&path).unwrap();
    other.execute_batch("ALTER TABLE ledger RENAME TO moved").unwrap();
    let error = ledger.begin(begin(1, 2)).await.unwrap_err();
    assert!(matches!(&error, StoreError::Failed(why) if why.contains("no such table: ledger")), "{error}");
    other.execute_batch("ALTER TABLE moved RENAME TO ledger").unwrap();
    assert_eq!(ledger.look_up(key(1)).await, Ok(None));
    assert_eq!(ledger.begin(begin(1, 2)).await, Ok(Begun::Begun), "it goes on");
}
