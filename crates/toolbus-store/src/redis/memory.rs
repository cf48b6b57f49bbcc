//! Working memory on a Redis server, which replicas share.
//!
//! An entry is a member: the length of its owner, `:`, owner and key. What is known of it is in the hash `info`, its text in
//! `values`, its end in the sorted set `ends`, its number in the owner's sorted set `keys:OWNER`. `usage` counts what all,
//! each share and each namespace have; `state` has the name of the data, the numbers of [`MemoryMark`], and the name of
//! the last deletion. Times are those of the replica's clock; the server removes everything a while after the last write.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{FromRedisValue, Script, ScriptInvocation};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use toolbus_core::store::StoreError;
use toolbus_core::{Clock, milliseconds};
use toolbus_memory::usage::{MAX_USAGE, MemoryUsage, NamespaceUsage, ShareUsage};
use toolbus_memory::working_memory::{
    EntryInfo, EntryKey, KeyPrefix, MAX_TTL, MemoryEntry, MemoryError, MemoryLimits, MemoryOwner, NewEntry, SearchHit,
    SearchQuery, WorkingMemory,
};
use toolbus_protocol::new_message_id;

use super::Redis;
use crate::entry_index::{EntryChanges, EntryIndexes, MemoryMark};

/// Expired entries that one operation removes at most.
const SWEEP: usize = 10_000;
/// Bytes of texts after which a response ends; the next one goes on.
const PAGE: usize = 4 * 1024 * 1024;
/// Time for which the server keeps what nothing is added to: longer than any entry lasts.
const KEPT: Duration = MAX_TTL.saturating_add(Duration::from_secs(60 * 60));

/// Common part of the scripts. Keys: state, info, values, ends, usage. Arguments: milliseconds since 1970, start of the
/// names of owners' keys, owner, then those of the script.
const COMMON: &str = "
local state, info, values, ends, usage = unpack(KEYS)
local now, start, owner = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local function text(number) return string.format('%.0f', number) end
local function member(key) return #owner .. ':' .. owner .. key end
local function count(field, by)
  if redis.call('HINCRBY', usage, field, text(by)) <= 0 then redis.call('HDEL', usage, field) end
end
local function count_all(of, about, sign)
  count('total', sign * about.size)
  count('bytes:' .. about.share, sign * about.size)
  count('entries:' .. about.share, sign)
  count('namespace:' .. #of .. ':' .. of .. about.namespace, sign)
end
local function forget(member)
  local found = redis.call('HGET', info, member)
  redis.call('ZREM', ends, member)
  if not found then return false end
  local colon = string.find(member, ':', 1, true)
  local length = tonumber(string.sub(member, 1, colon - 1))
  local of = string.sub(member, colon + 1, colon + length)
  redis.call('HDEL', info, member)
  redis.call('HDEL', values, member)
  redis.call('ZREM', start .. of, string.sub(member, colon + length + 1))
  count_all(of, cjson.decode(found), -1)
  return true
end
local function expire()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', text(now), 'LIMIT', 0, SWEEP)) do forget(member) end
end
";

/// Arguments: milliseconds that the data are kept, share, most entries of a namespace, most entries of the share, most bytes
/// of the share, most bytes; then of each entry: key, about, value. Returns 0, or the limit that is exceeded, and the
/// namespace.
const SAVE: &str = "
expire()
local function used(field) return tonumber(redis.call('HGET', usage, field) or 0) end
local share = ARGV[5]
local entries, bytes, total = used('entries:' .. share), used('bytes:' .. share), used('total')
local new_entries, new_bytes, new_total, namespaces = entries, bytes, total, {}
for at = 10, #ARGV, 3 do
  local about = cjson.decode(ARGV[at + 1])
  local found = redis.call('HGET', info, member(ARGV[at]))
  if found then
    local replaced = cjson.decode(found)
    new_total = new_total - replaced.size
    if replaced.share == share then
      new_entries, new_bytes = new_entries - 1, new_bytes - replaced.size
    end
  else
    local name = about.namespace
    namespaces[name] = (namespaces[name] or used('namespace:' .. #owner .. ':' .. owner .. name)) + 1
    if namespaces[name] > tonumber(ARGV[6]) then return {1, name} end
  end
  new_entries, new_bytes, new_total = new_entries + 1, new_bytes + about.size, new_total + about.size
end
if new_entries > entries and new_entries > tonumber(ARGV[7]) then return {2, ''} end
if new_bytes > bytes and new_bytes > tonumber(ARGV[8]) then return {3, ''} end
if new_total > total and new_total > tonumber(ARGV[9]) then return {4, ''} end
for at = 10, #ARGV, 3 do
  local key, about = ARGV[at], cjson.decode(ARGV[at + 1])
  local member = member(key)
  forget(member)
  redis.call('HSET', info, member, ARGV[at + 1])
  redis.call('HSET', values, member, ARGV[at + 2])
  redis.call('ZADD', ends, text(about.expires), member)
  redis.call('ZADD', start .. owner, redis.call('HINCRBY', state, 'revision', 1), key)
  count_all(owner, about, 1)
end
for _, name in ipairs({state, info, values, ends, usage, start .. owner}) do redis.call('PEXPIRE', name, ARGV[4]) end
return {0, ''}";

/// Arguments: key. Returns about and value.
const GET: &str = "
local member = member(ARGV[4])
return {redis.call('HGET', info, member), redis.call('HGET', values, member)}";

/// Arguments: start of the keys. Returns key and about of each entry.
const LIST: &str = "
local found = {}
for _, key in ipairs(redis.call('ZRANGE', start .. owner, 0, -1)) do
  if string.sub(key, 1, #ARGV[4]) == ARGV[4] then
    local about = redis.call('HGET', info, member(key))
    if about then
      found[#found + 1] = key
      found[#found + 1] = about
    end
  end
end
return found";

/// Arguments: key, a name for the deletion, by which the last one is known if it is run again. Returns whether the entry was
/// there.
const DELETE: &str = "
if redis.call('HGET', state, 'deletion') == ARGV[5] then return 1 end
expire()
if not forget(member(ARGV[4])) then return 0 end
redis.call('HINCRBY', state, 'deletions', 1)
redis.call('HSET', state, 'deletion', ARGV[5])
return 1";

/// Arguments: a name for the data where it has none, number of the last entry that is known, number of deletions that is
/// known or -1, most bytes. Returns name, deletions, number of the last entry, whether there is more, the keys that are
/// left where the deletions differ, and key, about and value of each entry that was saved.
const CHANGES: &str = "
redis.call('HSETNX', state, 'epoch', ARGV[4])
local numbers = redis.call('HMGET', state, 'epoch', 'deletions', 'revision')
local epoch, deletions, revision = numbers[1], tonumber(numbers[2] or 0), tonumber(numbers[3] or 0)
local keys, saved, size, last, more = {}, {}, 0, revision, 0
if tonumber(ARGV[6]) >= 0 and deletions ~= tonumber(ARGV[6]) then keys = redis.call('ZRANGE', start .. owner, 0, -1) end
local found = redis.call('ZRANGEBYSCORE', start .. owner, '(' .. ARGV[5], '+inf', 'WITHSCORES')
for at = 1, #found, 2 do
  if size > tonumber(ARGV[7]) then
    more = 1
    break
  end
  local member = member(found[at])
  local about, value = redis.call('HGET', info, member), redis.call('HGET', values, member)
  if about and value then
    size = size + #value
    for _, part in ipairs({found[at], about, value}) do saved[#saved + 1] = part end
  end
  last = tonumber(found[at + 1])
end
if more == 0 then last = revision end
return {epoch, deletions, last, more, keys, saved}";

/// Arguments: most fields. Returns the fields of `usage` with their values, and whether these are all.
const USAGE: &str = "
expire()
local found, cursor = {}, '0'
repeat
  local page = redis.call('HSCAN', usage, cursor, 'COUNT', 1000)
  cursor = page[1]
  for _, part in ipairs(page[2]) do found[#found + 1] = part end
until cursor == '0' or #found > 2 * tonumber(ARGV[4])
return {found, cursor == '0' and 1 or 0}";

/// Values that [`CHANGES`] returns.
type ChangesReply = (String, u64, u64, bool, Vec<String>, Vec<String>);

/// Keeps entries on a Redis server, for all replicas.
pub struct RedisMemory {
    redis: Arc<Redis>,
    limits: MemoryLimits,
    clock: Clock,
    scripts: MemoryScripts,
    indexes: Arc<EntryIndexes>,
}

struct MemoryScripts {
    save: Script,
    get: Script,
    list: Script,
    delete: Script,
    changes: Script,
    usage: Script,
}

/// Metadata of an entry, as they are kept. Times are in milliseconds since 1970.
#[derive(Serialize, Deserialize)]
struct EntryMetadata {
    category: Option<Arc<str>>,
    tags: Vec<Arc<str>>,
    characters: u64,
    saved: u64,
    expires: u64,
    size: u64,
    share: Arc<str>,
    namespace: Arc<str>,
}

impl RedisMemory {
    /// Working memory beside what `redis` stores. Replicas should have the same limits: the one that writes applies its own.
    #[must_use]
    pub fn new(redis: Arc<Redis>, limits: MemoryLimits, clock: Clock) -> Self {
        let common = COMMON.replace("SWEEP", &SWEEP.to_string());
        let script = |body: &str| Script::new(&format!("{common}{body}"));
        let [save, get, list, delete, changes, usage] = [SAVE, GET, LIST, DELETE, CHANGES, USAGE].map(script);
        let scripts = MemoryScripts { save, get, list, delete, changes, usage };
        Self { redis, limits, clock, scripts, indexes: Arc::default() }
    }

    /// A script on the entries of an owner.
    fn on<'a>(&self, script: &'a Script, owner: &str) -> ScriptInvocation<'a> {
        let mut invocation = script.prepare_invoke();
        for key in ["state", "info", "values", "ends", "usage"] {
            invocation.key(self.redis.key(&format!("memory:{key}")));
        }
        invocation.arg(self.now()).arg(self.redis.key("memory:keys:")).arg(owner);
        invocation
    }

    /// The script that removes an entry.
    fn deletion(&self, owner: &MemoryOwner, key: &EntryKey) -> ScriptInvocation<'_> {
        let mut script = self.on(&self.scripts.delete, &owner.key);
        script.arg(key.as_str()).arg(new_message_id());
        script
    }

    async fn run<T: FromRedisValue>(&self, script: &ScriptInvocation<'_>) -> Result<T, MemoryError> {
        Ok(self.redis.connection.run(script).await?)
    }

    /// Milliseconds since 1970.
    fn now(&self) -> u64 {
        milliseconds(self.clock.since_epoch())
    }

    /// Returns the changes in the entries of an owner since a state.
    async fn changes(&self, owner: &str, since: Option<MemoryMark>) -> Result<EntryChanges, MemoryError> {
        let mut known = since;
        let mut last = since.map_or(0, |since| since.revision);
        let (mut saved, mut keys) = (Vec::new(), None);
        // The next search sees deletions during this one: the first page counts them.
        let mut first: Option<MemoryMark> = None;
        loop {
            let mut script = self.on(&self.scripts.changes, owner);
            script.arg(new_message_id()).arg(last);
            script.arg(first.or(known).map_or(-1, |mark| i64::try_from(mark.deletions).unwrap_or(i64::MAX))).arg(PAGE);
            let (epoch, deletions, revision, has_more, left, found): ChangesReply = self.run(&script).await?;
            let mark = MemoryMark { epoch: number_of(&epoch), deletions, revision };
            if first.or(known).is_some_and(|mark| mark.epoch != number_of(&epoch)) {
                // Other data replaced those that were known.
                (known, first, last, keys) = (None, None, 0, None);
                saved.clear();
                continue;
            }
            if first.is_none() && known.is_some_and(|known| known.deletions != deletions) {
                keys = Some(left.iter().map(|key| key_of(key)).collect::<Result<_, _>>()?);
            }
            for entry in found.chunks_exact(3) {
                let [key, about, value] = entry else { continue };
                saved.push(Arc::new(MemoryEntry { info: info_of(key, about)?, value: value.as_str().into() }));
            }
            last = revision;
            let deletions = first.map_or(deletions, |first| first.deletions);
            let mark = MemoryMark { deletions, ..mark };
            first = Some(mark);
            if !has_more {
                return Ok(EntryChanges { mark, is_complete: known.is_none(), saved, keys });
            }
        }
    }
}

impl WorkingMemory for RedisMemory {
    fn save(&self, owner: MemoryOwner, entries: Vec<NewEntry>) -> BoxFuture<'_, Result<(), MemoryError>> {
        async move {
            let entries = self.limits.checked(entries)?;
            let now = self.clock.since_epoch();
            let MemoryLimits { max_entries_per_namespace: max, max_entries, max_size, max_total_size, .. } =
                self.limits;
            let mut script = self.on(&self.scripts.save, &owner.key);
            script
                .arg(milliseconds(KEPT))
                .arg(&*owner.share)
                .arg(max)
                .arg(max_entries)
                .arg(max_size)
                .arg(max_total_size);
            for entry in &entries {
                let about = EntryMetadata::new(entry, &owner, now);
                let about = serde_json::to_string(&about).map_err(unreadable)?;
                script.arg(entry.key.as_str()).arg(about).arg(&*entry.value);
            }
            let (limit, namespace): (u8, String) = self.run(&script).await?;
            match limit {
                0 => Ok(()),
                1 => Err(MemoryError::Namespace { namespace: namespace.into(), max }),
                2 => Err(MemoryError::Entries(max_entries)),
                3 => Err(MemoryError::Size(max_size)),
                _ => Err(MemoryError::Total(max_total_size)),
            }
        }
        .boxed()
    }

    fn get(&self, owner: MemoryOwner, key: EntryKey) -> BoxFuture<'_, Result<Option<MemoryEntry>, MemoryError>> {
        async move {
            let mut script = self.on(&self.scripts.get, &owner.key);
            let found: (Option<String>, Option<String>) = self.run(script.arg(key.as_str())).await?;
            let (Some(about), Some(value)) = found else { return Ok(None) };
            let info = info_of(key.as_str(), &about)?;
            Ok(self.is_live(&info).then(|| MemoryEntry { info, value: value.into() }))
        }
        .boxed()
    }

    fn list(&self, owner: MemoryOwner, prefix: KeyPrefix) -> BoxFuture<'_, Result<Vec<EntryInfo>, MemoryError>> {
        async move {
            let mut script = self.on(&self.scripts.list, &owner.key);
            let found: Vec<String> = self.run(script.arg(prefix.as_str())).await?;
            let mut entries = Vec::with_capacity(found.len() / 2);
            for entry in found.chunks_exact(2) {
                let [key, about] = entry else { continue };
                entries.push(info_of(key, about)?);
            }
            entries.retain(|info| self.is_live(info));
            entries.sort_unstable_by(|one, other| one.key.cmp(&other.key));
            Ok(entries)
        }
        .boxed()
    }

    fn search(&self, owner: MemoryOwner, query: SearchQuery) -> BoxFuture<'_, Result<Vec<SearchHit>, MemoryError>> {
        async move {
            let of = Arc::clone(&owner.key);
            self.indexes.search(owner, query, self.clock.since_epoch(), |since| self.changes(&of, since)).await
        }
        .boxed()
    }

    fn delete(&self, owner: MemoryOwner, key: EntryKey) -> BoxFuture<'_, Result<bool, MemoryError>> {
        async move { self.run(&self.deletion(&owner, &key)).await }.boxed()
    }

    fn usage(&self) -> BoxFuture<'_, Result<MemoryUsage, MemoryError>> {
        async move {
            let mut script = self.on(&self.scripts.usage, "");
            // Two for each share, and one for each namespace.
            let (fields, is_whole): (HashMap<String, u64>, bool) = self.run(script.arg(3 * MAX_USAGE)).await?;
            Ok(usage_of(&fields, is_whole))
        }
        .boxed()
    }
}

/// Returns the usage in the fields of `usage`.
fn usage_of(fields: &HashMap<String, u64>, is_whole: bool) -> MemoryUsage {
    let (mut shares, mut namespaces) = (Vec::new(), Vec::new());
    for (field, &entries) in fields {
        if let Some(share) = field.strip_prefix("entries:") {
            let bytes = fields.get(&format!("bytes:{share}")).copied().unwrap_or_default();
            shares.push(ShareUsage { share: share.into(), entries, bytes });
        } else if let Some((length, rest)) =
            field.strip_prefix("namespace:").and_then(|namespace| namespace.split_once(':'))
            && let Some((owner, namespace)) = length.parse().ok().and_then(|length| rest.split_at_checked(length))
        {
            namespaces.push(NamespaceUsage { owner: owner.into(), namespace: namespace.into(), entries });
        }
    }
    MemoryUsage::new(fields.get("total").copied().unwrap_or_default(), shares, namespaces, is_whole)
}

impl RedisMemory {
    fn is_live(&self, info: &EntryInfo) -> bool {
        milliseconds(info.expires_at) > self.now()
    }
}

impl EntryMetadata {
    fn new(entry: &NewEntry, owner: &MemoryOwner, now: Duration) -> Self {
        let EntryInfo { key, category, tags, characters, saved_at, expires_at } = entry.info(now);
        Self {
            category,
            tags,
            characters,
            saved: milliseconds(saved_at),
            expires: milliseconds(expires_at),
            size: entry.size(),
            share: Arc::clone(&owner.share),
            namespace: key.namespace().into(),
        }
    }
}

impl fmt::Debug for RedisMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisMemory").field("limits", &self.limits).finish_non_exhaustive()
    }
}

fn info_of(key: &str, about: &str) -> Result<EntryInfo, MemoryError> {
    let EntryMetadata { category, tags, characters, saved, expires, .. } =
        serde_json::from_str(about).map_err(unreadable)?;
    let (saved_at, expires_at) = (Duration::from_millis(saved), Duration::from_millis(expires));
    Ok(EntryInfo { key: key_of(key)?, category, tags, characters, saved_at, expires_at })
}

fn key_of(key: &str) -> Result<EntryKey, MemoryError> {
    EntryKey::parse(key).map_err(unreadable)
}

fn unreadable(error: impl std::error::Error) -> MemoryError {
    StoreError::Failed(format!("an entry of working memory cannot be read: {error}")).into()
}

/// A number for the name of the data.
fn number_of(name: &str) -> u64 {
    name.bytes().fold(0, |number: u64, byte| number.wrapping_mul(31).wrapping_add(u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use toolbus_testing::redis::RedisServer;

    use super::*;
    use crate::RedisSettings;

    /// As after the loss of a connection that had brought the server the script, and not its response to the daemon.
    #[tokio::test]
    async fn a_repeated_deletion_reports_that_the_entry_existed() {
        let server = RedisServer::start().await;
        let settings = RedisSettings { url: server.url().parse().unwrap(), tls: None, prefix: "test".to_owned() };
        let redis = Arc::new(Redis::new(&settings, Clock::SYSTEM).unwrap());
        let limits = MemoryLimits {
            max_value: 100,
            max_entries_per_namespace: 10,
            max_entries: 10,
            max_size: 10_000,
            max_total_size: 10_000,
        };
        let memory = RedisMemory::new(redis, limits, Clock::SYSTEM);
        let (owner, key) = (MemoryOwner { key: "ana".into(), share: "ana".into() }, EntryKey::parse("a/b").unwrap());
        let entry = || vec![NewEntry::new(key.clone(), "text", Duration::from_secs(60))];
        memory.save(owner.clone(), entry()).await.unwrap();
        let deletion = memory.deletion(&owner, &key);
        assert!(memory.run::<bool>(&deletion).await.unwrap());
        assert!(memory.run::<bool>(&deletion).await.unwrap());
        assert!(!memory.delete(owner.clone(), key.clone()).await.unwrap());
        // An entry that was saved since stays.
        memory.save(owner.clone(), entry()).await.unwrap();
        assert!(memory.run::<bool>(&deletion).await.unwrap());
        assert!(memory.get(owner, key.clone()).await.unwrap().is_some());
    }
}
