//! Notifications of a server, and the state of its connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rmcp::RoleClient;
use rmcp::model::{
    ClientRequest, ErrorCode, NumberOrString, ProgressNotificationParam, ProgressToken, SubscriptionFilter,
    SubscriptionsListenRequest, SubscriptionsListenRequestParams,
};
use rmcp::service::{Peer, PeerRequestOptions, ServiceError};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use toolbus_core::Clock;
use toolbus_core::progress::{Progress, ProgressSink};

use super::failure::shown;
use super::inflight::PendingRequest;

/// Most calls with progress at a time; further ones run without.
const MAX_FOLLOWED: usize = 4_096;
/// Longest text of a progress report, in characters.
const MAX_MESSAGE: usize = 1_000;

/// Reason why a connection has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectionEnd {
    /// The reason, for operators.
    pub(super) why: Arc<str>,
    /// Whether this side closed it.
    pub(super) is_ours: bool,
}

/// Shared by a connection and the filter of its transport.
#[derive(Debug, Default)]
pub(super) struct Notifications {
    list_changes: watch::Sender<u64>,
    end: watch::Sender<Option<ConnectionEnd>>,
    followed: Mutex<HashMap<u64, ProgressSink>>,
    next_token: AtomicU64,
    is_subscribed: AtomicBool,
    is_initializing: AtomicBool,
    initialize_sent: Notify,
    is_probe_passed_over: AtomicBool,
    is_late: AtomicBool,
}

/// Marks a request whose progress is followed, on its way to the filter.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProgressMark(u64);

impl ProgressMark {
    /// As it goes over the wire.
    pub(super) fn wire(self) -> ProgressToken {
        ProgressToken(NumberOrString::Number(self.0.cast_signed()))
    }
}

/// A call whose progress is followed, until dropped.
#[derive(Debug)]
pub(super) struct Followed {
    notifications: Arc<Notifications>,
    pub(super) token: ProgressMark,
}

impl Notifications {
    /// Counts a change of the server's list of tools.
    pub(super) fn list_changed(&self) {
        self.list_changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(super) fn list_changes(&self) -> watch::Receiver<u64> {
        self.list_changes.subscribe()
    }

    /// Notes the begin of a subscription. A second one counts as a change: changes between the two were missed.
    pub(super) fn subscribed(&self) {
        if self.is_subscribed.swap(true, Ordering::Relaxed) {
            self.list_changed();
        }
    }

    /// Notes that `initialize` is being sent.
    pub(super) fn initializing(&self) {
        self.is_initializing.store(true, Ordering::Relaxed);
        self.initialize_sent.notify_one();
    }

    /// Returns when `initialize` is being sent.
    pub(super) async fn initialize_sent(&self) {
        self.initialize_sent.notified().await;
    }

    /// Whether `initialize` was sent.
    pub(super) fn is_initializing(&self) -> bool {
        self.is_initializing.load(Ordering::Relaxed)
    }

    /// Notes that the server did not respond to the probe, and gets `initialize`.
    pub(super) fn pass_over_probe(&self) {
        self.is_probe_passed_over.store(true, Ordering::Relaxed);
    }

    /// Whether the server did not respond to the probe.
    pub(super) fn is_probe_passed_over(&self) -> bool {
        self.is_probe_passed_over.load(Ordering::Relaxed)
    }

    /// Notes a late response to the probe: the server is stateless.
    pub(super) fn late(&self) {
        self.is_late.store(true, Ordering::Relaxed);
    }

    /// Whether the response to the probe came late.
    pub(super) fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Relaxed)
    }

    /// Ends the connection. The first reason counts.
    pub(super) fn end(&self, why: &str, is_ours: bool) {
        self.end.send_if_modified(|end| {
            let is_first = end.is_none();
            end.get_or_insert_with(|| ConnectionEnd { why: why.into(), is_ours });
            is_first
        });
    }

    /// Reason why the connection is over, if it is.
    pub(super) fn why_ended(&self) -> Option<ConnectionEnd> {
        self.end.borrow().clone()
    }

    /// Returns when the connection is over.
    pub(super) async fn ended(&self) -> ConnectionEnd {
        let mut end = self.end.subscribe();
        loop {
            if let Some(end) = end.borrow_and_update().clone() {
                return end;
            }
            // `self` holds the sender, so that the channel stays open.
            let _ = end.changed().await;
        }
    }

    /// Sends the progress of a call to `sink`, unless too many are followed.
    pub(super) fn follow(self: &Arc<Self>, sink: &ProgressSink) -> Option<Followed> {
        let mut followed = self.followed();
        if followed.len() >= MAX_FOLLOWED {
            return None;
        }
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        followed.insert(token, sink.clone());
        Some(Followed { notifications: Arc::clone(self), token: ProgressMark(token) })
    }

    /// Passes a report to its call, if that wants progress.
    pub(super) fn progressed(&self, report: ProgressNotificationParam) {
        let ProgressNotificationParam { progress_token, progress, total, message, .. } = report;
        let token = match progress_token.0 {
            NumberOrString::Number(number) => u64::try_from(number).ok(),
            NumberOrString::String(text) => text.parse().ok(),
        };
        let followed = self.followed();
        if let Some(sink) = token.and_then(|token| followed.get(&token)) {
            sink.report(Progress {
                progress,
                total,
                message: message.map(|text| shown(&sink.clean(&text), MAX_MESSAGE)),
            });
        }
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<u64, ProgressSink>> {
        self.followed.lock()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.notifications.followed().remove(&self.token.0);
    }
}

/// Wait before a subscription that ended is opened again; doubled with each that is short.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Longest wait, and the time after which a subscription was not short.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// Keeps a subscription open until the server responds that it has none. The filter receives its notifications.
pub(super) async fn keep(peer: Peer<RoleClient>, clock: Clock) {
    let mut wait = FIRST_WAIT;
    loop {
        let opened = clock.now();
        if let Err(ServiceError::McpError(error)) = listen(&peer).await
            && error.code == ErrorCode::METHOD_NOT_FOUND
        {
            return;
        }
        if clock.since(opened) >= MAX_WAIT {
            wait = FIRST_WAIT;
        }
        sleep(wait).await;
        wait = (wait * 2).min(MAX_WAIT);
    }
}

async fn listen(peer: &Peer<RoleClient>) -> Result<(), ServiceError> {
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    let params = SubscriptionsListenRequestParams::new(filter);
    let request = ClientRequest::SubscriptionsListenRequest(SubscriptionsListenRequest::new(params));
    let handle = peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
    PendingRequest::new(handle).response().await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(token: i64) -> ProgressNotificationParam {
        ProgressNotificationParam::new(ProgressToken(NumberOrString::Number(token)), 1.0)
    }

    #[test]
    fn the_first_reason_of_an_end_counts() {
        let notifications = Notifications::default();
        notifications.end("first", false);
        notifications.end("second", true);
        assert_eq!(notifications.why_ended(), Some(ConnectionEnd { why: "first".into(), is_ours: false }));
    }

    #[test]
    fn only_progress_of_followed_calls_is_passed_on() {
        let notifications = Arc::new(Notifications::default());
        let (sink, mut reports) = ProgressSink::new();
        let followed = notifications.follow(&sink).unwrap();
        notifications.progressed(report(7));
        notifications.progressed(report(-1));
        assert!(reports.try_recv().is_err());
        notifications.progressed(report(0));
        assert_eq!(reports.try_recv().unwrap().progress, 1.0);
        drop(followed);
        notifications.progressed(report(0));
        assert!(reports.try_recv().is_err());
    }

    #[test]
    fn followed_calls_are_bounded_and_forgotten_afterwards() {
        let notifications = Arc::new(Notifications::default());
        let (sink, _reports) = ProgressSink::new();
        let followed: Vec<_> = std::iter::from_fn(|| notifications.follow(&sink)).take(MAX_FOLLOWED + 1).collect();
        assert_eq!(followed.len(), MAX_FOLLOWED);
        drop(followed);
        assert!(notifications.followed().is_empty());
    }

    #[test]
    fn a_second_subscription_counts_as_a_change() {
        let notifications = Notifications::default();
        let changes = notifications.list_changes();
        notifications.subscribed();
        assert_eq!(*changes.borrow(), 0);
        notifications.subscribed();
        assert_eq!(*changes.borrow(), 1);
    }
}
