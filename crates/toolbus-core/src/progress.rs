//! Progress that a running tool reports.

use std::borrow::Cow;

use tokio::sync::mpsc;

use crate::redact::Redactor;

/// Reports that wait to be sent; further ones are dropped, because a later one replaces an earlier one.
const WAITING: usize = 16;

/// Progress of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Progress so far, in units of the tool's own; grows with each report.
    pub progress: f64,
    /// Value of `progress` at the end, where that is known.
    pub total: Option<f64>,
    /// Current activity of the tool, for people.
    pub message: Option<String>,
}

/// Takes the reports of one call. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ProgressSink {
    reports: mpsc::Sender<Progress>,
    redactor: Redactor,
}

impl ProgressSink {
    /// A sink, and where its reports come out.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Progress>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self { reports: sender, redactor: Redactor::default() }, receiver)
    }

    /// Reports, if the receiver listens and keeps up.
    pub fn report(&self, mut progress: Progress) {
        if let Some(message) = &mut progress.message {
            self.redactor.clean(message);
        }
        let _ = self.reports.try_send(progress);
    }

    /// A text without secrets, to be shortened before it is reported.
    #[must_use]
    pub fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redactor.text(text)
    }

    /// The same sink, whose reports have no secrets.
    #[must_use]
    pub(crate) fn redacted_by(self, redactor: Redactor) -> Self {
        Self { redactor, ..self }
    }
}
