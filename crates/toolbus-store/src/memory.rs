//! A store that lives as long as its process.

use std::collections::BTreeMap;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use toolbus_core::store::{MAX_KEYS, Store, StoreError, check_key, check_namespace, check_value};

type Namespaces = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// Keeps values in memory.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Namespaces>);

impl MemoryStore {
    /// Puts a value if the present one is that of `expected`, or is the same; returns whether it is there.
    fn put(
        &self,
        namespace: &str,
        key: &str,
        value: Vec<u8>,
        expected: Option<Option<&[u8]>>,
    ) -> Result<bool, StoreError> {
        check_key(namespace, key)?;
        check_value(&value)?;
        let mut namespaces = self.0.lock();
        let present = namespaces.get(namespace);
        let before = present.and_then(|keys| keys.get(key)).map(Vec::as_slice);
        if expected.is_some_and(|expected| before != expected && before != Some(&*value)) {
            return Ok(false);
        }
        if present.is_some_and(|keys| keys.len() >= MAX_KEYS && !keys.contains_key(key)) {
            return Err(StoreError::Full(namespace.to_owned()));
        }
        namespaces.entry(namespace.to_owned()).or_default().insert(key.to_owned(), value);
        Ok(true)
    }

    fn delete(&self, namespace: &str, key: &str) -> Result<bool, StoreError> {
        check_key(namespace, key)?;
        let mut namespaces = self.0.lock();
        let Some(keys) = namespaces.get_mut(namespace) else { return Ok(false) };
        let was_there = keys.remove(key).is_some();
        if keys.is_empty() {
            namespaces.remove(namespace);
        }
        Ok(was_there)
    }
}

impl Store for MemoryStore {
    fn get<'a>(&'a self, namespace: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>> {
        let found =
            check_key(namespace, key).map(|()| self.0.lock().get(namespace).and_then(|keys| keys.get(key)).cloned());
        ready(found).boxed()
    }

    fn put<'a>(&'a self, namespace: &'a str, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), StoreError>> {
        ready(self.put(namespace, key, value, None).map(drop)).boxed()
    }

    fn replace<'a>(
        &'a self,
        namespace: &'a str,
        key: &'a str,
        expected: Option<&'a [u8]>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        ready(self.put(namespace, key, value, Some(expected))).boxed()
    }

    fn delete<'a>(&'a self, namespace: &'a str, key: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        ready(self.delete(namespace, key)).boxed()
    }

    fn list<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        let keys = |()| self.0.lock().get(namespace).map(|keys| keys.keys().cloned().collect()).unwrap_or_default();
        ready(check_namespace(namespace).map(keys)).boxed()
    }
}
