//! `[http]`: health, readiness and status.

use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The HTTP server for health, readiness and status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Address to listen on; port 0 takes a free one, which is logged.
    #[schemars(with = "String", extend("format" = "toolbus-socket-address"))]
    pub listen: SocketAddr,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8471)) }
    }
}
