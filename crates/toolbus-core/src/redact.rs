//! Keeps the daemon's own secrets out of everything that leaves it.
//!
//! A [`Redactor`] knows the secrets and the forms in which they are met (`forms`), finds all of them in one pass
//! (`matcher`), also in what a text was before it was percent-encoded, escaped for JSON or HTML or broken into lines
//! (`views`), and puts [`REDACTED`] where they stood. Whole secrets alone are removed: a part of one that changed a
//! reply could be guessed, character by character.

mod candidates;
mod forms;
mod json;
mod matcher;
#[cfg(test)]
mod tests;
mod views;

use parking_lot::{Mutex, RwLock};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use self::matcher::Matcher;
use crate::secret::Secret;

/// Text that replaces a secret.
pub const REDACTED: &str = "[redacted]";

/// Shortest secret that is removed, in bytes: a shorter one stands in ordinary texts by chance.
pub const MIN_SECRET: usize = 8;

/// Secrets that are still removed although they are neither configured nor in use any more; of more the oldest are
/// forgotten.
const MAX_OUTDATED: usize = 1024;
/// Most bytes of them: a matcher has each in many forms, and is built anew for each secret.
const MAX_OUTDATED_BYTES: usize = 1024 * 1024;

/// Well-known passwords. Removing them would hide ordinary words, and would show an attacker who tries them that they
/// are in use.
const WELL_KNOWN: [&str; 23] = [
    "12345678",
    "123456789",
    "1234567890",
    "administrator",
    "anonymous",
    "changeit",
    "changeme",
    "changethis",
    "database",
    "development",
    "disabled",
    "localhost",
    "passw0rd",
    "password",
    "password1",
    "password123",
    "postgres",
    "production",
    "qwertyuiop",
    "rabbitmq",
    "secretsecret",
    "supersecret",
    "undefined",
];

/// Reason why a secret is not removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The secret is so short that it would be found by chance.
    #[error("it is shorter than {MIN_SECRET} bytes")]
    TooShort,
    /// The secret is a word that texts may have for other reasons.
    #[error("it is a well-known default, or one character again and again")]
    WellKnown,
}

/// Reason why a secret cannot be removed from texts, if it cannot.
#[must_use]
pub fn obstacle(secret: &str) -> Option<Obstacle> {
    let secret = secret.trim();
    let mut characters = secret.chars();
    let first = characters.next();
    if secret.len() < MIN_SECRET {
        Some(Obstacle::TooShort)
    } else if WELL_KNOWN.contains(&&*secret.to_ascii_lowercase()) || characters.all(|other| Some(other) == first) {
        Some(Obstacle::WellKnown)
    } else {
        None
    }
}

/// Removes secrets. Clones know the same ones, and learn together.
#[derive(Clone, Default)]
pub struct Redactor(Arc<RedactorState>);

#[derive(Default)]
struct RedactorState {
    /// Absent while there is nothing to remove.
    matcher: RwLock<Option<Arc<Matcher>>>,
    /// Held while a matcher is built.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    configured: BTreeSet<String>,
    /// Fetched at run time, with how many have them in use.
    in_use: BTreeMap<String, usize>,
    /// Outdated ones; those that were in use last at the end.
    outdated: VecDeque<String>,
}

/// A secret that was fetched: it is removed as long as this is there, and then as one that is outdated.
pub struct Learnt {
    secret: String,
    redactor: Redactor,
}

impl Redactor {
    /// Removes the secrets of a configuration from now on. Those of the last one are still removed: they may be in use
    /// elsewhere, and in replies that are kept.
    pub fn configure(&self, secrets: impl IntoIterator<Item = Secret>) {
        let configured: BTreeSet<String> = secrets.into_iter().filter_map(removable).collect();
        let mut known = self.0.known.lock();
        if configured == known.configured {
            return;
        }
        let before = std::mem::replace(&mut known.configured, configured);
        before.into_iter().for_each(|outdated| known.remember(outdated));
        self.rebuild(&known);
    }

    /// Removes a secret, too, that was fetched at run time. Nothing for one that cannot be removed.
    #[must_use = "what is not in use may be forgotten"]
    pub fn learn(&self, secret: &Secret) -> Option<Learnt> {
        let secret = removable(secret.clone())?;
        let mut known = self.0.known.lock();
        let is_new = !known.all().any(|other| *other == secret);
        *known.in_use.entry(secret.clone()).or_default() += 1;
        if is_new {
            self.rebuild(&known);
        }
        Some(Learnt { secret, redactor: self.clone() })
    }

    fn rebuild(&self, known: &Known) {
        match Matcher::new(known.all()) {
            Ok(matcher) => {
                *self.0.matcher.write() = matcher.map(Arc::new);
            }
            Err(error) => {
                tracing::error!(%error, "secrets are removed as before: there is no matcher for the new ones")
            }
        }
    }

    fn matcher(&self) -> Option<Arc<Matcher>> {
        self.0.matcher.read().clone()
    }

    /// The text without secrets.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let replaced = self.matcher().and_then(|matcher| matcher.replaced(text.as_bytes()));
        replaced.map_or(Cow::Borrowed(text), |bytes| Cow::Owned(matcher::to_text(bytes)))
    }

    /// The beginning of a text without secrets, those that go on behind it included: at most `length` bytes of the
    /// text.
    #[must_use]
    pub fn beginning<'a>(&self, text: &'a str, length: usize) -> Cow<'a, str> {
        let length = text.floor_char_boundary(length);
        let replaced = self.matcher().and_then(|matcher| matcher.beginning(text.as_bytes(), length));
        let beginning = || Cow::Borrowed(text.get(..length).unwrap_or_default());
        replaced.map_or_else(beginning, |bytes| Cow::Owned(matcher::to_text(bytes)))
    }

    /// Removes secrets from a text in place. True if there were any.
    pub fn clean(&self, text: &mut String) -> bool {
        self.matcher().is_some_and(|matcher| matcher.clean(text))
    }

    /// Removes secrets from every text within a JSON value, the names of fields included. Numbers stay as they are.
    pub fn clean_value(&self, value: &mut Value) {
        if let Some(matcher) = self.matcher() {
            json::clean(&matcher, value);
        }
    }

    /// Bytes of a text without secrets; nothing when they have none.
    #[must_use]
    pub fn bytes(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.matcher()?.replaced(bytes)
    }

    /// A JSON text without secrets, which is JSON still: nothing but strings is changed. Nothing when it has none.
    #[must_use]
    pub fn json(&self, text: &[u8]) -> Option<Vec<u8>> {
        json::replaced(&*self.matcher()?, text)
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Redactor")
    }
}

impl Known {
    fn all(&self) -> impl Iterator<Item = &String> {
        self.configured.iter().chain(self.in_use.keys()).chain(&self.outdated)
    }

    /// Keeps what is no longer configured, or no longer in use.
    fn remember(&mut self, secret: String) {
        self.outdated.retain(|other| *other != secret);
        if self.configured.contains(&secret) || self.in_use.contains_key(&secret) {
            return;
        }
        let mut bytes = self.outdated.iter().map(String::len).sum::<usize>() + secret.len();
        while self.outdated.len() >= MAX_OUTDATED || bytes > MAX_OUTDATED_BYTES {
            let Some(oldest) = self.outdated.pop_front() else { break };
            bytes -= oldest.len();
        }
        self.outdated.push_back(secret);
    }

    /// One fewer has the secret in use.
    fn release(&mut self, secret: &str) {
        let Some((secret, users)) = self.in_use.remove_entry(secret) else { return };
        if users > 1 {
            self.in_use.insert(secret, users - 1);
        } else {
            self.remember(secret);
        }
    }
}

impl Drop for Learnt {
    fn drop(&mut self) {
        // What is forgotten for it is removed until there is a new matcher.
        self.redactor.0.known.lock().release(&self.secret);
    }
}

impl fmt::Debug for Learnt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Learnt")
    }
}

/// The secret without white space around it, unless that cannot be removed.
fn removable(secret: Secret) -> Option<String> {
    let secret = secret.expose().trim();
    obstacle(secret).is_none().then(|| secret.to_owned())
}
