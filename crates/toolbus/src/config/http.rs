//! `[http]`: health, readiness and status, and the MCP door.

mod open;
mod tokens;

use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::open::Open;
pub use self::tokens::{AgentTokens, Tokens};
use super::{Agent, ByteSize, Config, Secret};

/// Room for a message with a file in it.
const DEFAULT_BODY: ByteSize = ByteSize::from_mib(4);

/// The HTTP server: health, readiness and status, and the MCP door at `/mcp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Address to listen on; port 0 takes a free one, which is logged.
    #[schemars(with = "String", extend("format" = "toolbus-socket-address"))]
    pub listen: SocketAddr,
    /// Token that lets operators ask and switch over HTTP what they otherwise do on `daemon.socket`, at least 16 bytes; absent:
    /// nobody may.
    pub admin_token: Option<Secret>,
    /// Bearer tokens for the MCP door, by agent: one each, or a list while one replaces another.
    #[schemars(extend("maxProperties" = 1024, "propertyNames" = {"format": "toolbus-agent"}))]
    pub tokens: Tokens,
    /// Whether the MCP door lets in clients without a token, as callers without a section. On an address that other
    /// machines reach, "network".
    pub open: Open,
    /// Names of this server beside its addresses and `localhost`: those that a proxy in front of it passes on.
    #[schemars(length(max = 64), extend("items" = {"type": "string", "format": "toolbus-host-name"}))]
    pub allowed_hosts: Vec<String>,
    /// Pages of browsers that may use the MCP door, beside those of this machine, as `https://host` or
    /// `https://host:port`.
    #[schemars(length(max = 64), extend("items" = {"type": "string", "format": "toolbus-origin"}))]
    pub allowed_origins: Vec<String>,
    /// Largest body of a request at the MCP door, at least `invoke.max_body`; absent: that, or 4 MiB if that is more.
    pub max_body: Option<ByteSize>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8471)),
            admin_token: None,
            tokens: Tokens::default(),
            open: Open::No,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            max_body: None,
        }
    }
}

impl HttpConfig {
    /// Every token of every agent.
    pub fn each_token(&self) -> impl Iterator<Item = (&Agent, &Secret)> {
        self.tokens.iter().flat_map(|(agent, tokens)| tokens.all().iter().map(move |token| (agent, token)))
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
    /// Largest body of a request at the MCP door, in bytes.
    #[must_use]
    pub fn max_door_body(&self) -> usize {
        let largest = self.http.max_body.unwrap_or_else(|| DEFAULT_BODY.max(self.invoke.max_body));
        usize::try_from(largest.bytes()).unwrap_or(usize::MAX)
    }
}
