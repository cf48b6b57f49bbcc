//! The state that the bus shows, changed by the keepers of its connections and by its consumers.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use toolbus_core::bus::BusState;

use super::link::Role;

/// Longest reason, in characters: what brokers and proxies send is theirs to choose.
const MAX_REASON: usize = 400;

#[derive(Default)]
pub(super) struct State {
    shown: watch::Sender<BusState>,
    open: Mutex<Open>,
}

/// Which connections are open.
#[derive(Default)]
struct Open {
    consume: bool,
    publish: bool,
}

impl State {
    pub(super) fn watch(&self) -> watch::Receiver<BusState> {
        self.shown.subscribe()
    }

    /// A connection has been opened.
    pub(super) fn opened(&self, role: Role) {
        let connected = self.mark(role, true);
        self.shown.send_modify(|state| {
            state.connected = connected;
            if connected {
                state.last_error = None;
            }
        });
    }

    /// An open connection was lost.
    pub(super) fn lost(&self, role: Role, reason: &str) {
        self.mark(role, false);
        self.shown.send_modify(|state| {
            state.connected = false;
            state.reconnects += 1;
            state.last_error = Some(bounded(reason));
            if role == Role::Publish {
                state.blocked = None;
            }
        });
    }

    /// A connection was closed by us.
    pub(super) fn closed(&self, role: Role) {
        self.mark(role, false);
        self.shown.send_modify(|state| state.connected = false);
    }

    /// Something could not be opened, declared or subscribed; it is tried again.
    pub(super) fn failed(&self, reason: &str) {
        self.shown.send_modify(|state| state.last_error = Some(bounded(reason)));
    }

    /// Something is wrong that no retry mends. The first such text stays.
    pub(super) fn fatal(&self, reason: &str) {
        self.shown.send_modify(|state| {
            state.fatal.get_or_insert_with(|| bounded(reason));
        });
    }

    /// The broker takes no messages, or takes them again.
    pub(super) fn blocked(&self, reason: Option<&str>) {
        self.shown.send_modify(|state| state.blocked = reason.map(bounded));
    }

    /// A queue that is meant to be consumed. Gives its place for [`State::consuming`].
    pub(super) fn add_consumer(&self, queue: &str) -> usize {
        let mut place = 0;
        self.shown.send_modify(|state| {
            place = state.consumers.len();
            state.consumers.push((queue.to_owned(), false));
        });
        place
    }

    /// Whether the broker has confirmed the consumer at this place. A confirmed one ends the last error's story.
    pub(super) fn consuming(&self, place: usize, confirmed: bool) {
        self.shown.send_modify(|state| {
            if let Some(consumer) = state.consumers.get_mut(place) {
                consumer.1 = confirmed;
            }
            if confirmed && state.connected && state.consumers.iter().all(|consumer| consumer.1) {
                state.last_error = None;
            }
        });
    }

    fn mark(&self, role: Role, now: bool) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match role {
            Role::Consume => open.consume = now,
            Role::Publish => open.publish = now,
        }
        open.consume && open.publish
    }
}

fn bounded(text: &str) -> String {
    text.chars().take(MAX_REASON).collect()
}

#[cfg(test)]
mod tests {
    use super::{MAX_REASON, State};
    use crate::rabbitmq::link::Role;

    #[test]
    fn it_is_connected_when_both_connections_are_open() {
        let state = State::default();
        state.opened(Role::Consume);
        assert!(!state.watch().borrow().connected);
        state.opened(Role::Publish);
        assert!(state.watch().borrow().connected);
        state.lost(Role::Consume, "gone");
        let shown = state.watch().borrow().clone();
        assert_eq!((shown.connected, shown.reconnects, shown.last_error.as_deref()), (false, 1, Some("gone")));
    }

    #[test]
    fn losing_the_publishing_connection_ends_its_block() {
        let state = State::default();
        state.blocked(Some("low on memory"));
        state.lost(Role::Consume, "gone");
        assert!(state.watch().borrow().blocked.is_some());
        state.lost(Role::Publish, "gone");
        assert!(state.watch().borrow().blocked.is_none());
    }

    #[test]
    fn the_first_fatal_reason_stays_and_is_bounded() {
        let state = State::default();
        state.fatal(&"x".repeat(1_000));
        state.fatal("another");
        assert_eq!(state.watch().borrow().fatal.as_ref().map(String::len), Some(MAX_REASON));
    }
}
