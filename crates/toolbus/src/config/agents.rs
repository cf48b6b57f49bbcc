//! `[agents.NAME]`: the tools that an agent may use.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use toolbus_core::caller::AgentName;
use toolbus_core::pattern::Pattern;
use toolbus_outbound::egress::{HostLists, HostRule};

/// The section for every agent that has none of its own.
pub const DEFAULT_SECTION: &str = "default";
/// Name of callers that are no agent.
pub(crate) const UNKNOWN_AGENT: &str = "unknown";
/// Most entries of a list in a section.
const MAX_LIST: usize = 10_000;

/// Sections by name of the agent; `default` is for callers without one.
pub type Agents = BTreeMap<AgentName, AgentConfig>;
/// Rates by pattern of tool names.
pub type Rates = BTreeMap<Pattern, RateConfig>;
/// Recipients by name of the channel.
pub type Recipients = BTreeMap<String, Vec<String>>;

/// Tools, limits and bindings of one agent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// Tools that it may use, by pattern; absent or `[]`: all, "none": none.
    pub allowed_tools: AllowedTools,
    /// Tools that it may not use, whatever else allows them.
    #[schemars(length(max = 10_000))]
    pub denied_tools: Vec<Pattern>,
    /// Tool sets that it has.
    #[schemars(length(max = 1024), extend("items" = {"type": "string", "format": "toolbus-prefix"}))]
    pub toolsets: Vec<String>,
    /// The profile of all its requests; absent: the request chooses.
    #[schemars(extend("format" = "toolbus-profile"))]
    pub profile: Option<String>,
    /// Calls of it that may run at a time; absent: three quarters of the daemon's.
    #[schemars(range(min = 1, max = 65_535))]
    pub max_in_flight: Option<usize>,
    /// Calls of it that may wait; absent: half of the daemon's.
    #[schemars(range(max = 65_535))]
    pub max_queued: Option<usize>,
    /// Rate limits of calls, by pattern of tool names. The most specific pattern decides.
    #[schemars(extend("maxProperties" = 1024, "propertyNames" = {"format": "toolbus-pattern"}))]
    pub tool_rate_limits: Rates,
    /// Whom it may address, by channel; a channel that is absent is unrestricted.
    #[schemars(schema_with = "recipients")]
    pub outbound_allowlist: Recipients,
    /// The only hosts that web tools may reach for it; absent or `[]`: all that `egress` allows.
    #[schemars(length(max = 10_000))]
    pub allowed_hosts: Vec<HostRule>,
    /// Hosts that they may not reach for it.
    #[schemars(length(max = 10_000))]
    pub denied_hosts: Vec<HostRule>,
    /// Agents that it may give tasks to, by pattern of their names; absent or `[]`: none.
    #[schemars(length(max = 10_000))]
    pub allowed_agents: Vec<Pattern>,
    /// Arguments that are set for it, by pattern of tool names. It neither sees nor changes them.
    #[schemars(extend("maxProperties" = 1024, "propertyNames" = {"format": "toolbus-pattern"}))]
    pub arguments: BTreeMap<Pattern, Map<String, Value>>,
    /// Bindings to channels, each at most as wide as the agent itself.
    #[schemars(length(max = 1024))]
    pub bindings: Vec<BindingConfig>,
}

/// Tools and recipients of an agent on behalf of one channel and account.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BindingConfig {
    /// The channel, such as `whatsapp`.
    #[schemars(extend("format" = "toolbus-channel"))]
    pub channel: String,
    /// The account on that channel.
    #[schemars(extend("format" = "toolbus-account"))]
    pub account: String,
    /// Tools that it may use, out of the agent's; absent or `[]`: all of those, "none": none.
    #[serde(default)]
    pub allowed_tools: AllowedTools,
    /// Tools that it may not use.
    #[serde(default)]
    #[schemars(length(max = 10_000))]
    pub denied_tools: Vec<Pattern>,
    /// Replaces the agent's, channel by channel; a channel that is absent here is the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "recipients")]
    pub outbound_allowlist: Option<Recipients>,
    /// Replaces the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 1024, "propertyNames" = {"format": "toolbus-pattern"}))]
    pub tool_rate_limits: Option<Rates>,
}

/// Rate limit of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateConfig {
    /// Calls per second, on average.
    pub rps: f64,
    /// Calls at once, after a rest.
    pub burst: u32,
}

/// Tools that may be used.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "AllowedToolsForm")]
pub enum AllowedTools {
    /// Every one.
    #[default]
    All,
    /// None.
    None,
    /// Tools that one of these patterns matches; the list is never empty.
    Only(Vec<Pattern>),
}

/// The forms that [`AllowedTools`] is written in.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum AllowedToolsForm {
    Word(AllowedToolsWord),
    List(Vec<Pattern>),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AllowedToolsWord {
    None,
}

impl AllowedTools {
    /// Whether a tool of this name may be used.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Only(patterns) => matches_any(patterns, name),
        }
    }

    /// The patterns, where there are any.
    #[must_use]
    pub fn patterns(&self) -> &[Pattern] {
        match self {
            Self::All | Self::None => &[],
            Self::Only(patterns) => patterns,
        }
    }
}

/// Whether one of the patterns matches a name.
pub(crate) fn matches_any(patterns: &[Pattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

/// Whether one of the patterns matches a tool under its published name, or under its own within a tool set.
pub(crate) fn matches_either(patterns: &[Pattern], published: &str, bare: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches_either(published, bare))
}

impl From<AllowedToolsForm> for AllowedTools {
    fn from(written: AllowedToolsForm) -> Self {
        match written {
            AllowedToolsForm::Word(AllowedToolsWord::None) => Self::None,
            AllowedToolsForm::List(patterns) if patterns.is_empty() => Self::All,
            AllowedToolsForm::List(patterns) => Self::Only(patterns),
        }
    }
}

impl Serialize for AllowedTools {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => AllowedToolsWord::None.serialize(serializer),
            Self::All | Self::Only(_) => self.patterns().serialize(serializer),
        }
    }
}

impl JsonSchema for AllowedTools {
    fn schema_name() -> Cow<'static, str> {
        "AllowedTools".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                {"type": "array", "items": generator.subschema_for::<Pattern>(), "maxItems": MAX_LIST},
                {"type": "string", "enum": ["none"]},
            ],
        })
    }
}

fn recipients(_: &mut SchemaGenerator) -> Schema {
    let list = json_schema!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_LIST});
    json_schema!({
        "type": "object",
        "propertyNames": {"format": "toolbus-channel"},
        "additionalProperties": list,
        "maxProperties": 64,
    })
}

impl AgentConfig {
    /// The hosts that web tools may reach for it.
    pub(crate) fn hosts(&self) -> HostLists {
        HostLists { allowed: self.allowed_hosts.clone(), denied: self.denied_hosts.clone() }
    }

    /// Whether the section restricts the agent in any way, other than in its concurrent calls.
    #[must_use]
    pub fn is_restricting(&self) -> bool {
        let limits_alone = Self { max_in_flight: self.max_in_flight, max_queued: self.max_queued, ..Self::default() };
        *self != limits_alone
    }
}

/// Whether a section is for every agent that has none of its own.
pub(crate) fn is_default(agent: &AgentName) -> bool {
    agent.as_str() == DEFAULT_SECTION
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_of_allowed_tools_is_written_as_it_is_read() {
        let only = AllowedTools::Only(vec![Pattern::parse("web_*").unwrap()]);
        let table = [(json!([]), AllowedTools::All), (json!("none"), AllowedTools::None), (json!(["web_*"]), only)];
        for (written, expected) in table {
            assert_eq!(serde_json::from_value::<AllowedTools>(written.clone()).unwrap(), expected);
            assert_eq!(serde_json::to_value(&expected).unwrap(), written);
        }
        assert!(serde_json::from_value::<AllowedTools>(json!("all")).is_err());
    }

    #[test]
    fn limits_alone_restrict_no_agent() {
        let section = |value| serde_json::from_value::<AgentConfig>(value).unwrap();
        assert!(!section(json!({"max_in_flight": 1, "max_queued": 0, "allowed_tools": []})).is_restricting());
        for value in [json!({"allowed_tools": "none"}), json!({"profile": "main"}), json!({"toolsets": ["fs"]})] {
            assert!(section(value.clone()).is_restricting(), "{value}");
        }
    }
}
