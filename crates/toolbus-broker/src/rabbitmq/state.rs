//! The state that the bus shows, changed by the supervisors of its connections and by its consumers.

use std::fmt;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use toolbus_bus::BusState;

/// Longest reason, in characters: what brokers and proxies send is theirs to choose.
const MAX_REASON: usize = 400;

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    Consume,
    Publish,
    Ask,
}

impl ConnectionKind {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Consume => "consume",
            Self::Publish => "publish",
            Self::Ask => "ask",
        }
    }
}

impl fmt::Display for ConnectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Default)]
pub(super) struct StateTracker {
    shown: watch::Sender<BusState>,
    /// Locked until the shown state is set that follows from a change: changes of two supervisors must be shown in the
    /// order in which they were noted.
    hidden: Mutex<Hidden>,
}

/// Facts from which the shown state follows.
#[derive(Default)]
struct Hidden {
    /// Whether the connection for consuming is open, and that for publishing.
    consume: bool,
    publish: bool,
    /// The broker's reason to take no messages.
    alarm: Option<String>,
    /// State of a broker that does not confirm them, without a reason.
    unconfirmed: Option<String>,
    /// Numbers of the consumers, in the order of the shown ones.
    consumers: Vec<u64>,
    last_consumer: u64,
}

impl StateTracker {
    pub(super) fn watch(&self) -> watch::Receiver<BusState> {
        self.shown.subscribe()
    }

    /// Notes that a connection was opened.
    pub(super) fn opened(&self, kind: ConnectionKind) {
        let mut hidden = self.hidden();
        hidden.mark(kind, true);
        let connected = hidden.consume && hidden.publish;
        self.shown.send_modify(|state| {
            state.connected = connected;
            state.refused = None;
            if connected {
                state.last_error = None;
            }
        });
    }

    /// Notes that an open connection was lost.
    pub(super) fn lost(&self, kind: ConnectionKind, reason: &str) {
        let mut hidden = self.hidden();
        hidden.mark(kind, false);
        if kind == ConnectionKind::Publish {
            (hidden.alarm, hidden.unconfirmed) = (None, None);
        }
        let blocked = hidden.blocked();
        self.shown.send_modify(|state| {
            state.connected = false;
            if kind == ConnectionKind::Consume {
                state.depths.clear();
                state.dead_letters.clear();
            }
            state.blocked = blocked;
            state.reconnects += 1;
            state.last_error = Some(bounded(reason));
        });
    }

    /// Notes that this side closed a connection.
    pub(super) fn closed(&self, kind: ConnectionKind) {
        let mut hidden = self.hidden();
        hidden.mark(kind, false);
        self.shown.send_modify(|state| state.connected = false);
    }

    /// Notes that something could not be opened, declared or subscribed; it is tried again.
    pub(super) fn failed(&self, reason: &str) {
        self.shown.send_modify(|state| state.last_error = Some(bounded(reason)));
    }

    /// Notes that the broker refuses this client; it is tried again.
    pub(super) fn refused(&self, reason: &str) {
        self.shown.send_modify(|state| {
            state.refused = Some(bounded(reason));
            state.last_error = Some(bounded(reason));
        });
    }

    /// Notes an error that no retry mends. The first one stays.
    pub(super) fn fatal(&self, reason: &str) {
        self.shown.send_modify(|state| {
            state.fatal.get_or_insert_with(|| bounded(reason));
        });
    }

    /// Notes why the broker takes no messages; `None` if it takes them again.
    pub(super) fn blocked(&self, reason: Option<&str>) {
        self.block(|hidden| hidden.alarm = reason.map(bounded));
    }

    /// Notes that the broker does not confirm messages; `None` if it confirms them again.
    pub(super) fn unconfirmed(&self, reason: Option<&str>) {
        self.block(|hidden| hidden.unconfirmed = reason.map(bounded));
    }

    /// Whether the broker takes no messages.
    pub(super) fn is_blocked(&self) -> bool {
        self.shown.borrow().blocked.is_some()
    }

    fn block(&self, change: impl FnOnce(&mut Hidden)) {
        let mut hidden = self.hidden();
        change(&mut hidden);
        let blocked = hidden.blocked();
        self.shown.send_if_modified(|state| {
            let is_other = state.blocked != blocked;
            state.blocked = blocked;
            is_other
        });
    }

    /// Adds a consumer of a queue, and returns its number.
    pub(super) fn add_consumer(&self, queue: &str) -> u64 {
        let mut hidden = self.hidden();
        hidden.last_consumer += 1;
        let id = hidden.last_consumer;
        hidden.consumers.push(id);
        self.shown.send_modify(|state| state.consumers.push((queue.to_owned(), false)));
        id
    }

    /// Removes a consumer whose receiver is gone.
    pub(super) fn remove_consumer(&self, id: u64) {
        let mut hidden = self.hidden();
        if let Some(index) = hidden.consumers.iter().position(|it| *it == id) {
            hidden.consumers.remove(index);
            self.shown.send_modify(|state| drop(state.consumers.remove(index)));
        }
    }

    /// Whether the broker has confirmed this consumer. Once all is well, the last error is forgotten.
    pub(super) fn consuming(&self, id: u64, confirmed: bool) {
        let hidden = self.hidden();
        let index = hidden.consumers.iter().position(|it| *it == id);
        self.shown.send_modify(|state| {
            if let Some(consumer) = index.and_then(|index| state.consumers.get_mut(index)) {
                consumer.1 = confirmed;
            }
            if state.is_ready() {
                (state.last_error, state.refused) = (None, None);
            }
        });
    }

    /// Notes how many messages wait in a queue, and how many dead letters it has; `None` if that is not known.
    pub(super) fn depth(&self, queue: &str, messages: Option<u32>, dead_letters: Option<u32>) {
        self.shown.send_if_modified(|state| {
            for (counts, count) in [(&mut state.depths, messages), (&mut state.dead_letters, dead_letters)] {
                match count {
                    Some(count) => drop(counts.insert(queue.to_owned(), count)),
                    None => drop(counts.remove(queue)),
                }
            }
            false
        });
    }

    fn hidden(&self) -> MutexGuard<'_, Hidden> {
        self.hidden.lock()
    }
}

impl Hidden {
    fn mark(&mut self, kind: ConnectionKind, is_open: bool) {
        match kind {
            ConnectionKind::Consume => self.consume = is_open,
            ConnectionKind::Publish => self.publish = is_open,
            ConnectionKind::Ask => {}
        }
    }

    /// The reason that is shown: the broker's own comes first.
    fn blocked(&self) -> Option<String> {
        self.alarm.clone().or_else(|| self.unconfirmed.clone())
    }
}

fn bounded(text: &str) -> String {
    text.chars().take(MAX_REASON).collect()
}

#[cfg(test)]
mod tests {
    use super::{ConnectionKind, MAX_REASON, StateTracker};

    #[test]
    fn it_is_connected_when_both_connections_are_open() {
        let state = StateTracker::default();
        state.opened(ConnectionKind::Consume);
        assert!(!state.watch().borrow().connected);
        state.opened(ConnectionKind::Publish);
        assert!(state.watch().borrow().connected);
        state.lost(ConnectionKind::Consume, "gone");
        let shown = state.watch().borrow().clone();
        assert_eq!((shown.connected, shown.reconnects, shown.last_error.as_deref()), (false, 1, Some("gone")));
    }

    #[test]
    fn connections_that_are_opened_at_the_same_time_are_shown_as_connected() {
        for round in 0..500 {
            let state = StateTracker::default();
            let watch = state.watch();
            // A reader holds up both where they show what they have noted.
            let reader = watch.borrow();
            std::thread::scope(|scope| {
                scope.spawn(|| state.opened(ConnectionKind::Consume));
                scope.spawn(|| state.opened(ConnectionKind::Publish));
                while state.hidden.try_lock().is_some_and(|hidden| !(hidden.consume && hidden.publish)) {
                    std::thread::yield_now();
                }
                drop(reader);
            });
            assert!(watch.borrow().connected, "round {round}");
        }
    }

    #[test]
    fn a_consumer_that_is_removed_no_longer_counts() {
        let state = StateTracker::default();
        let (first, second) = (state.add_consumer("a"), state.add_consumer("b"));
        state.remove_consumer(first);
        state.consuming(first, true);
        state.consuming(second, true);
        assert_eq!(state.watch().borrow().consumers, [("b".to_owned(), true)]);
    }

    #[test]
    fn losing_the_publishing_connection_ends_its_block() {
        let state = StateTracker::default();
        state.blocked(Some("low on memory"));
        state.lost(ConnectionKind::Consume, "gone");
        assert!(state.watch().borrow().blocked.is_some());
        state.lost(ConnectionKind::Publish, "gone");
        assert!(state.watch().borrow().blocked.is_none());
    }

    #[test]
    fn a_blocked_connection_is_shown_before_missing_confirms() {
        let state = StateTracker::default();
        let shown = || state.watch().borrow().blocked.clone();
        state.unconfirmed(Some("no confirm"));
        state.blocked(Some("low on memory"));
        assert_eq!(shown().as_deref(), Some("low on memory"));
        state.blocked(None);
        assert_eq!(shown().as_deref(), Some("no confirm"));
        state.unconfirmed(None);
        assert_eq!(shown(), None);
    }

    #[test]
    fn the_first_fatal_reason_stays_and_is_bounded() {
        let state = StateTracker::default();
        state.fatal(&"x".repeat(1_000));
        state.fatal("another");
        assert_eq!(state.watch().borrow().fatal.as_ref().map(String::len), Some(MAX_REASON));
    }
}
