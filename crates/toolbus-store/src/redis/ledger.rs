//! A ledger on a Redis server, which replicas share.
//!
//! An entry is a hash that the server removes after its time. Beside the entries there are their number and bytes
//! (`counts`), when each ends (`ends`), the answered ones in the order of their begin (`answered`), and the sizes of replies
//! (`sizes`). All times are the server's, so that the clocks of replicas do not matter.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::redis::{Script, ScriptInvocation};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use toolbus_core::ledger::{
    Begin, Begun, ENTRY_BYTES, EntryState, Fingerprint, Finished, Ledger, LedgerEntry, LedgerLimits, LedgerUsage,
    RequestKey, RunToken,
};
use toolbus_core::milliseconds;
use toolbus_core::store::StoreError;

use super::Redis;

/// Expired entries that one operation removes at most: more than it adds, so that they become fewer.
const SWEEP: usize = 4;
/// Expired entries that a renewed lease removes at most.
const SWEEP_AT_LEASE: usize = 1000;
/// Entries that one operation removes to make room at most: one reply may take the room of many.
const MAX_REMOVED: usize = 10_000;

/// Common part of the scripts. Keys: see `counts` and so on. Arguments: milliseconds that the time is ahead of the
/// server's, start of the keys of entries, id of the entry, then those of the script.
const COMMON: &str = "
local counts, ends, answered, sizes, leases = unpack(KEYS)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
local id = ARGV[3]
local function text(number) return string.format('%d', number) end
local function drop(id)
  if redis.call('ZREM', ends, id) == 1 then
    redis.call('HINCRBY', counts, 'entries', -1)
    redis.call('HINCRBY', counts, 'bytes', -(ENTRY_BYTES + (redis.call('HGET', sizes, id) or 0)))
  end
  redis.call('HDEL', sizes, id)
  redis.call('ZREM', answered, id)
  redis.call('DEL', ARGV[2] .. id)
end
local function sweep(most)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', text(now), 'LIMIT', 0, most)) do drop(id) end
end
local function usage()
  local found = redis.call('HMGET', counts, 'entries', 'bytes')
  return tonumber(found[1] or 0), tonumber(found[2] or 0)
end
local shed = 0
local function fits(more_entries, more_bytes, max_entries, max_bytes)
  local entries, bytes = usage()
  return entries + more_entries <= max_entries and bytes + more_bytes <= max_bytes
end
local function make_room(...)
  local removed = 0
  while removed < MAX_REMOVED and not fits(...) do
    local oldest = redis.call('ZRANGEBYSCORE', ends, '-inf', text(now), 'LIMIT', 0, 1)[1]
    if not oldest then
      oldest = redis.call('ZRANGE', answered, 0, 0)[1]
      if not oldest then return end
      shed = shed + 1
    end
    drop(oldest)
    removed = removed + 1
  end
end
local function known()
  local found = redis.call('HMGET', ARGV[2] .. id, 'ends', 'fingerprint', 'run', 'instance', 'answer', 'number')
  if found[1] and tonumber(found[1]) > now then return found end
end
local function reply(outcome, found)
  local entries, bytes = usage()
  found = found or {}
  local lease = found[4] and redis.call('ZSCORE', leases, found[4])
  local is_live = lease and tonumber(lease) > now and 1 or 0
  return {outcome, entries, bytes, shed, found[2] or false, found[3] or false, found[4] or false, is_live, found[5] or false}
end
";

const LOOK_UP: &str = "return reply(0, known())";

/// Arguments: fingerprint, run, instance, milliseconds to live, whether it replaces, most entries, most bytes.
const BEGIN: &str = "
local found = known()
if found and found[3] == ARGV[5] then return reply(0) end
if found and ARGV[8] == '0' then return reply(1, found) end
local max_entries, max_bytes = tonumber(ARGV[9]), tonumber(ARGV[10])
drop(id)
sweep(SWEEP)
make_room(1, ENTRY_BYTES, max_entries, max_bytes)
if not fits(1, ENTRY_BYTES, max_entries, max_bytes) then return reply(2) end
local number = redis.call('HINCRBY', counts, 'next', 1)
local last = text(now + ARGV[7])
redis.call('HSET', ARGV[2] .. id, 'ends', last, 'fingerprint', ARGV[4], 'run', ARGV[5], 'instance', ARGV[6], 'number', number)
redis.call('PEXPIRE', ARGV[2] .. id, ARGV[7])
redis.call('ZADD', ends, last, id)
redis.call('HINCRBY', counts, 'entries', 1)
redis.call('HINCRBY', counts, 'bytes', ENTRY_BYTES)
return reply(0)";

/// Arguments: run, reply, most entries, most bytes.
const FINISH: &str = "
local found = known()
if not found or found[3] ~= ARGV[4] then return reply(2) end
if found[5] and found[5] ~= ARGV[5] then return reply(1, found) end
if found[5] then return reply(0) end
make_room(0, #ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]))
redis.call('HSET', ARGV[2] .. id, 'answer', ARGV[5])
redis.call('ZADD', answered, found[6], id)
redis.call('HSET', sizes, id, #ARGV[5])
redis.call('HINCRBY', counts, 'bytes', #ARGV[5])
return reply(0)";

/// Arguments: run.
const RELEASE: &str = "
local found = known()
if found and found[3] == ARGV[4] and not found[5] then drop(id) end
return reply(0)";

/// Arguments, instead of the id: instance; then milliseconds of the lease.
const RENEW: &str = "
redis.call('ZREMRANGEBYSCORE', leases, '-inf', text(now))
redis.call('ZADD', leases, text(now + ARGV[4]), id)
sweep(SWEEP_AT_LEASE)
return reply(0)";

/// Values that a script returns: outcome, entries, bytes, entries that were removed to make room; then of the entry:
/// fingerprint, run, instance, whether that is alive, reply.
type Reply = (u8, u64, u64, u64, Option<Vec<u8>>, Option<Vec<u8>>, Option<String>, bool, Option<Vec<u8>>);

/// Keeps entries on a Redis server, for all replicas.
pub struct RedisLedger {
    redis: Arc<Redis>,
    limits: LedgerLimits,
    scripts: LedgerScripts,
    entries: AtomicU64,
    bytes: AtomicU64,
    shed: AtomicU64,
    ahead: AtomicU64,
}

struct LedgerScripts {
    look_up: Script,
    begin: Script,
    finish: Script,
    release: Script,
    renew: Script,
}

impl RedisLedger {
    /// A ledger beside what `redis` stores. Replicas should have the same limits: the one that writes applies its own.
    #[must_use]
    pub fn new(redis: Arc<Redis>, limits: LedgerLimits) -> Self {
        let script = |body: &str| {
            let text = format!("{COMMON}{body}")
                .replace("ENTRY_BYTES", &ENTRY_BYTES.to_string())
                .replace("SWEEP_AT_LEASE", &SWEEP_AT_LEASE.to_string())
                .replace("MAX_REMOVED", &MAX_REMOVED.to_string())
                .replace("SWEEP", &SWEEP.to_string());
            Script::new(&text)
        };
        let [look_up, begin, finish, release, renew] = [LOOK_UP, BEGIN, FINISH, RELEASE, RENEW].map(script);
        Self {
            redis,
            limits,
            scripts: LedgerScripts { look_up, begin, finish, release, renew },
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
        }
    }

    /// Moves this ledger's time ahead of the server's, for tests, as [`Clock::advance`](toolbus_core::Clock::advance) does
    /// with a clock.
    pub fn advance(&self, time: Duration) {
        self.ahead.fetch_add(milliseconds(time), Ordering::Relaxed);
    }

    /// A script on the entry of this id.
    fn on<'a>(&self, script: &'a Script, id: &[u8]) -> ScriptInvocation<'a> {
        let mut invocation = script.prepare_invoke();
        for key in ["counts", "ends", "answered", "sizes", "leases"] {
            invocation.key(self.redis.key(&format!("ledger:{key}")));
        }
        invocation.arg(self.ahead.load(Ordering::Relaxed)).arg(self.redis.key("ledger:entry:")).arg(id);
        invocation
    }

    async fn run(&self, script: &ScriptInvocation<'_>) -> Result<(u8, Option<LedgerEntry>), StoreError> {
        let reply: Reply = self.redis.connection.run(script).await?;
        let (outcome, entries, bytes, shed, fingerprint, run, instance, is_live, reply) = reply;
        self.entries.store(entries, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.shed.fetch_add(shed, Ordering::Relaxed);
        let (Some(fingerprint), Some(run), Some(instance)) = (fingerprint, run, instance) else {
            return Ok((outcome, None));
        };
        let state = match reply {
            Some(reply) => EntryState::Answered(reply.into()),
            None => EntryState::Started { run: RunToken(sized(run)?), instance: instance.into(), is_live },
        };
        Ok((outcome, Some(LedgerEntry { fingerprint: Fingerprint(sized(fingerprint)?), state })))
    }
}

impl Ledger for RedisLedger {
    fn look_up(&self, key: RequestKey) -> BoxFuture<'_, Result<Option<LedgerEntry>, StoreError>> {
        async move { Ok(self.run(&self.on(&self.scripts.look_up, &key.0)).await?.1) }.boxed()
    }

    fn begin(&self, begin: Begin) -> BoxFuture<'_, Result<Begun, StoreError>> {
        async move {
            let Begin { key, fingerprint, run, instance, ttl, replaces } = begin;
            let mut script = self.on(&self.scripts.begin, &key.0);
            script
                .arg(&fingerprint.0[..])
                .arg(&run.0[..])
                .arg(&*instance)
                .arg(milliseconds(ttl))
                .arg(u8::from(replaces));
            script.arg(self.limits.max_entries).arg(self.limits.max_bytes);
            match self.run(&script).await? {
                (0, _) => Ok(Begun::Begun),
                (_, Some(entry)) => Ok(Begun::Known(entry)),
                (_, None) => Ok(Begun::Full),
            }
        }
        .boxed()
    }

    fn finish(&self, key: RequestKey, run: RunToken, reply: Bytes) -> BoxFuture<'_, Result<Finished, StoreError>> {
        async move {
            let mut script = self.on(&self.scripts.finish, &key.0);
            script.arg(&run.0[..]).arg(&reply[..]).arg(self.limits.max_entries).arg(self.limits.max_bytes);
            match self.run(&script).await? {
                (0, _) => Ok(Finished::Stored),
                (_, Some(LedgerEntry { state: EntryState::Answered(first), .. })) => Ok(Finished::Superseded(first)),
                _ => Ok(Finished::Forgotten),
            }
        }
        .boxed()
    }

    fn release(&self, key: RequestKey, run: RunToken) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let mut script = self.on(&self.scripts.release, &key.0);
            self.run(script.arg(&run.0[..])).await.map(drop)
        }
        .boxed()
    }

    fn renew(&self, instance: Arc<str>, lease: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let mut script = self.on(&self.scripts.renew, instance.as_bytes());
            self.run(script.arg(milliseconds(lease))).await.map(drop)
        }
        .boxed()
    }

    fn usage(&self) -> LedgerUsage {
        let [entries, bytes, shed] =
            [&self.entries, &self.bytes, &self.shed].map(|number| number.load(Ordering::Relaxed));
        LedgerUsage { entries, bytes, shed }
    }
}

impl fmt::Debug for RedisLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLedger").field("limits", &self.limits).finish_non_exhaustive()
    }
}

fn sized<const N: usize>(bytes: Vec<u8>) -> Result<[u8; N], StoreError> {
    bytes.try_into().map_err(|_| StoreError::Failed("an entry of the ledger cannot be read".to_owned()))
}
