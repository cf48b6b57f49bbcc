//! State changes for a service manager that expects them (`Type=notify` and `WatchdogSec=` of systemd).

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::JoinSet;

/// Notifies the service manager that the daemon has started, and until it is dropped, twice in the watchdog's time,
/// that the runtime still runs tasks. Without a service manager nothing is sent.
#[derive(Debug)]
#[must_use]
pub(crate) struct ServiceManager {
    _watchdog: JoinSet<()>,
}

impl ServiceManager {
    /// Notifies that the daemon has started: it waits for its broker from now on, whether there is one or not.
    pub(crate) fn started() -> Self {
        notify(&[NotifyState::Ready]);
        let mut watchdog = JoinSet::new();
        if let Some(time) = sd_notify::watchdog_enabled() {
            watchdog.spawn(feed(time / 2));
        }
        Self { _watchdog: watchdog }
    }

    /// Notifies that the daemon drains. The watchdog goes on.
    pub(crate) fn stopping(&self) {
        notify(&[NotifyState::Stopping]);
    }
}

async fn feed(period: Duration) {
    let mut period = tokio::time::interval(period.max(Duration::from_millis(1)));
    loop {
        period.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be told of the daemon's state ($NOTIFY_SOCKET)");
    }
}
