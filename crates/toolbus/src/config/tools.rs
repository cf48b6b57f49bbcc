//! `[tools]`: the tools that the daemon brings along, and limits for any tool.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolbus_client::RemoteDaemons;
use toolbus_config::HumanDuration;
use toolbus_core::Clock;
use toolbus_core::ParametersError;
use toolbus_core::events::WebEvents;
use toolbus_core::tool::{Effect, Membership, ModelHints, Tool, ToolDescriptor};
use toolbus_outbound::egress::EgressRules;
use toolbus_tools::rest::{Endpoint, EndpointError, RestClient, RestClientError};
use toolbus_tools::{echo, rest, time};
use toolbus_web::WebError;

use super::agents::is_default;
use super::pattern::ToolPattern;
use super::toolsets::{self, Scope, ToolsetMembers};
use super::{Config, ScriptConfig};

/// The tools that the daemon brings along, and limits for any tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolsConfig {
    /// Whether there is the tool `echo`, which answers with its text: for trying things out.
    pub echo: bool,
    /// What repeating a call of `echo` is taken to do: for trying out and measuring what is recorded.
    pub echo_effect: Effect,
    /// Whether there are the tools `current_time` and `convert_time`.
    pub time: bool,
    /// Whether there are the tools `search_known_services` and `search_tools`.
    pub search: bool,
    /// Tools without which the daemon is not ready.
    #[schemars(length(max = 1024), extend("items" = {"type": "string", "format": "toolbus-name"}))]
    pub required: Vec<String>,
    /// Limits by pattern of tool names: `*` is any run of characters, `?` one. Where several match, the one that fixes
    /// most characters decides, for each limit on its own.
    #[schemars(extend("propertyNames" = {"format": "toolbus-pattern"}))]
    pub limits: BTreeMap<ToolPattern, ToolLimits>,
    /// What providers of models are told of tools beside their definitions, by pattern of tool names as for `limits`.
    #[schemars(extend("propertyNames" = {"format": "toolbus-pattern"}))]
    pub definitions: BTreeMap<ToolPattern, ToolHints>,
}

/// Limits of one tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolLimits {
    /// Longest run of one call.
    pub timeout: Option<HumanDuration>,
    /// Calls that may run at a time.
    #[schemars(range(min = 1, max = 65_535))]
    pub max_in_flight: Option<usize>,
}

/// What providers of models are told of one tool beside its definition.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolHints {
    /// Whether a model finds it by a search of its provider, and does not have it in each prompt.
    pub defer_loading: Option<bool>,
    /// What may call it: "direct" for the model itself, or a provider's name of what runs programs of the model.
    #[schemars(length(max = 16), inner(length(min = 1, max = 64)))]
    pub allowed_callers: Option<Vec<String>>,
    /// Arguments of calls, as examples.
    #[schemars(length(max = 16))]
    pub input_examples: Option<Vec<Map<String, Value>>>,
}

impl Default for ToolsConfig {
    fn default() -> Self {
        Self {
            echo: false,
            echo_effect: Effect::ReadOnly,
            time: true,
            search: false,
            required: Vec::new(),
            limits: BTreeMap::new(),
            definitions: BTreeMap::new(),
        }
    }
}

/// What patterns say that match a name, the most specific first.
fn matching<'a, T>(patterns: &'a BTreeMap<ToolPattern, T>, name: &str) -> impl Iterator<Item = &'a T> + use<'a, T> {
    let mut matching: Vec<_> = patterns.iter().filter(|(pattern, _)| pattern.matches(name)).collect();
    matching.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.specificity()));
    matching.into_iter().map(|(_, said)| said)
}

impl ToolsConfig {
    /// The limits that hold for a tool of this name.
    #[must_use]
    pub fn limits_of(&self, name: &str) -> ToolLimits {
        matching(&self.limits, name).fold(ToolLimits::default(), |limits, next| ToolLimits {
            timeout: limits.timeout.or(next.timeout),
            max_in_flight: limits.max_in_flight.or(next.max_in_flight),
        })
    }

    /// What providers are told of a tool of this name; `None` if nothing is.
    fn hints_of(&self, name: &str) -> Option<Arc<ModelHints>> {
        let merged = matching(&self.definitions, name).cloned().reduce(|hints, next| ToolHints {
            defer_loading: hints.defer_loading.or(next.defer_loading),
            allowed_callers: hints.allowed_callers.or(next.allowed_callers),
            input_examples: hints.input_examples.or(next.input_examples),
        })?;
        Some(Arc::new(ModelHints {
            defer_loading: merged.defer_loading.unwrap_or_default(),
            allowed_callers: merged.allowed_callers.unwrap_or_default(),
            input_examples: merged.input_examples.unwrap_or_default(),
        }))
    }

    /// Applies the limits to a tool that may have stricter ones, and adds what providers are told of it.
    pub(crate) fn limit(&self, tool: &mut ToolDescriptor) {
        let limits = self.limits_of(&tool.name);
        let timeout = limits.timeout.map(HumanDuration::get);
        tool.timeout = [tool.timeout, timeout].into_iter().flatten().min();
        tool.max_in_flight = [tool.max_in_flight, limits.max_in_flight].into_iter().flatten().min();
        tool.model_hints = self.hints_of(&tool.name);
    }
}

/// Why the configured tools cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ToolsError {
    /// No HTTP client for the REST endpoints.
    #[error("no HTTP client can be made: {0}")]
    RestClient(#[from] RestClientError),
    /// An endpoint that cannot work.
    #[error("REST endpoint `{name}`: {error}")]
    Endpoint {
        /// Name of its tool.
        name: String,
        /// What is wrong with it.
        error: EndpointError,
    },
    /// A tool of another daemon whose schema is none of arguments.
    #[error("tool `{name}` of a remote tool set: {error}")]
    Remote {
        /// Its name.
        name: String,
        /// What is wrong with it.
        error: ParametersError,
    },
    /// Web tools.
    #[error("[web] {0}")]
    Web(#[from] WebError),
}

/// The tools that the daemon brings along, as far as they are switched on.
pub(crate) fn builtin(config: &ToolsConfig) -> Vec<Tool> {
    let mut tools = if config.time { time::tools(Clock::SYSTEM) } else { Vec::new() };
    tools.extend(config.echo.then(|| echo::tool(config.echo_effect)));
    tools
}

impl Config {
    /// Every tool that this configuration asks for, with its limits, but for scripts and commands; connects to nothing.
    /// `events` are told what web tools do.
    ///
    /// # Errors
    ///
    /// If a tool's settings are mistaken; [`Config::load`] refuses them before.
    pub fn tools(&self, events: &Arc<dyn WebEvents>) -> Result<Vec<Tool>, ToolsError> {
        let mut tools = builtin(&self.tools);
        if self.rest.all().next().is_some() {
            let client = RestClient::new(self.egress_rules())?;
            let members = ToolsetMembers::new(&self.toolsets);
            for endpoint in self.rest.all() {
                let mut tool = rest::tool(&published(endpoint, &members), &client)
                    .map_err(|error| ToolsError::Endpoint { name: endpoint.name.clone(), error })?;
                Arc::make_mut(&mut tool.descriptor).toolset = membership(endpoint, &members);
                tools.push(tool);
            }
        }
        if let Some(web) = &self.web {
            tools.extend(toolbus_web::tools(web, self.egress_rules(), None, events)?);
        }
        tools.iter_mut().for_each(|tool| self.limit(tool));
        Ok(tools)
    }

    /// The tools of other daemons, with their limits.
    ///
    /// # Errors
    ///
    /// If a tool's settings are mistaken; [`Config::load`] refuses them before.
    pub fn remote_tools(&self, daemons: &RemoteDaemons) -> Result<Vec<Tool>, ToolsError> {
        let mut tools = Vec::new();
        for (set, config) in &self.toolsets {
            let Some(topic) = &config.topic else { continue };
            if config.is_of_scripts() {
                let descriptor = toolsets::scripts_descriptor((set, config));
                let executor = daemons.scripts(Arc::clone(&descriptor.name));
                let mut tool = Tool::new(descriptor, executor);
                self.limit(&mut tool);
                tools.push(tool);
                continue;
            }
            for (name, tool) in &config.tools {
                let descriptor = tool.descriptor((set, config), name);
                let descriptor = descriptor.map_err(|error| ToolsError::Remote { name: name.clone(), error })?;
                let executor = daemons.tool(topic.as_str(), Arc::clone(&descriptor.name), tool.effect);
                let mut tool = Tool::new(descriptor, executor);
                self.limit(&mut tool);
                tools.push(tool);
            }
        }
        Ok(tools)
    }

    /// The hosts that callers may make the daemon reach.
    pub(crate) fn egress_rules(&self) -> EgressRules {
        let agents = self.agents.iter().map(|(agent, section)| (agent.clone(), section.hosts())).collect();
        let default = self.agents.iter().find(|(agent, _)| is_default(agent)).map(|(_, section)| section.hosts());
        EgressRules::new(self.egress.clone(), agents, default.unwrap_or_default())
    }

    /// Narrows what a tool may do; a limit of its own that is narrower stays.
    pub(crate) fn limit(&self, tool: &mut Tool) {
        self.tools.limit(Arc::make_mut(&mut tool.descriptor));
    }

    /// Name of every tool that this configuration asks for.
    #[must_use]
    pub fn tool_names(&self) -> Vec<Arc<str>> {
        let builtin = builtin(&self.tools).into_iter().map(|tool| Arc::clone(&tool.descriptor.name));
        let members = ToolsetMembers::new(&self.toolsets);
        let endpoints = self.rest.all().map(|endpoint| members.published(&endpoint.name));
        let web = self.web.iter().flat_map(toolbus_web::tool_names).map(Into::into);
        let commands = self.commands.iter().map(|command| command.name.as_str().into());
        let script = self.script.iter().flat_map(ScriptConfig::tool_names).map(Into::into);
        let own = self.own_tools().into_iter().map(|tool| tool.name.into());
        let remote = self.toolsets.iter().flat_map(|(set, config)| {
            config.written_names().map(move |name| format!("{}.{name}", config.prefix(set)).into())
        });
        builtin.chain(own).chain(remote).chain(endpoints).chain(web).chain(commands).chain(script).collect()
    }
}

/// An endpoint under the name by which it is called, so that its failures name what the caller knows.
fn published(endpoint: &Endpoint, members: &ToolsetMembers<'_>) -> Endpoint {
    let mut published = endpoint.clone();
    published.name = members.published(&endpoint.name).to_string();
    published
}

fn membership(endpoint: &Endpoint, members: &ToolsetMembers<'_>) -> Option<Membership> {
    members.set_of(&endpoint.name).map(|(name, set)| Membership {
        set: name.into(),
        name: endpoint.name.as_str().into(),
        needs_session: set.scope == Scope::Session,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use toolbus_core::events::Discard;

    use super::*;

    fn discard() -> Arc<dyn WebEvents> {
        Arc::new(Discard)
    }

    #[test]
    fn the_most_specific_pattern_decides_for_each_limit_on_its_own() {
        let pattern = |text| ToolPattern::parse(text).unwrap();
        let timeout = |seconds| Some(HumanDuration::from_secs(seconds));
        let config = ToolsConfig {
            limits: BTreeMap::from([
                (pattern("*"), ToolLimits { timeout: timeout(1), max_in_flight: Some(1) }),
                (pattern("web_*"), ToolLimits { timeout: timeout(2), max_in_flight: None }),
                (pattern("web_search"), ToolLimits { timeout: None, max_in_flight: Some(3) }),
            ]),
            ..ToolsConfig::default()
        };
        assert_eq!(config.limits_of("web_search"), ToolLimits { timeout: timeout(2), max_in_flight: Some(3) });
        assert_eq!(config.limits_of("echo"), ToolLimits { timeout: timeout(1), max_in_flight: Some(1) });
        assert_eq!(ToolsConfig::default().limits_of("echo"), ToolLimits::default());
    }

    #[test]
    fn the_most_specific_pattern_decides_what_providers_are_told() {
        let definitions = serde_json::json!({
            "*": {"defer_loading": true, "allowed_callers": ["direct"]},
            "e*": {"defer_loading": false, "input_examples": [{"text": "hello"}]}
        });
        let config = ToolsConfig { definitions: serde_json::from_value(definitions).unwrap(), ..Default::default() };
        let mut echo = ToolDescriptor::new("echo", "echo", "local");
        config.limit(&mut echo);
        let hints = echo.model_hints.unwrap();
        assert_eq!((hints.defer_loading, &*hints.allowed_callers[0]), (false, "direct"));
        assert_eq!(hints.input_examples[0]["text"], "hello");
        assert_eq!(ToolsConfig::default().hints_of("echo"), None);
    }

    #[test]
    fn tools_are_made_as_configured_with_their_limits() {
        let five = ToolLimits { timeout: Some(HumanDuration::from_secs(5)), max_in_flight: Some(2) };
        let limits = BTreeMap::from([(ToolPattern::parse("e*").unwrap(), five)]);
        let tools = ToolsConfig { echo: true, echo_effect: Effect::Effectful, limits, ..Default::default() };
        let config = Config { tools, ..Config::default() };
        let tools = config.tools(&discard()).unwrap();
        let names: Vec<_> = tools.iter().map(|tool| Arc::clone(&tool.descriptor.name)).collect();
        assert_eq!(names, config.tool_names());
        let echo = tools.iter().find(|tool| &*tool.descriptor.name == "echo").unwrap();
        assert_eq!((echo.descriptor.timeout, echo.descriptor.max_in_flight), (Some(Duration::from_secs(5)), Some(2)));
        assert_eq!(echo.descriptor.effect, Effect::Effectful);
        assert!(
            Config { tools: ToolsConfig { time: false, ..Default::default() }, ..config }
                .tools(&discard())
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn the_endpoints_of_a_tool_set_have_its_prefix_and_are_no_plain_tools() {
        let text = r#"{
            "rest": {"endpoints": [
                {"name": "read", "description": "Reads", "url": "http://host/read"},
                {"name": "get", "description": "Gets", "url": "http://host/get"}
            ]},
            "toolsets": {"files": {"prefix": "fs", "kind": "rest", "scope": "session", "endpoints": ["read"]}}
        }"#;
        let config: Config = serde_json::from_str(text).unwrap();
        let tools = config.tools(&discard()).unwrap();
        let [read, get] = tools.get(tools.len() - 2..).unwrap() else { panic!("two endpoints") };
        let member = Membership { set: "files".into(), name: "read".into(), needs_session: true };
        assert_eq!((&*read.descriptor.name, &read.descriptor.toolset), ("fs.read", &Some(member)));
        assert_eq!((&*get.descriptor.name, &get.descriptor.toolset), ("get", &None));
        assert_eq!(config.tool_names().last_chunk().unwrap().each_ref().map(AsRef::as_ref), ["fs.read", "get"]);
    }
}
