//! Report on pins, and what an operator can approve.

use std::collections::BTreeSet;

use super::definition::{Definition, Digest};
use super::level::Level;
use super::record::{Pin, PinRecord, PresentTool, SourceRecord, ToolState, digest_of};
use super::state::{MCP, PinState, reason};

/// State of one tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinEntry {
    /// Source of the tool.
    pub source: String,
    /// Name of the tool within the source.
    pub tool: String,
    /// The name that it is called by, where that is known.
    pub name: String,
    /// State of the tool, compared with its pin.
    pub state: ToolState,
    /// Whether the tool is quarantined.
    pub is_held: bool,
    /// Since when it is like this; `None` if that is not recorded, as of a missing tool.
    pub since: Option<String>,
    /// Time at which its definition was pinned; `None` if none is.
    pub pinned: Option<String>,
    /// Reason why it is quarantined.
    pub reason: Option<String>,
}

/// Difference of one tool from its pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// State of the tool.
    pub entry: PinEntry,
    /// Definition that is pinned, or that the tool had before.
    pub before: Option<Definition>,
    /// Definition that the tool has now.
    pub after: Option<Definition>,
}

/// Reason why there is nothing to show, or to approve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Nothing has the name.
    #[error("no tool and no source is called `{0}`; `toolbus pins` lists them")]
    Unknown(String),
    /// Several sources have a tool of the name.
    #[error("several sources have a tool `{0}`: {1}; name one with --source")]
    Ambiguous(String, String),
    /// An MCP server and tools have the name.
    #[error(
        "an MCP server and a tool of {1} are called `{0}`: write `{MCP}{0}` for the server, or name the tool's with --source"
    )]
    Both(String, String),
    /// Tool or source that is as it was.
    #[error("there is nothing to approve: `{0}` is as it was pinned")]
    Nothing(String),
    /// Tool or source that differs from the shown one.
    #[error("`{0}` changed again since it was shown; look at `toolbus pins diff {0}` once more")]
    Again(String),
}

impl ToolState {
    /// Whether an operator can approve it.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Changed | Self::New | Self::Missing | Self::Suspect)
    }
}

impl PinEntry {
    /// Marks its source as not in the file yet.
    fn be_unwritten(&mut self) {
        if matches!(self.state, ToolState::Pinned | ToolState::Recorded) {
            self.state = ToolState::Unrecorded;
        }
        (self.since, self.pinned) = (None, None);
    }
}

/// The fingerprint of what an approval would pin.
#[must_use]
pub fn offer_digest(differences: &[Difference]) -> Digest {
    let mut texts = Vec::new();
    for Difference { entry, after, .. } in differences.iter().filter(|difference| difference.entry.state.is_open()) {
        let now = after.as_ref().map_or_else(|| "missing".to_owned(), |after| after.digest().to_string());
        texts.extend([entry.source.clone(), entry.tool.clone(), now]);
    }
    Digest::of(texts.iter().map(String::as_str))
}

impl PinState {
    /// Every pinned or present tool, of one source or of all, by source and name.
    pub(super) fn entries(&self, only: Option<&str>) -> Vec<PinEntry> {
        self.differences(|source, _, _| only.is_none_or(|only| only == source))
            .into_iter()
            .map(|difference| difference.entry)
            .collect()
    }

    /// The tools that `name` means: those of the source of this name, of the MCP server of this name, or the tool of
    /// this name.
    pub(super) fn find(&self, name: &str, source: Option<&str>) -> Result<Vec<Difference>, Mismatch> {
        let is_source = |source: &str| self.record.sources.contains_key(source) || self.present.contains_key(source);
        let of_server = format!("{MCP}{name}");
        let found = match source {
            Some(only) => self.differences(|source, tool, called| source == only && (tool == name || called == name)),
            None if is_source(name) => self.differences(|source, _, _| source == name),
            None => {
                let by_name = self.differences(|_, tool, called| tool == name || called == name);
                match (is_source(&of_server), by_name.is_empty()) {
                    // No server takes the name of another for a tool of its own.
                    (true, false) => return Err(Mismatch::Both(name.to_owned(), sources_of(&by_name))),
                    (true, true) => self.differences(|source, _, _| source == of_server),
                    (false, _) => by_name,
                }
            }
        };
        if found.is_empty() { Err(Mismatch::Unknown(name.to_owned())) } else { Ok(found) }
    }

    /// The differences that an approval of `name` would pin, if their fingerprint is `shown`.
    pub(super) fn offered(&self, name: &str, source: Option<&str>, shown: Digest) -> Result<Vec<Difference>, Mismatch> {
        let mut found = self.find(name, source)?;
        found.retain(|difference| difference.entry.state.is_open());
        if found.is_empty() {
            return Err(Mismatch::Nothing(name.to_owned()));
        }
        let mut sources = found.iter().map(|difference| &difference.entry.source);
        let first = sources.next();
        if sources.any(|source| Some(source) != first) {
            return Err(Mismatch::Ambiguous(name.to_owned(), sources_of(&found)));
        }
        if offer_digest(&found) != shown {
            return Err(Mismatch::Again(name.to_owned()));
        }
        Ok(found)
    }

    /// Every source with a pinned or present tool.
    pub(super) fn sources(&self) -> BTreeSet<&String> {
        self.record.sources.keys().chain(self.present.keys()).collect()
    }

    fn differences(&self, is_meant: impl Fn(&str, &str, &str) -> bool) -> Vec<Difference> {
        let mut all = Vec::new();
        for source in self.sources() {
            let Some(kept) = self.record.sources.get(source) else { continue };
            let present = self.present.get(source);
            let level = self.levels.of(source);
            let here = present.into_iter().flat_map(|present| present.keys());
            let names: BTreeSet<&String> = kept.tools.keys().chain(kept.pending.keys()).chain(here).collect();
            for tool in names {
                let now = present.and_then(|present| present.get(tool));
                let called = now.map_or(tool.as_str(), |now| &*now.name);
                if is_meant(source, tool, called) {
                    let mut difference = difference(source, tool, kept, present.map(|_| now), level);
                    if !self.is_written(source) {
                        difference.entry.be_unwritten();
                    }
                    all.push(difference);
                }
            }
        }
        all
    }
}

/// The sources of differences, each once.
fn sources_of(differences: &[Difference]) -> String {
    let sources: BTreeSet<_> = differences.iter().map(|difference| difference.entry.source.as_str()).collect();
    sources.into_iter().collect::<Vec<_>>().join(", ")
}

/// The difference of one tool; `now` is `None` if its source is not present.
fn difference(
    source: &str,
    tool: &str,
    kept: &SourceRecord,
    now: Option<Option<&PresentTool>>,
    level: Level,
) -> Difference {
    let (pin, pending) = (kept.tools.get(tool), kept.pending.get(tool));
    let state = match now {
        None => kept.recorded_state(tool, level),
        Some(None) => ToolState::Missing,
        Some(Some(now)) => kept.state(tool, now, level),
    };
    let now = now.flatten();
    let after = match now {
        Some(now) => Some(now.definition.clone()),
        None if state == ToolState::Missing => None,
        None => pending.map(|seen| seen.definition.clone()).or_else(|| pin.map(|pin| pin.definition.clone())),
    };
    let is_pin = |pin: &Pin| after.as_ref().is_some_and(|after| after.digest() == pin.digest);
    let before = match pin {
        Some(pin) if state == ToolState::Changed && is_pin(pin) => {
            pin.before.as_ref().map(|seen| seen.definition.clone())
        }
        Some(pin) => Some(pin.definition.clone()),
        None => None,
    };
    let pinned = pin.map(|pin| pin.since.clone());
    let since = match state {
        // The record stays as it is while a tool is missing.
        ToolState::Missing => None,
        _ => pending.map(|seen| seen.since.clone()).or_else(|| pinned.clone()),
    };
    let is_held = level.holds() && matches!(state, ToolState::Changed | ToolState::New | ToolState::Suspect);
    let entry = PinEntry {
        source: source.to_owned(),
        tool: tool.to_owned(),
        name: now.map_or_else(|| tool.to_owned(), |now| now.name.to_string()),
        state,
        is_held,
        since,
        pinned,
        reason: now.filter(|_| is_held).and_then(|now| reason(state, now)),
    };
    Difference { entry, before, after }
}

/// Pins the offered definitions.
pub(super) fn approve(record: &mut PinRecord, offered: &[Difference], now: &str) {
    for Difference { entry, after, .. } in offered {
        let Some(source) = record.sources.get_mut(&entry.source) else { continue };
        source.pending.remove(&entry.tool);
        match after {
            Some(definition) => {
                let pin = Pin::new(definition, now, true).after(source.tools.get(&entry.tool));
                source.tools.insert(entry.tool.clone(), pin);
            }
            None => {
                source.tools.remove(&entry.tool);
            }
        }
        source.digest = digest_of(&source.tools);
    }
}
