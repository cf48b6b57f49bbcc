//! A ledger that lives as long as its process.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use toolbus_core::Clock;
use toolbus_core::ledger::{
    Begin, Begun, ENTRY_BYTES, EntryState, Fingerprint, Finished, Ledger, LedgerEntry, LedgerLimits, LedgerUsage,
    RequestKey, RunToken,
};
use toolbus_core::store::StoreError;

/// Expired entries that one operation removes at most: more than it adds, so that they become fewer.
const SWEEP: usize = 4;
/// Leases of daemons; beyond, lapsed ones are removed.
const MAX_LEASES: usize = 64;

/// Keeps entries in memory. It forgets them with the process, and other processes do not have them: after a crash, calls
/// run again.
#[derive(Debug)]
pub struct MemoryLedger {
    limits: LedgerLimits,
    clock: Clock,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<RequestKey, Kept>,
    /// Entries without a reply by the number of their begin: the oldest first.
    started: BTreeMap<u64, RequestKey>,
    /// Entries with a reply, in the same order.
    answered: BTreeMap<u64, RequestKey>,
    /// Expiry and number of each entry, the first to expire first.
    ends: BTreeSet<(Instant, u64)>,
    next: u64,
    usage: LedgerUsage,
    /// Until when each daemon is alive.
    leases: HashMap<Arc<str>, Instant>,
}

#[derive(Debug)]
struct Kept {
    number: u64,
    fingerprint: Fingerprint,
    run: RunToken,
    instance: Arc<str>,
    expires: Instant,
    reply: Option<Bytes>,
}

impl MemoryLedger {
    /// Creates an empty ledger.
    #[must_use]
    pub fn new(limits: LedgerLimits, clock: Clock) -> Self {
        Self { limits, clock, entries: Mutex::default() }
    }

    fn begin(&self, begin: Begin) -> Begun {
        let Begin { key, fingerprint, run, instance, ttl, replaces } = begin;
        let now = self.clock.now();
        let mut entries = self.entries.lock();
        match entries.known(key, now) {
            Some(kept) if kept.run != run && !replaces => return Begun::Known(entries.described(kept, now)),
            Some(kept) if kept.run == run => return Begun::Begun,
            _ => {}
        }
        entries.remove(key);
        entries.sweep(now);
        entries.make_room(self.limits, ENTRY_BYTES, 1, now);
        let LedgerUsage { entries: number, bytes, .. } = entries.usage;
        if number >= self.limits.max_entries || bytes + ENTRY_BYTES > self.limits.max_bytes {
            return Begun::Full;
        }
        entries.insert(key, Kept { number: 0, fingerprint, run, instance, expires: now + ttl, reply: None });
        Begun::Begun
    }

    fn finish(&self, key: RequestKey, run: RunToken, reply: Bytes) -> Finished {
        let now = self.clock.now();
        let mut entries = self.entries.lock();
        let size = size(&reply);
        match entries.by_key.get_mut(&key).filter(|kept| kept.run == run && kept.expires > now) {
            None => return Finished::Forgotten,
            Some(Kept { reply: Some(known), .. }) if *known == reply => return Finished::Stored,
            Some(Kept { reply: Some(known), .. }) => return Finished::Superseded(known.clone()),
            Some(_) => {}
        }
        // Room is made before the reply is there, so that it is not removed itself.
        entries.make_room(self.limits, size, 0, now);
        entries.record_reply(key, reply);
        Finished::Stored
    }

    fn release(&self, key: RequestKey, run: RunToken) {
        let mut entries = self.entries.lock();
        if entries.by_key.get(&key).is_some_and(|kept| kept.run == run && kept.reply.is_none()) {
            entries.remove(key);
        }
    }

    fn renew(&self, instance: Arc<str>, lease: Duration) {
        let now = self.clock.now();
        let leases = &mut self.entries.lock().leases;
        if leases.len() >= MAX_LEASES {
            leases.retain(|_, until| *until > now);
        }
        leases.insert(instance, now + lease);
    }
}

impl Entries {
    fn known(&self, key: RequestKey, now: Instant) -> Option<&Kept> {
        self.by_key.get(&key).filter(|kept| kept.expires > now)
    }

    fn described(&self, kept: &Kept, now: Instant) -> LedgerEntry {
        let Kept { fingerprint, run, instance, reply, .. } = kept;
        let state = match reply {
            Some(reply) => EntryState::Answered(reply.clone()),
            None => {
                let is_live = self.leases.get(instance).is_some_and(|until| *until > now);
                EntryState::Started { run: *run, instance: Arc::clone(instance), is_live }
            }
        };
        LedgerEntry { fingerprint: *fingerprint, state }
    }

    fn insert(&mut self, key: RequestKey, kept: Kept) {
        let number = self.next;
        self.next += 1;
        self.started.insert(number, key);
        self.ends.insert((kept.expires, number));
        self.usage.entries += 1;
        self.usage.bytes += ENTRY_BYTES;
        self.by_key.insert(key, Kept { number, ..kept });
    }

    fn record_reply(&mut self, key: RequestKey, reply: Bytes) {
        let Some(kept) = self.by_key.get_mut(&key) else { return };
        self.started.remove(&kept.number);
        self.answered.insert(kept.number, key);
        self.usage.bytes += size(&reply);
        kept.reply = Some(reply);
    }

    fn remove(&mut self, key: RequestKey) {
        let Some(kept) = self.by_key.remove(&key) else { return };
        let by_age = if kept.reply.is_some() { &mut self.answered } else { &mut self.started };
        by_age.remove(&kept.number);
        self.ends.remove(&(kept.expires, kept.number));
        self.usage.entries -= 1;
        self.usage.bytes -= ENTRY_BYTES + kept.reply.as_ref().map_or(0, size);
    }

    /// The entry that expired first.
    fn expired(&self, now: Instant) -> Option<RequestKey> {
        let (_, number) = self.ends.first().filter(|(expires, _)| *expires <= now)?;
        self.started.get(number).or_else(|| self.answered.get(number)).copied()
    }

    /// Removes a few of the entries that have expired.
    fn sweep(&mut self, now: Instant) {
        for _ in 0..SWEEP {
            let Some(key) = self.expired(now) else { return };
            self.remove(key);
        }
    }

    /// Removes expired entries, then the oldest answered ones, until there is room for as much more.
    fn make_room(&mut self, limits: LedgerLimits, bytes: u64, entries: u64, now: Instant) {
        while self.usage.entries + entries > limits.max_entries || self.usage.bytes + bytes > limits.max_bytes {
            if let Some(key) = self.expired(now) {
                self.remove(key);
                continue;
            }
            let Some((_, key)) = self.answered.first_key_value() else { return };
            self.remove(*key);
            self.usage.shed += 1;
        }
    }
}

fn size(reply: &Bytes) -> u64 {
    reply.len() as u64
}

impl Ledger for MemoryLedger {
    fn look_up(&self, key: RequestKey) -> BoxFuture<'_, Result<Option<LedgerEntry>, StoreError>> {
        let now = self.clock.now();
        let entries = self.entries.lock();
        let found = entries.known(key, now).map(|kept| entries.described(kept, now));
        ready(Ok(found)).boxed()
    }

    fn begin(&self, begin: Begin) -> BoxFuture<'_, Result<Begun, StoreError>> {
        ready(Ok(Self::begin(self, begin))).boxed()
    }

    fn finish(&self, key: RequestKey, run: RunToken, reply: Bytes) -> BoxFuture<'_, Result<Finished, StoreError>> {
        ready(Ok(Self::finish(self, key, run, reply))).boxed()
    }

    fn release(&self, key: RequestKey, run: RunToken) -> BoxFuture<'_, Result<(), StoreError>> {
        Self::release(self, key, run);
        ready(Ok(())).boxed()
    }

    fn renew(&self, instance: Arc<str>, lease: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        Self::renew(self, instance, lease);
        ready(Ok(())).boxed()
    }

    fn usage(&self) -> LedgerUsage {
        self.entries.lock().usage
    }
}
