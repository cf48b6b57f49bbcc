//! Features of one dead letter.

use serde::{Deserialize, Serialize};
use toolbus_broker::rabbitmq::DeadLetter;
use toolbus_core::telemetry::DeadReason;
use toolbus_protocol::{Envelope, Properties};

/// The reasons of RabbitMQ, in `x-death`.
const BROKER_REASONS: [&str; 4] = ["expired", "rejected", "maxlen", "delivery_limit"];

/// Every reason for which a letter can be dead.
pub(crate) fn reasons() -> Vec<&'static str> {
    DeadReason::ALL.into_iter().map(DeadReason::as_str).chain(BROKER_REASONS).collect()
}

/// Features that identify a dead letter, without possible secrets.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Letter {
    /// The queue that it came from.
    pub(crate) queue: String,
    /// Message id.
    pub(crate) id: Option<String>,
    /// The caller's id of the call.
    pub(crate) call_id: Option<String>,
    /// Reason for which it is dead.
    pub(crate) reason: String,
    /// Since when, in seconds since 1970.
    pub(crate) since: Option<u64>,
    /// The topic that it came on, if it is a request.
    pub(crate) topic: Option<String>,
    /// Type of the message.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    /// The agent that sent the request.
    pub(crate) agent: Option<String>,
    /// The requested tool.
    pub(crate) tool: Option<String>,
    /// Where its reply should go.
    pub(crate) reply_to: Option<String>,
    /// Size of its body.
    pub(crate) bytes: usize,
}

/// The names in a body.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BodyNames {
    tool_name: Option<String>,
    tool_call_id: Option<String>,
}

impl Letter {
    /// Reads the features of a dead letter.
    pub(crate) fn read(queue: &str, dead: &DeadLetter) -> Self {
        let Properties { message_id, message_type, .. } = &dead.properties;
        let envelope = Envelope::read(&dead.properties);
        let is_reply = dead.reason == DeadReason::Undeliverable.as_str();
        let agent = if is_reply { envelope.destination } else { envelope.source };
        let names: BodyNames = serde_json::from_slice(dead.body()).unwrap_or_default();
        Self {
            queue: queue.to_owned(),
            id: message_id.clone(),
            call_id: names.tool_call_id,
            reason: dead.reason.clone(),
            since: dead.since,
            topic: dead.topic.clone(),
            kind: message_type.clone(),
            agent,
            tool: names.tool_name,
            reply_to: dead
                .reply_to
                .clone()
                .or_else(|| dead.properties.reply_to.clone())
                .filter(|address| !address.is_empty()),
            bytes: dead.body().len(),
        }
    }
}
