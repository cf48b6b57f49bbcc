//! `[bus]`: the message broker.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};
pub use toolbus_broker::rabbitmq::AmqpUrl;
use toolbus_broker::rabbitmq::{AddressParts, AmqpUrlError, QueueType, RabbitMqSettings, Tls};
use toolbus_config::{HumanDuration, Origin, Secret, Tree, key_path, secret_schema};
use toolbus_core::Clock;
use url::Url;

/// The message broker, and the names used on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BusConfig {
    /// Where the broker is: an `amqp://` or `amqps://` URL, a list of such URLs (a cluster), or "embedded" for the bus
    /// inside this process.
    pub url: BusUrl,
    /// User at the broker, instead of the one in `url`.
    #[schemars(schema_with = "user_schema")]
    pub user: Option<String>,
    /// Password of the user, instead of the one in `url`.
    pub password: Option<Secret>,
    /// Host of the broker, a name or an IP address, instead of the one in `url`. Without a `url`, the broker is reached
    /// with TLS if `port` is 5671 or `tls` is given.
    #[schemars(extend("format" = "toolbus-broker-host"))]
    pub host: Option<String>,
    /// Port of the broker, instead of the one in `url`.
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// Virtual host of the broker, instead of the one in `url`.
    #[schemars(extend("format" = "toolbus-name"))]
    pub vhost: Option<String>,
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
            user: None,
            password: None,
            host: None,
            port: None,
            vhost: None,
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

fn user_schema(_: &mut SchemaGenerator) -> Schema {
    secret_schema([json_schema!({"type": "string", "format": "toolbus-name"})])
}

/// The port at which brokers speak TLS.
const TLS_PORT: u16 = 5671;
/// Keys of parts of an address, which are given beside `bus.url`.
const PARTS: [&str; 5] = ["user", "password", "host", "port", "vhost"];

impl BusConfig {
    /// The settings of connections to the broker; `None` for the embedded bus.
    #[must_use]
    pub fn broker_settings(&self) -> Option<RabbitMqSettings> {
        let BusUrl::Amqp(urls) = &self.url else { return None };
        Some(RabbitMqSettings {
            urls: urls.iter().map(|url| url.reveal().to_string()).collect(),
            name: self.name.clone(),
            exchange: self.exchange.clone(),
            dead_letter_exchange: self.dead_letter_exchange.clone(),
            queue_type: self.queue_type,
            tls: Some(self.tls.clone()),
            clock: Clock::SYSTEM,
        })
    }

    /// The address of the broker, with the parts that are given beside it.
    ///
    /// # Errors
    ///
    /// If a part does not go with the address: its key, and what to do.
    pub(super) fn address(&self) -> Result<BusUrl, (&'static str, String)> {
        let Self { user, password, host, port, vhost, .. } = self;
        let (mut urls, alone) = match &self.url {
            BusUrl::Amqp(urls) => (urls.clone(), urls.len() == 1),
            BusUrl::Embedded if host.is_some() => {
                let has_tls = *port == Some(TLS_PORT) || self.tls != Tls::default();
                let scheme = if has_tls { "amqps" } else { "amqp" };
                let url = format!("{scheme}://localhost").parse();
                (vec![url.map_err(|error: AmqpUrlError| ("bus.host", error.to_string()))?], true)
            }
            BusUrl::Embedded => {
                let given = [user.is_some(), password.is_some(), false, port.is_some(), vhost.is_some()];
                let key = ["bus.user", "bus.password", "", "bus.port", "bus.vhost"].into_iter().zip(given);
                return match key.into_iter().find(|(_, is_given)| *is_given) {
                    Some((key, _)) => Err((key, "of no broker; give `bus.url` or `bus.host`, too".to_owned())),
                    None => Ok(BusUrl::Embedded),
                };
            }
        };
        if host.is_some() && !alone {
            return Err(("bus.host", "one host for several addresses; give `bus.url` one address, or none".to_owned()));
        }
        for url in &mut urls {
            if password.is_some() && user.is_none() && url.reveal().username().is_empty() {
                return Err(("bus.password", "of no user; give `bus.user`, too".to_owned()));
            }
            if user.is_some() && password.is_none() && url.reveal().password().is_none() {
                return Err(("bus.user", "without a password; give `bus.password`, too".to_owned()));
            }
            let parts = AddressParts {
                host: host.as_deref(),
                port: *port,
                vhost: vhost.as_deref(),
                user: user.as_deref(),
                password: password.as_ref().map(Secret::expose),
            };
            *url = url.clone().with(parts).map_err(|error| ("bus.host", error.to_string()))?;
        }
        Ok(BusUrl::Amqp(urls))
    }

    /// The same, without this instance's name and login, and with its address in one key.
    pub(super) fn without_names(&self) -> Self {
        let name = String::new();
        Self { name, user: None, password: None, host: None, port: None, vhost: None, ..self.clone() }
    }
}

/// Takes parts away that were given before an address that has them: `--bus-url` names another broker, or user, than the
/// file.
pub(super) fn supersede_parts(tree: &mut Tree) {
    let key_of = |key: &str| key_path(&["bus", key]);
    let layer = |tree: &Tree, key: &str| match tree.origin(&key_of(key)) {
        Origin::File { .. } => 0,
        Origin::Environment(_) => 1,
        Origin::CommandLine(_) => 2,
        Origin::Default => 3,
    };
    let Some(Ok(written)) = tree.get(&key_of("url")).map(BusUrl::deserialize) else { return };
    let of_url = layer(tree, "url");
    let named = |named: fn(&Url) -> bool| match &written {
        BusUrl::Embedded => true,
        BusUrl::Amqp(urls) => urls.iter().any(|url| named(url.reveal())),
    };
    let (has_user, has_vhost) = (named(|url| !url.username().is_empty()), named(|url| url.path().len() > 1));
    for key in PARTS {
        let is_named = match key {
            "user" | "password" => has_user,
            "vhost" => has_vhost,
            _ => true,
        };
        if is_named && tree.get(&key_of(key)).is_some() && layer(tree, key) < of_url {
            tree.remove(&key_of(key));
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

/// The forms that the key is written in.
#[derive(Deserialize)]
#[serde(untagged)]
enum UrlForm {
    One(String),
    Many(Vec<String>),
}

/// Value that selects the bus inside this process.
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
}
