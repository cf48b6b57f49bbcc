//! State changes for a service manager that expects them (`Type=notify` and `WatchdogSec=` of systemd).

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use toolbus_core::bus::BusState;

/// Longest wait for the broker before the daemon counts as started: a broker that is away must not fail the service.
const BROKER_TIME: Duration = Duration::from_secs(5);

/// Notifies the service manager that the daemon has started, and until it is dropped, twice in the watchdog's time,
/// that the runtime still runs tasks. Without a service manager nothing is sent.
#[derive(Debug)]
#[must_use]
pub(crate) struct ServiceManager {
    start: JoinSet<()>,
    _watchdog: JoinSet<()>,
}

impl ServiceManager {
    /// Notifies that the daemon has started once its bus is ready or has an error that an operator must mend, and in
    /// any case after [`BROKER_TIME`].
    pub(crate) fn starting(mut bus: watch::Receiver<BusState>) -> Self {
        let (mut start, mut watchdog) = (JoinSet::new(), JoinSet::new());
        start.spawn(async move {
            let settled = bus.wait_for(|bus| bus.is_ready() || bus.refused.is_some() || bus.fatal.is_some());
            let _ = timeout(BROKER_TIME, settled).await;
            notify(&[NotifyState::Ready]);
        });
        if let Some(time) = sd_notify::watchdog_enabled() {
            watchdog.spawn(feed(time / 2));
        }
        Self { start, _watchdog: watchdog }
    }

    /// Notifies that the daemon drains. The watchdog goes on.
    pub(crate) fn stopping(&mut self) {
        self.start.abort_all();
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
