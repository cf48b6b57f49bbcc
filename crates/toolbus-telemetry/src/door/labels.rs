//! Labels of what MCP clients ask for: closed sets, and a bounded number of tools.

use std::sync::Arc;

use opentelemetry::KeyValue;

use super::DoorOperation;
use crate::labels::{self, among};
use crate::tools::MAX_SERIES;

/// The method that calls a tool.
pub(super) const CALL: &str = "tools/call";
/// Stands for every method that there is not.
const UNKNOWN: &str = "unknown";

const METHODS: [&str; 9] = [
    "initialize",
    "server/discover",
    "ping",
    "tools/list",
    CALL,
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "subscriptions/listen",
];
const VERSIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
const TRANSPORTS: [&str; 2] = ["pipe", "tcp"];
/// Codes of the bus, ends of the door's own, and codes of JSON-RPC and MCP.
const ERRORS: [&str; 15] = [
    "tool_error",
    "invalid_arguments",
    "timeout",
    "execution_failed",
    "not_allowed",
    "rate_limited",
    "overloaded",
    "cancelled",
    "auth_required",
    "client_gone",
    "-32600",
    "-32601",
    "-32602",
    "-32603",
    "-32002",
];

/// Combinations of a tool and the closed sets that have labels of their own.
const MAX_OWN: usize = 1_900;
/// Combinations of the closed sets alone, each with its value for everything else; requests may also have no error.
const CLOSED: usize = (METHODS.len() + 1) * (VERSIONS.len() + 1) * (TRANSPORTS.len() + 1) * (ERRORS.len() + 2);

const _: () = assert!(MAX_OWN + CLOSED <= MAX_SERIES, "what comes late must find room, too");

/// What is known of a request from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) method: &'static str,
    version: &'static str,
    transport: &'static str,
}

impl Closed {
    pub(super) fn new(operation: &DoorOperation<'_>) -> Self {
        Self {
            method: METHODS.into_iter().find(|known| *known == operation.method).unwrap_or(UNKNOWN),
            version: among(&VERSIONS, operation.protocol_version),
            transport: among(&TRANSPORTS, operation.transport),
        }
    }

    /// The attributes that metrics and spans have in common.
    pub(super) fn attributes(self) -> impl Iterator<Item = KeyValue> {
        let operation = (self.method == CALL).then(|| KeyValue::new("gen_ai.operation.name", "execute_tool"));
        [KeyValue::new("mcp.method.name", self.method)]
            .into_iter()
            .chain(carried(self.version, self.transport))
            .chain(operation)
    }
}

/// How a request came.
fn carried(version: &'static str, transport: &'static str) -> impl Iterator<Item = KeyValue> {
    let fixed = [KeyValue::new("mcp.protocol.version", version), KeyValue::new("network.transport", transport)];
    fixed.into_iter().chain((transport == "tcp").then(|| KeyValue::new("network.protocol.name", "http")))
}

/// What is labelled from closed sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A request, and what went wrong with it.
    Request(Closed, Option<&'static str>),
    /// A session, with its revision of the protocol and how it came.
    Session(&'static str, &'static str),
}

impl Kind {
    pub(super) fn request(closed: Closed, error: Option<&str>) -> Self {
        Self::Request(closed, error.map(|error| among(&ERRORS, error)))
    }

    pub(super) fn session(version: &str, transport: &str) -> Self {
        Self::Session(among(&VERSIONS, version), among(&TRANSPORTS, transport))
    }

    /// What went wrong, and the code of the answer, where that is an error of JSON-RPC.
    pub(super) fn failure(self) -> impl Iterator<Item = KeyValue> {
        let error = match self {
            Self::Request(_, error) => error,
            Self::Session(..) => None,
        };
        let code = error.filter(|error| error.starts_with('-'));
        let error = error.map(|error| KeyValue::new("error.type", error));
        error.into_iter().chain(code.map(|code| KeyValue::new("rpc.response.status_code", code)))
    }
}

impl labels::Kind for Kind {
    const MAX_OWN: usize = MAX_OWN;

    fn labels(self, _: &str, tool: Option<&str>) -> Arc<[KeyValue]> {
        match self {
            Self::Request(closed, _) => {
                let tool = tool.map(|tool| KeyValue::new("gen_ai.tool.name", tool.to_owned()));
                closed.attributes().chain(tool).chain(self.failure()).collect()
            }
            Self::Session(version, transport) => carried(version, transport).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use toolbus_protocol::Code;

    use super::*;
    use crate::labels::Labels;

    fn call(error: Option<&str>) -> Kind {
        let operation = DoorOperation {
            method: CALL,
            protocol_version: "2025-11-25",
            transport: "tcp",
            session: None,
            request: "1",
            parent: None,
        };
        Kind::request(Closed::new(&operation), error)
    }

    fn texts(labels: &[KeyValue]) -> BTreeSet<String> {
        labels.iter().map(|label| format!("{}={}", label.key, label.value)).collect()
    }

    #[test]
    fn every_code_of_the_bus_is_a_label_except_the_one_that_clients_get_as_an_error_of_json_rpc() {
        let unlabelled: Vec<Code> = Code::ALL.into_iter().filter(|code| !ERRORS.contains(&code.as_str())).collect();
        assert_eq!(unlabelled, [Code::ToolNotFound]);
    }

    #[test]
    fn tools_beyond_the_limit_share_a_name_and_earlier_ones_keep_theirs() {
        let labels = Labels::default();
        let mut seen = BTreeSet::new();
        for number in 0..MAX_OWN + 500 {
            seen.insert(texts(&labels.of("", Some(&format!("tool_{number}")), call(None))));
        }
        assert_eq!(seen.len(), MAX_OWN + 1);
        assert!(texts(&labels.of("", Some("late"), call(Some("timeout")))).contains("gen_ai.tool.name=_other"));
        assert!(texts(&labels.of("", Some("tool_0"), call(None))).contains("gen_ai.tool.name=tool_0"));
        assert_eq!(texts(&labels.of("", None, call(Some("-31000")))).len(), 6, "what is about no tool has no name");
    }

    #[test]
    fn the_code_of_an_answer_is_told_where_it_is_an_error_of_json_rpc() {
        let told = |error| call(error).failure().map(|label| label.value.to_string()).collect::<Vec<_>>();
        assert_eq!(told(Some("-32602")), ["-32602", "-32602"]);
        assert_eq!(told(Some("timeout")), ["timeout"]);
        assert_eq!(told(Some("made up")), ["_OTHER"]);
        assert_eq!(told(None), [""; 0]);
    }
}
