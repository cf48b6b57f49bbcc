//! `[invoke]`: taking requests, and how much at a time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_config::{ByteSize, HumanDuration};

/// Taking requests to run a tool, and how much at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct InvokeConfig {
    /// Topics of requests.
    #[schemars(length(min = 1, max = 16), extend("items" = {"type": "string", "format": "toolbus-topic-pattern"}))]
    pub topics: Vec<String>,
    /// Where an answer goes whose request names no address.
    #[schemars(extend("format" = "toolbus-topic"))]
    pub default_reply_topic: String,
    /// Time for a call whose request and tool name none.
    pub default_timeout: HumanDuration,
    /// Longest time for any call, whatever its request says.
    pub max_timeout: HumanDuration,
    /// Largest request body that is read.
    pub max_body: ByteSize,
    /// Calls that run at a time.
    #[schemars(range(min = 1, max = 65_535))]
    pub max_in_flight: usize,
    /// Calls that wait for their turn; those beyond stay in the broker's queue.
    #[schemars(range(max = 65_534))]
    pub max_waiting: usize,
    /// Time that running calls have to finish when the daemon stops.
    pub drain_timeout: HumanDuration,
}

impl Default for InvokeConfig {
    fn default() -> Self {
        Self {
            topics: vec!["tool.invoke".to_owned()],
            default_reply_topic: "tool.result".to_owned(),
            default_timeout: HumanDuration::from_secs(60),
            max_timeout: HumanDuration::from_secs(120),
            max_body: ByteSize::from_mib(1),
            max_in_flight: 256,
            max_waiting: 1024,
            drain_timeout: HumanDuration::from_secs(30),
        }
    }
}

impl InvokeConfig {
    /// Requests that the broker may hand over before any is settled: those that run and those that wait.
    #[must_use]
    pub fn prefetch(&self) -> u16 {
        u16::try_from(self.max_in_flight.saturating_add(self.max_waiting)).unwrap_or(u16::MAX)
    }
}
