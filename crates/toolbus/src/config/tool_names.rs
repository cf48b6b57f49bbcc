//! The tools that a configuration names, without making them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use toolbus_agents::{a2a, guides, pipeline, schedule, search, subagent};
use toolbus_scripts::{commands, tool};

use super::mcp::{MANAGEMENT_SOURCE, MANAGEMENT_TOOLS};
use super::tools::{ToolsConfig, builtin};
use super::toolsets::{ToolsetConfig, ToolsetMembers, Toolsets, source};
use super::{AgentConfig, Config, ScriptConfig};

/// The source of endpoints.
const REST: &str = "rest";

/// Tools by the name under which they are called.
pub(crate) type KnownTools = BTreeMap<Arc<str>, KnownTool>;

/// Tool, as far as the configuration alone describes it.
#[derive(Debug)]
pub(crate) struct KnownTool {
    /// The source that registers it.
    pub(crate) source: Arc<str>,
    /// Name without the prefix of a tool set.
    pub(crate) bare_name: Arc<str>,
    /// JSON Schema of the arguments, if the tool has one.
    pub(crate) parameters: Option<Arc<Value>>,
    /// The tool set that it belongs to.
    pub(crate) set: Option<String>,
}

/// A tool's name, and its schema as text.
pub(crate) type Named<'a> = (&'a str, Option<&'a str>);

/// The parts of a configuration that name tools.
pub(crate) struct Declared<'a> {
    pub(crate) tools: &'a ToolsConfig,
    pub(crate) endpoints: Vec<Named<'a>>,
    pub(crate) commands: Vec<Named<'a>>,
    pub(crate) toolsets: &'a Toolsets,
    /// Whether there can be MCP servers, whose tools are known once they are connected.
    pub(crate) has_servers: bool,
    /// Names of web tools.
    pub(crate) web: Vec<&'static str>,
    /// Names of the tools that run scripts.
    pub(crate) scripts: Vec<String>,
    /// Tools of sections that bring some.
    pub(crate) of_sections: Vec<OwnTool>,
}

/// Every tool of a configuration, from its parts.
pub(crate) fn known(declared: Declared<'_>) -> KnownTools {
    let Declared { tools, endpoints, commands, toolsets, has_servers, web, scripts, of_sections } = declared;
    let schema = |text: Option<&str>| text.and_then(|text| serde_json::from_str(text).ok()).map(Arc::new);
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
    let members = ToolsetMembers::new(toolsets);
    let endpoints = endpoints.into_iter().map(|(name, parameters)| {
        let parameters = schema(parameters);
        let set = members.set_of(name).map(|(set, _)| set.to_owned());
        (members.published(name), KnownTool { source: REST.into(), bare_name: name.into(), parameters, set })
    });
    let plain = |source: &str, name: &str, parameters| {
        (name.into(), KnownTool { source: source.into(), bare_name: name.into(), parameters, set: None })
    };
    let commands = commands.into_iter().map(|(name, parameters)| plain(commands::SOURCE, name, schema(parameters)));
    let own = MANAGEMENT_TOOLS.into_iter().filter(|_| has_servers).map(|name| plain(MANAGEMENT_SOURCE, name, None));
    let scripts = scripts.iter().map(|name| plain(tool::SOURCE, name, None));
    let own_tools = of_sections.into_iter().map(|tool| plain(tool.source, tool.name, None));
    let web = web.into_iter().map(|name| plain(toolbus_web::SOURCE, name, None));
    let remote = toolsets.iter().flat_map(|(set, config)| {
        let tool = |name: String| {
            let parameters = schema(config.tools.get(&name).and_then(|tool| tool.parameters.as_deref()));
            let (source, bare_name) = (source(set).into(), name.as_str().into());
            let tool = KnownTool { source, bare_name, parameters, set: Some(set.clone()) };
            (Arc::<str>::from(format!("{}.{name}", config.prefix(set))), tool)
        };
        config.written_names().map(tool).collect::<Vec<_>>()
    });
    builtin
        .chain(endpoints)
        .chain(remote)
        .chain(web)
        .chain(commands)
        .chain(own)
        .chain(scripts)
        .chain(own_tools)
        .collect()
}

/// A tool that a section brings along.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnTool {
    /// The section.
    pub(crate) section: &'static str,
    pub(crate) source: &'static str,
    pub(crate) name: &'static str,
}

/// The tools of the sections that `has` accepts; those of a search if `searches`.
pub(crate) fn own_tools(has: impl Fn(&str) -> bool, searches: bool) -> Vec<OwnTool> {
    let families: [(&str, &str, &[&str]); 8] = [
        ("memory", toolbus_memory::tools::SOURCE, &toolbus_memory::NAMES),
        ("schedule", schedule::tools::SOURCE, &schedule::NAMES),
        ("a2a", a2a::tools::SOURCE, &a2a::NAMES),
        ("guides", guides::SOURCE, &guides::NAMES),
        ("pipelines", pipeline::SOURCE, &pipeline::NAMES),
        ("subagents", subagent::tools::SOURCE, &subagent::tools::NAMES),
        ("subagents", subagent::whiteboard::SOURCE, &subagent::whiteboard::NAMES),
        ("tools", search::SOURCE, &search::NAMES),
    ];
    let there = families.into_iter().filter(|(section, ..)| if *section == "tools" { searches } else { has(section) });
    there.flat_map(|(section, source, names)| names.iter().map(move |name| OwnTool { section, source, name })).collect()
}

impl Config {
    pub(crate) fn own_tools(&self) -> Vec<OwnTool> {
        let has = |section: &str| match section {
            "memory" => self.memory.is_some(),
            "schedule" => self.schedule.is_some(),
            "pipelines" => self.pipelines.is_some(),
            "a2a" => self.a2a.is_some(),
            "subagents" => self.subagents.is_some(),
            _ => self.guides.is_some(),
        };
        own_tools(has, self.tools.search)
    }

    pub(crate) fn known_tools(&self) -> KnownTools {
        known(Declared {
            tools: &self.tools,
            endpoints: self.rest.all().map(|one| (one.name.as_str(), one.parameters.as_deref())).collect(),
            commands: self.commands.iter().map(|one| (one.name.as_str(), one.parameters.as_deref())).collect(),
            toolsets: &self.toolsets,
            has_servers: self.mcp.is_configured() || self.toolsets.values().any(ToolsetConfig::is_of_bridge),
            web: self.web.as_ref().map(toolbus_web::tool_names).unwrap_or_default(),
            scripts: self.script.iter().flat_map(ScriptConfig::tool_names).collect(),
            of_sections: self.own_tools(),
        })
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
