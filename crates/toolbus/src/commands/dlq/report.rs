//! Output of `toolbus dlq`: a table of letters, the outcome of an action, and its progress.

use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use toolbus_broker::rabbitmq::DeadLetterQueue;
use toolbus_core::Clock;

use super::super::{note, one_line, plain};
use super::letter::{age, brief};
use crate::dead_letters::Letter;

/// Interval of redrawing the line of progress.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// The letters that `list` found, as programs read them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LetterList {
    pub(super) letters: Vec<Letter>,
    /// Letters that fit beside these.
    pub(super) more: usize,
}

/// Outcome of a replay or a removal, for programs.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DlqOutcome {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replayed: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dropped: Option<usize>,
    /// Letters that could not be replayed; the first of them are in `failures`.
    pub(super) failed: usize,
    pub(super) failures: Vec<LeftLetter>,
}

#[derive(Serialize)]
pub(super) struct LeftLetter {
    pub(super) queue: String,
    pub(super) id: Option<String>,
    pub(super) reason: String,
}

impl DlqOutcome {
    /// For people.
    pub(super) fn in_words(&self) -> String {
        let done = match (self.replayed, self.dropped) {
            (Some(count), _) => format!("{} replayed", letters(count)),
            (None, count) => format!("{} removed", letters(count.unwrap_or(0))),
        };
        let failed = (self.failed > 0).then(|| format!("{} left:", letters(self.failed)));
        let why = self.failures.iter().map(|LeftLetter { queue, id, reason }| {
            format!("  {}", one_line(&format!("{queue} {}: {reason}", id.as_deref().unwrap_or("-"))))
        });
        std::iter::once(done).chain(failed).chain(why).collect::<Vec<_>>().join("\n")
    }
}

/// A number of dead letters.
pub(super) fn letters(count: usize) -> String {
    format!("{count} dead letter{}", if count == 1 { "" } else { "s" })
}

/// Letters as a table.
pub(super) fn table(letters: &[Letter], more: usize) -> String {
    if letters.is_empty() {
        return "no dead letter".to_owned();
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["QUEUE", "ID", "REASON", "AGE", "AGENT", "TOOL", "BYTES"]);
    let now = Clock::SYSTEM.since_epoch().as_secs();
    let text = |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), brief);
    for letter in letters {
        table.add_row([
            one_line(&letter.queue),
            text(&letter.id),
            if letter.reason.is_empty() { "-".to_owned() } else { brief(&letter.reason) },
            letter.since.map_or_else(|| "-".to_owned(), |since| age(now.saturating_sub(since))),
            text(&letter.agent),
            text(&letter.tool),
            letter.bytes.to_string(),
        ]);
    }
    if more > 0 {
        note(&format!("{more} more; --limit shows them"));
    }
    plain(&table)
}

/// A line on the terminal that shows the progress; nothing elsewhere.
pub(super) struct ProgressLine(ProgressBar);

impl ProgressLine {
    /// Creates the line for the letters of a queue that are `what` one after the other.
    pub(super) fn of(queue: &DeadLetterQueue<'_>, what: &str) -> Self {
        let bar = ProgressBar::new(queue.left().into());
        let template = format!("{{prefix}} {{bar:30}} {{pos}} of {{len}} {what}, {{per_sec}}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        bar.set_prefix(one_line(queue.name()));
        bar.enable_steady_tick(PROGRESS_PERIOD);
        Self(bar)
    }

    /// One more.
    pub(super) fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
