//! How long requests take.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::events::{Observer, Operation};

/// Which connection it is, for whoever observes.
pub(super) struct ConnectionLabels {
    pub(super) server: Arc<str>,
    pub(super) transport: &'static str,
    pub(super) protocol_version: String,
    pub(super) observer: Arc<dyn Observer>,
}

/// One request. It counts as cancelled when it is dropped before its end.
pub(super) struct RequestTimer<'a> {
    labels: &'a ConnectionLabels,
    method: &'static str,
    tool: Option<&'a str>,
    began: Instant,
    is_over: bool,
}

impl ConnectionLabels {
    pub(super) fn tell(&self, method: &'static str, tool: Option<&str>, duration: Duration, error_type: Option<&str>) {
        self.observer.operation(&Operation {
            method,
            tool,
            server: &self.server,
            protocol_version: &self.protocol_version,
            transport: self.transport,
            duration,
            error_type,
        });
    }
}

impl<'a> RequestTimer<'a> {
    pub(super) fn new(labels: &'a ConnectionLabels, method: &'static str, tool: Option<&'a str>) -> Self {
        Self { labels, method, tool, began: Instant::now(), is_over: false }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn end(mut self, error_type: Option<&str>) {
        self.is_over = true;
        self.labels.tell(self.method, self.tool, self.elapsed(), error_type);
    }
}

impl Drop for RequestTimer<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.labels.tell(self.method, self.tool, self.elapsed(), Some("cancelled"));
        }
    }
}
