//! Labels of what happens with MCP servers: closed sets, and a bounded number of names.

use std::sync::Arc;

use opentelemetry::KeyValue;

use crate::labels::{self, among};
use crate::tools::MAX_SERIES;

/// The attribute that says which server.
pub(crate) const SERVER: &str = "toolbus.mcp.server";

const METHODS: [&str; 5] = ["initialize", "server/discover", "tools/list", "tools/call", "ping"];
const VERSIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
const TRANSPORTS: [&str; 2] = ["pipe", "tcp"];
/// Ends of our own, and the codes of JSON-RPC and MCP. Others are a server's own, and without number.
const ERRORS: [&str; 18] = [
    "tool_error",
    "timeout",
    "cancelled",
    "connect_failed",
    "connection_lost",
    "auth_required",
    "-32700",
    "-32600",
    "-32601",
    "-32602",
    "-32603",
    "-32000",
    "-32001",
    "-32002",
    "-32020",
    "-32021",
    "-32022",
    "-32042",
];

/// Combinations of a server, a tool and the closed sets that have labels of their own.
const MAX_OWN: usize = 2_800;
/// Combinations of the closed sets alone, each with its value for everything else; requests may also have no error.
const CLOSED: usize = (METHODS.len() + 1) * (VERSIONS.len() + 1) * (TRANSPORTS.len() + 1) * (ERRORS.len() + 2);

const _: () = assert!(MAX_OWN + CLOSED <= MAX_SERIES, "what comes late must find room, too");

/// What is labelled from closed sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    method: Option<&'static str>,
    version: &'static str,
    transport: &'static str,
    error: Option<&'static str>,
}

impl Kind {
    /// `method` is absent for a session.
    pub(crate) fn new(method: Option<&str>, version: &str, transport: &str, error: Option<&str>) -> Self {
        Self {
            method: method.map(|method| among(&METHODS, method)),
            version: among(&VERSIONS, version),
            transport: among(&TRANSPORTS, transport),
            error: error.map(|error| among(&ERRORS, error)),
        }
    }
}

impl labels::Kind for Kind {
    const MAX_OWN: usize = MAX_OWN;

    fn labels(self, server: &str, tool: Option<&str>) -> Arc<[KeyValue]> {
        let fixed = [
            KeyValue::new(SERVER, server.to_owned()),
            KeyValue::new("mcp.protocol.version", self.version),
            KeyValue::new("network.transport", self.transport),
        ];
        let method = self.method.map(|method| KeyValue::new("mcp.method.name", method));
        let tool = tool.map(|tool| KeyValue::new("gen_ai.tool.name", tool.to_owned()));
        let error = self.error.map(|error| KeyValue::new("error.type", error));
        fixed.into_iter().chain(method).chain(tool).chain(error).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::labels::{Labels, OTHER};

    fn texts(labels: &[KeyValue]) -> BTreeSet<String> {
        labels.iter().map(|label| format!("{}={}", label.key, label.value)).collect()
    }

    #[test]
    fn what_a_server_makes_up_is_no_label() {
        let kind = Kind::new(Some("evil/method"), "3000-01-01", "pigeon", Some("-31999"));
        assert_eq!(kind, Kind { method: Some(OTHER), version: OTHER, transport: OTHER, error: Some(OTHER) });
    }

    #[test]
    fn combinations_beyond_the_limit_share_the_names_and_earlier_ones_keep_theirs() {
        let (labels, kind) = (Labels::<Kind>::default(), Kind::new(Some("tools/call"), "2025-11-25", "pipe", None));
        let mut seen = BTreeSet::new();
        for number in 0..MAX_OWN + 500 {
            seen.insert(texts(&labels.of("files", Some(&format!("tool_{number}")), kind)));
        }
        assert_eq!(seen.len(), MAX_OWN + 1);
        let late = texts(&labels.of("git", None, kind));
        assert!(late.contains("toolbus.mcp.server=_other") && !late.iter().any(|label| label.starts_with("gen_ai")));
        let first = texts(&labels.of("files", Some("tool_0"), kind));
        assert!(first.contains("toolbus.mcp.server=files") && first.contains("gen_ai.tool.name=tool_0"), "{first:?}");
    }

    #[test]
    fn a_long_name_is_cut() {
        let labels = Labels::default();
        let kind = Kind::new(Some("tools/call"), "2025-11-25", "pipe", None);
        let labelled = labels.of(&"s".repeat(10_000), Some(&"t".repeat(10_000)), kind);
        assert!(labelled.iter().all(|label| label.value.as_str().len() <= 255));
    }
}
