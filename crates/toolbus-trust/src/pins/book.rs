//! What is pinned and what is there, side by side.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use toolbus_core::policy::{Claim, Quarantine};
use toolbus_core::tool::ToolDescriptor;

use super::definition::{Definition, Digest};
use super::differences::MCP;
use super::level::{Level, Levels};
use super::record::{Moment, Present, Record, Source, State};

/// Most changes of one source that are remembered as told.
const MAX_TOLD: usize = 10_000;
/// Most findings that a reason names.
const MAX_FINDINGS: usize = 3;

/// What was made of each descriptor, by source and name.
type Seen = HashMap<(Arc<str>, Arc<str>), (Arc<ToolDescriptor>, Present)>;

/// Everything that is known.
#[derive(Default)]
pub(super) struct Book {
    pub(super) record: Record,
    pub(super) levels: Levels,
    /// What each source has now, by the names within it.
    pub(super) present: BTreeMap<String, BTreeMap<String, Present>>,
    seen: Seen,
    /// The number of the last review that found each source, of those that this process has seen.
    pub(super) last_seen: BTreeMap<String, u64>,
    reviews: u64,
    /// When the process began, until all sources of its start are known. Tools that are new before that are recorded
    /// with this age, so that it does not matter which source was faster.
    pub(super) starting: Option<String>,
    /// What was told of each source, so that it is told once.
    pub(super) told: BTreeMap<String, BTreeSet<(String, State, Option<Digest>)>>,
    /// How many changes were told, by source.
    pub(super) changes: BTreeMap<String, u64>,
    /// Whether the record changed since somebody last asked.
    pub(super) is_unsaved: bool,
    /// Whether other tools may be held back than the last review said.
    pub(super) needs_review: bool,
}

/// Something that was not known before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct News {
    pub(super) source: String,
    pub(super) kind: NewsKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NewsKind {
    /// The source is seen for the first time, with so many tools.
    FirstSeen(usize),
    /// The source is seen for the first time, and pinned as this one was, which is gone.
    Renamed(String),
    /// A tool is not as it was.
    Tool { tool: String, state: State, is_held: bool },
}

impl Book {
    /// What is pinned already.
    pub(super) fn of(record: Record, levels: Levels) -> Self {
        let mut book = Self { record, levels, ..Self::default() };
        // What waited for an operator when the record was written was told then.
        for (source, kept) in &book.record.sources {
            let told = book.told.entry(source.clone()).or_default();
            for (tool, seen) in &kept.pending {
                let state = if kept.tools.contains_key(tool) { State::Changed } else { State::New };
                told.insert((tool.clone(), state, Some(seen.digest)));
            }
        }
        book
    }

    pub(super) fn set_levels(&mut self, levels: Levels) {
        self.levels.replace(levels, |source| self.present.contains_key(source));
    }

    /// Takes in the tools that there are now. Returns those that are held back, and what is to be told.
    pub(super) fn review(&mut self, tools: &[Arc<ToolDescriptor>], now: &str) -> (Quarantine, Vec<News>) {
        let mut before = std::mem::take(&mut self.seen);
        self.present.clear();
        for tool in tools {
            let place = (Arc::clone(&tool.source), Arc::clone(&tool.name));
            let known = before.remove(&place).filter(|(known, _)| Arc::ptr_eq(known, tool));
            let (_, present) = known.unwrap_or_else(|| {
                let (name, definition) = (Arc::clone(&tool.name), Definition::of(tool));
                (Arc::clone(tool), Present { name, definition, finding: finding(tool) })
            });
            let of_source = self.present.entry(tool.source.to_string()).or_default();
            of_source.insert(tool.bare_name().to_string(), present.clone());
            self.seen.insert(place, (Arc::clone(tool), present));
        }
        self.levels.forget_gone(|source| self.present.contains_key(source));
        self.reviews += 1;
        self.last_seen.extend(self.present.keys().map(|source| (source.clone(), self.reviews)));
        let news = self.observe(now);
        self.needs_review = false;
        (self.held(tools), news)
    }

    /// Takes over what another process has pinned, or this one has written; what only this one knows stays. What this one
    /// merely read is forgotten when it is written no more.
    pub(super) fn merge(&mut self, written: Record, now: &str) -> Vec<News> {
        let own = std::mem::replace(&mut self.record, written);
        let kept: Vec<_> = own.sources.iter().filter(|(name, _)| self.is_own(name)).collect();
        for (name, source) in kept {
            self.record.sources.entry(name.clone()).or_insert_with(|| source.clone());
        }
        let news = self.observe(now);
        self.needs_review |= self.record != own;
        news
    }

    /// Brings the record up to date with what there is.
    fn observe(&mut self, now: &str) -> Vec<News> {
        let (mut news, mut found) = (Vec::new(), Vec::new());
        let at = Moment { now, first: self.starting.as_deref().unwrap_or(now) };
        for (name, present) in &self.present {
            let level = self.levels.of(name);
            let reached = self.levels.reached(name);
            if !self.record.sources.contains_key(name) {
                let before = if level.holds() { self.predecessor(reached, present) } else { None };
                let (kind, source) = match before {
                    Some((before, source)) => (NewsKind::Renamed(before.clone()), source.renamed()),
                    None => (NewsKind::FirstSeen(present.len()), Source::first_seen(present, level, at)),
                };
                self.is_unsaved = true;
                news.push(News { source: name.clone(), kind });
                self.record.sources.insert(name.clone(), source);
            }
            let Some(source) = self.record.sources.get_mut(name) else { continue };
            if reached.is_some() && source.reached != reached {
                (source.reached, self.is_unsaved) = (reached, true);
            }
            let observed = source.observe(present, level, at);
            self.is_unsaved |= observed.is_changed;
            let mut tools = observed.news;
            let is_suspect = |tool: &&String| {
                present.get(*tool).is_some_and(|here| source.state(tool, here, level) == State::Suspect)
            };
            tools.extend(present.keys().filter(is_suspect).map(|tool| (tool.clone(), State::Suspect)));
            for (tool, state) in tools {
                let digest = present.get(&tool).map(|here| here.definition.digest());
                found.push((name.clone(), tool, state, digest, level));
            }
        }
        // What makes it grow makes room.
        if !news.is_empty() {
            self.forget_gone();
        }
        let tell = |(source, tool, state, digest, level)| self.tell(source, tool, state, digest, level);
        news.extend(found.into_iter().filter_map(tell));
        news
    }

    /// The pinned source that is gone and that a source seems to be under another name: it is reached in the same way, or else
    /// most like it by the names of its tools.
    fn predecessor(&self, reached: Option<Digest>, present: &BTreeMap<String, Present>) -> Option<(&String, &Source)> {
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

    fn tell(
        &mut self,
        source: String,
        tool: String,
        state: State,
        digest: Option<Digest>,
        level: Level,
    ) -> Option<News> {
        let told = self.told.entry(source.clone()).or_default();
        // Rather twice than not at all; and no source has another one silenced.
        if told.len() >= MAX_TOLD {
            told.clear();
        }
        if !told.insert((tool.clone(), state, digest)) {
            return None;
        }
        *self.changes.entry(source.clone()).or_default() += 1;
        let is_held = level.holds() && state != State::Missing;
        Some(News { source, kind: NewsKind::Tool { tool, state, is_held } })
    }

    fn held(&self, tools: &[Arc<ToolDescriptor>]) -> Quarantine {
        let mut held = Quarantine::default();
        for tool in tools {
            let level = self.levels.of(&tool.source);
            let place = (Arc::clone(&tool.source), Arc::clone(&tool.name));
            let (Some((_, present)), Some(source)) = (self.seen.get(&place), self.record.sources.get(&*tool.source))
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

    /// Whether a tool would not be held back. A source that was never seen has nothing that could have changed.
    pub(super) fn admits(&self, tool: &ToolDescriptor) -> bool {
        let level = self.levels.of(&tool.source);
        let Some(source) = self.record.sources.get(&*tool.source).filter(|_| level.holds()) else { return true };
        let present =
            Present { name: Arc::clone(&tool.name), definition: Definition::of(tool), finding: finding(tool) };
        reason(source.state(tool.bare_name(), &present, level), &present).is_none()
    }

    /// What is kept of a tool under its name. A source that is seen for the first time has all that it lists pinned.
    pub(super) fn claim(&self, tool: &ToolDescriptor) -> Claim {
        let holds = self.levels.of(&tool.source).holds();
        let Some(source) = self.record.sources.get(&*tool.source) else {
            return Claim { is_pinned: holds, since: self.starting.clone() };
        };
        let pin = source.tools.get(&**tool.bare_name());
        let since = pin.map(|pin| pin.first().to_owned()).or_else(|| self.starting.clone());
        Claim { is_pinned: holds && pin.is_some(), since }
    }

    /// The names of pinned tools of the MCP servers that are configured, whether they are there or not, each with the source
    /// that was seen with it first.
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

    /// Whether this process knows a source that the record should have and does not.
    pub(super) fn lacks_any(&self, record: &Record) -> bool {
        self.record.sources.keys().any(|source| self.is_own(source) && !record.sources.contains_key(source))
    }

    /// Whether this process is to keep a source, whatever others write.
    fn is_own(&self, source: &str) -> bool {
        self.last_seen.contains_key(source) || self.levels.name(source)
    }
}

/// What is suspect about a tool, in words.
fn finding(tool: &ToolDescriptor) -> Option<String> {
    let found: Vec<String> = tool.suspicions.iter().take(MAX_FINDINGS).map(ToString::to_string).collect();
    (!found.is_empty()).then(|| found.join("; "))
}

/// Why a tool is held back, for operators; none if it is not.
pub(super) fn reason(state: State, present: &Present) -> Option<String> {
    let why = match state {
        State::Pinned | State::Recorded | State::Missing => return None,
        State::Changed => "its definition changed since it was pinned".to_owned(),
        State::New => "it is new since its source was pinned".to_owned(),
        State::Suspect => format!("it is suspect: {}", present.finding.as_deref().unwrap_or_default()),
    };
    Some(format!("{why}; see `toolbus pins diff {}`", present.name))
}

#[cfg(test)]
mod tests;
