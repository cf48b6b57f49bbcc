//! Requests under way and replies that were given, as far as this process knows.
//!
//! A broker redelivers whatever was not acknowledged when a connection broke, also when its reply had already left; and
//! a publisher that lost its confirm publishes again. Either attaches to the run that is under way. Replies are given
//! again to redelivered requests only: the ledger knows of calls that must not run twice. Where an acknowledgement
//! cannot be lost, replies are not kept.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::future::pending;
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};

use lru::LruCache;
use tokio_util::sync::CancellationToken;

use super::key::{IdentityKind, LocalIdentity, LocalKey};
use super::ledger::Fingerprint;
use crate::bus::Settle;
use crate::reply::Reply;

/// The calls under way, and the last replies, which are bounded in number and in bytes. `A` is what attaches to a call.
pub(crate) struct Replay<A> {
    entries: Mutex<Entries<A>>,
    max_bytes: usize,
}

struct Entries<A> {
    /// The calls under way. Apart from the replies, so that no number of replies makes a running call unknown. A call
    /// that was dropped leaves a slot that is gone.
    running: HashMap<LocalKey, Run<A>>,
    /// The answered calls; without the reply when it was too much to keep.
    replies: LruCache<ReplyKey, Option<Arc<Reply>>>,
    bytes: usize,
}

/// A key stands for one request; another request with it is refused, and the refusal is a reply, too.
type ReplyKey = (LocalKey, Fingerprint);

struct Run<A> {
    slot: Weak<Slot<A>>,
    fingerprint: Fingerprint,
}

/// Holds what a running call settles in the end: its delivery, and the duplicates that have attached.
pub(crate) struct Slot<A> {
    /// Digest of where the reply goes and how it is addressed.
    reply_to: u64,
    held: Mutex<Held<A>>,
}

struct Held<A> {
    /// One delivery is enough for all that want the same reply at the same address: the latest, because the broker
    /// takes a message back before it delivers it again.
    settle: Option<Box<dyn Settle>>,
    /// Whether a later delivery that was put in is a redelivery.
    has_come_again: bool,
    /// Each is an unsettled delivery or an open HTTP request, which bounds them.
    attached: Vec<A>,
    is_closed: bool,
}

impl<A> Default for Slot<A> {
    fn default() -> Self {
        Self::new(None, 0)
    }
}

impl<A> Slot<A> {
    pub(crate) fn new(settle: Option<Box<dyn Settle>>, reply_to: u64) -> Self {
        let held = Held { settle, has_come_again: false, attached: Vec::new(), is_closed: false };
        Self { reply_to, held: Mutex::new(held) }
    }

    /// Takes the delivery out, to settle it.
    pub(crate) fn take(&self) -> Option<Box<dyn Settle>> {
        self.held.lock().settle.take()
    }

    /// Whether a delivery that is acknowledged now never comes again.
    pub(crate) fn is_sure(&self) -> bool {
        self.held.lock().settle.as_ref().is_some_and(|settle| settle.is_sure())
    }

    /// Whether the delivery is no longer this daemon's: its connection or channel has ended.
    pub(crate) fn is_lost(&self) -> bool {
        let held = self.held.lock();
        held.settle.as_ref().and_then(|settle| settle.lost()).is_some_and(CancellationToken::is_cancelled)
    }

    /// Waits until that is so. A later delivery that was put in counts instead of the earlier one.
    pub(crate) async fn lost(&self) {
        while !self.is_lost() {
            let lost = self.held.lock().settle.as_ref().and_then(|settle| settle.lost().cloned());
            match lost {
                Some(lost) => lost.cancelled().await,
                None => pending().await,
            }
        }
    }

    /// Whether another delivery wants the same reply at the same address.
    pub(crate) fn has_same_reply_to(&self, other: &Self) -> bool {
        self.reply_to == other.reply_to
    }

    /// Puts a later delivery in and returns the earlier one; the later one itself if the call has ended.
    pub(crate) fn replace(
        &self,
        settle: Box<dyn Settle>,
        has_come_again: bool,
    ) -> Result<Option<Box<dyn Settle>>, Box<dyn Settle>> {
        let mut held = self.held.lock();
        if held.is_closed {
            return Err(settle);
        }
        held.has_come_again |= has_come_again;
        Ok(held.settle.replace(settle))
    }

    /// Whether a redelivery was put in, which another daemon may have run before.
    pub(crate) fn has_come_again(&self) -> bool {
        self.held.lock().has_come_again
    }

    /// Attaches a duplicate; returns it if the call has ended.
    pub(crate) fn attach(&self, duplicate: A) -> Result<(), A> {
        let mut held = self.held.lock();
        if held.is_closed {
            return Err(duplicate);
        }
        held.attached.push(duplicate);
        Ok(())
    }

    /// Duplicates that have attached.
    pub(crate) fn attached(&self) -> usize {
        self.held.lock().attached.len()
    }

    /// Takes the duplicates out. No further one attaches.
    pub(crate) fn close(&self) -> Vec<A> {
        let mut held = self.held.lock();
        held.is_closed = true;
        std::mem::take(&mut held.attached)
    }
}

/// This process's knowledge of a request.
pub(crate) enum Seen<A> {
    /// Nothing: it is under way from now on.
    Never,
    /// The request is running.
    Running(Arc<Slot<A>>),
    /// The key is that of a running request with other content.
    Conflict,
    /// The request has this reply. It is under way from now on, so that one delivery at a time repeats the reply.
    Answered(Arc<Reply>),
    /// The request had a reply, which is no longer kept. It is under way from now on.
    Forgotten,
}

impl<A> Replay<A> {
    /// Keeps at most `max_entries` replies, of `max_bytes` together.
    pub(crate) fn new(max_entries: NonZeroUsize, max_bytes: usize) -> Self {
        let entries = Entries { running: HashMap::new(), replies: LruCache::new(max_entries), bytes: 0 };
        Self { entries: Mutex::new(entries), max_bytes }
    }

    /// Looks a request up, and notes that it is under way unless another like it is. `slot` is its own.
    pub(crate) fn enter(&self, identity: &LocalIdentity, slot: &Arc<Slot<A>>, is_redelivered: bool) -> Seen<A> {
        let mut entries = self.lock();
        let LocalIdentity { key, fingerprint, kind } = *identity;
        // Requests that merely look alike are two.
        let may_be_another = kind == IdentityKind::Content && !is_redelivered;
        if may_be_another {
            entries.remove_reply((key, fingerprint));
        } else if let Some(run) = entries.running.get(&key)
            && let Some(running) = run.slot.upgrade()
        {
            return if run.fingerprint == fingerprint { Seen::Running(running) } else { Seen::Conflict };
        }
        entries.note_running(key, fingerprint, slot);
        match entries.replies.get(&(key, fingerprint)).filter(|_| is_redelivered) {
            None => Seen::Never,
            Some(Some(reply)) => Seen::Answered(Arc::clone(reply)),
            Some(None) => Seen::Forgotten,
        }
    }

    /// Notes the reply to a call, which is no longer under way.
    pub(crate) fn replied(&self, identity: LocalIdentity, slot: &Arc<Slot<A>>, reply: Arc<Reply>) {
        let mut entries = self.lock();
        entries.end(identity.key, slot);
        entries.put_reply((identity.key, identity.fingerprint), reply, self.max_bytes);
    }

    /// Notes that a call is no longer under way.
    pub(crate) fn forget(&self, key: LocalKey, slot: &Arc<Slot<A>>) {
        self.lock().end(key, slot);
    }

    fn lock(&self) -> MutexGuard<'_, Entries<A>> {
        self.entries.lock()
    }
}

impl<A> Entries<A> {
    fn note_running(&mut self, key: LocalKey, fingerprint: Fingerprint, slot: &Arc<Slot<A>>) {
        if self.running.len() >= self.replies.cap().get() {
            self.running.retain(|_, run| run.slot.strong_count() > 0);
        }
        self.running.insert(key, Run { slot: Arc::downgrade(slot), fingerprint });
    }

    /// Removes a call that is no longer under way, unless the entry is that of a later one like it.
    fn end(&mut self, key: LocalKey, slot: &Arc<Slot<A>>) {
        if self.running.get(&key).is_some_and(|run| run.slot.as_ptr() == Arc::as_ptr(slot)) {
            self.running.remove(&key);
        }
    }

    fn put_reply(&mut self, key: ReplyKey, reply: Arc<Reply>, max_bytes: usize) {
        self.bytes += reply.size();
        if let Some((_, replaced)) = self.replies.push(key, Some(reply)) {
            self.bytes -= size(replaced.as_ref());
        }
        if self.bytes > max_bytes {
            self.shed(max_bytes);
        }
    }

    fn remove_reply(&mut self, key: ReplyKey) {
        if let Some(reply) = self.replies.pop(&key) {
            self.bytes -= size(reply.as_ref());
        }
    }

    /// Gives up the oldest replies, keeping the knowledge that there was one.
    fn shed(&mut self, max_bytes: usize) {
        for (_, reply) in self.replies.iter_mut().rev() {
            if self.bytes <= max_bytes {
                break;
            }
            self.bytes -= size(reply.take().as_ref());
        }
    }
}

/// Memory of what is kept of a reply, in bytes.
fn size(reply: Option<&Arc<Reply>>) -> usize {
    reply.map_or(0, |reply| reply.size())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replay to which strings attach.
    type Replay = super::Replay<&'static str>;

    struct Ignores;

    impl Settle for Ignores {
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

    fn reply(bytes: usize) -> Arc<Reply> {
        Arc::new(Reply::for_test(bytes))
    }

    fn slot() -> Arc<Slot<&'static str>> {
        Arc::new(Slot::new(Some(Box::new(Ignores)), 1))
    }

    fn identity(number: u8, kind: IdentityKind) -> LocalIdentity {
        LocalIdentity { key: key(number), fingerprint: Fingerprint([number; 32]), kind }
    }

    fn key(number: u8) -> LocalKey {
        LocalKey([number.into(); 2])
    }

    impl Replay {
        fn message(&self, number: u8, slot: &Arc<Slot<&'static str>>, is_redelivered: bool) -> Seen<&'static str> {
            self.enter(&identity(number, IdentityKind::MessageId), slot, is_redelivered)
        }
    }

    #[test]
    fn an_unknown_request_was_never_seen() {
        assert!(matches!(replay(4, 100).message(1, &slot(), true), Seen::Never));
    }

    #[test]
    fn a_reply_is_replayed_to_a_redelivered_request_alone() {
        let replay = replay(4, 10_000);
        let given = reply(10);
        replay.replied(identity(1, IdentityKind::MessageId), &slot(), Arc::clone(&given));
        let Seen::Answered(again) = replay.message(1, &slot(), true) else { panic!("not kept") };
        assert!(Arc::ptr_eq(&given, &again));
        assert!(matches!(replay.message(1, &slot(), false), Seen::Never));
    }

    #[test]
    fn calls_that_were_dropped_are_forgotten_and_those_that_run_are_not() {
        let replay = replay(4, 10_000);
        let running: Vec<_> = (0..4).map(|_| slot()).collect();
        for (number, slot) in (0..).zip(&running) {
            assert!(matches!(replay.message(number, slot, false), Seen::Never));
        }
        for number in 4..100 {
            assert!(matches!(replay.message(number, &slot(), false), Seen::Never));
        }
        assert!(replay.lock().running.len() <= 5);
        assert!((0..4).all(|number| matches!(replay.message(number, &slot(), false), Seen::Running(_))));
    }

    #[test]
    fn a_duplicate_attaches_until_the_run_has_ended() {
        let replay = replay(4, 10_000);
        let slot = slot();
        assert!(matches!(replay.message(1, &slot, false), Seen::Never));
        for is_redelivered in [true, false] {
            let Seen::Running(running) = replay.message(1, &self::slot(), is_redelivered) else { panic!("not known") };
            assert_eq!(running.attach("duplicate"), Ok(()));
            assert!(running.has_same_reply_to(&self::slot()) && !running.has_same_reply_to(&Slot::default()));
            assert!(
                matches!(running.replace(Box::new(Ignores), false), Ok(Some(_))),
                "the earlier delivery comes back"
            );
        }
        assert_eq!(slot.close(), ["duplicate", "duplicate"]);
        assert_eq!(slot.attach("late"), Err("late"));
        assert!(slot.replace(Box::new(Ignores), false).is_err());
        assert!(slot.take().is_some());
    }

    #[test]
    fn a_key_of_a_running_request_with_other_content_is_a_conflict() {
        let (replay, running) = (replay(4, 10_000), slot());
        assert!(matches!(replay.enter(&identity(1, IdentityKind::Given), &running, false), Seen::Never));
        let other = LocalIdentity { fingerprint: Fingerprint([9; 32]), ..identity(1, IdentityKind::Given) };
        assert!(matches!(replay.enter(&other, &slot(), false), Seen::Conflict));
    }

    #[test]
    fn each_request_with_one_key_gets_its_own_reply_again() {
        let replay = replay(4, 10_000);
        let paid = identity(1, IdentityKind::Given);
        let refused = LocalIdentity { fingerprint: Fingerprint([9; 32]), ..paid };
        let given = [paid, refused].map(|identity| (identity, reply(10)));
        for (identity, reply) in &given {
            replay.replied(*identity, &slot(), Arc::clone(reply));
        }
        for (identity, reply) in given {
            let slot = slot();
            let Seen::Answered(again) = replay.enter(&identity, &slot, true) else { panic!("not kept") };
            assert!(Arc::ptr_eq(&reply, &again));
            replay.forget(identity.key, &slot);
        }
    }

    #[test]
    fn requests_that_merely_look_alike_are_two_unless_the_broker_redelivers() {
        let (replay, first, second) = (replay(4, 10_000), slot(), slot());
        let alike = identity(1, IdentityKind::Content);
        assert!(matches!(replay.enter(&alike, &first, false), Seen::Never));
        assert!(matches!(replay.enter(&alike, &second, false), Seen::Never));
        assert!(matches!(replay.enter(&alike, &slot(), true), Seen::Running(_)));
    }

    #[test]
    fn the_oldest_replies_are_removed_first_and_stay_known_as_sent() {
        let replay = replay(4, 10_000);
        for number in 0..3 {
            replay.replied(identity(number, IdentityKind::MessageId), &slot(), reply(4_000));
        }
        assert!(matches!(replay.message(0, &slot(), true), Seen::Forgotten));
        assert!(matches!(replay.message(2, &slot(), true), Seen::Answered(..)));
        assert_eq!(replay.lock().bytes, 2 * reply(4_000).size());
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let replay = replay(2, 1_000_000);
        for number in 0..100 {
            replay.replied(identity(number, IdentityKind::MessageId), &slot(), reply(10));
        }
        assert_eq!(replay.lock().replies.len(), 2);
        assert_eq!(replay.lock().bytes, 2 * reply(10).size());
    }

    #[test]
    fn no_number_of_replies_makes_a_running_call_unknown() {
        let replay = replay(2, 1_000_000);
        let running = slot();
        replay.message(200, &running, false);
        for number in 0..100 {
            replay.replied(identity(number, IdentityKind::MessageId), &slot(), reply(10));
        }
        assert!(matches!(replay.message(200, &slot(), true), Seen::Running(_)));
    }

    #[test]
    fn a_call_that_goes_back_is_forgotten() {
        let (replay, slot) = (replay(2, 1_000), slot());
        replay.message(1, &slot, false);
        replay.forget(key(1), &slot);
        assert!(matches!(replay.message(1, &self::slot(), true), Seen::Never));
    }

    #[test]
    fn a_call_that_was_dropped_counts_as_never_seen() {
        let replay = replay(2, 1_000);
        replay.message(1, &slot(), false);
        assert!(matches!(replay.message(1, &slot(), true), Seen::Never));
    }

    #[test]
    fn the_end_of_one_call_does_not_end_another_like_it() {
        let replay = replay(2, 1_000_000);
        let (first, second) = (slot(), slot());
        for slot in [&first, &second] {
            replay.enter(&identity(1, IdentityKind::Content), slot, false);
        }
        replay.replied(identity(1, IdentityKind::MessageId), &first, reply(10));
        assert!(matches!(replay.message(1, &slot(), true), Seen::Running(_)));
    }

    #[test]
    fn a_new_call_like_an_answered_one_is_not_taken_for_it() {
        let (replay, slot) = (replay(2, 1_000_000), slot());
        replay.replied(identity(1, IdentityKind::MessageId), &slot, reply(10));
        replay.enter(&identity(1, IdentityKind::Content), &slot, false);
        replay.forget(key(1), &slot);
        assert!(matches!(replay.message(1, &self::slot(), true), Seen::Never));
        assert_eq!(replay.lock().bytes, 0);
    }
}
