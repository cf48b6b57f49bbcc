//! Answers that were given, kept for requests that the broker delivers again.
//!
//! A broker redelivers whatever was not acknowledged when a connection broke, also when its answer had already left.
//! Where an acknowledgement cannot be lost, answers are not kept. Only deliveries that the broker marks as redelivered are looked up: two requests that merely look alike are two.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};

use lru::LruCache;

use toolbus_protocol::header;

use crate::answer::Reply;
use crate::bus::{Delivery, Settle};

/// What identifies a request: who sent it, its ids, and its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key(u64);

/// The calls under way, and the last answers, which are bounded in number and in bytes.
pub(crate) struct Replay {
    hasher: RandomState,
    entries: Mutex<Entries>,
    max_bytes: usize,
}

struct Entries {
    /// The calls under way, each with the slot through which its delivery is settled. Apart from the answers, so that no
    /// number of answers makes a running call unknown. A call that was dropped leaves a slot that is gone.
    running: HashMap<Key, Weak<Slot>>,
    /// The calls that were answered; without the answer when it was too much to keep.
    answers: LruCache<Key, Option<Arc<Reply>>>,
    bytes: usize,
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

    /// Whether a delivery that is acknowledged now never comes again.
    pub(crate) fn is_sure(&self) -> bool {
        lock(&self.0).as_ref().is_some_and(|settle| settle.is_sure())
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
    Answered(Box<dyn Settle>, Arc<Reply>),
    /// It was answered, and the answer is no longer kept.
    Forgotten(Box<dyn Settle>),
}

impl Replay {
    /// Keeps at most `max_entries` answers, of `max_bytes` together.
    pub(crate) fn new(max_entries: NonZeroUsize, max_bytes: usize) -> Self {
        let entries = Entries { running: HashMap::new(), answers: LruCache::new(max_entries), bytes: 0 };
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
        delivery.routing_key.hash(&mut hasher);
        // What a caller may use depends on these; whatever else was sent is the same in the same message.
        for (name, value) in &properties.headers {
            if name == header::SOURCE || name.ends_with(header::BINDING) || name.ends_with(header::TOOL_PROFILE) {
                (name, value).hash(&mut hasher);
            }
        }
        hasher.write(&delivery.body);
        Some(Key(hasher.finish()))
    }

    /// Whether a request is running, or was answered.
    pub(crate) fn knows(&self, key: Key) -> bool {
        let entries = self.lock();
        entries.answers.contains(&key) || entries.running.get(&key).is_some_and(|slot| slot.strong_count() > 0)
    }

    /// Looks up a redelivered request; one that is still running takes the delivery over.
    pub(crate) fn look_up(&self, key: Key, settle: Box<dyn Settle>) -> Seen {
        let mut entries = self.lock();
        if let Some(slot) = entries.running.get(&key).and_then(Weak::upgrade) {
            return Seen::Running(slot.replace(settle));
        }
        match entries.answers.get(&key) {
            None => Seen::Never(settle),
            Some(Some(answer)) => Seen::Answered(settle, Arc::clone(answer)),
            Some(None) => Seen::Forgotten(settle),
        }
    }

    /// Notes that a call is under way. An earlier answer was that of another request.
    pub(crate) fn begin(&self, key: Key, slot: &Arc<Slot>) {
        self.lock().remove_answer(key);
        self.resume(key, slot);
    }

    /// Notes that a call which was answered before is answered again, so that one delivery at a time does that.
    pub(crate) fn resume(&self, key: Key, slot: &Arc<Slot>) {
        let mut entries = self.lock();
        if entries.running.len() >= entries.answers.cap().get() {
            entries.running.retain(|_, slot| slot.strong_count() > 0);
        }
        entries.running.insert(key, Arc::downgrade(slot));
    }

    /// Notes how a call was answered.
    pub(crate) fn answered(&self, key: Key, slot: &Arc<Slot>, answer: Arc<Reply>) {
        let mut entries = self.lock();
        entries.end(key, slot);
        entries.put_answer(key, answer, self.max_bytes);
    }

    /// Forgets a call that goes back to its queue.
    pub(crate) fn forget(&self, key: Key, slot: &Arc<Slot>) {
        self.lock().end(key, slot);
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        lock(&self.entries)
    }
}

impl Entries {
    /// Removes a call that is no longer under way, unless the entry is that of a later one like it.
    fn end(&mut self, key: Key, slot: &Arc<Slot>) {
        if self.running.get(&key).is_some_and(|known| known.as_ptr() == Arc::as_ptr(slot)) {
            self.running.remove(&key);
        }
    }

    fn put_answer(&mut self, key: Key, answer: Arc<Reply>, max_bytes: usize) {
        self.bytes += answer.size();
        if let Some((_, replaced)) = self.answers.push(key, Some(answer)) {
            self.bytes -= size(replaced.as_ref());
        }
        if self.bytes > max_bytes {
            self.shed(max_bytes);
        }
    }

    fn remove_answer(&mut self, key: Key) {
        if let Some(answer) = self.answers.pop(&key) {
            self.bytes -= size(answer.as_ref());
        }
    }

    /// Gives up the oldest answers, keeping the knowledge that there was one.
    fn shed(&mut self, max_bytes: usize) {
        for (_, answer) in self.answers.iter_mut().rev() {
            if self.bytes <= max_bytes {
                break;
            }
            self.bytes -= size(answer.take().as_ref());
        }
    }
}

/// Memory of what is kept of an answer, in bytes.
fn size(answer: Option<&Arc<Reply>>) -> usize {
    answer.map_or(0, |answer| answer.size())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
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

    fn answer(bytes: usize) -> Arc<Reply> {
        Arc::new(Reply::for_test(bytes))
    }

    fn slot() -> Arc<Slot> {
        Slot::new(Box::new(Nobody))
    }

    #[test]
    fn an_unknown_request_was_never_seen() {
        assert!(matches!(replay(4, 100).look_up(Key(1), Box::new(Nobody)), Seen::Never(_)));
    }

    #[test]
    fn an_answer_is_given_again() {
        let replay = replay(4, 10_000);
        let given = answer(10);
        replay.answered(Key(1), &slot(), Arc::clone(&given));
        let Seen::Answered(_, again) = replay.look_up(Key(1), Box::new(Nobody)) else { panic!("not kept") };
        assert!(Arc::ptr_eq(&given, &again));
    }

    #[test]
    fn a_running_call_takes_the_delivery_over_and_gives_the_forgotten_one_back() {
        let replay = replay(4, 10_000);
        let slot = slot();
        replay.begin(Key(1), &slot);
        assert!(matches!(replay.look_up(Key(1), Box::new(Nobody)), Seen::Running(Some(_))));
        assert!(slot.take().is_some());
    }

    #[test]
    fn the_oldest_answers_go_first_and_are_known_to_have_been_given() {
        let replay = replay(4, 10_000);
        for key in 0..3 {
            replay.answered(Key(key), &slot(), answer(4_000));
        }
        assert!(matches!(replay.look_up(Key(0), Box::new(Nobody)), Seen::Forgotten(_)));
        assert!(matches!(replay.look_up(Key(2), Box::new(Nobody)), Seen::Answered(..)));
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let replay = replay(2, 1_000_000);
        for key in 0..100 {
            replay.answered(Key(key), &slot(), answer(10));
        }
        assert_eq!(replay.lock().answers.len(), 2);
        assert_eq!(replay.lock().bytes, 2 * answer(10).size());
    }

    #[test]
    fn no_number_of_answers_makes_a_running_call_unknown() {
        let replay = replay(2, 1_000_000);
        let running = slot();
        replay.begin(Key(1_000), &running);
        for key in 0..100 {
            replay.answered(Key(key), &slot(), answer(10));
        }
        assert!(matches!(replay.look_up(Key(1_000), Box::new(Nobody)), Seen::Running(Some(_))));
    }

    #[test]
    fn a_call_that_goes_back_is_forgotten() {
        let replay = replay(2, 1_000);
        let slot = slot();
        replay.begin(Key(1), &slot);
        replay.forget(Key(1), &slot);
        assert!(matches!(replay.look_up(Key(1), Box::new(Nobody)), Seen::Never(_)));
    }

    #[test]
    fn a_call_that_was_dropped_counts_as_never_seen() {
        let replay = replay(2, 1_000);
        replay.begin(Key(1), &slot());
        assert!(matches!(replay.look_up(Key(1), Box::new(Nobody)), Seen::Never(_)));
    }

    #[test]
    fn dropped_calls_do_not_pile_up() {
        let replay = replay(2, 1_000);
        for key in 0..100 {
            replay.begin(Key(key), &slot());
        }
        assert!(replay.lock().running.len() <= 2);
    }

    #[test]
    fn the_end_of_one_call_does_not_end_another_like_it() {
        let replay = replay(2, 1_000_000);
        let (first, second) = (slot(), slot());
        replay.begin(Key(1), &first);
        replay.begin(Key(1), &second);
        replay.answered(Key(1), &first, answer(10));
        assert!(matches!(replay.look_up(Key(1), Box::new(Nobody)), Seen::Running(_)));
    }

    #[test]
    fn a_new_call_like_an_answered_one_is_not_taken_for_it() {
        let replay = replay(2, 1_000_000);
        let slot = slot();
        replay.answered(Key(1), &slot, answer(10));
        replay.begin(Key(1), &slot);
        replay.forget(Key(1), &slot);
        assert!(matches!(replay.look_up(Key(1), Box::new(Nobody)), Seen::Never(_)));
        assert_eq!(replay.lock().bytes, 0);
    }
}
