//! A store on a Redis server, which replicas share.
//!
//! Each namespace is a hash. All keys of one deployment have the same hash tag, so that they are in one slot of a cluster.

mod connection;
mod ledger;
mod memory;
mod replicas;
mod scripts;
mod url;

use std::fmt;

use ::redis::{Client, ClientTlsConfig, IntoConnectionInfo, RedisError, TlsCertificates};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use toolbus_core::Clock;
use toolbus_core::store::{MAX_KEYS, Store, StoreError, check_key, check_namespace, check_value};

use self::connection::Connection;
use self::scripts::StoreScripts;

pub use self::ledger::RedisLedger;
pub use self::memory::RedisMemory;
pub use self::replicas::Versions;
pub use self::url::{RedisUrl, RedisUrlError};

/// Address of a server, and the data that is kept there.
#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// The server.
    pub url: RedisUrl,
    /// Certificates of a `rediss://` server; `None` for the authorities of the system.
    pub tls: Option<RedisTls>,
    /// Prefix that separates deployments on one server and database. Without braces.
    pub prefix: String,
}

/// Certificates for TLS, as PEM.
#[derive(Debug, Clone, Default)]
pub struct RedisTls {
    /// Authorities that may have signed the server's certificate; `None`: those of the system.
    pub ca: Option<Vec<u8>>,
    /// Certificate and key that are shown to the server.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Keeps values on a Redis server. Connects with the first operation, and again after each loss.
pub struct Redis {
    connection: Connection,
    scripts: StoreScripts,
    prefix: String,
}

impl Redis {
    /// A store on this server. Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// If a certificate cannot be read.
    pub fn new(settings: &RedisSettings, clock: Clock) -> Result<Self, RedisError> {
        let address = settings.url.address();
        let info = settings.url.reveal().clone().into_connection_info()?;
        let client = match settings.tls.as_ref().filter(|_| settings.url.is_tls()) {
            None => Client::open(info)?,
            Some(RedisTls { ca, identity }) => {
                let identity = identity.clone();
                let client_tls = identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
                Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: ca.clone() })?
            }
        };
        let prefix = format!("toolbus:{{{}}}", settings.prefix);
        Ok(Self { connection: Connection::new(client, address, clock), scripts: StoreScripts::new(), prefix })
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    fn namespace(&self, namespace: &str) -> String {
        format!("{}:store:{namespace}", self.prefix)
    }

    /// Name of a namespace's version.
    fn version(namespace: &str) -> String {
        format!("of:{namespace}")
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Store for Redis {
    fn get<'a>(&'a self, namespace: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, StoreError>> {
        async move {
            check_key(namespace, key)?;
            let mut script = self.scripts.get.prepare_invoke();
            self.connection.run(script.key(self.namespace(namespace)).arg(key)).await
        }
        .boxed()
    }

    fn put<'a>(&'a self, namespace: &'a str, key: &'a str, value: Vec<u8>) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            check_key(namespace, key)?;
            check_value(&value)?;
            let mut script = self.scripts.put.prepare_invoke();
            script.key(self.namespace(namespace)).key(self.key("versions"));
            script.arg(key).arg(value).arg(MAX_KEYS).arg(Self::version(namespace));
            match self.connection.run::<bool>(&script).await? {
                true => Ok(()),
                false => Err(StoreError::Full(namespace.to_owned())),
            }
        }
        .boxed()
    }

    fn replace<'a>(
        &'a self,
        namespace: &'a str,
        key: &'a str,
        expected: Option<&'a [u8]>,
        value: Vec<u8>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        async move {
            check_key(namespace, key)?;
            check_value(&value)?;
            let mut script = self.scripts.replace.prepare_invoke();
            script.key(self.namespace(namespace)).key(self.key("versions"));
            script.arg(key).arg(value).arg(MAX_KEYS).arg(Self::version(namespace));
            script.arg(expected.unwrap_or_default()).arg(u8::from(expected.is_some()));
            match self.connection.run::<i8>(&script).await? {
                0 => Err(StoreError::Full(namespace.to_owned())),
                outcome => Ok(outcome == 1),
            }
        }
        .boxed()
    }

    fn delete<'a>(&'a self, namespace: &'a str, key: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        async move {
            check_key(namespace, key)?;
            let mut script = self.scripts.delete.prepare_invoke();
            script.key(self.namespace(namespace)).key(self.key("versions")).arg(key).arg(Self::version(namespace));
            self.connection.run(&script).await
        }
        .boxed()
    }

    fn list<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        async move {
            check_namespace(namespace)?;
            let mut script = self.scripts.list.prepare_invoke();
            let mut keys: Vec<String> = self.connection.run(script.key(self.namespace(namespace))).await?;
            keys.sort_unstable();
            Ok(keys)
        }
        .boxed()
    }
}
