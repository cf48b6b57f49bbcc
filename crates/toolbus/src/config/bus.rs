//! `[bus]`: the message broker.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};
use toolbus_broker::rabbitmq::{QueueType, Tls};
use toolbus_config::{HumanDuration, secret_schema};
use url::Url;

/// The message broker, and the names used on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BusConfig {
    /// Where the broker is: an `amqp://` or `amqps://` URL, a list of such URLs (a cluster), or "embedded" for the bus
    /// inside this process.
    pub url: BusUrl,
    /// Name of this instance: the source of its answers, and the name of its connections.
    #[schemars(extend("format" = "toolbus-name"))]
    pub name: String,
    /// Topic exchange of requests and answers.
    #[schemars(extend("format" = "toolbus-exchange"))]
    pub exchange: String,
    /// Topic exchange of what could not be answered or delivered.
    #[schemars(extend("format" = "toolbus-exchange"))]
    pub dead_letter_exchange: String,
    /// Start of the name of every queue of the daemon. Instances with the same prefix share the work. Absent: "toolbus",
    /// for the sidecar of an agent "toolbus.AGENT".
    #[schemars(extend("format" = "toolbus-queue-prefix"))]
    pub queue_prefix: Option<String>,
    /// Kind of the daemon's durable queues.
    pub queue_type: QueueType,
    /// The broker's own `consumer_timeout`, which it tells no client: it closes the channel of a request that is not
    /// settled after this time. No call may take that long.
    pub consumer_timeout: HumanDuration,
    /// Topics that a request may name for its answer, as patterns: `*` is one word, `#` any number.
    #[schemars(length(max = 64), extend("items" = {"type": "string", "format": "toolbus-topic-pattern"}))]
    pub reply_topics: Vec<String>,
    /// Queues of others that are consumed instead of the daemon's own.
    pub compat_queues: CompatQueues,
    /// Certificates for `amqps://`.
    pub tls: Tls,
}

/// Queues that are there already and are consumed instead of the daemon's own: those of a bridge that it replaces.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CompatQueues {
    /// For calls of the tools of MCP servers, instead of `PREFIX.mcp`.
    #[schemars(extend("format" = "toolbus-compat-queue"))]
    pub mcp: Option<String>,
    /// For the management of MCP servers, instead of `PREFIX.mcp-manage`.
    #[schemars(extend("format" = "toolbus-compat-queue"))]
    pub mcp_manage: Option<String>,
    /// For requests to tell again which MCP servers there are, instead of `PREFIX.mcp-refresh`.
    #[schemars(extend("format" = "toolbus-compat-queue"))]
    pub mcp_refresh: Option<String>,
}

impl Default for BusConfig {
    fn default() -> Self {
        Self {
            url: BusUrl::Embedded,
            name: "toolbus".to_owned(),
            exchange: "rockbot".to_owned(),
            dead_letter_exchange: "rockbot.dlx".to_owned(),
            queue_prefix: None,
            queue_type: QueueType::default(),
            consumer_timeout: HumanDuration::from_secs(30 * 60),
            reply_topics: ["tool.result.#", "script.result.#", "mcp.manage.response.#", "agent.response.#"]
                .map(str::to_owned)
                .into(),
            compat_queues: CompatQueues::default(),
            tls: Tls::default(),
        }
    }
}

/// Which bus to use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "UrlForm")]
pub enum BusUrl {
    /// The one inside this process.
    #[default]
    Embedded,
    /// RabbitMQ, at one of these addresses; never empty.
    Amqp(Vec<AmqpUrl>),
}

impl BusUrl {
    /// The login by which the broker knows this process, if all addresses name the same.
    #[must_use]
    pub fn login(&self) -> Option<String> {
        let Self::Amqp(urls) = self else { return None };
        let login = urls.first()?.login();
        urls.iter().all(|url| url.login() == login).then_some(login).flatten()
    }
}

/// Address of a broker. Holds credentials: `Debug`, `Display` and serialisation leave them out.
#[derive(Clone, PartialEq, Eq)]
pub struct AmqpUrl(Url);

/// Why a text is no address of a broker; never holds the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmqpUrlError {
    /// Not a URL at all.
    #[error(r#"not a URL ({0}); expected "amqp://user:password@host:5672/%2f", "amqps://…" or "embedded""#)]
    Url(#[from] url::ParseError),
    /// Of another scheme.
    #[error(r#"not an address of a broker; expected "amqp://…", "amqps://…" or "embedded""#)]
    Scheme,
    /// Without a host.
    #[error(r#"no host; expected "amqp://user:password@host:5672/%2f""#)]
    Host,
    /// With frames that are too small.
    #[error("`frame_max` must be at least {MIN_FRAME}: messages of others must fit, headers and all; or leave it out")]
    FrameMax,
}

/// Smallest frame that may be asked for, in bytes: what brokers offer, and so what others may count on.
const MIN_FRAME: u32 = 131_072;

impl AmqpUrl {
    /// The URL with its credentials, for connecting.
    #[must_use]
    pub fn reveal(&self) -> &Url {
        &self.0
    }

    /// The user that it names. None where the broker takes the name from a certificate.
    fn login(&self) -> Option<String> {
        let is_named = |(name, _): (Cow<'_, str>, Cow<'_, str>)| name != "auth_mechanism";
        let user = percent_decode_str(self.0.username()).decode_utf8().ok()?;
        (!user.is_empty() && self.0.query_pairs().all(is_named)).then(|| user.into_owned())
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.scheme() == "amqps"
    }

    /// Whether the broker is on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        is_local(&self.0)
    }

    /// Whether the credentials are those that every broker is installed with.
    #[must_use]
    pub fn is_guest(&self) -> bool {
        matches!((self.0.username(), self.0.password()), ("" | "guest", None | Some("guest")))
    }
}

/// Whether a URL's host is this machine.
pub(crate) fn is_local(url: &Url) -> bool {
    // Schemes other than HTTP keep addresses as text, so they are read here.
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl FromStr for AmqpUrl {
    type Err = AmqpUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = Url::parse(text)?;
        let is_large = |bytes: &str| bytes.parse::<u32>().is_ok_and(|bytes| bytes >= MIN_FRAME);
        if url.query_pairs().any(|(name, value)| name == "frame_max" && !is_large(&value)) {
            return Err(AmqpUrlError::FrameMax);
        }
        match (url.scheme(), url.host_str()) {
            ("amqp" | "amqps", Some(host)) if !host.is_empty() => Ok(Self(url)),
            ("amqp" | "amqps", _) => Err(AmqpUrlError::Host),
            // Not named: in `user:password@host` the user is read as a scheme.
            _ => Err(AmqpUrlError::Scheme),
        }
    }
}

impl fmt::Display for AmqpUrl {
    /// Scheme, host, port and virtual host.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.0.scheme(), self.0.host_str().unwrap_or_default())?;
        self.0.port().map_or(Ok(()), |port| write!(f, ":{port}"))?;
        f.write_str(self.0.path())
    }
}

impl fmt::Debug for AmqpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The forms that the key is written in.
#[derive(Deserialize)]
#[serde(untagged)]
enum UrlForm {
    One(String),
    Many(Vec<String>),
}

/// What stands for the bus inside this process.
const EMBEDDED: &str = "embedded";

impl TryFrom<UrlForm> for BusUrl {
    type Error = AmqpUrlError;

    fn try_from(written: UrlForm) -> Result<Self, Self::Error> {
        match written {
            UrlForm::One(text) => text.parse(),
            UrlForm::Many(texts) if texts.is_empty() => Err(AmqpUrlError::Host),
            UrlForm::Many(texts) => texts.iter().map(|text| text.parse()).collect::<Result<_, _>>().map(Self::Amqp),
        }
    }
}

impl FromStr for BusUrl {
    type Err = AmqpUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == EMBEDDED { Ok(Self::Embedded) } else { Ok(Self::Amqp(vec![text.parse()?])) }
    }
}

impl fmt::Display for BusUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str(EMBEDDED),
            Self::Amqp(urls) => f.write_str(&urls.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
        }
    }
}

impl Serialize for BusUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for BusUrl {
    fn schema_name() -> Cow<'static, str> {
        "BusUrl".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let nodes = json_schema!({"type": "string", "format": "toolbus-amqp-url"});
        secret_schema([
            json_schema!({"type": "string", "format": "toolbus-bus-url"}),
            json_schema!({"type": "array", "items": nodes, "minItems": 1, "maxItems": 16}),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_never_shown() {
        let url: BusUrl = "amqps://ana:hunter2@broker.example:5671/tools".parse().unwrap();
        let shown = format!("{url} {url:?} {}", serde_json::to_string(&url).unwrap());
        assert!(!shown.contains("hunter2") && !shown.contains("ana"), "{shown}");
        assert_eq!(url.to_string(), "amqps://broker.example:5671/tools");
    }

    #[test]
    fn a_wrong_address_is_refused_without_repeating_it() {
        for text in
            ["ana:hunter2@host", "http://ana:hunter2@host", "amqp://", "ana hunter2", "amqp://ana:hunter2@host:x"]
        {
            let error = text.parse::<BusUrl>().unwrap_err().to_string();
            assert!(!error.contains("hunter2") && !error.contains("ana"), "{text}: {error}");
        }
    }

    #[test]
    fn a_login_is_known_where_every_address_names_the_same() {
        let login = |urls: &[&str]| BusUrl::Amqp(urls.iter().map(|url| url.parse().unwrap()).collect()).login();
        assert_eq!(login(&["amqp://svc%2Dana:secret@one", "amqp://svc-ana@two"]).as_deref(), Some("svc-ana"));
        assert_eq!(login(&["amqp://ana@one", "amqp://bruno@two"]), None);
        assert_eq!(login(&["amqp://one"]), None);
        assert_eq!(login(&["amqps://ana@one?auth_mechanism=external"]), None);
        assert_eq!(BusUrl::Embedded.login(), None);
    }

    #[test]
    fn guests_and_local_brokers_are_recognised() {
        let url = |text: &str| text.parse::<AmqpUrl>().unwrap();
        assert!(url("amqp://127.0.0.1").is_guest());
        assert!(url("amqp://guest:guest@broker").is_guest());
        assert!(!url("amqp://guest:other@broker").is_guest());
        for local in ["amqp://localhost", "amqp://127.0.0.2:5672/%2f", "amqp://[::1]:5672"] {
            assert!(url(local).is_local(), "{local}");
        }
        assert!(!url("amqp://broker").is_local());
    }
}
