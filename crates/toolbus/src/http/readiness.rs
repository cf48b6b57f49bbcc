//! Readiness: whether requests can be taken and served, and what blocks that, in texts that name no login and no folder
//! to readers without a token.

use serde::{Deserialize, Serialize};
use toolbus_core::bus::BusState;
use toolbus_mcp_client::status::PhaseName;

/// Longest foreign text that is shown, in characters.
const MAX_TEXT: usize = 300;
/// Beginning of the last error of an MCP server that keeps its previous definition because its new one has a mistake.
/// The mistake follows.
pub const OUTDATED: &str = "goes on as it was configured before";

/// Whether requests can be taken and served now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Readiness {
    /// True when nothing blocks.
    pub ready: bool,
    /// Everything that blocks.
    pub blocked_by: Vec<Blocker>,
}

impl Readiness {
    /// The public parts: of the files of the store their names, without their folders, and no mistake in the
    /// configuration of an MCP server.
    #[must_use]
    pub fn public(mut self) -> Self {
        for blocker in &mut self.blocked_by {
            match blocker {
                Blocker::StoreAway { detail } => *detail = without_folders(detail),
                Blocker::McpServerNotReady { detail, .. } => *detail = detail.take().map(without_mistake),
                _ => {}
            }
        }
        self
    }
}

/// One reason for not being ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum Blocker {
    /// The daemon finishes its calls and takes no new ones.
    Draining,
    /// The bus has ended.
    BusClosed,
    /// There is no connection to the broker.
    Disconnected {
        /// The last reason that the broker or the system gave.
        detail: Option<String>,
    },
    /// The broker takes no messages, so no reply could be sent.
    BrokerBlocked {
        /// The broker's reason.
        detail: String,
    },
    /// A mistake in the set-up that no retry mends.
    Misconfigured {
        /// Instruction for mending the mistake.
        detail: String,
    },
    /// The store that replicas share cannot be used, or a file of the store cannot be written.
    StoreAway {
        /// Reason why the store cannot be used.
        detail: String,
    },
    /// No queue is consumed.
    NoConsumer,
    /// The broker has not confirmed the consumer of a queue.
    ConsumerNotConfirmed {
        /// Name of the queue.
        queue: String,
    },
    /// A tool that `tools.required` names is not registered.
    ToolMissing {
        /// Name of the tool.
        tool: String,
    },
    /// A tool that `tools.required` names is quarantined until an operator approves it.
    ToolHeldBack {
        /// Name of the tool.
        tool: String,
    },
    /// An MCP server that `mcp.required` names is not there: it was left out for a mistake, or its file cannot be read.
    McpServerMissing {
        /// Name of the server.
        server: String,
    },
    /// An MCP server that `mcp.required` names takes no calls.
    McpServerNotReady {
        /// Name of the server.
        server: String,
        /// Phase of the server's connection.
        phase: PhaseName,
        /// Last error, if there was one.
        detail: Option<String>,
    },
}

/// The last error of an MCP server without a mistake in its configuration.
pub(super) fn without_mistake(error: String) -> String {
    if error.starts_with(OUTDATED) { format!("{OUTDATED}: `toolbus status` says why") } else { error }
}

pub(super) fn bus_blockers(state: &BusState) -> Vec<Blocker> {
    let mut blockers = Vec::new();
    if let Some(detail) = &state.fatal {
        blockers.push(Blocker::Misconfigured { detail: shown(detail) });
    }
    if !state.connected {
        blockers.push(Blocker::Disconnected { detail: state.last_error.as_deref().map(shown) });
    }
    if let Some(detail) = &state.blocked {
        blockers.push(Blocker::BrokerBlocked { detail: shown(detail) });
    }
    if state.consumers.is_empty() {
        blockers.push(Blocker::NoConsumer);
    }
    let unconfirmed = state.consumers.iter().filter(|(_, confirmed)| !confirmed);
    blockers.extend(unconfirmed.map(|(queue, _)| Blocker::ConsumerNotConfirmed { queue: queue.clone() }));
    blockers
}

/// A text of the broker or about a server for readers without a token: short, and without the login that an address may
/// hold.
pub(super) fn shown(text: &str) -> String {
    let mut words = Vec::new();
    for word in text.split(' ') {
        words.push(match (word.find("://"), word.rfind('@')) {
            (Some(scheme), Some(at)) if scheme < at => {
                let (start, end) = (word.get(..scheme).unwrap_or_default(), word.get(at..).unwrap_or_default());
                format!("{start}://…{end}")
            }
            _ => word.to_owned(),
        });
    }
    words.join(" ").chars().take(MAX_TEXT).collect()
}

/// A text in which paths between backticks are only names.
fn without_folders(text: &str) -> String {
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let parts = text.split('`').enumerate();
    let shown: Vec<_> = parts.map(|(index, part)| if index % 2 == 1 { name(part) } else { part.to_owned() }).collect();
    shown.join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_in_an_address_is_not_shown() {
        for (text, expected) in [
            ("connection refused", "connection refused"),
            ("amqp://guest:guest@127.0.0.1:5672/%2f refused", "amqp://…@127.0.0.1:5672/%2f refused"),
            ("tried <amqps://a:p@ss@host> twice", "tried <amqps://…@host> twice"),
            ("amqp://host:5672 says no to me@home", "amqp://host:5672 says no to me@home"),
        ] {
            assert_eq!(shown(text), expected);
        }
        assert_eq!(shown(&"ü".repeat(1000)).chars().count(), MAX_TEXT);
    }
}
