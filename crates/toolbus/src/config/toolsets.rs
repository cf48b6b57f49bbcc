//! `[toolsets.NAME]`: tools that only agents have to which the set is bound, named `prefix.tool`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use toolbus_config::HumanDuration;
use toolbus_core::caller::AgentName;
use toolbus_core::tool::{Effect, Membership, ToolDescriptor};
use toolbus_core::{Parameters, ParametersError};
use toolbus_protocol::EXECUTE_PYTHON_SCRIPT;
use toolbus_protocol::topic::{self, SCRIPT_INVOKE};
use toolbus_remote::{MAX_SCRIPT_SECONDS, SCRIPT_GRACE};

/// The kind of backend in replies.
pub(crate) const PROVIDER: &str = "remote";

/// Tool sets by name.
pub type Toolsets = BTreeMap<String, ToolsetConfig>;

/// A set of tools that is bound to agents as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolsetConfig {
    /// Start of the names of its tools, before the dot; absent: the name of the set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "toolbus-prefix"))]
    pub prefix: Option<String>,
    /// Kind of tools in the set.
    pub kind: Kind,
    /// Whether all callers share what runs the tools.
    #[serde(default)]
    pub scope: Scope,
    /// For "rest": names of the `rest.endpoints` that it consists of. They are no plain tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 10_000), extend("items" = {"type": "string", "format": "toolbus-name"}))]
    pub endpoints: Vec<String>,
    /// For "mcp": the MCP server whose tools it consists of. They are no plain tools. For "remote" with the topic
    /// "tool.invoke.mcp": an MCP server that a bridge has, another daemon or one of RockBot's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "toolbus-mcp-server"))]
    pub server: Option<String>,
    /// For "remote": the topic from which another daemon takes calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "toolbus-topic"))]
    pub topic: Option<String>,
    /// For "remote", in place of `topic`: the program that provides the tools, by its name as an agent. What others list
    /// and reply in its place does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<AgentName>,
    /// For "remote": its tools, by the names that the other daemon knows them by. Absent: those that the other daemon lists
    /// for this one, for which the topic has to begin with `tool.invoke`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 1_000, "propertyNames" = {"format": "toolbus-name"}))]
    pub tools: BTreeMap<String, RemoteToolConfig>,
    /// Time without a call after which a session's own part of the set ends.
    #[serde(default = "default_idle_timeout")]
    pub idle_timeout: HumanDuration,
    /// Sessions that may have a part of their own at a time.
    #[serde(default = "default_max_sessions")]
    #[schemars(range(min = 1, max = 65_535))]
    pub max_sessions: usize,
}

/// A tool of another daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoteToolConfig {
    /// Description of the tool, for a model.
    #[schemars(length(min = 1, max = 65_536))]
    pub description: String,
    /// JSON Schema of its arguments, as JSON text; absent: any object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<String>,
    /// Effect of repeating a call.
    #[serde(default)]
    pub effect: Effect,
}

const fn default_idle_timeout() -> HumanDuration {
    HumanDuration::from_secs(600)
}

const fn default_max_sessions() -> usize {
    100
}

/// Kind of tools in a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Kind {
    /// The tools of an MCP server.
    Mcp,
    /// HTTP endpoints.
    Rest,
    /// Tools of another daemon on the bus.
    Remote,
}

/// Whether all callers share what runs the tools of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Scope {
    /// Each session of an agent has its own, so that a call needs a session.
    Session,
    /// There is one for all.
    #[default]
    Shared,
}

impl RemoteToolConfig {
    /// The tool as the daemon lists it: `name` is its own, in the tool set `set`.
    ///
    /// # Errors
    ///
    /// If its schema is none of arguments.
    pub fn descriptor(
        &self,
        (set, config): (&str, &ToolsetConfig),
        name: &str,
    ) -> Result<ToolDescriptor, ParametersError> {
        let published = format!("{}.{name}", config.prefix(set));
        Ok(ToolDescriptor {
            description: self.description.clone(),
            parameters: Parameters::parse(self.parameters.as_deref())?.into_schema(),
            effect: self.effect,
            toolset: Some(Membership { set: set.into(), name: name.into(), needs_session: false }),
            ..ToolDescriptor::new(published, source(set), PROVIDER)
        })
    }
}

/// The tool of the set `set`, which runs scripts elsewhere.
pub(crate) fn scripts_descriptor((set, config): (&str, &ToolsetConfig)) -> ToolDescriptor {
    let schema = json!({
        "type": "object",
        "properties": {
            "script": {"type": "string", "description": "The text of the Python program. Print the answer to standard output."},
            "input_data": {"type": "string", "description": "Data for the script, in the environment variable ROCKBOT_INPUT."},
            "timeout_seconds": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_SCRIPT_SECONDS,
                "description": "Seconds that the script may run. Default: 30.",
            },
            "pip_packages": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Packages to install before the script runs.",
            },
        },
        "required": ["script"],
        "additionalProperties": false,
    });
    ToolDescriptor {
        description:
            "Runs a Python script and returns what it prints to standard output. A script fails when it exits \
                      with another code than 0."
                .to_owned(),
        parameters: Some(Arc::new(schema)),
        effect: Effect::Effectful,
        timeout: Some(Duration::from_secs(MAX_SCRIPT_SECONDS) + SCRIPT_GRACE),
        toolset: Some(Membership { set: set.into(), name: EXECUTE_PYTHON_SCRIPT.into(), needs_session: false }),
        ..ToolDescriptor::new(format!("{}.{EXECUTE_PYTHON_SCRIPT}", config.prefix(set)), source(set), PROVIDER)
    }
}

/// The source of the tools of a remote tool set.
pub(crate) fn source(set: &str) -> String {
    format!("remote:{set}")
}

impl ToolsetConfig {
    /// The topic on which its tools are called, of a tool set of kind "remote".
    pub(crate) fn calls_topic(&self) -> Option<Cow<'_, str>> {
        let of_provider = self.provider.as_ref().map(|provider| Cow::Owned(topic::of_provider(provider.as_str())));
        of_provider.or_else(|| self.topic.as_deref().map(Cow::Borrowed))
    }

    /// Whether its tools are those that another daemon lists.
    #[must_use]
    pub fn is_learnt(&self) -> bool {
        self.kind == Kind::Remote && self.tools.is_empty() && !self.is_of_scripts()
    }

    /// Whether its tools are those of an MCP server that a bridge has.
    #[must_use]
    pub fn is_of_bridge(&self) -> bool {
        self.kind == Kind::Remote && self.server.is_some()
    }

    /// Whether its one tool runs scripts at the program that takes them from `script.invoke`.
    #[must_use]
    pub fn is_of_scripts(&self) -> bool {
        self.kind == Kind::Remote && self.topic.as_deref() == Some(SCRIPT_INVOKE)
    }

    /// Names of the tools of other programs that the configuration lists, without the prefix.
    pub(crate) fn written_names(&self) -> impl Iterator<Item = String> {
        let scripts = self.is_of_scripts().then(|| EXECUTE_PYTHON_SCRIPT.to_owned());
        self.tools.keys().cloned().chain(scripts)
    }

    /// Start of the names of its tools, before the dot.
    #[must_use]
    pub fn prefix<'a>(&'a self, name: &'a str) -> &'a str {
        self.prefix.as_deref().unwrap_or(name)
    }
}

/// Which endpoint belongs to which tool set.
pub(crate) struct ToolsetMembers<'a>(BTreeMap<&'a str, (&'a str, &'a ToolsetConfig)>);

impl<'a> ToolsetMembers<'a> {
    pub(crate) fn new(toolsets: &'a Toolsets) -> Self {
        let members = |(name, set): (&'a String, &'a ToolsetConfig)| {
            set.endpoints.iter().map(move |endpoint| (endpoint.as_str(), (name.as_str(), set)))
        };
        Self(toolsets.iter().flat_map(members).collect())
    }

    /// The tool set of an endpoint, with its name.
    pub(crate) fn set_of(&self, endpoint: &str) -> Option<(&'a str, &'a ToolsetConfig)> {
        self.0.get(endpoint).copied()
    }

    /// The name by which an endpoint is called: with the prefix of the tool set that it belongs to.
    pub(crate) fn published(&self, endpoint: &str) -> Arc<str> {
        match self.set_of(endpoint) {
            Some((name, set)) => format!("{}.{endpoint}", set.prefix(name)).into(),
            None => endpoint.into(),
        }
    }
}
