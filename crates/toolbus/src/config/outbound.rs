//! `[outbound.CHANNEL]`: tools that address people, and where in their arguments the recipients stand.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::pattern::Pattern;
use toolbus_core::recipients::Compare;

/// Tools that address people on one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutboundConfig {
    /// The tools.
    #[schemars(length(min = 1, max = 1024))]
    pub tools: Vec<Pattern>,
    /// The arguments that hold recipients, as JSON pointers; `*` is every element of a list: `["/to", "/cc/*"]`.
    #[schemars(length(min = 1, max = 64), extend("items" = {"type": "string", "format": "toolbus-recipient-path"}))]
    pub recipients: Vec<String>,
    /// Comparison of a recipient with the list.
    pub compare: Compare,
}
