//! Answers that were given, kept for requests that the broker delivers again.
//!
//! A broker redelivers whatever was not acknowledged when a connection broke, also when its answer had already left.
//! Only deliveries that the broker marks as redelivered are looked up: two requests that merely look alike are two.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;

use crate::answer::Answer;
use crate::bus::{Delivery, Settle};

/// What identifies a request: who sent it, its ids, and its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key(u64);

/// The last answers, bounded in number and in bytes.
pub(crate) struct Replay {
    hasher: RandomState,
    entries: Mutex<Entries>,
    max_bytes: usize,
}

struct Entries {
    by_key: LruCache<Key, Entry>,
    bytes: usize,
}

enum Entry {
    /// The call is under way; its delivery is settled through this slot.
    Running(Arc<Slot>),
    /// The call was answered; absent when the answer was too much to keep.
    Answered(Option<Arc<Answer>>),
}

/// Holds the one delivery by which a running call can be settled: the latest, because the broker takes a message back
/// before it delivers it again.
#[derive(Default)]
pub(crate) struct Slot(Mutex<Option<Box<dyn Settle>>>);

impl Slot {
    pub(crate) fn new(settle: Box<dyn Settle>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(settle))))
    }

    /// Takes the delivery out, to settle it.
    pub(crate) fn take(&self) -> Option<Box<dyn Settle>> {
        lock(&self.0).take()
    }

    /// Puts a later delivery in; the earlier one, which the broker has forgotten, comes back.
    fn replace(&self, settle: Box<dyn Settle>) -> Option<Box<dyn Settle>> {
        lock(&self.0).replace(settle)
    }
}

/// What is known of a request that was delivered again.
///
/// The delivery comes back, except from a running call, which gives an earlier one that the broker has forgotten.
pub(crate) enum Seen {
    /// Nothing: it is run.
    Never(Box<dyn Settle>),
    /// It is still running: the running call has taken the delivery over.
    Running(Option<Box<dyn Settle>>),
    /// It was answered like this.
    Answered(Box<dyn Settle>, Arc<Answer>),
    /// It was answered, and the answer is no longer kept.
    Forgotten(Box<dyn Settle>),
}

impl Replay {
    pub(crate) fn new(max_entries: NonZeroUsize, max_bytes: usize) -> Self {
        let entries = Entries { by_key: LruCache::new(max_entries), bytes: 0 };
        Self { hasher: RandomState::new(), entries: Mutex::new(entries), max_bytes }
    }

    /// The key of a request; absent when it carries no id, because then nothing tells it from another like it.
    pub(crate) fn key(&self, delivery: &Delivery, has_call_id: bool) -> Option<Key> {
        let properties = &delivery.properties;
        let given = |id: &Option<String>| id.as_deref().is_some_and(|id| !id.is_empty());
        if !has_call_id && !given(&properties.message_id) && !given(&properties.correlation_id) {
            return None;
        }
        let mut hasher = self.hasher.build_hasher();
        properties.message_id.hash(&mut hasher);
        properties.correlation_id.hash(&mut hasher);
        properties.reply_to.hash(&mut hasher);
        properties.user_id.hash(&mut hasher);
        properties.timestamp.hash(&mut hasher);
        properties.header(toolbus_protocol::header::SOURCE).hash(&mut hasher);
        hasher.write(&delivery.body);
        Some(Key(hasher.finish()))
    }

    /// Looks up a redelivered request; one that is still running takes the delivery over.
    pub(crate) fn look_up(&self, key: Key, settle: Box<dyn Settle>) -> Seen {
        match self.lock().by_key.get(&key) {
            None => Seen::Never(settle),
            Some(Entry::Running(slot)) => Seen::Running(slot.replace(settle)),
            Some(Entry::Answered(Some(answer))) => Seen::Answered(settle, Arc::clone(answer)),
            Some(Entry::Answered(None)) => Seen::Forgotten(settle),
        }
    }

    /// Notes that a call is under way.
    pub(crate) fn begin(&self, key: Key, slot: &Arc<Slot>) {
        self.lock().put(key, Entry::Running(Arc::clone(slot)), self.max_bytes);
    }

    /// Notes how a call was answered.
    pub(crate) fn answered(&self, key: Key, answer: Arc<Answer>) {
        self.lock().put(key, Entry::Answered(Some(answer)), self.max_bytes);
    }

    /// Forgets a call that goes back to its queue.
    pub(crate) fn forget(&self, key: Key) {
        let mut entries = self.lock();
        if let Some(entry) = entries.by_key.pop(&key) {
            entries.bytes -= entry.size();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        lock(&self.entries)
    }
}

impl Entry {
    fn size(&self) -> usize {
        match self {
            Self::Answered(Some(answer)) => answer.size(),
            _ => 0,
        }
    }
}

impl Entries {
    fn put(&mut self, key: Key, entry: Entry, max_bytes: usize) {
        self.bytes += entry.size();
        if let Some((_, replaced)) = self.by_key.push(key, entry) {
            self.bytes -= replaced.size();
        }
        if self.bytes > max_bytes {
            self.shed(max_bytes);
        }
    }

    /// Gives up the oldest answers, keeping the knowledge that there was one.
    fn shed(&mut self, max_bytes: usize) {
        for (_, entry) in self.by_key.iter_mut().rev() {
            if self.bytes <= max_bytes {
                break;
            }
            if entry.size() > 0 {
                self.bytes -= entry.size();
                *entry = Entry::Answered(None);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Settle for Nobody {
        fn acknowledge(self: Box<Self>) -> futures_util::future::BoxFuture<'static, ()> {
            Box::pin(async {})
        }

        fn requeue(self: Box<Self>) -> futures_util::future::BoxFuture<'static, ()> {
            Box::pin(async {})
        }
    }

    fn replay(max_entries: usize, max_bytes: usize) -> Replay {
        Replay::new(NonZeroUsize::new(max_entries).unwrap(), max_bytes)
    }

    fn answer(bytes: usize) -> Arc<Answer> {
        Arc::new(Answer::for_test(bytes))
    }

    #[test]
    fn an_unknown_request_was_never_seen() {
        assert!(matches!(replay(4, 100).look_up(Key(1), Box::new(Nobody)), Seen::Never(_)));
    }

    #[test]
    fn an_answer_is_given_again() {
        let replay = replay(4, 10_000);
        let given = answer(10);
        replay.answered(Key(1), Arc::clone(&given));
        let Seen::Answered(_, again) = replay.look_up(Key(1), Box::new(Nobody)) else { panic!("not kept") };
        assert!(Arc::ptr_eq(&given, &again));
    }

    #[test]
    fn a_running_call_takes_the_delivery_over_and_gives_the_forgotten_one_back() {
        let replay = replay(4, 10_000);
        let slot = Slot::new(Box::new(Nobody));
        replay.begin(Key(1), &slot);
        assert!(matches!(replay.look_up(Key(1), Box::new(Nobody)), Seen::Running(Some(_))));
        assert!(slot.take().is_some());
    }

    #[test]
    fn the_oldest_answers_go_first_and_are_known_to_have_been_given() {
        let replay = replay(4, 10_000);
        for key in 0..3 {
            replay.answered(Key(key), answer(4_000));
        }
        assert!(matches!(replay.look_up(Key(0), Box::new(Nobody)), Seen::Forgotten(_)));
        assert!(matches!(replay.look_up(Key(2), Box::new(Nobody)), Seen::Answered(..)));
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let replay = replay(2, 1_000_000);
        for key in 0..100 {
            replay.answered(Key(key), answer(10));
        }
        assert_eq!(replay.lock().by_key.len(), 2);
        assert_eq!(replay.lock().bytes, 2 * answer(10).size());
    }

    #[test]
    fn a_call_that_goes_back_is_forgotten() {
        let replay = replay(2, 1_000);
        replay.answered(Key(1), answer(10));
        replay.forget(Key(1));
        assert!(matches!(replay.look_up(Key(1), Box::new(Nobody)), Seen::Never(_)));
        assert_eq!(replay.lock().bytes, 0);
    }
}
