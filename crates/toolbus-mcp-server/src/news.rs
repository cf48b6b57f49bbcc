//! Tells clients that what they may use has changed.

use std::sync::Arc;

use tokio::sync::watch;
use toolbus_core::caller::Caller;

use crate::backend::Backend;
use crate::sessions::Session;

/// The notification of other tools.
pub(crate) const TOOLS: &str = "notifications/tools/list_changed";
/// The notification of other texts.
pub(crate) const RESOURCES: &str = "notifications/resources/list_changed";

/// What has changed for one client.
pub(crate) struct News {
    backend: Arc<dyn Backend>,
    caller: Arc<Caller>,
    changes: watch::Receiver<u64>,
    told: (u64, u64),
    waiting: Vec<&'static str>,
}

impl News {
    /// News from now on; for a session, from what it listed last on: what an earlier stream told may have been lost with it.
    pub(crate) async fn begin(backend: Arc<dyn Backend>, caller: Arc<Caller>, session: Option<&Session>) -> Self {
        let mut changes = backend.changes();
        changes.borrow_and_update();
        let now = backend.fingerprints(&caller).await;
        let told = session.map_or(now, |session| session.listed(now));
        let mut news = Self { backend, caller, changes, told, waiting: Vec::new() };
        news.compare(now);
        news
    }

    /// The next notification that is due; none when there will be no more.
    pub(crate) async fn next(&mut self) -> Option<&'static str> {
        loop {
            if let Some(notification) = self.waiting.pop() {
                return Some(notification);
            }
            self.changes.changed().await.ok()?;
            let now = self.backend.fingerprints(&self.caller).await;
            self.compare(now);
        }
    }

    fn compare(&mut self, now: (u64, u64)) {
        if now.1 != self.told.1 {
            self.waiting.push(RESOURCES);
        }
        if now.0 != self.told.0 {
            self.waiting.push(TOOLS);
        }
        self.told = now;
    }
}
