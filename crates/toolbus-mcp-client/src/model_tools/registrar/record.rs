//! One registered server, as it is stored.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use toolbus_core::caller::Caller;
use toolbus_core::tool::{Naming, Validation};

use super::Refusal;
use crate::filter::ToolFilter;
use crate::model_tools::rules::{Rules, Target};
use crate::spec::{Origin, ServerName, ServerSpec};

/// The share of all callers that the policy has no section for. No name of an agent has a colon.
const EVERYBODY: &str = ":everybody";

/// One registered server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    server: String,
    #[serde(flatten)]
    target: Target,
    #[serde(flatten)]
    pub(super) owner: Owner,
    /// Seconds since 1970.
    time: u64,
}

/// Who has registered a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    /// What tells this caller from all others.
    #[serde(rename = "agent")]
    pub(super) name: Arc<str>,
    /// Who shares with it what one agent may register.
    pub(super) share: Arc<str>,
}

impl Owner {
    pub(super) fn of(caller: &Caller) -> Self {
        let share = if caller.has_section { Arc::clone(&caller.owner) } else { EVERYBODY.into() };
        Self { name: Arc::clone(&caller.owner), share }
    }
}

impl Record {
    pub(super) fn new(server: &str, target: Target, owner: Owner) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { server: server.to_owned(), target, owner, time }
    }

    pub(super) fn parse(stored: &[u8]) -> Option<Self> {
        serde_json::from_slice(stored).ok()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // Texts and a number under keys that are texts: there is nothing that JSON cannot hold.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The server, if the rules allow it.
    pub(super) fn spec(&self, rules: &Rules) -> Result<ServerSpec, Refusal> {
        let name = ServerName::parse(&self.server).map_err(|_| Refusal::Name)?;
        // Narrower than names that operators give: nobody is to mistake one for another.
        if !self.server.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-')) {
            return Err(Refusal::Name);
        }
        Ok(ServerSpec {
            name,
            transport: rules.transport(&self.target)?,
            tools: ToolFilter::default(),
            naming: Naming::default(),
            validation: Validation::Enforce,
            tool_timeout: None,
            is_lazy: false,
            is_disabled: false,
            origin: Origin::Registration,
        })
    }
}
