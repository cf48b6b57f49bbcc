//! Store of what must outlive a call or the process: small values under keys, in namespaces.

use futures_util::future::BoxFuture;

/// Longest namespace and longest key, in bytes.
pub const MAX_KEY: usize = 512;
/// Largest value, in bytes.
pub const MAX_VALUE: usize = 1024 * 1024;
/// Most keys in one namespace.
pub const MAX_KEYS: usize = 10_000;

/// Keeps values. Every operation is atomic, and one that has returned is seen by all that begin later, also by other
/// processes where the store is shared.
///
/// Namespaces and keys are texts of 1 to [`MAX_KEY`] bytes; namespaces that share a start know nothing of each other.
pub trait Store: Send + Sync + 'static {
    /// The value under a key, if there is one.
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    fn get<'a>(&'a self, namespace: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>>;

    /// Puts a value of at most [`MAX_VALUE`] bytes under a key, and replaces any other. After this has returned, the
    /// value is as safe as the store can make it.
    ///
    /// # Errors
    ///
    /// See [`StoreError`]. Given up half-way or after [`StoreError::Failed`], the value may be there or not.
    fn put<'a>(&'a self, namespace: &'a str, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Puts a value as [`Store::put`] does, if the present one is `expected`; `None` expects that the key is not there.
    /// Returns whether the key has the new value now.
    ///
    /// # Errors
    ///
    /// As for [`Store::put`].
    fn replace<'a>(
        &'a self,
        namespace: &'a str,
        key: &'a str,
        expected: Option<&'a [u8]>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Takes a key away; false when it was not there. A store at a distance, whose connection was lost meanwhile, may
    /// return false for a key that it has just taken away.
    ///
    /// # Errors
    ///
    /// As for [`Store::put`].
    fn delete<'a>(&'a self, namespace: &'a str, key: &'a str) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Every key of a namespace, at most [`MAX_KEYS`], in the order of their bytes.
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    fn list<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<String>, StoreError>>;
}

/// Reason why an operation of a store failed. The texts are for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A namespace or a key that is empty or too long.
    #[error("a {what} of {bytes} bytes cannot be stored; it must have 1 to {MAX_KEY}")]
    Key {
        /// `namespace` or `key`.
        what: &'static str,
        /// Length of the namespace or key.
        bytes: usize,
    },
    /// A value that is too large.
    #[error("a value of {0} bytes cannot be stored; it must have at most {MAX_VALUE}")]
    Value(usize),
    /// A namespace without room for another key.
    #[error("the namespace `{0}` of the store is full: it has {MAX_KEYS} keys; delete some of them")]
    Full(String),
    /// The medium failed: a full disk, a lock of another process, a damaged file.
    #[error("the store failed: {0}")]
    Failed(String),
}

/// Checks a namespace; for implementors of [`Store`].
///
/// # Errors
///
/// [`StoreError::Key`].
pub fn check_namespace(namespace: &str) -> Result<(), StoreError> {
    check_text("namespace", namespace)
}

/// Checks a namespace and a key; for implementors of [`Store`].
///
/// # Errors
///
/// [`StoreError::Key`].
pub fn check_key(namespace: &str, key: &str) -> Result<(), StoreError> {
    check_namespace(namespace)?;
    check_text("key", key)
}

/// Checks a value; for implementors of [`Store`].
///
/// # Errors
///
/// [`StoreError::Value`].
pub const fn check_value(value: &[u8]) -> Result<(), StoreError> {
    if value.len() > MAX_VALUE { Err(StoreError::Value(value.len())) } else { Ok(()) }
}

fn check_text(what: &'static str, text: &str) -> Result<(), StoreError> {
    let fits = (1..=MAX_KEY).contains(&text.len());
    if fits { Ok(()) } else { Err(StoreError::Key { what, bytes: text.len() }) }
}
