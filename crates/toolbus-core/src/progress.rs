//! What a tool tells of itself while it runs.

use tokio::sync::mpsc;

/// Reports that wait to be sent; further ones are dropped, because a later one tells more.
const WAITING: usize = 16;

/// How far a tool is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// How far, in units of the tool's own; grows with each report.
    pub progress: f64,
    /// What `progress` is at the end, where that is known.
    pub total: Option<f64>,
    /// What it is doing, for people.
    pub message: Option<String>,
}

/// Takes the reports of one call. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ProgressSink(mpsc::Sender<Progress>);

impl ProgressSink {
    /// A sink, and where its reports come out.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Progress>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    /// Reports, if somebody listens and keeps up.
    pub fn report(&self, progress: Progress) {
        let _ = self.0.try_send(progress);
    }
}
