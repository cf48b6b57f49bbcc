//! Usage of working memory, for operators.

use std::cmp::Reverse;
use std::sync::Arc;

/// Shares, and namespaces, of a [`MemoryUsage`]: those with the most entries.
pub const MAX_USAGE: usize = 1_000;

/// Number and bytes of the entries that are kept, without their contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Bytes of all entries, as [`NewEntry::size`](crate::working_memory::NewEntry::size) counts them.
    pub bytes: u64,
    /// The shares that limits are for, those with the most entries first.
    pub shares: Vec<ShareUsage>,
    /// The namespaces of each owner, those with the most entries first.
    pub namespaces: Vec<NamespaceUsage>,
    /// Whether there are no others.
    pub is_whole: bool,
}

/// Usage of a share: an agent with a section, or all other callers together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareUsage {
    /// Name of the share.
    pub share: Arc<str>,
    /// Entries of the share.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Usage of a namespace of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceUsage {
    /// The owner.
    pub owner: Arc<str>,
    /// The namespace.
    pub namespace: Arc<str>,
    /// Entries of the namespace.
    pub entries: u64,
}

impl MemoryUsage {
    /// Usage of these shares and namespaces, in order and cut to [`MAX_USAGE`]; `is_whole` if they are all.
    #[must_use]
    pub fn new(bytes: u64, shares: Vec<ShareUsage>, namespaces: Vec<NamespaceUsage>, is_whole: bool) -> Self {
        let is_whole = is_whole && shares.len() <= MAX_USAGE && namespaces.len() <= MAX_USAGE;
        let mut usage = Self { bytes, shares, namespaces, is_whole };
        usage.shares.sort_by_cached_key(|share| (Reverse(share.entries), Arc::clone(&share.share)));
        let key = |one: &NamespaceUsage| (Reverse(one.entries), Arc::clone(&one.owner), Arc::clone(&one.namespace));
        usage.namespaces.sort_by_cached_key(key);
        usage.shares.truncate(MAX_USAGE);
        usage.namespaces.truncate(MAX_USAGE);
        usage
    }
}
