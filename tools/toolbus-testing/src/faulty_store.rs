//! A store that fails as a test decides.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolbus_core::store::{Store, StoreError};

use crate::locked;

/// A store at a distance: other tasks go on before it responds. It counts its operations, and fails on demand.
#[derive(Debug, Default)]
pub struct FaultyStore<S> {
    /// The store behind it, which does not fail.
    pub kept: S,
    fault: Mutex<Option<StoreFault>>,
    reads: AtomicUsize,
    /// Keys that were read, by namespace.
    keys: Mutex<HashMap<String, usize>>,
    writes: AtomicUsize,
    failed: AtomicUsize,
}

/// Fault of every operation, or of every write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// Nothing is done.
    Away,
    /// An operation is done, and fails all the same.
    LostResponses,
    /// Nothing is written.
    Unwritable,
    /// There is no response.
    Silent,
}

impl StoreFault {
    /// Does of an operation what this fault leaves of it.
    pub(crate) async fn apply<'a, T>(
        self,
        operation: impl FnOnce() -> BoxFuture<'a, Result<T, StoreError>> + Send,
        is_write: bool,
    ) -> Result<T, StoreError> {
        match self {
            Self::Unwritable if !is_write => return operation().await,
            Self::Silent => std::future::pending().await,
            Self::LostResponses => drop(operation().await),
            Self::Away | Self::Unwritable => {}
        }
        let text = if self == Self::Unwritable { "the disk is full" } else { "it is away" };
        Err(StoreError::Failed(text.to_owned()))
    }
}

impl<S: Store> FaultyStore<S> {
    /// Has operations fail from now on, or none.
    pub fn set(&self, fault: impl Into<Option<StoreFault>>) {
        *locked(&self.fault) = fault.into();
    }

    /// Returns the number of reads, of keys and of lists.
    pub fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    /// Returns the number of keys of a namespace that were read, and counts them from 0 again.
    pub fn take_keys(&self, namespace: &str) -> usize {
        locked(&self.keys).remove(namespace).unwrap_or_default()
    }

    /// Returns the number of writes.
    pub fn writes(&self) -> usize {
        self.writes.load(Ordering::SeqCst)
    }

    /// Returns the number of operations that failed.
    pub fn failed(&self) -> usize {
        self.failed.load(Ordering::SeqCst)
    }

    fn read<'a, T: Send + 'a>(
        &'a self,
        operation: impl FnOnce() -> BoxFuture<'a, Result<T, StoreError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.run(operation, false)
    }

    fn write<'a, T: Send + 'a>(
        &'a self,
        operation: impl FnOnce() -> BoxFuture<'a, Result<T, StoreError>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.run(operation, true)
    }

    fn run<'a, T: Send + 'a>(
        &'a self,
        operation: impl FnOnce() -> BoxFuture<'a, Result<T, StoreError>> + Send + 'a,
        is_write: bool,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        async move {
            tokio::task::yield_now().await;
            let fault = *locked(&self.fault);
            let result = match fault {
                None => operation().await,
                Some(fault) => {
                    let result = fault.apply(operation, is_write).await;
                    self.failed.fetch_add(result.is_err().into(), Ordering::SeqCst);
                    result
                }
            };
            tokio::task::yield_now().await;
            result
        }
        .boxed()
    }
}

impl<S: Store> Store for FaultyStore<S> {
    fn get<'a>(&'a self, namespace: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>> {
        *locked(&self.keys).entry(namespace.to_owned()).or_default() += 1;
        self.read(move || self.kept.get(namespace, key))
    }

    fn put<'a>(&'a self, namespace: &'a str, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), StoreError>> {
        self.write(move || self.kept.put(namespace, key, value))
    }

    fn replace<'a>(
        &'a self,
        namespace: &'a str,
        key: &'a str,
        expected: Option<&'a [u8]>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.write(move || self.kept.replace(namespace, key, expected, value))
    }

    fn delete<'a>(&'a self, namespace: &'a str, key: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.write(move || self.kept.delete(namespace, key))
    }

    fn list<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        self.read(move || self.kept.list(namespace))
    }
}
