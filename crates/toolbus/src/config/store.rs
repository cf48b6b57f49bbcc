//! `[store]`: where is kept what must outlive a call.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::Clock;
use toolbus_core::ledger::{Ledger, LedgerLimits};
use toolbus_core::store::Store;
use toolbus_store::{Memory, MemoryLedger, OpenError, Sqlite, SqliteLedger};

/// Where is kept what must outlive a call, such as the switches that operators turned.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// "memory:", which forgets with the process, or "sqlite:PATH", a file.
    #[schemars(with = "String", extend("format" = "toolbus-store-url"))]
    pub url: StoreUrl,
}

/// A store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StoreUrl {
    /// In memory.
    #[default]
    Memory,
    /// In this file, made when it is not there.
    Sqlite(PathBuf),
}

/// Why a text names no store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    /// A kind of store that there is not.
    #[error(r#"no such store; this build knows "memory:" and "sqlite:PATH""#)]
    Kind,
    /// No path, or none of a file.
    #[error(r#"no path of a file after `sqlite:`; expected for example "sqlite:toolbus.db" or "sqlite:/var/lib/toolbus/toolbus.db""#)]
    Path,
}

/// A store that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("[store] the file `{file}` cannot be used: {error}")]
pub struct StoreOpenError {
    file: PathBuf,
    error: OpenError,
}

impl StoreConfig {
    /// Opens the ledger that is kept in the store.
    ///
    /// # Errors
    ///
    /// If the store's file cannot be opened, or its threads cannot be started.
    pub fn open_ledger(&self, limits: LedgerLimits) -> Result<Arc<dyn Ledger>, StoreOpenError> {
        match &self.url {
            StoreUrl::Memory => Ok(Arc::new(MemoryLedger::new(limits, Clock::SYSTEM))),
            StoreUrl::Sqlite(file) => match SqliteLedger::open(file, limits, Clock::SYSTEM) {
                Ok(ledger) => Ok(Arc::new(ledger)),
                Err(error) => Err(StoreOpenError { file: file.clone(), error }),
            },
        }
    }

    /// Opens the store.
    ///
    /// # Errors
    ///
    /// If the store's file cannot be opened, or its thread cannot be started.
    pub fn open(&self) -> Result<Arc<dyn Store>, StoreOpenError> {
        match &self.url {
            StoreUrl::Memory => Ok(Arc::new(Memory::default())),
            StoreUrl::Sqlite(file) => match Sqlite::open(file) {
                Ok(store) => Ok(Arc::new(store)),
                Err(error) => Err(StoreOpenError { file: file.clone(), error }),
            },
        }
    }
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "memory:" {
            return Ok(Self::Memory);
        }
        let path = text.strip_prefix("sqlite:").ok_or(StoreUrlError::Kind)?;
        // What other programs read as an address or as a database in memory would be a strange file here.
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

    use super::*;
    use crate::config::LedgerConfig;

    #[test]
    fn a_store_is_written_so_that_it_reads_the_same() {
        for text in ["memory:", "sqlite:toolbus.db", "sqlite:/var/lib/toolbus/toolbus.db", "sqlite:./a b?c"] {
            assert_eq!(text.parse::<StoreUrl>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_names_no_store_is_refused_with_those_that_there_are() {
        let error = |text: &str| text.parse::<StoreUrl>().unwrap_err().to_string();
        insta::assert_snapshot!(error("redis://127.0.0.1:6379/0"), @r#"no such store; this build knows "memory:" and "sqlite:PATH""#);
        for text in ["", "memory", "memory:x", "toolbus.db", "SQLITE:toolbus.db", "postgres:x"] {
            assert_eq!(text.parse::<StoreUrl>(), Err(StoreUrlError::Kind), "{text}");
        }
        insta::assert_snapshot!(error("sqlite:"), @r#"no path of a file after `sqlite:`; expected for example "sqlite:toolbus.db" or "sqlite:/var/lib/toolbus/toolbus.db""#);
        for text in ["sqlite::memory:", "sqlite:///toolbus.db", "sqlite://toolbus.db", "sqlite:a/", "sqlite:a\nb"] {
            assert_eq!(text.parse::<StoreUrl>(), Err(StoreUrlError::Path), "{text}");
        }
    }

    #[tokio::test]
    async fn each_store_can_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.db");
        for url in [StoreUrl::Memory, StoreUrl::Sqlite(file.clone())] {
            let store = StoreConfig { url: url.clone() }.open().unwrap();
            store.put("a", "b", Vec::new()).await.unwrap();
            let ledger = StoreConfig { url }.open_ledger(LedgerConfig::default().limits()).unwrap();
            assert_eq!(ledger.look_up(RequestKey([0; 32])).await, Ok(None));
        }
        assert!(file.exists());
    }

    #[test]
    fn a_file_that_cannot_be_used_is_told_with_its_name() {
        let url = StoreUrl::Sqlite("/nonexistent/toolbus.db".into());
        insta::assert_snapshot!(StoreConfig { url }.open().err().unwrap(), @"[store] the file `/nonexistent/toolbus.db` cannot be used: its folder does not exist; create it, for the daemon's user alone");
    }
}
