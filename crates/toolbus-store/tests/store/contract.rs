use std::sync::Arc;

use tempfile::TempDir;
use toolbus_core::store::{MAX_KEY, MAX_KEYS, MAX_VALUE, Store, StoreError};
use toolbus_store::{MemoryStore, Sqlite};
use toolbus_testing::redis::RedisServer;

use crate::redis::store_of;

/// Folder and server that the stores are kept in, as long as they are used.
type Guards = (TempDir, RedisServer);

/// An empty store of each kind.
async fn stores() -> (Guards, [Arc<dyn Store>; 3]) {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::open(&folder.path().join("store.db")).unwrap();
    let server = RedisServer::start().await;
    let redis = store_of(&server.url());
    ((folder, server), [Arc::new(MemoryStore::default()), Arc::new(sqlite), Arc::new(redis)])
}

#[tokio::test]
async fn a_value_is_found_until_it_is_replaced_or_deleted() {
    let (_guards, stores) = stores().await;
    for store in stores {
        assert_eq!(store.get("a", "key").await, Ok(None));
        store.put("a", "key", b"one".to_vec()).await.unwrap();
        assert_eq!(store.get("a", "key").await, Ok(Some(b"one".to_vec())));
        store.put("a", "key", Vec::new()).await.unwrap();
        assert_eq!(store.get("a", "key").await, Ok(Some(Vec::new())));
        assert_eq!(store.delete("a", "key").await, Ok(true));
        assert_eq!(store.get("a", "key").await, Ok(None));
        assert_eq!(store.delete("a", "key").await, Ok(false));
    }
}

#[tokio::test]
async fn a_value_holds_any_bytes_and_a_key_any_text() {
    let (_guards, stores) = stores().await;
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    for store in stores {
        for key in ["ü'\"; DROP TABLE entries; --", "a\0b", "a", " a", "A", "%", "\n"] {
            store.put("a", key, bytes.clone()).await.unwrap();
        }
        assert_eq!(store.get("a", "a\0b").await, Ok(Some(bytes.clone())));
        let sorted = ["\n", " a", "%", "A", "a", "a\0b", "ü'\"; DROP TABLE entries; --"].map(str::to_owned);
        assert_eq!(store.list("a").await, Ok(sorted.to_vec()));
    }
}

#[tokio::test]
async fn namespaces_know_nothing_of_each_other() {
    let (_guards, stores) = stores().await;
    for store in stores {
        store.put("a", "b:key", b"of a".to_vec()).await.unwrap();
        store.put("a:b", "key", b"of a:b".to_vec()).await.unwrap();
        assert_eq!(store.list("a").await, Ok(vec!["b:key".to_owned()]));
        assert_eq!(store.list("a:b").await, Ok(vec!["key".to_owned()]));
        assert_eq!(store.list("A").await, Ok(Vec::new()));
        assert_eq!(store.delete("a", "key").await, Ok(false));
        assert_eq!(store.get("a:b", "key").await, Ok(Some(b"of a:b".to_vec())));
    }
}

#[tokio::test]
async fn a_value_is_replaced_only_where_the_present_one_is_as_expected() {
    let (_guards, stores) = stores().await;
    for store in stores {
        assert_eq!(store.replace("a", "key", Some(b"one"), b"two".to_vec()).await, Ok(false));
        assert_eq!(store.get("a", "key").await, Ok(None));
        assert_eq!(store.replace("a", "key", None, Vec::new()).await, Ok(true));
        assert_eq!(store.replace("a", "key", None, b"one".to_vec()).await, Ok(false));
        assert_eq!(store.replace("a", "key", Some(b""), b"one".to_vec()).await, Ok(true));
        assert_eq!(store.replace("a", "key", Some(b""), b"two".to_vec()).await, Ok(false));
        assert_eq!(store.replace("a", "key", Some(b""), b"one".to_vec()).await, Ok(true), "it is there");
        assert_eq!(store.replace("a", "key", None, b"one".to_vec()).await, Ok(true), "it is there");
        assert_eq!(store.get("a", "key").await, Ok(Some(b"one".to_vec())));
    }
}

#[tokio::test]
async fn of_many_concurrent_replacements_one_succeeds() {
    let (_guards, stores) = stores().await;
    for store in stores {
        for expected in [None, Some(b"before".to_vec())] {
            let mut writers = tokio::task::JoinSet::new();
            for number in 0..50 {
                let (store, expected) = (Arc::clone(&store), expected.clone());
                writers.spawn(async move { store.replace("a", "key", expected.as_deref(), vec![number]).await });
            }
            let replaced = writers.join_all().await.into_iter().filter(|replaced| *replaced == Ok(true)).count();
            assert_eq!(replaced, 1, "{expected:?}");
            store.put("a", "key", b"before".to_vec()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn names_and_values_are_bounded() {
    let (_guards, stores) = stores().await;
    let (fits, long) = ("x".repeat(MAX_KEY), "x".repeat(MAX_KEY + 1));
    for store in stores {
        store.put(&fits, &fits, vec![7; MAX_VALUE]).await.unwrap();
        assert_eq!(store.get(&fits, &fits).await.unwrap().unwrap().len(), MAX_VALUE);
        let value = StoreError::Value(MAX_VALUE + 1);
        assert_eq!(store.put("a", "b", vec![7; MAX_VALUE + 1]).await, Err(value));
        for (namespace, key, what, bytes) in [
            ("", "b", "namespace", 0),
            (long.as_str(), "b", "namespace", long.len()),
            ("a", "", "key", 0),
            ("a", long.as_str(), "key", long.len()),
        ] {
            let error = StoreError::Key { what, bytes };
            assert_eq!(store.get(namespace, key).await, Err(error.clone()));
            assert_eq!(store.put(namespace, key, Vec::new()).await, Err(error.clone()));
            assert_eq!(store.replace(namespace, key, None, Vec::new()).await, Err(error.clone()));
            assert_eq!(store.delete(namespace, key).await, Err(error.clone()));
            if what == "namespace" {
                assert_eq!(store.list(namespace).await, Err(error));
            }
        }
    }
}

#[tokio::test]
async fn a_full_namespace_takes_no_further_key() {
    let ((folder, server), [memory, sqlite, redis]) = stores().await;
    let keys = || (0..MAX_KEYS).map(|number| format!("key {number}"));
    for key in keys() {
        memory.put("a", &key, Vec::new()).await.unwrap();
    }
    // One by one, each would wait for the disk.
    let mut file = rusqlite::Connection::open(folder.path().join("store.db")).unwrap();
    let filling = file.transaction().unwrap();
    for key in keys() {
        filling.execute("INSERT INTO entries VALUES ('a', ?1, x'')", [key]).unwrap();
    }
    filling.commit().unwrap();
    for keys in keys().collect::<Vec<_>>().chunks(100) {
        let fields: String = keys.iter().map(|key| format!(" \"{key}\" \"\"")).collect();
        server.command(&format!("HSET toolbus:{{test}}:store:a{fields}")).await;
    }
    for store in [memory, sqlite, redis] {
        let is_full = StoreError::Full("a".to_owned());
        assert_eq!(store.put("a", "another", Vec::new()).await, Err(is_full.clone()));
        assert_eq!(store.replace("a", "another", None, Vec::new()).await, Err(is_full));
        assert_eq!(store.replace("a", "key 3", None, b"x".to_vec()).await, Ok(false));
        assert_eq!(store.replace("a", "key 3", Some(b""), b"replaced".to_vec()).await, Ok(true));
        store.put("a", "key 1", b"replaced".to_vec()).await.unwrap();
        store.put("b", "another", Vec::new()).await.unwrap();
        assert_eq!(store.list("a").await.unwrap().len(), MAX_KEYS);
        assert_eq!(store.delete("a", "key 2").await, Ok(true));
        store.put("a", "another", Vec::new()).await.unwrap();
    }
}

#[tokio::test]
async fn many_at_once_lose_nothing() {
    let (_guards, stores) = stores().await;
    for store in stores {
        let mut writers = tokio::task::JoinSet::new();
        for number in 0..200 {
            let store = Arc::clone(&store);
            writers.spawn(async move { store.put("a", &format!("{number:03}"), vec![number]).await });
        }
        while let Some(written) = writers.join_next().await {
            written.unwrap().unwrap();
        }
        assert_eq!(store.list("a").await.unwrap().len(), 200);
        assert_eq!(store.get("a", "123").await, Ok(Some(vec![123])));
    }
}
