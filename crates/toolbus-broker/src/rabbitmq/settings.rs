//! Settings of an operator for the broker, and their check before anything is started.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::types::ShortString;
use lapin::uri::{AMQPScheme, AMQPUri};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_bus::Clock;

use super::thread::ConnectionThread;
use super::url::{AmqpUrl, AmqpUrlError};

/// Seconds between heartbeats by default: a silent network is noticed after twice this time.
const HEARTBEAT: u16 = 10;
/// Largest frame in bytes, unless the URL sets another: the broker's own default. Named all the same, because the
/// client then makes its buffers once; growing them after the broker has responded touches 16 MiB for good.
const FRAME_MAX: u32 = 131_072;

/// Settings for reaching the broker, and for naming things there.
#[derive(Clone)]
pub struct RabbitMqSettings {
    /// One URL, or those of a cluster's nodes, tried in turn: `amqp://` or `amqps://`, with credentials.
    pub urls: Vec<String>,
    /// Name of this instance; its connections are called `{name} consume` and `{name} publish`.
    pub name: String,
    /// The topic exchange.
    pub exchange: String,
    /// The topic exchange for dead letters.
    pub dead_letter_exchange: String,
    /// Type of our shared queues.
    pub queue_type: QueueType,
    /// Files for `amqps://`; without, only the system's authorities are trusted.
    pub tls: Option<Tls>,
    /// Clock for the age of connections and the arrival of messages.
    pub clock: Clock,
}

/// URLs hold credentials, so they are left out.
impl fmt::Debug for RabbitMqSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqSettings")
            .field("name", &self.name)
            .field("exchange", &self.exchange)
            .field("dead_letter_exchange", &self.dead_letter_exchange)
            .field("queue_type", &self.queue_type)
            .finish_non_exhaustive()
    }
}

/// Kind of a durable queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum QueueType {
    /// Replicated in a cluster; the broker counts deliveries.
    #[default]
    Quorum,
    /// On one node.
    Classic,
}

impl QueueType {
    /// Returns the name of the queue type, as the broker and the configuration write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

/// Certificates for `amqps://`, as PEM files; relative to the working directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "TlsConfig")]
pub struct Tls {
    /// Authorities that may have signed the broker's certificate; absent: those of the system.
    #[schemars(length(min = 1))]
    pub ca: Option<PathBuf>,
    /// Certificate that the daemon shows to the broker. Needs `key`.
    #[schemars(length(min = 1))]
    pub cert: Option<PathBuf>,
    /// Private key of `cert`.
    #[schemars(length(min = 1))]
    pub key: Option<PathBuf>,
}

/// Reason why settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// There is no URL.
    #[error("bus.url is empty: give at least one amqp:// or amqps:// URL")]
    NoUrl,
    /// One URL is not valid. The URL itself is not shown: it may hold a password.
    #[error("bus.url, number {position}: {error}")]
    Url {
        /// Number of the URL, from 1.
        position: usize,
        /// Error in the URL.
        error: AmqpUrlError,
    },
    /// A name is longer than 255 bytes.
    #[error("{key} is longer than 255 bytes")]
    TooLong {
        /// The key of the configuration.
        key: &'static str,
    },
    /// A certificate without its key, or the reverse.
    #[error("bus.tls.cert and bus.tls.key belong together: give both or none")]
    HalfIdentity,
    /// A file cannot be read.
    #[error("bus.tls.{key}: cannot read {path}: {source}")]
    File {
        /// The key of the section that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Reason why the file cannot be read.
        source: std::io::Error,
    },
    /// A file holds something else.
    #[error("bus.tls.{key}: {path} holds no {expected} in PEM")]
    NotPem {
        /// The key of the section that names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Content that the file should hold.
        expected: &'static str,
    },
}

/// Settings that can be used as they are.
pub(super) struct Checked {
    pub(super) endpoints: Vec<AMQPUri>,
    pub(super) name: String,
    pub(super) exchange: ShortString,
    pub(super) dead_letter_exchange: ShortString,
    pub(super) queue_type: QueueType,
    pub(super) tls: OwnedTLSConfig,
    pub(super) clock: Clock,
    pub(super) thread: ConnectionThread,
}

impl Checked {
    pub(super) fn new(settings: RabbitMqSettings) -> Result<Self, SettingsError> {
        if settings.urls.is_empty() {
            return Err(SettingsError::NoUrl);
        }
        let short = |key, text: String| ShortString::try_new(text).map_err(|_| SettingsError::TooLong { key });
        Ok(Self {
            endpoints: settings.urls.iter().enumerate().map(endpoint).collect::<Result<_, _>>()?,
            name: settings.name,
            exchange: short("bus.exchange", settings.exchange)?,
            dead_letter_exchange: short("bus.dead_letter_exchange", settings.dead_letter_exchange)?,
            queue_type: settings.queue_type,
            tls: settings.tls.as_ref().map(read_tls).transpose()?.unwrap_or_default(),
            clock: settings.clock,
            thread: ConnectionThread::start(),
        })
    }
}

fn endpoint((index, url): (usize, &String)) -> Result<AMQPUri, SettingsError> {
    let read = url.parse::<AmqpUrl>().and_then(|url| url.endpoint());
    let mut uri = read.map_err(|error| SettingsError::Url { position: index + 1, error })?;
    uri.query.heartbeat.get_or_insert(HEARTBEAT);
    uri.query.frame_max.get_or_insert(FRAME_MAX);
    Ok(uri)
}

/// Returns the part of an endpoint that may be logged.
pub(super) fn host_of(uri: &AMQPUri) -> String {
    let scheme = if uri.scheme == AMQPScheme::AMQPS { "amqps" } else { "amqp" };
    format!("{scheme}://{}:{}", uri.authority.host, uri.authority.port)
}

fn read_tls(tls: &Tls) -> Result<OwnedTLSConfig, SettingsError> {
    let identity = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => Some(OwnedIdentity::PKCS8 {
            pem: read_pem("cert", cert, "CERTIFICATE")?.into_bytes(),
            key: read_pem("key", key, "PRIVATE KEY")?.into_bytes(),
        }),
        (None, None) => None,
        _ => return Err(SettingsError::HalfIdentity),
    };
    let cert_chain = tls.ca.as_deref().map(|ca| read_pem("ca", ca, "CERTIFICATE")).transpose()?;
    Ok(OwnedTLSConfig { identity, cert_chain })
}

fn read_pem(key: &'static str, path: &Path, expected: &'static str) -> Result<String, SettingsError> {
    let text =
        fs::read_to_string(path).map_err(|source| SettingsError::File { key, path: path.to_path_buf(), source })?;
    let found = text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(expected));
    if found { Ok(text) } else { Err(SettingsError::NotPem { key, path: path.to_path_buf(), expected }) }
}

#[cfg(test)]
mod tests {
    use super::{Checked, Clock, QueueType, RabbitMqSettings, SettingsError, Tls, host_of};

    fn settings(urls: &[&str]) -> RabbitMqSettings {
        RabbitMqSettings {
            urls: urls.iter().map(|url| (*url).to_owned()).collect(),
            name: "toolbus".into(),
            exchange: "rockbot".into(),
            dead_letter_exchange: "rockbot.dlx".into(),
            queue_type: QueueType::Quorum,
            tls: None,
            clock: Clock::SYSTEM,
        }
    }

    fn refused(settings: RabbitMqSettings) -> String {
        match Checked::new(settings) {
            Ok(_) => "accepted".into(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn no_url_is_refused() {
        assert!(matches!(Checked::new(settings(&[])), Err(SettingsError::NoUrl)));
    }

    #[test]
    fn a_bad_url_is_refused_by_its_number_without_its_password() {
        let text = refused(settings(&["amqp://localhost", "http://ana:s3cret@localhost"]));
        assert!(text.contains("number 2") && !text.contains("s3cret"), "{text}");
    }

    #[test]
    fn credentials_are_neither_in_the_debug_text_nor_in_the_host() {
        let settings = settings(&["amqps://ana:s3cret@broker:5671/%2f"]);
        assert!(!format!("{settings:?}").contains("s3cret"));
        let checked = Checked::new(settings).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(host_of(&checked.endpoints[0]), "amqps://broker:5671");
    }

    #[test]
    fn a_certificate_without_its_key_is_refused() {
        let tls = Tls { ca: None, cert: Some("client.pem".into()), key: None };
        assert!(
            refused(RabbitMqSettings { tls: Some(tls), ..settings(&["amqps://localhost"]) }).contains("both or none")
        );
    }

    #[test]
    fn a_file_that_is_no_certificate_is_refused_by_its_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let tls = Tls { ca: Some(file.path().into()), cert: None, key: None };
        let text = refused(RabbitMqSettings { tls: Some(tls), ..settings(&["amqps://localhost"]) });
        assert!(
            text.starts_with("bus.tls.ca: ")
                && text.contains("CERTIFICATE")
                && text.contains(file.path().to_str().unwrap()),
            "{text}"
        );
    }
}
