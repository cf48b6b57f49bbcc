//! The record of each source: its pinned tools, and pending changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::definition::{Definition, Digest};
use super::level::Level;

/// Version of the record's format.
pub(super) const VERSION: u64 = 1;

/// The record of all sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PinRecord {
    pub(super) version: u64,
    pub(super) sources: BTreeMap<String, SourceRecord>,
}

/// The record of one source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SourceRecord {
    /// Time at which it was first seen.
    pub(super) since: String,
    /// Fingerprint of its set of tools.
    pub(super) digest: Digest,
    /// Whether its changes were ever quarantined. Then its pins stay until an operator approves others: a process whose
    /// level quarantines nothing does not overwrite them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) held: bool,
    /// Fingerprint of its command or URL, which identifies it under another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reached: Option<Digest>,
    /// Tools of the source, by their names within it.
    pub(super) tools: BTreeMap<String, Pin>,
    /// Tools that differ from their pins, and wait for an operator.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) pending: BTreeMap<String, SeenDefinition>,
}

/// A pinned tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pin {
    /// Time at which this definition was pinned.
    pub(super) since: String,
    /// Time at which an operator approved it; `None`: it is the first definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) approved: Option<String>,
    /// Time at which a tool of its name was first seen; `None`: at `since`. It does not change with the definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) first: Option<String>,
    pub(super) digest: Digest,
    pub(super) definition: Definition,
    /// The previous definition, if the change was not quarantined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<SeenDefinition>,
}

/// A definition that was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeenDefinition {
    pub(super) since: String,
    pub(super) digest: Digest,
    pub(super) definition: Definition,
}

/// A present tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PresentTool {
    /// The name that it is called by.
    pub(super) name: Arc<str>,
    pub(super) definition: Definition,
    /// Reason why its texts are suspect; `None` if they are not.
    pub(super) finding: Option<String>,
}

/// The time of a review.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReviewTime<'a> {
    /// The present time.
    pub(super) now: &'a str,
    /// Time at which tools that are new now count as first seen.
    pub(super) first: &'a str,
}

/// The result of a review of one source.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Observation {
    /// Changed tools, by name.
    pub(super) changes: Vec<(String, ToolState)>,
    /// Whether the record changed.
    pub(super) is_changed: bool,
}

/// The state of a tool, compared with its pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolState {
    /// Unchanged, of a source whose changes are quarantined.
    Pinned,
    /// Unchanged, of a source whose changes are only logged.
    Recorded,
    /// Changed.
    Changed,
    /// New, of a known source.
    New,
    /// Pinned, and not present.
    Missing,
    /// Unchanged, and its texts look as if they tried to misuse the model.
    Suspect,
    /// Seen, and not yet in the file.
    Unrecorded,
}

impl ToolState {
    /// Returns the name of the state.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Recorded => "recorded",
            Self::Changed => "changed",
            Self::New => "new",
            Self::Missing => "missing",
            Self::Suspect => "suspect",
            Self::Unrecorded => "unrecorded",
        }
    }
}

impl Default for PinRecord {
    fn default() -> Self {
        Self { version: VERSION, sources: BTreeMap::new() }
    }
}

impl SeenDefinition {
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

    /// Sets when its name was first seen.
    fn first_at(mut self, first: &str) -> Self {
        self.first = (self.since != first).then(|| first.to_owned());
        self
    }

    /// Time at which a tool of its name was first seen here.
    pub(super) fn first(&self) -> &str {
        self.first.as_deref().unwrap_or(&self.since)
    }

    /// Keeps when the name was first seen from the pin that it replaces.
    pub(super) fn after(self, before: Option<&Self>) -> Self {
        match before {
            Some(before) => self.first_at(before.first()),
            None => self,
        }
    }
}

impl SourceRecord {
    /// The record of a source that is seen for the first time: its present tools are pinned.
    pub(super) fn first_seen(present: &BTreeMap<String, PresentTool>, level: Level, at: ReviewTime<'_>) -> Self {
        let pin = |(name, tool): (&String, &PresentTool)| {
            (name.clone(), Pin::new(&tool.definition, at.now, false).first_at(at.first))
        };
        let tools: BTreeMap<_, _> = present.iter().map(pin).collect();
        let (since, digest) = (at.now.to_owned(), digest_of(&tools));
        Self { since, digest, held: level.holds(), reached: None, tools, pending: BTreeMap::new() }
    }

    /// The record for the source under another name, with the same pins.
    pub(super) fn renamed(&self) -> Self {
        Self { pending: BTreeMap::new(), ..self.clone() }
    }

    /// Counts the tool names that a source shares with this one; `None` if fewer than half of the smaller one's.
    pub(super) fn resembles(&self, present: &BTreeMap<String, PresentTool>) -> Option<usize> {
        let shared = self.tools.keys().filter(|name| present.contains_key(*name)).count();
        (shared > 0 && shared * 2 >= self.tools.len().min(present.len())).then_some(shared)
    }

    /// Compares the present tools with the pins. Pins follow the tools unless changes are, or ever were, quarantined.
    pub(super) fn observe(
        &mut self,
        present: &BTreeMap<String, PresentTool>,
        level: Level,
        at: ReviewTime<'_>,
    ) -> Observation {
        if level.holds() {
            let is_changed = !std::mem::replace(&mut self.held, true) | self.wait(present, at.now);
            return Observation { changes: self.compare(present), is_changed };
        }
        if self.held {
            return Observation { changes: self.compare(present), is_changed: false };
        }
        let observed = self.follow(present, at);
        if observed.is_changed {
            self.digest = digest_of(&self.tools);
        }
        observed
    }

    /// Records the differences as pending. Returns whether the record changed.
    fn wait(&mut self, present: &BTreeMap<String, PresentTool>, now: &str) -> bool {
        let waiting = self.pending.len();
        let tools = &self.tools;
        let differs = |name: &String, tool: &PresentTool| {
            tools.get(name).is_none_or(|pin| pin.digest != tool.definition.digest())
        };
        self.pending.retain(|name, _| present.get(name).is_some_and(|tool| differs(name, tool)));
        let mut is_changed = self.pending.len() != waiting;
        for (name, tool) in present.iter().filter(|(name, tool)| differs(name, tool)) {
            if self.pending.get(name).is_none_or(|seen| seen.digest != tool.definition.digest()) {
                self.pending.insert(name.clone(), SeenDefinition::new(&tool.definition, now));
                is_changed = true;
            }
        }
        is_changed
    }

    /// The tools that differ from their pins.
    fn compare(&self, present: &BTreeMap<String, PresentTool>) -> Vec<(String, ToolState)> {
        let here = present.iter().filter_map(|(name, tool)| {
            let state = match self.tools.get(name) {
                None => ToolState::New,
                Some(pin) if pin.digest != tool.definition.digest() => ToolState::Changed,
                Some(_) => return None,
            };
            Some((name.clone(), state))
        });
        let missing = self.tools.keys().filter(|name| !present.contains_key(*name));
        here.chain(missing.map(|name| (name.clone(), ToolState::Missing))).collect()
    }

    fn follow(&mut self, present: &BTreeMap<String, PresentTool>, at: ReviewTime<'_>) -> Observation {
        let mut changes = Vec::new();
        self.tools.retain(|name, _| {
            let stays = present.contains_key(name);
            changes.extend((!stays).then(|| (name.clone(), ToolState::Missing)));
            stays
        });
        for (name, tool) in present {
            let Some(pin) = self.tools.get_mut(name) else {
                self.tools.insert(name.clone(), Pin::new(&tool.definition, at.now, false).first_at(at.first));
                changes.push((name.clone(), ToolState::New));
                continue;
            };
            if pin.digest != tool.definition.digest() {
                let before =
                    SeenDefinition { since: pin.since.clone(), digest: pin.digest, definition: pin.definition.clone() };
                let next = Pin::new(&tool.definition, at.now, false).after(Some(pin));
                *pin = Pin { before: Some(before), ..next };
                changes.push((name.clone(), ToolState::Changed));
            }
        }
        Observation { is_changed: !changes.is_empty(), changes }
    }

    /// The state of a present tool.
    pub(super) fn state(&self, name: &str, tool: &PresentTool, level: Level) -> ToolState {
        match self.tools.get(name) {
            None => ToolState::New,
            Some(pin) if pin.digest != tool.definition.digest() => ToolState::Changed,
            Some(pin) if level == Level::Strict && tool.finding.is_some() && pin.approved.is_none() => {
                ToolState::Suspect
            }
            Some(_) if level.holds() => ToolState::Pinned,
            Some(pin) if pin.before.is_some() => ToolState::Changed,
            Some(_) => ToolState::Recorded,
        }
    }

    /// The state of a tool by the record alone.
    pub(super) fn recorded_state(&self, name: &str, level: Level) -> ToolState {
        match (self.tools.get(name), self.pending.contains_key(name)) {
            (None, _) => ToolState::New,
            (Some(_), true) => ToolState::Changed,
            (Some(_), false) if level.holds() => ToolState::Pinned,
            (Some(pin), false) if pin.before.is_some() => ToolState::Changed,
            (Some(_), false) => ToolState::Recorded,
        }
    }
}

/// The fingerprint of a set of tools.
pub(super) fn digest_of(tools: &BTreeMap<String, Pin>) -> Digest {
    let texts: Vec<String> = tools.iter().flat_map(|(name, pin)| [name.clone(), pin.digest.to_string()]).collect();
    Digest::of(texts.iter().map(String::as_str))
}

#[cfg(test)]
mod tests {
    use toolbus_core::tool::ToolDescriptor;

    use super::*;

    fn here(tools: &[(&str, &str)]) -> BTreeMap<String, PresentTool> {
        let present = |(name, description): &(&str, &str)| {
            let descriptor = ToolDescriptor {
                description: (*description).to_owned(),
                ..ToolDescriptor::new(*name, "mcp:files", "mcp")
            };
            let present = PresentTool { name: (*name).into(), definition: Definition::of(&descriptor), finding: None };
            ((*name).to_owned(), present)
        };
        tools.iter().map(present).collect()
    }

    fn states(source: &SourceRecord, present: &BTreeMap<String, PresentTool>, level: Level) -> Vec<ToolState> {
        present.iter().map(|(name, tool)| source.state(name, tool, level)).collect()
    }

    fn at(now: &str) -> ReviewTime<'_> {
        ReviewTime { now, first: now }
    }

    const FIRST: [(&str, &str); 2] = [("read", "Reads."), ("write", "Writes.")];

    #[test]
    fn an_unchanged_tool_stays_pinned_however_often_it_is_listed() {
        let present = here(&FIRST);
        let mut source = SourceRecord::first_seen(&present, Level::Hold, at("1"));
        for now in ["2", "3"] {
            assert_eq!(source.observe(&present, Level::Hold, at(now)), Observation::default());
        }
        assert_eq!(states(&source, &present, Level::Hold), [ToolState::Pinned; 2]);
        assert_eq!(source, SourceRecord::first_seen(&present, Level::Hold, at("1")));
    }

    #[test]
    fn a_change_waits_and_the_pinned_definition_stays() {
        let mut source = SourceRecord::first_seen(&here(&FIRST), Level::Hold, at("1"));
        let present = here(&[("read", "Reads all."), ("write", "Writes.")]);
        let observed = source.observe(&present, Level::Hold, at("2"));
        assert_eq!(observed, Observation { changes: vec![("read".to_owned(), ToolState::Changed)], is_changed: true });
        assert_eq!(states(&source, &present, Level::Hold), [ToolState::Changed, ToolState::Pinned]);
        assert_eq!(source.pending["read"].since, "2");
        assert!(!source.observe(&present, Level::Hold, at("3")).is_changed, "the same change is not another one");
        assert_eq!(source.pending["read"].since, "2");
        assert!(source.observe(&here(&FIRST), Level::Hold, at("4")).is_changed, "back to what is pinned");
        assert_eq!(source, SourceRecord::first_seen(&here(&FIRST), Level::Hold, at("1")));
    }

    #[test]
    fn a_rename_is_a_tool_that_is_missing_and_one_that_is_new() {
        let mut source = SourceRecord::first_seen(&here(&FIRST), Level::Hold, at("1"));
        let present = here(&[("read", "Reads."), ("store", "Writes.")]);
        let observed = source.observe(&present, Level::Hold, at("2"));
        let change = |name: &str, state| (name.to_owned(), state);
        assert_eq!(observed.changes, [change("store", ToolState::New), change("write", ToolState::Missing)]);
        assert_eq!(states(&source, &present, Level::Hold), [ToolState::Pinned, ToolState::New]);
        assert!(source.observe(&here(&FIRST[..1]), Level::Hold, at("3")).is_changed);
        assert!(source.pending.is_empty(), "a missing tool needs no approval");
    }

    #[test]
    fn at_the_level_that_only_reports_the_record_follows_changes() {
        let mut source = SourceRecord::first_seen(&here(&FIRST), Level::Record, at("1"));
        let present = here(&[("read", "Reads all."), ("stat", "Looks.")]);
        let observed = source.observe(&present, Level::Record, at("2"));
        let change = |name: &str, state| (name.to_owned(), state);
        assert_eq!(
            observed.changes,
            [change("write", ToolState::Missing), change("read", ToolState::Changed), change("stat", ToolState::New)]
        );
        assert_eq!(states(&source, &present, Level::Record), [ToolState::Changed, ToolState::Recorded]);
        assert_eq!(source.tools["read"].before.as_ref().map(|seen| &*seen.since), Some("1"));
        assert_eq!(source.digest, digest_of(&source.tools));
        assert_eq!(
            states(&source, &present, Level::Hold),
            [ToolState::Pinned; 2],
            "pinned from now on, it is pinned as it is"
        );
    }

    #[test]
    fn pins_stay_when_changes_are_no_longer_held() {
        let mut source = SourceRecord::first_seen(&here(&FIRST), Level::Hold, at("1"));
        let present = here(&[("read", "Reads all."), ("stat", "Looks.")]);
        source.observe(&present, Level::Hold, at("2"));
        let before = source.clone();
        let observed = source.observe(&present, Level::Record, at("3"));
        let change = |name: &str, state| (name.to_owned(), state);
        assert_eq!(
            observed.changes,
            [change("read", ToolState::Changed), change("stat", ToolState::New), change("write", ToolState::Missing)]
        );
        assert_eq!((observed.is_changed, &source), (false, &before));
        assert_eq!(states(&source, &present, Level::Record), [ToolState::Changed, ToolState::New]);
        assert_eq!(states(&source, &present, Level::Hold), [ToolState::Changed, ToolState::New]);
    }

    #[test]
    fn a_source_that_is_pinned_from_now_on_is_noted_as_such() {
        let mut source = SourceRecord::first_seen(&here(&FIRST), Level::Record, at("1"));
        let now = here(&[("read", "Reads all."), ("write", "Writes.")]);
        source.observe(&now, Level::Record, at("2"));
        assert!(source.observe(&now, Level::Hold, at("3")).is_changed);
        assert!(!source.observe(&now, Level::Hold, at("4")).is_changed);
        source.observe(&here(&FIRST), Level::Record, at("5"));
        assert_eq!(states(&source, &now, Level::Hold), [ToolState::Pinned; 2]);
    }

    #[test]
    fn a_suspect_tool_is_held_only_by_the_strict_and_until_it_is_approved() {
        let mut present = here(&FIRST);
        present.get_mut("read").unwrap().finding = Some("speaks to the model".to_owned());
        let mut source = SourceRecord::first_seen(&present, Level::Hold, at("1"));
        assert_eq!(states(&source, &present, Level::Strict), [ToolState::Suspect, ToolState::Pinned]);
        assert_eq!(states(&source, &present, Level::Hold), [ToolState::Pinned; 2]);
        assert_eq!(states(&source, &present, Level::Record), [ToolState::Recorded; 2]);
        let read = Pin::new(&present["read"].definition, "2", true);
        source.tools.insert("read".to_owned(), read);
        assert_eq!(states(&source, &present, Level::Strict), [ToolState::Pinned; 2]);
    }
}
