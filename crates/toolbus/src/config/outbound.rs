//! `[outbound.CHANNEL]`: tools that address people, and where in their arguments the recipients stand.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pattern::ToolPattern;

/// Tools that address people on one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutboundConfig {
    /// The tools.
    #[schemars(length(min = 1, max = 1024))]
    pub tools: Vec<ToolPattern>,
    /// The arguments that hold recipients, as JSON pointers; `*` is every element of a list: `["/to", "/cc/*"]`.
    #[schemars(length(min = 1, max = 64), extend("items" = {"type": "string", "format": "toolbus-recipient-path"}))]
    pub recipients: Vec<String>,
    /// How a recipient is compared with the list.
    pub compare: Comparison,
}

/// How a recipient is compared with a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Comparison {
    /// Telephone numbers, by their digits.
    Digits,
    /// Addresses of e-mail.
    Email,
    /// Character by character.
    Exact,
}
