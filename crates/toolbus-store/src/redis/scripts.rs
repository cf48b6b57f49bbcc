//! Scripts that run in the server: each script is atomic, and leaves the same when it is run twice.

use ::redis::Script;

/// Puts a value under a key unless the namespace is full, and counts the change.
///
/// Keys: the namespace, the versions. Arguments: key, value, most keys, name of the version. Returns whether there was
/// room.
const PUT: &str = "
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HINCRBY', KEYS[2], ARGV[4], 1)
return 1";

/// Variant of `PUT` that applies where the present value is the expected one, or the new one already.
///
/// Arguments as for `PUT`, then: the expected value, `1` if one is expected. Returns 1, 0 if the namespace is full, and
/// -1 if there is another value.
const REPLACE: &str = "
local present = redis.call('HGET', KEYS[1], ARGV[1])
if present == ARGV[2] then
  return 1
end
if present ~= (ARGV[6] == '1' and ARGV[5]) then
  return -1
end
if not present and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HINCRBY', KEYS[2], ARGV[4], 1)
return 1";

/// Takes a key away, and counts the change.
///
/// Keys: the namespace, the versions. Arguments: key, name of the version. Returns whether it was there.
const DELETE: &str = "
local was_there = redis.call('HDEL', KEYS[1], ARGV[1])
if was_there == 1 then
  redis.call('HINCRBY', KEYS[2], ARGV[2], 1)
end
return was_there";

/// Keys: the versions. Arguments: a new name for the data where it has none; names of versions. Returns the name of the
/// data, and the versions.
const VERSIONS: &str = "
redis.call('HSETNX', KEYS[1], 'data', ARGV[1])
local versions = redis.call('HMGET', KEYS[1], 'data', unpack(ARGV, 2))
return versions";

/// Announces a replica, and forgets those that have not announced themselves for longer than they declared.
///
/// Keys: the times, the announcements. Arguments: id, announcement, milliseconds that it holds, most announcements that
/// are returned. Returns the server's time in milliseconds, and the announcements, the replica's own among them.
const ANNOUNCE: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now))) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
end
redis.call('ZADD', KEYS[1], string.format('%d', now + ARGV[3]), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return {now, redis.call('HMGET', KEYS[2], unpack(redis.call('ZREVRANGE', KEYS[1], 0, ARGV[4] - 1)))}";

/// Keys: the times, the announcements. Arguments: id.
const LEAVE: &str = "
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])";

/// Keys: the namespace. Arguments: key.
const GET: &str = "return redis.call('HGET', KEYS[1], ARGV[1])";

/// Keys: the namespace.
const LIST: &str = "return redis.call('HKEYS', KEYS[1])";

/// The scripts, with their hashes.
pub(super) struct StoreScripts {
    pub(super) put: Script,
    pub(super) replace: Script,
    pub(super) delete: Script,
    pub(super) get: Script,
    pub(super) list: Script,
    pub(super) versions: Script,
    pub(super) announce: Script,
    pub(super) leave: Script,
}

impl StoreScripts {
    pub(super) fn new() -> Self {
        Self {
            put: Script::new(PUT),
            replace: Script::new(REPLACE),
            delete: Script::new(DELETE),
            get: Script::new(GET),
            list: Script::new(LIST),
            versions: Script::new(VERSIONS),
            announce: Script::new(ANNOUNCE),
            leave: Script::new(LEAVE),
        }
    }
}
