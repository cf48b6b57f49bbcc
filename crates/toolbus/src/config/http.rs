//! `[http]`: health, readiness and status.

use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Secret;

/// The HTTP server for health, readiness and status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Address to listen on; port 0 takes a free one, which is logged.
    #[schemars(with = "String", extend("format" = "toolbus-socket-address"))]
    pub listen: SocketAddr,
    /// Token that lets operators ask and switch over HTTP what they otherwise do on `daemon.socket`, at least 16 bytes; absent:
    /// nobody may.
    pub admin_token: Option<Secret>,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8471)), admin_token: None }
    }
}
