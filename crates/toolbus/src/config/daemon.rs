//! `[daemon]`: the roles of this process.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;

/// Roles of this process, and the operator's socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DaemonConfig {
    /// The parts that run in this process; absent: all that are configured.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub roles: Option<Vec<Role>>,
    /// Unix socket for the operator: policy and actions; relative to the working directory. "none": there is none.
    #[serde(with = "socket")]
    #[schemars(with = "String", extend("format" = "toolbus-socket-path"))]
    pub socket: Option<PathBuf>,
}

/// A part of the daemon that can run alone in its own process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Role {
    /// Runs the tools that requests on `invoke.topics` ask for.
    Invoke,
    /// Keeps MCP servers running, and serves what agents ask of them.
    Mcp,
    /// Runs the scripts that requests on `script.invoke` bring.
    Scripts,
    /// Publishes the tasks that agents have scheduled.
    Schedule,
}

impl Role {
    /// Name of the role, as the configuration writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invoke => "invoke",
            Self::Mcp => "mcp",
            Self::Scripts => "scripts",
            Self::Schedule => "schedule",
        }
    }
}

impl Config {
    /// The parts that run in this process.
    #[must_use]
    pub fn roles(&self) -> Vec<Role> {
        let configured = || {
            let mcp = self.mcp.is_configured().then_some(Role::Mcp);
            let scripts = self.script.as_ref().map(|_| Role::Scripts);
            let schedule = self.schedule.as_ref().map(|_| Role::Schedule);
            std::iter::once(Role::Invoke).chain(mcp).chain(scripts).chain(schedule).collect()
        };
        self.daemon.roles.clone().unwrap_or_else(configured)
    }
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self { roles: None, socket: Some("toolbus.sock".into()) }
    }
}

/// A path, or "none".
mod socket {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serializer};

    /// Value that means no socket.
    const NONE: &str = "none";

    pub(super) fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        match path {
            Some(path) => serializer.collect_str(&path.display()),
            None => serializer.serialize_str(NONE),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok((text != NONE).then(|| text.into()))
    }
}
