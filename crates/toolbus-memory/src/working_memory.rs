//! Working memory: texts that agents keep for a while, under keys, each agent its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use toolbus_core::caller::Caller;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::store::StoreError;
use toolbus_core::text::shown;

use crate::usage::MemoryUsage;

/// Longest key, in bytes, its namespace included.
pub const MAX_ENTRY_KEY: usize = 512;
/// Longest time that an entry is kept.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes that an entry counts as, beside its key and its texts.
pub const ENTRY_OVERHEAD: u64 = 256;
/// Characters of an entry's text that a search shows.
pub const MAX_START: usize = 200;
/// First segment of the namespaces of sessions.
const SESSION: &str = "session";
/// The namespace of a caller without a session.
const WITHOUT_SESSION: &str = "agent";

/// Keeps entries, each until its time has passed by the clock. An entry belongs to an owner: no operation of another one
/// finds, counts or replaces it.
///
/// After an operation has returned, its effect is seen by all that begin later, also by those of other processes where the
/// memory is shared. It need not survive a loss of power. After [`MemoryError::Store`], it may be there or not.
pub trait WorkingMemory: fmt::Debug + Send + Sync + 'static {
    /// Saves entries, each replacing another one under its key: all of them or, after an error, none.
    ///
    /// # Errors
    ///
    /// If an entry, or the owner's usage with it, is over a limit, or the memory cannot be reached.
    fn save(&self, owner: MemoryOwner, entries: Vec<NewEntry>) -> BoxFuture<'_, Result<(), MemoryError>>;

    /// The entry under a key, if there is one.
    ///
    /// # Errors
    ///
    /// If the memory cannot be reached.
    fn get(&self, owner: MemoryOwner, key: EntryKey) -> BoxFuture<'_, Result<Option<MemoryEntry>, MemoryError>>;

    /// The entries whose keys begin with `prefix`, without their values, in the order of their keys.
    ///
    /// # Errors
    ///
    /// If the memory cannot be reached.
    fn list(&self, owner: MemoryOwner, prefix: KeyPrefix) -> BoxFuture<'_, Result<Vec<EntryInfo>, MemoryError>>;

    /// The entries that match a query, the best first, by key, category, tags and value: see [`rank`](crate::rank).
    ///
    /// # Errors
    ///
    /// If the memory cannot be reached.
    fn search(&self, owner: MemoryOwner, query: SearchQuery) -> BoxFuture<'_, Result<Vec<SearchHit>, MemoryError>>;

    /// Deletes an entry; false if there was none.
    ///
    /// # Errors
    ///
    /// If the memory cannot be reached.
    fn delete(&self, owner: MemoryOwner, key: EntryKey) -> BoxFuture<'_, Result<bool, MemoryError>>;

    /// The usage by all owners.
    ///
    /// # Errors
    ///
    /// If the memory cannot be reached.
    fn usage(&self) -> BoxFuture<'_, Result<MemoryUsage, MemoryError>>;
}

/// Owner of entries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MemoryOwner {
    /// Distinguishes the entries of one owner from those of all others.
    pub key: Arc<str>,
    /// Key that limits are shared under: the owner, or all callers without a section of their own, which can choose
    /// their names.
    pub share: Arc<str>,
}

impl MemoryOwner {
    /// The owner of what a caller saves; `None` for an unidentified caller, which is no agent and whose login the
    /// broker does not name.
    #[must_use]
    pub fn of(caller: &Caller) -> Option<Self> {
        let is_known = caller.agent.is_some() || caller.login.is_some();
        is_known.then(|| Self { key: Arc::clone(&caller.owner), share: caller.share() })
    }

    /// The owner with this key, whose entries are read, and not counted.
    #[must_use]
    pub fn to_read(key: &str) -> Self {
        Self { key: key.into(), share: key.into() }
    }

    /// The owner of what a tool saves or reads for its caller.
    ///
    /// # Errors
    ///
    /// If the caller cannot be identified, with what to do.
    pub fn required(caller: &Caller) -> Result<Self, ToolFailure> {
        Self::of(caller).ok_or_else(|| {
            ToolFailure::new(
                Cause::NotAllowed,
                "Working memory belongs to an agent, and this request names none: send the agent's name in `rb-source`, \
                 or log in to the broker as the agent.",
            )
        })
    }
}

/// Namespace of the keys of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// The namespace of a session: `session/ID`, or the id itself where that has a `/`. `agent` without a session.
    ///
    /// # Errors
    ///
    /// If the session's id cannot be part of a key.
    pub fn of(session: Option<&str>) -> Result<Self, KeyError> {
        let name = match session.filter(|session| !session.is_empty()) {
            None => WITHOUT_SESSION.to_owned(),
            Some(session) if session.contains('/') => folded(session)?,
            Some(session) => folded(&format!("{SESSION}/{session}"))?,
        };
        Ok(Self(name.into()))
    }

    /// The namespace of what a tool saves or reads for its caller.
    ///
    /// # Errors
    ///
    /// If the id of the caller's session cannot be part of a key.
    pub fn required(caller: &Caller) -> Result<Self, ToolFailure> {
        Self::of(caller.session.as_deref()).map_err(|error| {
            let message = format!("The session id cannot be used for working memory: {error}.");
            ToolFailure::invalid(message)
        })
    }

    /// A key of this namespace, or of the whole owner where it has a `/`.
    ///
    /// # Errors
    ///
    /// See [`KeyError`].
    pub fn key(&self, key: &str) -> Result<EntryKey, KeyError> {
        if key.is_empty() {
            return Err(KeyError::Empty);
        }
        let text = if key.contains('/') { folded(key)? } else { folded(&format!("{self}/{key}"))? };
        Ok(EntryKey(text.into()))
    }

    /// The keys of this namespace that begin with `prefix`; those of the whole owner where that has a `/`. A lone `/` stands
    /// for every key.
    ///
    /// # Errors
    ///
    /// If the prefix is too long, or has control characters.
    pub fn prefix(&self, prefix: Option<&str>) -> Result<KeyPrefix, KeyError> {
        let text = match prefix {
            None => format!("{self}/"),
            Some(prefix) if prefix.contains('/') => prefix.strip_prefix('/').unwrap_or(prefix).to_lowercase(),
            Some(prefix) => format!("{self}/{}", prefix.to_lowercase()),
        };
        check_text(&text).map(|()| KeyPrefix(text.into()))
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A key of an owner: segments with `/` between them, at least two, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryKey(Arc<str>);

impl EntryKey {
    /// Reads a whole key, namespace included.
    ///
    /// # Errors
    ///
    /// See [`KeyError`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let text = folded(text)?;
        if text.contains('/') { Ok(Self(text.into())) } else { Err(KeyError::Segment) }
    }

    /// The key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Quota namespace of a key: its first two segments, or the first one of two.
    #[must_use]
    pub fn namespace(&self) -> &str {
        let mut ends = self.0.match_indices('/').map(|(at, _)| at);
        let first = ends.next();
        let end = ends.next().or(first).unwrap_or(self.0.len());
        self.0.get(..end).unwrap_or_default()
    }
}

impl std::borrow::Borrow<str> for EntryKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The start of keys, in lower case; empty for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPrefix(Arc<str>);

impl KeyPrefix {
    /// The start.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The start of every key.
    #[must_use]
    pub fn all() -> Self {
        Self("".into())
    }

    /// Whether a key begins so.
    #[must_use]
    pub fn matches(&self, key: &EntryKey) -> bool {
        key.0.starts_with(&*self.0)
    }
}

/// Reason why a text is no key. The texts are for callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// There is none.
    #[error("it is empty; give a short name such as `plan`")]
    Empty,
    /// The key is too long.
    #[error("it has {0} bytes with its namespace; at most {MAX_ENTRY_KEY} are possible")]
    Long(usize),
    /// A segment is empty, or there is none.
    #[error("it begins or ends with `/`, or has nothing between two of them")]
    Segment,
    /// The key has control characters, which cannot be shown.
    #[error("it has control characters; use letters, digits, `-`, `_`, `.` and `/`")]
    Control,
}

impl KeyError {
    /// The failure of a call with such a text in this argument.
    #[must_use]
    pub fn failure(self, argument: &str, text: &str) -> ToolFailure {
        let message = format!("Argument `{argument}`: `{}` cannot be used: {self}.", shown(text));
        ToolFailure::invalid(message)
    }
}

/// A key in lower case.
fn folded(key: &str) -> Result<String, KeyError> {
    let key = key.to_lowercase();
    check_text(&key)?;
    if key.split('/').any(str::is_empty) { Err(KeyError::Segment) } else { Ok(key) }
}

fn check_text(text: &str) -> Result<(), KeyError> {
    if text.len() > MAX_ENTRY_KEY {
        return Err(KeyError::Long(text.len()));
    }
    if text.chars().any(char::is_control) { Err(KeyError::Control) } else { Ok(()) }
}

/// An entry to save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEntry {
    /// Key of the entry.
    pub key: EntryKey,
    /// Text of the entry.
    pub value: Arc<str>,
    /// Time that the entry is kept; at most [`MAX_TTL`].
    pub ttl: Duration,
    /// Category of the entry.
    pub category: Option<Arc<str>>,
    /// Subjects of the entry.
    pub tags: Vec<Arc<str>>,
}

impl NewEntry {
    /// An entry without category and tags.
    #[must_use]
    pub fn new(key: EntryKey, value: impl Into<Arc<str>>, ttl: Duration) -> Self {
        Self { key, value: value.into(), ttl, category: None, tags: Vec::new() }
    }

    /// Bytes that it counts as.
    #[must_use]
    pub fn size(&self) -> u64 {
        let texts = self.key.0.len() + self.value.len() + self.category.as_ref().map_or(0, |text| text.len());
        (texts + self.tags.iter().map(|tag| tag.len()).sum::<usize>()) as u64 + ENTRY_OVERHEAD
    }

    /// Description of the entry when it is saved at this time since 1970.
    #[must_use]
    pub fn info(&self, now: Duration) -> EntryInfo {
        EntryInfo {
            key: self.key.clone(),
            category: self.category.clone(),
            tags: self.tags.clone(),
            characters: self.value.chars().count() as u64,
            saved_at: now,
            expires_at: now + self.ttl.min(MAX_TTL),
        }
    }
}

/// An entry without its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryInfo {
    /// Key of the entry.
    pub key: EntryKey,
    /// Category of the entry.
    pub category: Option<Arc<str>>,
    /// Subjects of the entry.
    pub tags: Vec<Arc<str>>,
    /// Length of its text, in characters.
    pub characters: u64,
    /// Time at which it was saved, since 1970.
    pub saved_at: Duration,
    /// End, since 1970: from then on it is not found.
    pub expires_at: Duration,
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryEntry {
    /// Description of the entry.
    pub info: EntryInfo,
    /// Text of the entry.
    pub value: Arc<str>,
}

/// Search for entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchQuery {
    /// Words.
    pub text: String,
    /// Start of the keys that count.
    pub prefix: KeyPrefix,
    /// Start of the category that counts; case is ignored.
    pub category: Option<String>,
    /// Tags that an entry must have; case is ignored.
    pub tags: Vec<String>,
    /// Hits that are wanted.
    pub max: usize,
}

impl SearchQuery {
    /// Whether an entry has the key, category and tags that count.
    #[must_use]
    pub fn admits(&self, info: &EntryInfo) -> bool {
        let same = |one: &str, other: &str| one.to_lowercase() == other.to_lowercase();
        let has_category = self.category.as_ref().is_none_or(|wanted| {
            info.category.as_ref().is_some_and(|category| category.to_lowercase().starts_with(&wanted.to_lowercase()))
        });
        let has_tag = |wanted: &String| info.tags.iter().any(|tag| same(tag, wanted));
        self.prefix.matches(&info.key) && has_category && self.tags.iter().all(has_tag)
    }
}

/// An entry that matches.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchHit {
    /// Description of the entry.
    pub info: EntryInfo,
    /// Score of the match; more than zero.
    pub score: f64,
    /// The start of its text: at most [`MAX_START`] characters.
    pub start: Arc<str>,
}

/// Limits of working memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes of an entry's text.
    pub max_value: u64,
    /// Entries of one namespace of an owner.
    pub max_entries_per_namespace: u64,
    /// Entries of one share.
    pub max_entries: u64,
    /// Bytes of one share, as [`NewEntry::size`] counts them.
    pub max_size: u64,
    /// Bytes of all.
    pub max_total_size: u64,
}

impl MemoryLimits {
    /// The entries of a batch of which each is small enough. Of those with the same key, the last one counts.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Value`].
    pub fn checked(&self, entries: Vec<NewEntry>) -> Result<Vec<NewEntry>, MemoryError> {
        let mut indexes: HashMap<EntryKey, usize> = HashMap::with_capacity(entries.len());
        let mut checked: Vec<NewEntry> = Vec::with_capacity(entries.len());
        for entry in entries {
            let bytes = entry.value.len() as u64;
            if bytes > self.max_value {
                return Err(MemoryError::Value { key: entry.key, bytes, max: self.max_value });
            }
            match indexes.get(&entry.key).and_then(|index| checked.get_mut(*index)) {
                Some(earlier) => *earlier = entry,
                None => {
                    indexes.insert(entry.key.clone(), checked.len());
                    checked.push(entry);
                }
            }
        }
        Ok(checked)
    }
}

/// Failure of an operation on memory. The texts but that of [`MemoryError::Store`] are for callers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// A text that is too long.
    #[error("the value of `{key}` has {bytes} bytes; at most {max} are possible. Save it in parts, or save a summary")]
    Value {
        /// The key.
        key: EntryKey,
        /// Length of the value.
        bytes: u64,
        /// The longest.
        max: u64,
    },
    /// A namespace without room.
    #[error("the namespace `{namespace}` has room for {max} entries. Delete some of them, or wait until they expire")]
    Namespace {
        /// The namespace.
        namespace: Arc<str>,
        /// Most entries.
        max: u64,
    },
    /// A share without room for entries.
    #[error("working memory has room for {0} entries of this agent. Delete some of them, or wait until they expire")]
    Entries(u64),
    /// A share without room for bytes.
    #[error("working memory has room for {0} bytes of this agent. Delete entries, or wait until they expire")]
    Size(u64),
    /// No room at all.
    #[error("working memory is full: all agents together have {0} bytes. Delete entries, or wait until they expire")]
    Total(u64),
    /// The medium failed, or is away. The text is for operators.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl MemoryError {
    /// The failure of a call that found nothing out, because memory cannot be reached.
    #[must_use]
    pub fn away(&self) -> ToolFailure {
        ToolFailure::new(Cause::Unavailable, "Working memory cannot be reached now. Try again later.")
            .with_detail(self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use toolbus_core::caller::AgentName;

    use super::*;

    fn namespace(session: &str) -> Namespace {
        Namespace::of(Some(session)).unwrap()
    }

    #[test]
    fn a_session_is_a_namespace_with_or_without_its_prefix() {
        for (session, expected) in [
            ("abc123", "session/abc123"),
            ("session/abc123", "session/abc123"),
            ("ABC", "session/abc"),
            ("patrol/x", "patrol/x"),
            ("subagent/x/y", "subagent/x/y"),
        ] {
            assert_eq!(namespace(session).to_string(), expected);
        }
        assert_eq!(Namespace::of(None).unwrap().to_string(), "agent");
        assert_eq!(Namespace::of(Some("")), Namespace::of(None));
        for (session, error) in [("/x", KeyError::Segment), ("a//b", KeyError::Segment), ("a\nb", KeyError::Control)] {
            assert_eq!(Namespace::of(Some(session)), Err(error), "{session:?}");
        }
    }

    #[test]
    fn a_key_without_a_slash_is_of_the_session_and_one_with_it_of_the_owner() {
        let session = namespace("abc");
        for (key, expected, limited) in [
            ("plan", "session/abc/plan", "session/abc"),
            ("Plan", "session/abc/plan", "session/abc"),
            ("session/abc/plan", "session/abc/plan", "session/abc"),
            ("patrol/x", "patrol/x", "patrol"),
            ("a/b/c/d", "a/b/c/d", "a/b"),
        ] {
            let found = session.key(key).unwrap();
            assert_eq!((found.as_str(), found.namespace()), (expected, limited));
            assert_eq!(EntryKey::parse(expected), Ok(found));
        }
        assert_eq!(Namespace::of(None).unwrap().key("plan").unwrap().as_str(), "agent/plan");
        let long = "x".repeat(MAX_ENTRY_KEY);
        for (key, error) in [
            ("", KeyError::Empty),
            ("/plan", KeyError::Segment),
            ("a//b", KeyError::Segment),
            ("a/", KeyError::Segment),
            ("a\0", KeyError::Control),
            (&long, KeyError::Long(MAX_ENTRY_KEY + 12)),
        ] {
            assert_eq!(session.key(key), Err(error), "{key:?}");
        }
        assert_eq!(EntryKey::parse("plan"), Err(KeyError::Segment));
    }

    #[test]
    fn a_prefix_is_of_the_session_of_the_owner_or_of_everything() {
        let session = namespace("abc");
        for (prefix, expected) in [
            (None, "session/abc/"),
            (Some(""), "session/abc/"),
            (Some("Web-"), "session/abc/web-"),
            (Some("session/"), "session/"),
            (Some("/"), ""),
            (Some("/pat"), "pat"),
        ] {
            assert_eq!(session.prefix(prefix).unwrap().as_str(), expected);
        }
        assert_eq!(session.prefix(Some("\u{7}")), Err(KeyError::Control));
    }

    #[test]
    fn of_a_batch_the_last_entry_of_a_key_counts_and_a_long_one_is_refused() {
        let limits =
            MemoryLimits { max_value: 3, max_entries_per_namespace: 1, max_entries: 1, max_size: 1, max_total_size: 1 };
        let entry = |key: &str, value: &str| NewEntry::new(EntryKey::parse(key).unwrap(), value, MAX_TTL);
        let checked = limits.checked(vec![entry("a/b", "one"), entry("a/c", "two"), entry("A/B", "3")]).unwrap();
        assert_eq!(checked, [entry("a/b", "3"), entry("a/c", "two")]);
        let error = limits.checked(vec![entry("a/b", "four")]).unwrap_err();
        assert_eq!(error, MemoryError::Value { key: EntryKey::parse("a/b").unwrap(), bytes: 4, max: 3 });
    }

    #[test]
    fn an_unidentified_caller_owns_nothing() {
        assert_eq!(MemoryOwner::of(&Caller::unknown()), None);
        let with_login = |login: &str| {
            let owner = format!("unknown:{}:{login}:unknown", login.len()).into();
            Caller { login: Some(login.into()), owner, ..Caller::unknown() }
        };
        let [one, other] = ["eve", "bob"].map(|login| MemoryOwner::of(&with_login(login)).unwrap());
        assert_ne!(one.key, other.key);
        assert_eq!(one.share, other.share, "names that callers choose are limited as one");
        let ana = MemoryOwner::of(&Caller::agent(AgentName::parse("ana").unwrap())).unwrap();
        assert_eq!((&*ana.key, &*ana.share), ("ana", "ana"));
    }
}
