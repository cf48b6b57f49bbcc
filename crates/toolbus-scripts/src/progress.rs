//! Reports what a program writes as its progress.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;
use toolbus_core::progress::{Progress, ProgressSink};
use toolbus_sandbox::{Watcher, Written};

/// Longest line that is reported, in bytes; of a longer one the beginning is.
const LONGEST: usize = 4096;

/// Reports the last line of each part of standard output that has one, with the number of lines so far; and what the
/// program reports itself. From then on its lines are not reported any more.
pub(crate) struct ProgressLines {
    sink: ProgressSink,
    state: Mutex<LineState>,
}

#[derive(Default)]
struct LineState {
    lines: u64,
    /// The beginning of a line that has not ended.
    rest: Vec<u8>,
    /// Whether the program has reported its progress itself.
    has_own: bool,
    /// The greatest progress that was reported.
    greatest: f64,
}

/// A line that a program writes on its progress.
#[derive(Deserialize)]
struct OwnReport {
    progress: f64,
    total: Option<f64>,
    message: Option<String>,
}

impl ProgressLines {
    fn new(sink: ProgressSink) -> Self {
        Self { sink, state: Mutex::default() }
    }

    /// A watcher that reports to this sink.
    pub(crate) fn watcher(sink: ProgressSink) -> Watcher {
        let lines = Self::new(sink);
        Arc::new(move |written| lines.take(written))
    }

    /// Takes what the program writes. What is no report, is not reported.
    fn take(&self, written: Written<'_>) {
        let mut state = self.state.lock();
        let progress = match written {
            Written::Stdout(bytes) if !state.has_own => state.line(bytes),
            Written::Stdout(_) => None,
            Written::Progress(line) => state.own(line),
        };
        if let Some(progress) = progress {
            self.sink.report(progress);
        }
    }
}

impl LineState {
    /// The last line that ends in these bytes.
    fn line(&mut self, bytes: &[u8]) -> Option<Progress> {
        let mut last = None;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            self.rest.extend(text.iter().take(LONGEST - self.rest.len()));
            if ends {
                self.lines += 1;
                last = Some(std::mem::take(&mut self.rest));
            }
        }
        let message = String::from_utf8_lossy(&last?).trim_end().to_owned();
        #[expect(clippy::cast_precision_loss, reason = "no script writes as many lines")]
        let progress = self.lines as f64;
        self.greatest = progress;
        (!message.is_empty()).then_some(Progress { progress, total: None, message: Some(message) })
    }

    /// Reads the program's own report. Progress never falls, below the lines before it neither; a total that is passed
    /// is left out.
    fn own(&mut self, line: &str) -> Option<Progress> {
        let OwnReport { progress, total, message } = serde_json::from_str(line).ok()?;
        (self.has_own, self.greatest) = (true, progress.max(self.greatest));
        let total = total.filter(|total| *total >= self.greatest);
        Some(Progress { progress: self.greatest, total, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of the reports on these writes.
    fn reported(written: &[Written<'_>]) -> Vec<String> {
        let (sink, mut reports) = ProgressSink::new();
        let lines = ProgressLines::new(sink);
        written.iter().for_each(|written| lines.take(*written));
        std::iter::from_fn(|| reports.try_recv().ok())
            .map(|Progress { progress, total, message }| {
                format!("{progress} {total:?} {}", message.unwrap_or_default())
            })
            .collect()
    }

    #[test]
    fn each_part_of_the_output_reports_its_last_whole_line() {
        let parts = ["one\ntw", "o\nthree\nfo", "ur", "\r\n", "\n\n", "with \u{fffd}: \n"].map(|part| part.as_bytes());
        assert_eq!(
            reported(&parts.map(Written::Stdout)),
            ["1 None one", "3 None three", "4 None four", "7 None with \u{fffd}:"]
        );
        let long = [b'x'; 3 * LONGEST];
        let [of_long] = &reported(&[Written::Stdout(&long), Written::Stdout(&long), Written::Stdout(b"\n")])[..] else {
            panic!("one report")
        };
        assert_eq!(of_long.len(), "1 None ".len() + LONGEST);
    }

    #[test]
    fn reports_of_a_program_replace_its_lines() {
        let own = |line| Written::Progress(line);
        let reports = reported(&[
            Written::Stdout(b"begun\n"),
            Written::Stdout(b"going on\n"),
            own(r#"{"progress": 1, "total": 1}"#),
            own(r#"{"progress": 1, "total": 10, "message": "reading", "more": true}"#),
            own("no JSON"),
            own(r#"{"message": "without a number"}"#),
            Written::Stdout(b"a line\n"),
            own(r#"{"progress": 0.5}"#),
            own(r#"{"progress": 2.5}"#),
        ]);
        assert_eq!(
            reports,
            ["1 None begun", "2 None going on", "2 None ", "2 Some(10.0) reading", "2 None ", "2.5 None "]
        );
    }
}
