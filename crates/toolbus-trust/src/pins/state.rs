//! The pinned and the present tools.
//!
//! The size of sources that the configuration does not name, such as MCP servers that callers register, is limited, so that
//! callers cannot fill the file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use toolbus_core::policy::{Claim, Quarantine};
use toolbus_core::tool::ToolDescriptor;

use super::definition::{Definition, Digest};
use super::level::{Level, Levels};
use super::record::{PinRecord, PresentTool, ReviewTime, SourceRecord, ToolState};

/// Most changes of one source that are remembered as reported.
const MAX_REPORTED: usize = 10_000;
/// Most findings that a reason names.
const MAX_FINDINGS: usize = 3;
/// Most sources that are gone and still kept.
const MAX_GONE: usize = 1_000;
/// Most bytes that they take.
const MAX_GONE_BYTES: usize = 8 << 20;
/// Most bytes of sources that are there, in a file that would be too large with all of them.
const MAX_UNNAMED_BYTES: usize = 32 << 20;
/// Bytes that a definition takes in the file besides itself, about.
const OVERHEAD: usize = 512;

/// Result of each descriptor, by source and name.
type SeenTools = HashMap<(Arc<str>, Arc<str>), (Arc<ToolDescriptor>, PresentTool)>;

/// The state of all sources.
#[derive(Default)]
pub(super) struct PinState {
    pub(super) record: PinRecord,
    pub(super) levels: Levels,
    /// The present tools of each source, by their names within it.
    pub(super) present: BTreeMap<String, BTreeMap<String, PresentTool>>,
    seen: SeenTools,
    /// The number of the last review that found each source, of those that this process has seen.
    pub(super) last_seen: BTreeMap<String, u64>,
    reviews: u64,
    /// Start of the process, until all sources of its start are known. Tools that are new before that are recorded
    /// with this age, so that it does not matter which source was faster.
    pub(super) starting: Option<String>,
    /// Reports of each source, so that each is made once.
    pub(super) reported: BTreeMap<String, BTreeSet<(String, ToolState, Option<Digest>)>>,
    /// Number of reported changes, by source.
    pub(super) changes: BTreeMap<String, u64>,
    /// The sources that the file has; `None` without a file.
    pub(super) written: Option<BTreeSet<String>>,
    /// Whether the record changed since it was last saved.
    pub(super) is_unsaved: bool,
    /// Whether other tools may be quarantined than at the last review.
    pub(super) needs_review: bool,
}

/// A change of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PinChange {
    pub(super) source: String,
    pub(super) kind: PinChangeKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PinChangeKind {
    /// The source is seen for the first time, with so many tools.
    FirstSeen(usize),
    /// The source is seen for the first time, and pinned as this one was, which is gone.
    Renamed(String),
    /// A tool changed.
    Tool { tool: String, state: ToolState, is_held: bool },
}

impl PinState {
    /// Builds the state from existing pins.
    pub(super) fn of(record: PinRecord, levels: Levels) -> Self {
        let mut pins = Self { record, levels, ..Self::default() };
        // Pending changes of the record were reported when it was written.
        for (source, kept) in &pins.record.sources {
            let reported = pins.reported.entry(source.clone()).or_default();
            for (tool, seen) in &kept.pending {
                let state = if kept.tools.contains_key(tool) { ToolState::Changed } else { ToolState::New };
                reported.insert((tool.clone(), state, Some(seen.digest)));
            }
        }
        pins
    }

    pub(super) fn set_levels(&mut self, levels: Levels) {
        self.levels.replace(levels, |source| self.present.contains_key(source));
    }

    /// Reviews the present tools. Returns those to quarantine, and the changes to log.
    pub(super) fn review(&mut self, tools: &[Arc<ToolDescriptor>], now: &str) -> (Quarantine, Vec<PinChange>) {
        let mut before = std::mem::take(&mut self.seen);
        self.present.clear();
        for tool in tools {
            let key = (Arc::clone(&tool.source), Arc::clone(&tool.name));
            let known = before.remove(&key).filter(|(known, _)| Arc::ptr_eq(known, tool));
            let (_, present) = known.unwrap_or_else(|| {
                let (name, definition) = (Arc::clone(&tool.name), Definition::of(tool));
                (Arc::clone(tool), PresentTool { name, definition, finding: finding(tool) })
            });
            let of_source = self.present.entry(tool.source.to_string()).or_default();
            of_source.insert(tool.bare_name().to_string(), present.clone());
            self.seen.insert(key, (Arc::clone(tool), present));
        }
        self.levels.forget_gone(|source| self.present.contains_key(source));
        self.reviews += 1;
        self.last_seen.extend(self.present.keys().map(|source| (source.clone(), self.reviews)));
        let changes = self.observe(now);
        self.needs_review = false;
        (self.held(tools), changes)
    }

    /// Takes over a record that another process or this one wrote. Sources that this process has seen stay; those that
    /// it only read go with the record.
    pub(super) fn merge(&mut self, written: PinRecord, now: &str) -> Vec<PinChange> {
        if let Some(sources) = &mut self.written {
            *sources = written.sources.keys().cloned().collect();
        }
        let own = std::mem::replace(&mut self.record, written);
        let kept: Vec<_> = own.sources.iter().filter(|(name, _)| self.is_own(name)).collect();
        for (name, source) in kept {
            self.record.sources.entry(name.clone()).or_insert_with(|| source.clone());
        }
        let changes = self.observe(now);
        self.needs_review |= self.record != own;
        changes
    }

    /// Brings the record up to date with what there is.
    fn observe(&mut self, now: &str) -> Vec<PinChange> {
        let (mut changes, mut found) = (Vec::new(), Vec::new());
        let at = ReviewTime { now, first: self.starting.as_deref().unwrap_or(now) };
        for (name, present) in &self.present {
            let level = self.levels.of(name);
            let reached = self.levels.reached(name);
            if !self.record.sources.contains_key(name) {
                let before = if level.holds() { self.predecessor(reached, present) } else { None };
                let (kind, source) = match before {
                    Some((before, source)) => (PinChangeKind::Renamed(before.clone()), source.renamed()),
                    None => (PinChangeKind::FirstSeen(present.len()), SourceRecord::first_seen(present, level, at)),
                };
                self.is_unsaved = true;
                changes.push(PinChange { source: name.clone(), kind });
                self.record.sources.insert(name.clone(), source);
            }
            let Some(source) = self.record.sources.get_mut(name) else { continue };
            if reached.is_some() && source.reached != reached {
                (source.reached, self.is_unsaved) = (reached, true);
            }
            let observed = source.observe(present, level, at);
            self.is_unsaved |= observed.is_changed;
            let mut tools = observed.changes;
            let is_suspect = |tool: &&String| {
                present.get(*tool).is_some_and(|here| source.state(tool, here, level) == ToolState::Suspect)
            };
            tools.extend(present.keys().filter(is_suspect).map(|tool| (tool.clone(), ToolState::Suspect)));
            for (tool, state) in tools {
                let digest = present.get(&tool).map(|here| here.definition.digest());
                found.push((name.clone(), tool, state, digest, level));
            }
        }
        // Growth of the record makes room first.
        if !changes.is_empty() {
            self.forget_gone();
        }
        let report = |(source, tool, state, digest, level)| self.report(source, tool, state, digest, level);
        changes.extend(found.into_iter().filter_map(report));
        changes
    }

    /// The pinned source, now gone, that a new source seems to be under another name: it is reached in the same way, or has
    /// the most tool names in common.
    fn predecessor(
        &self,
        reached: Option<Digest>,
        present: &BTreeMap<String, PresentTool>,
    ) -> Option<(&String, &SourceRecord)> {
        let is_gone = |name: &String| self.levels.is_gone(name, self.present.contains_key(name));
        let gone =
            self.record.sources.iter().filter(|(name, source)| source.held && name.starts_with(MCP) && is_gone(name));
        let like = gone.filter_map(|(name, source)| {
            let is_reached_alike = reached.is_some() && source.reached == reached;
            let shared = source.resembles(present);
            (is_reached_alike || shared.is_some()).then_some(((is_reached_alike, shared), (name, source)))
        });
        like.max_by_key(|(likeness, (_, source))| (*likeness, &source.since)).map(|(_, found)| found)
    }

    fn report(
        &mut self,
        source: String,
        tool: String,
        state: ToolState,
        digest: Option<Digest>,
        level: Level,
    ) -> Option<PinChange> {
        let reported = self.reported.entry(source.clone()).or_default();
        // A change may be reported twice, but never not at all; the limit is per source.
        if reported.len() >= MAX_REPORTED {
            reported.clear();
        }
        if !reported.insert((tool.clone(), state, digest)) {
            return None;
        }
        *self.changes.entry(source.clone()).or_default() += 1;
        let is_held = level.holds() && state != ToolState::Missing;
        Some(PinChange { source, kind: PinChangeKind::Tool { tool, state, is_held } })
    }

    fn held(&self, tools: &[Arc<ToolDescriptor>]) -> Quarantine {
        let mut held = Quarantine::default();
        for tool in tools {
            let level = self.levels.of(&tool.source);
            let key = (Arc::clone(&tool.source), Arc::clone(&tool.name));
            let (Some((_, present)), Some(source)) = (self.seen.get(&key), self.record.sources.get(&*tool.source))
            else {
                continue;
            };
            let state = source.state(tool.bare_name(), present, level);
            if level.holds()
                && let Some(reason) = reason(state, present)
            {
                held.insert(tool, reason);
            }
        }
        held
    }

    /// Whether a tool is not quarantined. A source that was never seen has no changes.
    pub(super) fn admits(&self, tool: &ToolDescriptor) -> bool {
        let level = self.levels.of(&tool.source);
        let Some(source) = self.record.sources.get(&*tool.source).filter(|_| level.holds()) else { return true };
        let present =
            PresentTool { name: Arc::clone(&tool.name), definition: Definition::of(tool), finding: finding(tool) };
        reason(source.state(tool.bare_name(), &present, level), &present).is_none()
    }

    /// The pin of a tool's name. All tools of a source that is seen for the first time are pinned.
    pub(super) fn claim(&self, tool: &ToolDescriptor) -> Claim {
        let holds = self.levels.of(&tool.source).holds();
        let Some(source) = self.record.sources.get(&*tool.source) else {
            return Claim { is_pinned: holds, since: self.starting.clone() };
        };
        let pin = source.tools.get(&**tool.bare_name());
        let since = pin.map(|pin| pin.first().to_owned()).or_else(|| self.starting.clone());
        Claim { is_pinned: holds && pin.is_some(), since }
    }

    /// The names of pinned tools of configured MCP servers, present or not, each with the source that had it first.
    pub(super) fn reserved(&self) -> HashMap<Arc<str>, Arc<str>> {
        let holds =
            |source: &str| source.starts_with(MCP) && self.levels.name(source) && self.levels.of(source).holds();
        let mut first: HashMap<String, (&str, &str)> = HashMap::new();
        for (source, kept) in self.record.sources.iter().filter(|(source, _)| holds(source)) {
            for (tool, pin) in &kept.tools {
                let next = (pin.first(), source.as_str());
                let known = first.entry(self.levels.published(source, tool)).or_insert(next);
                *known = next.min(*known);
            }
        }
        first.into_iter().map(|(name, (_, source))| (name.into(), source.into())).collect()
    }

    /// Whether a record lacks a source of this process.
    pub(super) fn lacks_any(&self, record: &PinRecord) -> bool {
        self.record.sources.keys().any(|source| self.is_own(source) && !record.sources.contains_key(source))
    }

    /// Whether the file has a source, or there is no file.
    pub(super) fn is_written(&self, source: &str) -> bool {
        self.written.as_ref().is_none_or(|sources| sources.contains(source))
    }

    /// Whether this process has seen or configured a source.
    fn is_own(&self, source: &str) -> bool {
        self.last_seen.contains_key(source) || self.levels.name(source)
    }

    /// Removes the sources beyond the limits that are gone and not configured, those gone longest first.
    fn forget_gone(&mut self) {
        let gone = self.record.sources.iter().filter(|(name, _)| !self.present.contains_key(*name));
        let gone = gone.filter(|(name, _)| !self.levels.name(name));
        let mut gone: Vec<_> =
            gone.map(|(name, source)| (self.last_seen.get(name), &source.since, name, source)).collect();
        gone.sort_by_key(|(last_seen, since, name, _)| std::cmp::Reverse((*last_seen, *since, *name)));
        let sizes = gone.into_iter().map(|(_, _, name, source)| (name, size(source)));
        for name in beyond(sizes, MAX_GONE, MAX_GONE_BYTES) {
            self.record.sources.remove(&name);
            self.last_seen.remove(&name);
            self.reported.remove(&name);
            self.changes.remove(&name);
            self.is_unsaved = true;
        }
    }

    /// A record without previous definitions, and of the sources not configured without those that are gone and the largest.
    pub(super) fn trimmed(&self, record: &PinRecord) -> PinRecord {
        let mut record = record.clone();
        record.sources.retain(|source, _| self.present.contains_key(source) || self.levels.name(source));
        let pins = record.sources.values_mut().flat_map(|source| source.tools.values_mut());
        pins.for_each(|pin| pin.before = None);
        let unnamed = record.sources.iter().filter(|(name, _)| !self.levels.name(name));
        let mut unnamed: Vec<_> = unnamed.map(|(name, source)| (name, size(source))).collect();
        unnamed.sort_by_key(|(_, size)| *size);
        for name in beyond(unnamed, usize::MAX, MAX_UNNAMED_BYTES) {
            record.sources.remove(&name);
        }
        record
    }
}

/// The suspicions of a tool as text.
fn finding(tool: &ToolDescriptor) -> Option<String> {
    let found: Vec<String> = tool.suspicions.iter().take(MAX_FINDINGS).map(ToString::to_string).collect();
    (!found.is_empty()).then(|| found.join("; "))
}

/// Reason why a tool is quarantined, for operators; `None` if it is not.
pub(super) fn reason(state: ToolState, present: &PresentTool) -> Option<String> {
    let why = match state {
        ToolState::Pinned | ToolState::Recorded | ToolState::Missing | ToolState::Unrecorded => return None,
        ToolState::Changed => "its definition changed since it was pinned".to_owned(),
        ToolState::New => "it is new since its source was pinned".to_owned(),
        ToolState::Suspect => format!("it is suspect: {}", present.finding.as_deref().unwrap_or_default()),
    };
    Some(format!("{why}; see `toolbus pins diff {}`", present.name))
}

/// The sources beyond the limits, in order.
fn beyond<'a>(sources: impl IntoIterator<Item = (&'a String, usize)>, number: usize, bytes: usize) -> Vec<String> {
    let (mut rooms, mut room) = (number, bytes);
    let mut finds_room = |size: usize| {
        let fits = rooms > 0 && size <= room;
        if fits {
            (rooms, room) = (rooms - 1, room - size);
        }
        fits
    };
    sources.into_iter().filter(|(_, size)| !finds_room(*size)).map(|(name, _)| name.clone()).collect()
}

/// Approximate bytes of a source in the file.
fn size(source: &SourceRecord) -> usize {
    let of_tool = |(name, bytes): (&String, usize)| name.len() + bytes + OVERHEAD;
    let pinned = source.tools.iter().map(|(name, pin)| {
        let before = pin.before.as_ref().map_or(0, |before| before.definition.as_json().len());
        of_tool((name, pin.definition.as_json().len() + before))
    });
    let waiting = source.pending.iter().map(|(name, seen)| of_tool((name, seen.definition.as_json().len())));
    OVERHEAD + pinned.chain(waiting).sum::<usize>()
}

/// Prefix of source names of MCP servers.
pub(super) const MCP: &str = "mcp:";

#[cfg(test)]
mod tests;
