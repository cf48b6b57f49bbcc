//! The stores of Toolbus: [`MemoryStore`], which lives as long as its process, [`Sqlite`], one file, and [`Redis`], a
//! server that replicas share. Each comes with a ledger and with working memory; [`StoreConfig`] names and opens one.

mod claim;
mod config;
mod entry_index;
mod memory;
mod memory_ledger;
mod redis;
mod sqlite;
mod sqlite_ledger;
mod sqlite_log;
mod sqlite_memory;
mod sqlite_threads;
mod volatile_memory;

pub use self::claim::{FileClaim, FileClaimError, hand_over};
pub use self::config::{OpenMemory, OpenStore, StoreConfig, StoreOpenError, StoreTls, StoreUrl, StoreUrlError};
pub use self::memory::MemoryStore;
pub use self::memory_ledger::MemoryLedger;
pub use self::redis::{Redis, RedisLedger, RedisMemory, RedisSettings, RedisTls, RedisUrl, RedisUrlError, Versions};
pub use self::sqlite::{OpenError, Sqlite};
pub use self::sqlite_ledger::SqliteLedger;
pub use self::sqlite_memory::SqliteMemory;
pub use self::volatile_memory::VolatileMemory;
