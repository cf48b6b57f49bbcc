//! What is kept of each source: its tools as they were pinned, and what differs from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::definition::{Definition, Digest};
use super::level::Level;

/// The version of the record's form.
pub(super) const VERSION: u64 = 1;

/// Everything that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) version: u64,
    pub(super) sources: BTreeMap<String, Source>,
}

/// What is kept of one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Source {
    /// When it was first seen.
    pub(super) since: String,
    /// Fingerprint of its set of tools.
    pub(super) digest: Digest,
    /// Whether its changes were ever held back. What it was pinned as stays then, until an operator approves something
    /// else: those who hold nothing back do not overwrite it, neither this process later nor another one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) held: bool,
    /// Fingerprint of how it was reached, by which it is known again under another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reached: Option<Digest>,
    /// Its tools, by their names within it.
    pub(super) tools: BTreeMap<String, Pin>,
    /// Tools that differ from what is pinned, and wait for an operator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) pending: BTreeMap<String, Seen>,
}

/// A tool that is pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pin {
    /// Since when it is pinned like this.
    pub(super) since: String,
    /// When an operator approved it; absent: it was like this when it was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) approved: Option<String>,
    /// When a tool of its name was first seen here; absent: that is `since`. It does not change with the definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) first: Option<String>,
    pub(super) digest: Digest,
    pub(super) definition: Definition,
    /// What it was before its last change, where that held nothing back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Seen>,
}

/// A definition that was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Seen {
    pub(super) since: String,
    pub(super) digest: Digest,
    pub(super) definition: Definition,
}

/// A tool that is there now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Present {
    /// The name that it is called by.
    pub(super) name: Arc<str>,
    pub(super) definition: Definition,
    /// Why its texts are suspect, if they are.
    pub(super) finding: Option<String>,
}

/// When tools are looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment<'a> {
    /// The present time.
    pub(super) now: &'a str,
    /// When tools that are new now count as first seen.
    pub(super) first: &'a str,
}

/// What came of looking at what a source has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Observed {
    /// Tools that are not as they were, by name.
    pub(super) news: Vec<(String, State)>,
    /// Whether the record changed.
    pub(super) is_changed: bool,
}

/// How a tool is, compared with what is pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it was when it was pinned, by a source of which changes are held back.
    Pinned,
    /// As it was last seen, by a source of which changes are told only.
    Recorded,
    /// Not as it was.
    Changed,
    /// Not known, of a source that is.
    New,
    /// Not there any more.
    Missing,
    /// As it was, and its texts look as if they spoke to the model against its user.
    Suspect,
}

impl State {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Recorded => "recorded",
            Self::Changed => "changed",
            Self::New => "new",
            Self::Missing => "missing",
            Self::Suspect => "suspect",
        }
    }
}

impl Default for Record {
    fn default() -> Self {
        Self { version: VERSION, sources: BTreeMap::new() }
    }
}

impl Seen {
    fn new(definition: &Definition, since: &str) -> Self {
        Self { since: since.to_owned(), digest: definition.digest(), definition: definition.clone() }
    }
}

impl Pin {
    pub(super) fn new(definition: &Definition, since: &str, is_approved: bool) -> Self {
        Self {
            since: since.to_owned(),
            approved: is_approved.then(|| since.to_owned()),
            first: None,
            digest: definition.digest(),
            definition: definition.clone(),
            before: None,
        }
    }

    /// The same, whose name counts as first seen at this time.
    fn first_at(mut self, first: &str) -> Self {
        self.first = (self.since != first).then(|| first.to_owned());
        self
    }

    /// When a tool of its name was first seen here.
    pub(super) fn first(&self) -> &str {
        self.first.as_deref().unwrap_or(&self.since)
    }

    /// The same in the place of another pin of its name, if there was one.
    pub(super) fn after(self, before: Option<&Self>) -> Self {
        match before {
            Some(before) => self.first_at(before.first()),
            None => self,
        }
    }
}

impl Source {
    /// A source that is seen for the first time: what it has is how it is to stay.
    pub(super) fn first_seen(present: &BTreeMap<String, Present>, level: Level, at: Moment<'_>) -> Self {
        let pin = |(name, tool): (&String, &Present)| {
            (name.clone(), Pin::new(&tool.definition, at.now, false).first_at(at.first))
        };
        let tools: BTreeMap<_, _> = present.iter().map(pin).collect();
        let (since, digest) = (at.now.to_owned(), digest_of(&tools));
        Self { since, digest, held: level.holds(), reached: None, tools, pending: BTreeMap::new() }
    }

    /// The same under another name: what it was pinned as counts there, too.
    pub(super) fn renamed(&self) -> Self {
        Self { pending: BTreeMap::new(), ..self.clone() }
    }

    /// In how far a source that lists these tools may be this one: at least half of the tools of either have the names of the
    /// other's. The number of those.
    pub(super) fn resembles(&self, present: &BTreeMap<String, Present>) -> Option<usize> {
        let shared = self.tools.keys().filter(|name| present.contains_key(*name)).count();
        (shared > 0 && shared * 2 >= self.tools.len().min(present.len())).then_some(shared)
    }

    /// Takes in what the source has now. What is pinned stays as it is where changes are held back, or once were; elsewhere
    /// it follows.
    pub(super) fn observe(&mut self, present: &BTreeMap<String, Present>, level: Level, at: Moment<'_>) -> Observed {
        if level.holds() {
            let is_changed = !std::mem::replace(&mut self.held, true) | self.wait(present, at.now);
            return Observed { news: self.compare(present), is_changed };
        }
        if self.held {
            return Observed { news: self.compare(present), is_changed: false };
        }
        let observed = self.follow(present, at);
        if observed.is_changed {
            self.digest = digest_of(&self.tools);
        }
        observed
    }

    /// Has what differs wait for an operator; whether that changes anything.
    fn wait(&mut self, present: &BTreeMap<String, Present>, now: &str) -> bool {
        let waiting = self.pending.len();
        let tools = &self.tools;
        let differs =
            |name: &String, tool: &Present| tools.get(name).is_none_or(|pin| pin.digest != tool.definition.digest());
        self.pending.retain(|name, _| present.get(name).is_some_and(|tool| differs(name, tool)));
        let mut is_changed = self.pending.len() != waiting;
        for (name, tool) in present.iter().filter(|(name, tool)| differs(name, tool)) {
            if self.pending.get(name).is_none_or(|seen| seen.digest != tool.definition.digest()) {
                self.pending.insert(name.clone(), Seen::new(&tool.definition, now));
                is_changed = true;
            }
        }
        is_changed
    }

    /// What is not as it was pinned.
    fn compare(&self, present: &BTreeMap<String, Present>) -> Vec<(String, State)> {
        let here = present.iter().filter_map(|(name, tool)| {
            let state = match self.tools.get(name) {
                None => State::New,
                Some(pin) if pin.digest != tool.definition.digest() => State::Changed,
                Some(_) => return None,
            };
            Some((name.clone(), state))
        });
        let missing = self.tools.keys().filter(|name| !present.contains_key(*name));
        here.chain(missing.map(|name| (name.clone(), State::Missing))).collect()
    }

    fn follow(&mut self, present: &BTreeMap<String, Present>, at: Moment<'_>) -> Observed {
        let mut news = Vec::new();
        self.tools.retain(|name, _| {
            let stays = present.contains_key(name);
            news.extend((!stays).then(|| (name.clone(), State::Missing)));
            stays
        });
        for (name, tool) in present {
            let Some(pin) = self.tools.get_mut(name) else {
                self.tools.insert(name.clone(), Pin::new(&tool.definition, at.now, false).first_at(at.first));
                news.push((name.clone(), State::New));
                continue;
            };
            if pin.digest != tool.definition.digest() {
                let before = Seen { since: pin.since.clone(), digest: pin.digest, definition: pin.definition.clone() };
                let next = Pin::new(&tool.definition, at.now, false).after(Some(pin));
                *pin = Pin { before: Some(before), ..next };
                news.push((name.clone(), State::Changed));
            }
        }
        Observed { is_changed: !news.is_empty(), news }
    }

    /// How a tool is that is there.
    pub(super) fn state(&self, name: &str, tool: &Present, level: Level) -> State {
        match self.tools.get(name) {
            None => State::New,
            Some(pin) if pin.digest != tool.definition.digest() => State::Changed,
            Some(pin) if level == Level::Strict && tool.finding.is_some() && pin.approved.is_none() => State::Suspect,
            Some(_) if level.holds() => State::Pinned,
            Some(pin) if pin.before.is_some() => State::Changed,
            Some(_) => State::Recorded,
        }
    }

    /// How a tool is, as far as the record alone tells.
    pub(super) fn recorded_state(&self, name: &str, level: Level) -> State {
        match (self.tools.get(name), self.pending.contains_key(name)) {
            (None, _) => State::New,
            (Some(_), true) => State::Changed,
            (Some(_), false) if level.holds() => State::Pinned,
            (Some(pin), false) if pin.before.is_some() => State::Changed,
            (Some(_), false) => State::Recorded,
        }
    }
}

/// The fingerprint of a set of tools.
pub(super) fn digest_of(tools: &BTreeMap<String, Pin>) -> Digest {
    let texts: Vec<String> = tools.iter().flat_map(|(name, pin)| [name.clone(), pin.digest.to_string()]).collect();
    Digest::of(texts.iter().map(String::as_str))
}

#[cfg(test)]
mod tests;
