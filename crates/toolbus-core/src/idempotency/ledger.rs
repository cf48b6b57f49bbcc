//! Ledger of calls that must not run twice: that they have begun, and their replies.
//!
//! The dispatcher reads and writes it at steps 3 and 9 of a call, and before it publishes a reply. Every write is one
//! conditional write: two daemons that share a ledger never both begin a call, and never give it two replies.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};

use crate::store::StoreError;

/// Bytes that an entry counts as, beside its reply.
pub const ENTRY_BYTES: u64 = 256;

/// Identifies a request: the digest of its caller and of what the caller identifies it by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey(pub [u8; 32]);

/// Fingerprint of a request: the digest of its tool and its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// Identifies one run of a request. No two runs have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunToken(pub [u8; 16]);

/// Keeps entries. Shared by the daemons that take the same requests.
///
/// Once an operation has returned, its effect is as safe as the ledger can make it, and is seen by all operations that
/// begin later, also by those of other processes. After an error, it may be there or not. Repeating an operation after
/// an error is safe: [`Ledger::begin`] then finds its own entry, [`Ledger::finish`] its own reply.
///
/// An entry is as good as absent after its time to live, which counts from [`Ledger::begin`]. The numbers of entries
/// and bytes are limited: to begin one more, the oldest *answered* entries are removed. One that is started is never
/// removed before its time.
pub trait Ledger: fmt::Debug + Send + Sync + 'static {
    /// Looks up the entry of a request.
    ///
    /// # Errors
    ///
    /// [`StoreError::Failed`].
    fn look_up(&self, key: RequestKey) -> BoxFuture<'_, Result<Option<LedgerEntry>, StoreError>>;

    /// Records that a run begins, unless there is an entry: one conditional write.
    ///
    /// # Errors
    ///
    /// [`StoreError::Failed`].
    fn begin(&self, begin: Begin) -> BoxFuture<'_, Result<Begun, StoreError>>;

    /// Records the reply to a run, if the entry is that of this run and has no reply: one conditional write.
    ///
    /// # Errors
    ///
    /// [`StoreError::Failed`].
    fn finish(&self, key: RequestKey, run: RunToken, reply: Bytes) -> BoxFuture<'_, Result<Finished, StoreError>>;

    /// Forgets a run that had no effect, if the entry is that of this run and has no reply: one conditional write.
    ///
    /// # Errors
    ///
    /// [`StoreError::Failed`].
    fn release(&self, key: RequestKey, run: RunToken) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Renews the lease of a daemon for this long from now on.
    ///
    /// # Errors
    ///
    /// [`StoreError::Failed`].
    fn renew(&self, instance: Arc<str>, lease: Duration) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Amount that is kept, as far as this process knows. Does not wait.
    fn usage(&self) -> LedgerUsage;

    /// Checks that the storage of the entries is there and responds, where the ledger can check that. Nothing is
    /// written.
    ///
    /// # Errors
    ///
    /// [`StoreError::Failed`].
    fn check(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(ready(Ok(())))
    }
}

/// Limits of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerLimits {
    /// Entries.
    pub max_entries: u64,
    /// Bytes of replies, and [`ENTRY_BYTES`] for each entry.
    pub max_bytes: u64,
}

/// Settings of a dispatcher's ledger.
#[derive(Debug, Clone)]
pub struct LedgerSettings {
    /// The ledger.
    pub ledger: Arc<dyn Ledger>,
    /// Time that an entry is kept.
    pub ttl: Duration,
    /// Largest body of a reply that is kept, in bytes. Of a larger one, the entry records that there was one.
    pub max_reply: usize,
}

/// The beginning of a run.
#[derive(Debug, Clone)]
pub struct Begin {
    /// The request.
    pub key: RequestKey,
    /// Fingerprint of the request's content.
    pub fingerprint: Fingerprint,
    /// This run.
    pub run: RunToken,
    /// The daemon that runs it: 1 to 64 ASCII characters.
    pub instance: Arc<str>,
    /// Time that the entry is kept.
    pub ttl: Duration,
    /// Whether an entry that is there is replaced: it is that of another request, which cannot be distinguished from
    /// this one.
    pub replaces: bool,
}

/// Outcome of [`Ledger::begin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// The run may begin.
    Begun,
    /// There is an entry; it is unchanged.
    Known(LedgerEntry),
    /// There is no room: every entry is that of a call that has begun and was not answered.
    Full,
}

/// Outcome of [`Ledger::finish`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finished {
    /// The entry has this reply now, or had it before.
    Stored,
    /// The run had another reply before, which stays.
    Superseded(Bytes),
    /// There is no entry of this run any more.
    Forgotten,
}

/// Entry of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerEntry {
    /// Fingerprint of the request's content.
    pub fingerprint: Fingerprint,
    /// State of the request.
    pub state: EntryState,
}

/// State of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryState {
    /// A run has begun.
    Started {
        /// The run.
        run: RunToken,
        /// The daemon that runs it.
        instance: Arc<str>,
        /// Whether the lease of that daemon is valid.
        is_live: bool,
    },
    /// The request has this reply.
    Answered(Bytes),
}

/// Amount that a ledger keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerUsage {
    /// Entries, expired ones included until they are removed.
    pub entries: u64,
    /// Bytes, as [`LedgerLimits`] counts them.
    pub bytes: u64,
    /// Answered entries that this process removed before their time, to make room.
    pub shed: u64,
}

impl fmt::Debug for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestKey({self})")
    }
}

impl fmt::Display for RequestKey {
    /// Writes 64 lower-case hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(&self.0, f)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(&self.0, f)
    }
}

impl fmt::Debug for RunToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(&self.0, f)
    }
}

fn hexadecimal(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_fingerprints_and_tokens_are_shown_as_hexadecimal_digits() {
        let (key, digits) = (RequestKey([0x0a; 32]), "0a".repeat(32));
        assert_eq!((key.to_string(), format!("{key:?}")), (digits.clone(), format!("RequestKey({digits})")));
        assert_eq!(format!("{:?}", Fingerprint([0xf0; 32])), "f0".repeat(32));
        assert_eq!(format!("{:?}", RunToken([0xf0; 16])), "f0".repeat(16));
    }
}
