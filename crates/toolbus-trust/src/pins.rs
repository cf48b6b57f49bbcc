//! Pins: the recorded definitions of tools, so that a definition cannot change unnoticed.
//!
//! [`Pins`] compares the present tools with a file, and quarantines those that differ, if the level of their source
//! requires it. The first definitions of a source are its pins.

mod definition;
mod diff;
mod differences;
mod file;
mod level;
mod record;
mod state;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use toolbus_core::Clock;
use toolbus_core::policy::{Claim, DefinitionCheck, Quarantine};
use toolbus_core::tool::ToolDescriptor;

pub use self::definition::{Definition, Digest, NoDigest};
pub use self::diff::{Unified, unified};
pub use self::differences::{Difference, Mismatch, PinEntry, offer_digest};
pub use self::file::PinFileError;
use self::file::{Lock, PinFile};
pub use self::level::{Level, Levels, NamedSource};
use self::record::PinRecord;
pub use self::record::ToolState;
use self::state::{PinChange, PinChangeKind, PinState};

/// Most changes of one review that are logged one by one.
const MAX_LINES: usize = 20;

/// The pins of all sources. Cheap to clone.
#[derive(Clone)]
pub struct Pins {
    shared: Arc<PinsInner>,
}

struct PinsInner {
    clock: Clock,
    file: Option<PinFile>,
    state: Mutex<PinState>,
    /// Held while the file is used.
    filing: Mutex<()>,
    unsaved: Notify,
    /// Reason why the last use of the file failed.
    problem: Mutex<Option<String>>,
}

/// Reason why nothing was approved.
#[derive(Debug, thiserror::Error)]
pub enum ApproveError {
    /// There is nothing to approve, or something else than was shown.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The approval could not be written, and would be lost at a restart.
    #[error(transparent)]
    File(#[from] PinFileError),
}

/// Numbers of one source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Count {
    /// The source.
    pub source: String,
    /// Tools that are quarantined.
    pub held: usize,
    /// Changed definitions since the start.
    pub changes: u64,
}

impl Pins {
    /// Opens the pins of a file, which may be missing; `None` keeps them in memory only. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// If the file exists and cannot be read or is not a pin file.
    pub fn open(file: Option<PathBuf>, levels: Levels, clock: Clock) -> Result<Self, PinFileError> {
        let file = file.map(PinFile::new);
        let record = file.as_ref().map(PinFile::read).transpose()?.flatten().unwrap_or_default();
        let written = file.is_some().then(|| record.sources.keys().cloned().collect());
        let mut state = PinState::of(record, levels);
        state.written = written;
        state.starting = Some(second(clock));
        let shared = PinsInner {
            clock,
            file,
            state: Mutex::new(state),
            filing: Mutex::default(),
            unsaved: Notify::new(),
            problem: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Checks a file without writing it; `is_needed` if the rules quarantine tools, so that it must be written.
    ///
    /// # Errors
    ///
    /// If the file exists and cannot be read or is not a pin file; or if it is needed and its folder does not exist.
    pub fn check(file: &Path, is_needed: bool) -> Result<(), PinFileError> {
        let file = PinFile::new(file.to_owned());
        file.read()?;
        if is_needed { file.check_folder() } else { Ok(()) }
    }

    /// The file; `None` if pins are in memory only.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.shared.file.as_ref().map(PinFile::path)
    }

    /// Sets the levels; they apply from the next review. A present source that the levels no longer name keeps its level
    /// until it is gone.
    pub fn set_levels(&self, levels: Levels) {
        self.state().set_levels(levels);
    }

    /// Waits until there is something to [save](Self::save).
    pub async fn unsaved(&self) {
        self.shared.unsaved.notified().await;
    }

    /// Reason why the last use of the file failed; `None` if it succeeded.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.shared.problem.lock().clone()
    }

    /// Writes new pins to the file, and takes over those that other processes wrote. Returns whether another review is
    /// necessary. Blocks.
    ///
    /// # Errors
    ///
    /// If the file cannot be locked, read or written. Pins in memory stay.
    pub fn save(&self) -> Result<bool, PinFileError> {
        let result = self.filed(|state| Ok(((), state.record.clone())));
        self.note(result.map(|()| self.state().needs_review))
    }

    /// Takes over pins that other processes wrote to the file. Returns whether another review is necessary. Writes nothing:
    /// two processes with different tools would overwrite each other forever. Blocks.
    ///
    /// # Errors
    ///
    /// If the file cannot be read. Pins in memory stay.
    pub fn reload(&self) -> Result<bool, PinFileError> {
        let Some(file) = &self.shared.file else { return Ok(false) };
        let _one_at_a_time = self.shared.filing.lock();
        let result = file.read().map(|written| {
            let written = written.unwrap_or_default();
            let mut state = self.state();
            if state.lacks_any(&written) {
                self.shared.unsaved.notify_one();
            }
            let changes = state.merge(written, &self.now());
            let needs_review = state.needs_review;
            drop(state);
            log_changes(&changes);
            needs_review
        });
        self.note(result)
    }

    /// Every pinned or present tool, of one source or of all, by source and name.
    #[must_use]
    pub fn list(&self, source: Option<&str>) -> Vec<PinEntry> {
        self.state().entries(source)
    }

    /// Every source with a pinned or present tool, by name.
    #[must_use]
    pub fn sources(&self) -> Vec<String> {
        self.state().sources().into_iter().cloned().collect()
    }

    /// The differences of the tools that `name` means: those of the source of this name, of the MCP server of this name, or
    /// the tool of this name.
    ///
    /// # Errors
    ///
    /// If nothing has the name, or both a server and a tool have it.
    pub fn find(&self, name: &str, source: Option<&str>) -> Result<Vec<Difference>, Mismatch> {
        self.state().find(name, source)
    }

    /// Pins the present definitions of what `name` means, if their fingerprint ([`offer_digest`]) is `shown`. Applies
    /// from the next review. Blocks.
    ///
    /// # Errors
    ///
    /// If the definitions differ from those shown, or the file cannot be written; then nothing is approved.
    pub fn approve(&self, name: &str, source: Option<&str>, shown: Digest) -> Result<Vec<Difference>, ApproveError> {
        self.filed(|state| {
            let offered = state.offered(name, source, shown)?;
            let mut next = state.record.clone();
            differences::approve(&mut next, &offered, &self.now());
            Ok((offered, next))
        })
    }

    /// Counts the quarantined tools and the changes, by source.
    #[must_use]
    pub fn counts(&self) -> Vec<Count> {
        let state = self.state();
        let mut counts: BTreeMap<String, Count> = BTreeMap::new();
        for entry in state.entries(None) {
            counts.entry(entry.source).or_default().held += usize::from(entry.is_held);
        }
        for (source, changes) in &state.changes {
            counts.entry(source.clone()).or_default().changes = *changes;
        }
        counts.into_iter().map(|(source, count)| Count { source, ..count }).collect()
    }

    /// Merges the file with the pins in memory, and writes the record that `next` returns, under the lock of the file.
    fn filed<T, E: From<PinFileError>>(
        &self,
        next: impl FnOnce(&PinState) -> Result<(T, PinRecord), E>,
    ) -> Result<T, E> {
        let _one_at_a_time = self.shared.filing.lock();
        let on_disk = self.shared.file.as_ref().map(|file| Ok::<_, PinFileError>((file, file.lock()?, file.read()?)));
        let on_disk = on_disk.transpose()?;
        let (value, record, changes) = {
            let mut state = self.state();
            let written = on_disk.as_ref().map(|(_, _, written)| written.clone().unwrap_or_default());
            let changes = written.map(|written| state.merge(written, &self.now())).unwrap_or_default();
            let (value, record) = next(&state)?;
            (value, record, changes)
        };
        log_changes(&changes);
        // Without the lock of the state, which reviews wait for.
        if let Some((file, lock, written)) = &on_disk
            && written.as_ref() != Some(&record)
        {
            self.write(file, lock, written.as_ref(), &record)?;
        }
        let changes = self.state().merge(record, &self.now());
        log_changes(&changes);
        Ok(value)
    }

    /// Writes a record; if it is too large, without sources that are gone or not configured.
    fn write(
        &self,
        file: &PinFile,
        lock: &Lock,
        written: Option<&PinRecord>,
        record: &PinRecord,
    ) -> Result<(), PinFileError> {
        let Err(error) = file.write(record, lock) else { return Ok(()) };
        if !error.is_full() {
            return Err(error);
        }
        let (trimmed, is_lost) = {
            let state = self.state();
            let trimmed = state.trimmed(record);
            let is_left_out = |name: &String| !trimmed.sources.contains_key(name);
            let is_unwritten = |name: &String, source| state.record.sources.get(name) != Some(source);
            let is_lost = record.sources.iter().any(|(name, source)| is_left_out(name) && is_unwritten(name, source));
            (trimmed, is_lost)
        };
        // An approved change must not be left out.
        if is_lost || trimmed == *record {
            return Err(error);
        }
        // The same content is not written again.
        if written == Some(&trimmed) { Ok(()) } else { file.write(&trimmed, lock) }
    }

    /// Keeps the last problem of the file, and logs it once.
    fn note<T>(&self, result: Result<T, PinFileError>) -> Result<T, PinFileError> {
        let problem = result.as_ref().err().map(ToString::to_string);
        let mut known = self.shared.problem.lock();
        match &problem {
            Some(error) if known.as_ref() != Some(error) && self.state().levels.hold_anything() => {
                tracing::error!(error, "pins are not kept: what is seen now is forgotten at a restart");
            }
            Some(error) if known.as_ref() != Some(error) => {
                tracing::info!(error, "what tools say of themselves is not kept; nothing is pinned");
            }
            None if known.is_some() => tracing::info!("pins are kept again"),
            _ => {}
        }
        *known = problem;
        result
    }

    fn state(&self) -> MutexGuard<'_, PinState> {
        self.shared.state.lock()
    }

    /// The present time, to the second.
    fn now(&self) -> String {
        second(self.shared.clock)
    }
}

impl DefinitionCheck for Pins {
    fn review(&self, tools: &[Arc<ToolDescriptor>]) -> Quarantine {
        let mut state = self.state();
        let (held, changes) = state.review(tools, &self.now());
        if std::mem::take(&mut state.is_unsaved) {
            self.shared.unsaved.notify_one();
        }
        drop(state);
        log_changes(&changes);
        held
    }

    fn admits(&self, tool: &ToolDescriptor) -> bool {
        self.state().admits(tool)
    }

    fn end_start(&self) {
        self.state().starting = None;
    }

    fn claim(&self, tool: &ToolDescriptor) -> Claim {
        self.state().claim(tool)
    }

    fn reserved(&self) -> HashMap<Arc<str>, Arc<str>> {
        self.state().reserved()
    }
}

/// The time of a clock, to the second.
fn second(clock: Clock) -> String {
    let seconds = i64::try_from(clock.since_epoch().as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}

/// Logs changes.
fn log_changes(changes: &[PinChange]) {
    for PinChange { source, kind } in changes.iter().take(MAX_LINES) {
        match kind {
            PinChangeKind::FirstSeen(tools) => {
                tracing::info!(source, tools, "the tools of a source are pinned as they are first seen")
            }
            PinChangeKind::Renamed(before) => tracing::warn!(
                source,
                before,
                "a source is pinned as one that is gone was, which it seems to be under another name; what differs is quarantined"
            ),
            PinChangeKind::Tool { tool, state, is_held: true } => tracing::warn!(
                source,
                tool,
                state = state.as_str(),
                "a tool is quarantined; `toolbus pins diff` shows why, and `toolbus pins approve` approves it"
            ),
            PinChangeKind::Tool { tool, state, is_held: false } => {
                tracing::info!(
                    source,
                    tool,
                    state = state.as_str(),
                    "the definition of a tool changed; it is not quarantined"
                );
            }
        }
    }
    if let Some(more) = changes.len().checked_sub(MAX_LINES).filter(|more| *more > 0) {
        tracing::warn!(more, "the definitions of more tools changed; `toolbus pins` lists them all");
    }
}

#[cfg(test)]
mod tests;
