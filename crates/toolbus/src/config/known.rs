//! The tools that a configuration names, without making them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::mcp::{MANAGEMENT_SOURCE, MANAGEMENT_TOOLS};
use super::registered::builtin;
use super::tools::ToolsConfig;
use super::toolsets::{Members, Toolsets};
use super::{AgentConfig, Config};

/// The source of endpoints.
const REST: &str = "rest";

/// Tools by the name under which they are called.
pub(crate) type Known = BTreeMap<Arc<str>, KnownTool>;

/// What the configuration alone knows of a tool.
#[derive(Debug)]
pub(crate) struct KnownTool {
    /// Who registers it.
    pub(crate) source: Arc<str>,
    /// Its name without the prefix of a tool set.
    pub(crate) bare_name: Arc<str>,
    /// Its schema, where it has one.
    pub(crate) parameters: Option<Arc<Value>>,
    /// The tool set that it belongs to.
    pub(crate) set: Option<String>,
}

/// Every tool of a configuration, from its parts; `endpoints` are names and schemas as text. What the tools of MCP
/// servers are is known once these are connected; `has_servers`: whether there can be any.
pub(crate) fn known<'a>(
    tools: &ToolsConfig,
    endpoints: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    toolsets: &Toolsets,
    has_servers: bool,
) -> Known {
    let builtin = builtin(tools).into_iter().map(|tool| {
        let descriptor = &tool.descriptor;
        let tool = KnownTool {
            source: Arc::clone(&descriptor.source),
            bare_name: Arc::clone(&descriptor.name),
            parameters: descriptor.parameters.clone(),
            set: None,
        };
        (Arc::clone(&descriptor.name), tool)
    });
    let members = Members::new(toolsets);
    let endpoints = endpoints.map(|(name, parameters)| {
        let parameters = parameters.and_then(|text| serde_json::from_str(text).ok()).map(Arc::new);
        let set = members.set_of(name).map(|(set, _)| set.to_owned());
        (members.published(name), KnownTool { source: REST.into(), bare_name: name.into(), parameters, set })
    });
    let management = MANAGEMENT_TOOLS.into_iter().filter(|_| has_servers).map(|name| {
        let tool = KnownTool { source: MANAGEMENT_SOURCE.into(), bare_name: name.into(), parameters: None, set: None };
        (name.into(), tool)
    });
    builtin.chain(endpoints).chain(management).collect()
}

impl Config {
    pub(crate) fn known_tools(&self) -> Known {
        let endpoints = self.rest.endpoints.iter().map(|one| (one.name.as_str(), one.parameters.as_deref()));
        known(&self.tools, endpoints, &self.toolsets, self.mcp.is_configured())
    }
}

impl KnownTool {
    /// Names of the arguments that its schema declares; `None` where there is no schema.
    pub(crate) fn arguments(&self) -> Option<Vec<&str>> {
        let properties = self.parameters.as_ref()?.get("properties").and_then(Value::as_object);
        Some(properties.into_iter().flatten().map(|(name, _)| name.as_str()).collect())
    }

    /// Whether an agent has the tool set that it belongs to; so it is for a plain tool.
    pub(crate) fn is_bound(&self, agent: &AgentConfig) -> bool {
        self.set.as_ref().is_none_or(|set| agent.toolsets.contains(set))
    }
}
