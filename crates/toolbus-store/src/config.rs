//! `[store]`: where is kept what must outlive a call.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use toolbus_config::secret_schema;
use toolbus_core::Clock;
use toolbus_core::ledger::{Ledger, LedgerLimits};
use toolbus_core::store::Store;
use toolbus_memory::working_memory::{MemoryLimits, WorkingMemory};

use crate::{
    FileClaim, FileClaimError, MemoryLedger, MemoryStore, OpenError, Redis, RedisLedger, RedisMemory, RedisSettings,
    RedisTls, RedisUrl, RedisUrlError, Sqlite, SqliteLedger, SqliteMemory, VolatileMemory,
};

/// Where is kept what must outlive a call, such as the switches that operators turned.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// "memory:", which forgets with the process; "sqlite:PATH", a file; or "redis://:password@host:6379/0" and
    /// "rediss://…", a server that replicas share. Absent: a SQLite file in the state folder, if a daemon has one.
    #[schemars(schema_with = "url_schema")]
    pub url: Option<StoreUrl>,
    /// Certificates for `rediss://`.
    pub tls: StoreTls,
    /// File of a daemon whose `url` is absent, if there is a folder for it.
    #[serde(skip)]
    pub state_file: Option<PathBuf>,
}

impl StoreConfig {
    /// The store in use: the one that is named, else the file in the state folder, else memory.
    #[must_use]
    pub fn url(&self) -> StoreUrl {
        let state = || self.state_file.clone().map(StoreUrl::Sqlite);
        self.url.clone().or_else(state).unwrap_or(StoreUrl::Memory)
    }
}

/// Certificates for `rediss://`, as PEM files; relative to the working directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "StoreTlsConfig")]
pub struct StoreTls {
    /// Authorities that may have signed the server's certificate; absent: those of the system.
    #[schemars(length(min = 1))]
    pub ca: Option<PathBuf>,
    /// Certificate that the daemon shows to the server. Needs `key`.
    #[schemars(length(min = 1))]
    pub cert: Option<PathBuf>,
    /// Private key of `cert`.
    #[schemars(length(min = 1))]
    pub key: Option<PathBuf>,
}

fn url_schema(_: &mut SchemaGenerator) -> Schema {
    secret_schema([json_schema!({"type": "string", "format": "toolbus-store-url"})])
}

/// A store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StoreUrl {
    /// In memory.
    Memory,
    /// In this file, made when it is not there.
    Sqlite(PathBuf),
    /// On this server. Its credentials are neither shown nor written.
    Redis(RedisUrl),
}

/// Reason why a text names no store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    /// A kind of store that there is not.
    #[error(r#"no such store; expected "memory:", "sqlite:PATH", "redis://…" or "rediss://…""#)]
    Kind,
    /// No path, or none of a file.
    #[error(r#"no path of a file after `sqlite:`; expected for example "sqlite:toolbus.db" or "sqlite:/var/lib/toolbus/toolbus.db""#)]
    Path,
    /// A server that cannot be.
    #[error(transparent)]
    Redis(#[from] RedisUrlError),
}

/// A store that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StoreOpenError {
    /// The file of the store.
    #[error("[store] the file `{file}` cannot be used: {error}")]
    File {
        /// The file.
        file: PathBuf,
        /// Reason why the file cannot be used.
        error: OpenError,
    },
    /// Another daemon's file.
    #[error(
        "[store] the file `{file}` cannot be used: {error}; give each daemon a file of its own, or let them share a Redis \
         server (store.url = \"redis://…\")"
    )]
    Claim {
        /// The file.
        file: PathBuf,
        /// Reason why the file cannot be used.
        error: FileClaimError,
    },
    /// A file with a certificate or a key.
    #[error("[store] store.tls: cannot read `{file}`: {error}")]
    Certificate {
        /// The file.
        file: PathBuf,
        /// Reason why the file cannot be read.
        error: io::Error,
    },
    /// Certificates that are none.
    #[error("[store] store.tls: {0}")]
    Tls(String),
}

impl StoreOpenError {
    /// Whether a daemon that describes itself so holds the file.
    #[must_use]
    pub fn is_held_by(&self, holder: &str) -> bool {
        matches!(self, Self::Claim { error: FileClaimError::Taken(other), .. } if other == holder)
    }
}

/// An open store.
pub struct OpenStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The same, where it is on a server that replicas share.
    pub shared: Option<Arc<Redis>>,
    /// Keeps other daemons from the store's file.
    pub claim: Option<FileClaim>,
}

/// An open working memory.
pub struct OpenMemory {
    /// Keeps the entries.
    pub memory: Arc<dyn WorkingMemory>,
    /// The same, where it is in a file.
    pub file: Option<Arc<SqliteMemory>>,
}

impl OpenStore {
    /// A store that forgets with the process.
    #[must_use]
    pub fn in_memory() -> Self {
        Self { store: Arc::new(MemoryStore::default()), shared: None, claim: None }
    }
}

impl StoreConfig {
    /// Opens the ledger that is kept in the store, which is open.
    ///
    /// # Errors
    ///
    /// If the store's file cannot be opened, or its threads cannot be started.
    pub fn open_ledger(&self, limits: LedgerLimits, open: &OpenStore) -> Result<Arc<dyn Ledger>, StoreOpenError> {
        match (self.url(), &open.shared) {
            (_, Some(redis)) => Ok(Arc::new(RedisLedger::new(Arc::clone(redis), limits))),
            (StoreUrl::Sqlite(file), None) => match SqliteLedger::open(&file, limits, Clock::SYSTEM) {
                Ok(ledger) => Ok(Arc::new(ledger)),
                Err(error) => Err(StoreOpenError::File { file, error }),
            },
            (StoreUrl::Memory | StoreUrl::Redis(_), None) => Ok(Arc::new(MemoryLedger::new(limits, Clock::SYSTEM))),
        }
    }

    /// Opens the working memory that is kept beside the store, which is open.
    ///
    /// # Errors
    ///
    /// If its file cannot be opened, or its threads cannot be started.
    pub fn open_memory(&self, limits: MemoryLimits, open: &OpenStore) -> Result<OpenMemory, StoreOpenError> {
        let elsewhere = |memory: Arc<dyn WorkingMemory>| OpenMemory { memory, file: None };
        match (self.url(), &open.shared) {
            (_, Some(redis)) => Ok(elsewhere(Arc::new(RedisMemory::new(Arc::clone(redis), limits, Clock::SYSTEM)))),
            (StoreUrl::Sqlite(store), None) => {
                let file = SqliteMemory::beside(&store);
                let memory = SqliteMemory::open(&file, limits, Clock::SYSTEM);
                let memory = Arc::new(memory.map_err(|error| StoreOpenError::File { file, error })?);
                Ok(OpenMemory { memory: Arc::clone(&memory) as _, file: Some(memory) })
            }
            (StoreUrl::Memory | StoreUrl::Redis(_), None) => {
                Ok(elsewhere(Arc::new(VolatileMemory::new(limits, Clock::SYSTEM))))
            }
        }
    }

    /// Opens the store. A server is not connected to yet; `prefix` separates its data there from those of other
    /// deployments. A file is claimed by `holder`.
    ///
    /// # Errors
    ///
    /// If the store's file cannot be opened or is another daemon's, its thread cannot be started, or a certificate
    /// cannot be read.
    pub fn open(&self, prefix: &str, holder: &str) -> Result<OpenStore, StoreOpenError> {
        match self.url() {
            StoreUrl::Memory => Ok(OpenStore::in_memory()),
            StoreUrl::Sqlite(file) => {
                // First: an error of the file itself is reported by its own name.
                let store = Sqlite::open(&file).map_err(|error| StoreOpenError::File { file: file.clone(), error })?;
                let claim = FileClaim::new(&file, holder);
                let claim = claim.map_err(|error| StoreOpenError::Claim { file, error })?;
                Ok(OpenStore { store: Arc::new(store), shared: None, claim: Some(claim) })
            }
            StoreUrl::Redis(url) => {
                let settings = RedisSettings { url, tls: self.certificates()?, prefix: prefix.to_owned() };
                let redis = Redis::new(&settings, Clock::SYSTEM);
                let redis = Arc::new(redis.map_err(|error| StoreOpenError::Tls(error.to_string()))?);
                Ok(OpenStore { store: Arc::clone(&redis) as _, shared: Some(redis), claim: None })
            }
        }
    }

    /// Another daemon that uses the store's file, but for one of `holder`. A daemon does not check itself.
    #[must_use]
    pub fn other_holder(&self, holder: &str) -> Option<String> {
        let Some(StoreUrl::Sqlite(file)) = &self.url else { return None };
        let other = FileClaim::holder(file).ok()??;
        (other != holder).then_some(other)
    }

    fn certificates(&self) -> Result<Option<RedisTls>, StoreOpenError> {
        let read =
            |file: &PathBuf| fs::read(file).map_err(|error| StoreOpenError::Certificate { file: file.clone(), error });
        let StoreTls { ca, cert, key } = &self.tls;
        let ca = ca.as_ref().map(read).transpose()?;
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((read(cert)?, read(key)?)),
            _ => None,
        };
        Ok((ca.is_some() || identity.is_some()).then_some(RedisTls { ca, identity }))
    }
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "memory:" {
            return Ok(Self::Memory);
        }
        if text.starts_with("redis://") || text.starts_with("rediss://") {
            return Ok(Self::Redis(text.parse()?));
        }
        let path = text.strip_prefix("sqlite:").ok_or(StoreUrlError::Kind)?;
        // Other programs read such a path as an address or as a database in memory.
        let is_strange = path.starts_with("//") || path.starts_with(':') || path.ends_with('/');
        if path.is_empty() || is_strange || path.chars().any(char::is_control) {
            return Err(StoreUrlError::Path);
        }
        Ok(Self::Sqlite(Path::new(path).to_owned()))
    }
}

impl TryFrom<String> for StoreUrl {
    type Error = StoreUrlError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Redis(url) => url.fmt(f),
        }
    }
}

impl From<StoreUrl> for String {
    fn from(url: StoreUrl) -> Self {
        url.to_string()
    }
}

#[cfg(test)]
mod tests {
    use toolbus_core::ledger::RequestKey;
    use toolbus_memory::working_memory::{EntryKey, MemoryOwner};

    use super::*;

    #[test]
    fn a_store_is_written_so_that_it_reads_the_same() {
        for text in [
            "redis://host:6380/2",
            "rediss://host",
            "memory:",
            "sqlite:toolbus.db",
            "sqlite:/var/lib/toolbus/toolbus.db",
            "sqlite:./a b?c",
        ] {
            assert_eq!(text.parse::<StoreUrl>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_unknown_store_is_refused_with_the_known_ones() {
        let error = |text: &str| text.parse::<StoreUrl>().unwrap_err().to_string();
        insta::assert_snapshot!(error("postgres://127.0.0.1/x"), @r#"no such store; expected "memory:", "sqlite:PATH", "redis://…" or "rediss://…""#);
        for text in ["", "memory", "memory:x", "toolbus.db", "SQLITE:toolbus.db", "postgres:x"] {
            assert_eq!(text.parse::<StoreUrl>(), Err(StoreUrlError::Kind), "{text}");
        }
        insta::assert_snapshot!(error("sqlite:"), @r#"no path of a file after `sqlite:`; expected for example "sqlite:toolbus.db" or "sqlite:/var/lib/toolbus/toolbus.db""#);
        for text in ["sqlite::memory:", "sqlite:///toolbus.db", "sqlite://toolbus.db", "sqlite:a/", "sqlite:a\nb"] {
            assert_eq!(text.parse::<StoreUrl>(), Err(StoreUrlError::Path), "{text}");
        }
    }

    #[test]
    fn a_server_is_written_without_its_login_and_refused_without_repeating_it() {
        let url: StoreUrl = "redis://ana:hunter2@host:6380/2".parse().unwrap();
        assert_eq!(format!("{url} {}", String::from(url.clone())), "redis://host:6380/2 redis://host:6380/2");
        assert!(!format!("{url:?}").contains("hunter2"));
        let error = "redis://:hunter2@host/x".parse::<StoreUrl>().unwrap_err().to_string();
        assert!(error.starts_with("no number of a database after the host; expected for example `/0`; percent-encode"));
    }

    #[test]
    fn the_error_for_a_missing_certificate_names_its_file() {
        let tls = StoreTls { ca: Some("/nonexistent/ca.pem".into()), ..StoreTls::default() };
        let config = StoreConfig { url: Some("rediss://host".parse().unwrap()), tls, state_file: None };
        insta::assert_snapshot!(config.open("toolbus", "a test").err().unwrap(), @"[store] store.tls: cannot read `/nonexistent/ca.pem`: No such file or directory (os error 2)");
    }

    #[tokio::test]
    async fn each_store_can_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.db");
        for url in [StoreUrl::Memory, StoreUrl::Sqlite(file.clone())] {
            let config = StoreConfig { url: Some(url), ..Default::default() };
            let open = config.open("toolbus", "a test").unwrap();
            assert!(open.shared.is_none());
            let store = Arc::clone(&open.store);
            store.put("a", "b", Vec::new()).await.unwrap();
            let ledger = config.open_ledger(LedgerLimits { max_entries: 100, max_bytes: 1 << 20 }, &open).unwrap();
            assert_eq!(ledger.look_up(RequestKey([0; 32])).await, Ok(None));
            let OpenMemory { memory, file } =
                config.open_memory(toolbus_memory::MemoryConfig::default().limits(), &open).unwrap();
            assert_eq!(file.is_some(), config.url() != StoreUrl::Memory);
            let (key, share) = (Arc::from("ana"), Arc::from("ana"));
            let key_of_entry = EntryKey::parse("a/b").unwrap();
            assert_eq!(memory.get(MemoryOwner { key, share }, key_of_entry).await, Ok(None));
        }
        assert!(file.exists() && folder.path().join("store.db-memory").exists());
    }

    #[test]
    fn the_error_for_an_unusable_store_file_names_it() {
        let url = StoreUrl::Sqlite("/nonexistent/toolbus.db".into());
        insta::assert_snapshot!(StoreConfig { url: Some(url), ..Default::default() }.open("toolbus", "a test").err().unwrap(), @"[store] the file `/nonexistent/toolbus.db` cannot be used: its folder does not exist; create it, for the daemon's user alone");
    }
}
