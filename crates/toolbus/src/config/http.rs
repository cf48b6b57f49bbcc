//! `[http]`: health, readiness and status, and the MCP server.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{ByteSize, Config, Secret};
use toolbus_core::caller::AgentName;

/// Room for a message with a file in it.
const DEFAULT_BODY: ByteSize = ByteSize::from_mib(4);

/// The HTTP server: health, readiness and status, and the MCP server at `/mcp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Address to listen on; port 0 takes a free one, which is logged.
    #[schemars(with = "String", extend("format" = "toolbus-socket-address"))]
    pub listen: SocketAddr,
    /// Token that lets operators ask and switch over HTTP what they otherwise do on `daemon.socket`, at least 16 bytes; absent:
    /// none may.
    pub admin_token: Option<Secret>,
    /// Token that lets read over HTTP what `admin_token` lets read, and do nothing; absent: there is none.
    pub read_token: Option<Secret>,
    /// Whether `/console` has pages on which operators see and act, for those with one of the two tokens; absent: where
    /// `listen` is loopback and there is one.
    pub console: Option<bool>,
    /// Address of a trace in Jaeger or elsewhere, with `{trace_id}` in it; absent: the console shows no links to traces.
    pub trace_url: Option<String>,
    /// Arguments and results of recent calls that the console shows to those with one of the two tokens.
    pub console_payloads: ConsolePayloads,
    /// Whether `/metrics` has the metrics in the text format of Prometheus, for everyone who reaches the port; absent: where
    /// `listen` is loopback.
    pub metrics: Option<bool>,
    /// Bearer tokens for the MCP server, by agent: one each, or a list while one replaces another.
    #[schemars(extend("maxProperties" = 1024, "propertyNames" = {"format": "toolbus-agent"}))]
    pub tokens: Tokens,
    /// Whether the MCP server takes clients without a token, as callers without a section. On an address that other
    /// machines reach, "network".
    pub open: Open,
    /// Names of this server beside its addresses and `localhost`: those that a proxy in front of it passes on.
    #[schemars(length(max = 64), extend("items" = {"type": "string", "format": "toolbus-host-name"}))]
    pub allowed_hosts: Vec<String>,
    /// Pages of browsers that may use the MCP server, beside those of this machine, as `https://host` or
    /// `https://host:port`.
    #[schemars(length(max = 64), extend("items" = {"type": "string", "format": "toolbus-origin"}))]
    pub allowed_origins: Vec<String>,
    /// Largest body of a request at the MCP server, at least `invoke.max_body`; absent: that, or 4 MiB if that is more.
    pub max_body: Option<ByteSize>,
    /// Which MCP clients are listed a choice of their tools, and find the others; absent: none. Needs `tools.search`.
    pub tool_search: Option<ToolSearchConfig>,
}

/// Which MCP clients are listed a choice of their tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct ToolSearchConfig {
    /// Those that may use more tools than this.
    #[schemars(range(min = 1, max = 100_000))]
    pub above: usize,
}

/// Arguments and results that the console shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ConsolePayloads {
    /// Nothing: they are not kept.
    None,
    /// The beginnings, without secrets of the configuration.
    Redacted,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8471)),
            admin_token: None,
            read_token: None,
            console: None,
            trace_url: None,
            console_payloads: ConsolePayloads::None,
            metrics: None,
            tokens: Tokens::default(),
            open: Open::No,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            max_body: None,
            tool_search: None,
        }
    }
}

impl HttpConfig {
    /// Every token of every agent.
    pub fn each_token(&self) -> impl Iterator<Item = (&AgentName, &Secret)> {
        self.tokens.iter().flat_map(|(agent, tokens)| tokens.all().iter().map(move |token| (agent, token)))
    }

    /// Whether `/metrics` has the metrics.
    #[must_use]
    pub fn has_metrics(&self) -> bool {
        self.metrics.unwrap_or_else(|| self.listen.ip().is_loopback())
    }

    /// Whether there is a token for operators.
    #[must_use]
    pub const fn takes_operators(&self) -> bool {
        self.admin_token.is_some() || self.read_token.is_some()
    }

    /// Whether `/console` has pages.
    #[must_use]
    pub fn has_console(&self) -> bool {
        self.takes_operators() && self.console.unwrap_or_else(|| self.listen.ip().is_loopback())
    }

    /// Whether arguments and results of recent calls are kept for the console.
    #[must_use]
    pub fn keeps_payloads(&self) -> bool {
        self.has_console() && self.console_payloads == ConsolePayloads::Redacted
    }

    /// Whether MCP clients may enter, with a token or without one.
    #[must_use]
    pub fn takes_clients(&self) -> bool {
        self.open != Open::No || self.each_token().next().is_some()
    }

    /// The parts that a running daemon takes over from another configuration.
    #[must_use]
    pub fn with_live_parts_of(&self, other: &Self) -> Self {
        Self {
            tokens: other.tokens.clone(),
            open: other.open,
            allowed_hosts: other.allowed_hosts.clone(),
            allowed_origins: other.allowed_origins.clone(),
            ..self.clone()
        }
    }
}

impl Config {
    /// Largest body of a request at the MCP server, in bytes.
    #[must_use]
    pub fn max_mcp_body(&self) -> usize {
        let largest = self.http.max_body.unwrap_or_else(|| DEFAULT_BODY.max(self.invoke.max_body));
        usize::try_from(largest.bytes()).unwrap_or(usize::MAX)
    }
}

/// Whether the MCP server takes clients without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Open {
    /// `false`: none.
    #[default]
    No,
    /// `true`: those of this machine.
    Local,
    /// `"network"`: all that reach the port.
    Network,
}

/// Value that means [`Open::Network`].
const NETWORK: &str = "network";

/// The forms that [`Open`] is written in.
#[derive(Deserialize)]
#[serde(untagged)]
enum OpenForm {
    Flag(bool),
    Word(String),
}

impl<'de> Deserialize<'de> for Open {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match OpenForm::deserialize(deserializer)? {
            OpenForm::Flag(false) => Ok(Self::No),
            OpenForm::Flag(true) => Ok(Self::Local),
            OpenForm::Word(word) if word == NETWORK => Ok(Self::Network),
            OpenForm::Word(_) => Err(D::Error::custom("expected true, false or \"network\"")),
        }
    }
}

impl Serialize for Open {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::No => serializer.serialize_bool(false),
            Self::Local => serializer.serialize_bool(true),
            Self::Network => serializer.serialize_str(NETWORK),
        }
    }
}

impl JsonSchema for Open {
    fn schema_name() -> Cow<'static, str> {
        "Open".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "boolean"}, {"type": "string", "const": NETWORK}]})
    }
}

/// Most tokens of one agent.
const MAX_OF_AGENT: usize = 8;

/// Tokens by agent.
pub type Tokens = BTreeMap<AgentName, AgentTokens>;

/// The tokens of one agent: usually one, and several while one replaces another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AgentTokens {
    /// One.
    One(Secret),
    /// Each of these.
    Several(Vec<Secret>),
}

impl AgentTokens {
    /// Every one of them.
    #[must_use]
    pub fn all(&self) -> &[Secret] {
        match self {
            Self::One(token) => std::slice::from_ref(token),
            Self::Several(tokens) => tokens,
        }
    }
}

impl JsonSchema for AgentTokens {
    fn schema_name() -> Cow<'static, str> {
        "AgentTokens".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let secret = generator.subschema_for::<Secret>();
        json_schema!({
            "description": "A token, or a list of tokens that all count.",
            "anyOf": [secret, {"type": "array", "minItems": 1, "maxItems": MAX_OF_AGENT, "items": secret}],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_served_on_loopback_and_elsewhere_if_enabled() {
        let at = |listen: &str, metrics| {
            HttpConfig { listen: listen.parse().unwrap(), metrics, ..HttpConfig::default() }.has_metrics()
        };
        assert_eq!(["127.0.0.1:1", "[::1]:1", "0.0.0.0:1"].map(|listen| at(listen, None)), [true, true, false]);
        assert!(at("0.0.0.0:1", Some(true)) && !at("127.0.0.1:1", Some(false)));
    }
}
