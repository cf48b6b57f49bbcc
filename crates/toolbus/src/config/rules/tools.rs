//! Checks that names of tools do not collide.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde_json::Value;
use toolbus_config::{Part, expected};
use toolbus_core::pattern::Pattern;

use super::agents::Sections;
use super::{RuleChecker, below, path};
use crate::config::mcp::MANAGEMENT_TOOLS;
use crate::config::tool_names::{Declared, KnownTools, Named, OwnTool, known, own_tools};
use crate::config::tools::{ToolsConfig, builtin};
use crate::config::toolsets::{ToolsetConfig, ToolsetMembers};

impl RuleChecker<'_> {
    /// Reports names that are given twice, and names in lists that no tool has.
    pub(super) fn tools(&mut self, tools: &ToolsConfig, sections: &Sections) {
        self.names(tools, sections);
        let known = known(Declared {
            tools,
            endpoints: self.endpoint_tools().collect(),
            commands: self.named("commands").collect(),
            toolsets: &sections.toolsets,
            has_servers: sections.has_management_tools(),
            web: self.web_tools(),
            scripts: self.script_tools(),
            of_sections: self.own_tools(tools),
        });
        self.forced(&known, sections);
        self.ties(&known, sections);
        // A wrong endpoint, command or tool set may hold the missing tool, and so may an MCP server.
        let is_any_wrong =
            ["mcp", "rest", "web", "commands", "tools"].into_iter().any(|section| self.is_wrong_in(section));
        let is_any_learnt = sections.toolsets.values().any(ToolsetConfig::is_learnt);
        if is_any_learnt
            || sections.has_servers
            || self.described.is_open
            || is_any_wrong
            || !sections.has_every_toolset
        {
            return;
        }
        let names: Vec<&str> = known.keys().map(AsRef::as_ref).collect();
        let hint = |name: &str| {
            let in_a_set = names.iter().find(|known| known.split_once('.').is_some_and(|(_, bare)| bare == name));
            match (in_a_set, names.as_slice()) {
                (_, []) => "there is none".to_owned(),
                (Some(prefixed), _) => format!("did you mean `{prefixed}`, its name in a tool set?"),
                (None, names) => expected(name, names),
            }
        };
        for (index, name) in tools.required.iter().enumerate().filter(|(_, name)| !known.contains_key(name.as_str())) {
            let what = format!("no tool `{name}` is configured, so the daemon would never be ready; {}", hint(name));
            self.report(&[&format!("tools.required.{index}")], what);
        }
        let bare: BTreeSet<&str> = known.values().map(|tool| &*tool.bare_name).collect();
        for site in sections.patterns().into_iter().filter(|site| site.pattern.is_exact()) {
            let name = site.pattern.as_str();
            let is_known = known.contains_key(name) || (site.takes_bare_names() && bare.contains(name));
            if !is_known {
                self.report_at(vec![site.path], site.part, format!("no tool `{name}` is configured; {}", hint(name)));
            }
        }
    }

    /// Name and schema of every endpoint.
    pub(super) fn endpoint_tools(&self) -> impl Iterator<Item = Named<'_>> {
        let described = self.described.by_key.values().flat_map(|described| &described.endpoints);
        self.named("rest.endpoints").chain(described.map(|one| (one.name.as_str(), one.parameters.as_deref())))
    }

    /// Name and schema of every tool in a list of sections.
    fn named(&self, list: &str) -> impl Iterator<Item = Named<'_>> {
        let tools = self.tree.get(&path(list)).and_then(Value::as_array);
        tools
            .into_iter()
            .flatten()
            .filter_map(|tool| Some((tool.get("name")?.as_str()?, tool.get("parameters").and_then(Value::as_str))))
    }

    fn own_tools(&self, tools: &ToolsConfig) -> Vec<OwnTool> {
        own_tools(|section| self.tree.get(&path(section)).is_some(), tools.search)
    }

    /// The names of web tools.
    fn web_tools(&self) -> Vec<&'static str> {
        let web = self.tree.get(&path("web")).and_then(|_| self.section("web"));
        web.as_ref().map(toolbus_web::tool_names).unwrap_or_default()
    }

    fn names(&mut self, tools: &ToolsConfig, sections: &Sections) {
        let toolsets = &sections.toolsets;
        let members = ToolsetMembers::new(toolsets);
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for tool in builtin(tools) {
            let owner = "a tool that the daemon brings along (see `tools`)".to_owned();
            names.insert(tool.descriptor.name.to_string(), owner);
        }
        for name in MANAGEMENT_TOOLS.into_iter().filter(|_| sections.has_management_tools()) {
            names.insert(name.to_owned(), "a tool for looking at MCP servers (see `mcp`)".to_owned());
        }
        for name in self.script_tools() {
            names.insert(name, "a tool that runs scripts (see `script`)".to_owned());
        }
        for OwnTool { section, name, .. } in self.own_tools(tools) {
            names.insert(name.to_owned(), format!("a tool that the daemon brings along (see `{section}`)"));
        }
        for name in self.web_tools() {
            names.insert(name.to_owned(), "a tool for the web (see `web`)".to_owned());
        }
        let lists = [("rest.endpoints", "endpoint"), ("commands", "command")].map(|(list, what)| {
            let tools = self.tree.get(&path(list)).and_then(Value::as_array);
            tools.into_iter().flatten().enumerate().map(move |(index, tool)| (list, what, index, tool))
        });
        for (list, what, index, tool) in lists.into_iter().flatten() {
            let Some(name) = tool.get("name").and_then(Value::as_str) else { continue };
            let key = format!("{list}.{index}.name");
            if let Some(owner) = names.get(name) {
                self.report(&[&key], format!("`{name}` is also the name of {owner}; expected a name of its own"));
                continue;
            }
            let location = self.tree.origin(&path(&key)).location(Part::Value);
            names.insert(name.to_owned(), format!("the {what} at {location}"));
            let is_member = list == "rest.endpoints" && members.set_of(name).is_some();
            let taken = toolsets
                .iter()
                .find(|(set, config)| name.strip_prefix(config.prefix(set)).is_some_and(|rest| rest.starts_with('.')));
            if let (Some((set, _)), false) = (taken, is_member) {
                let what = format!("`{name}` would be read as a tool of the tool set `{set}`; expected another name");
                self.report(&[&key], what);
            }
        }
        for (key, described) in &self.described.by_key {
            for name in described.endpoints.iter().map(|endpoint| &endpoint.name) {
                if let Some(owner) = names.get(name) {
                    let hint = if key.starts_with("rest.openapi") { "; write a `prefix`, or `exclude` it" } else { "" };
                    self.report(&[key], format!("its tool `{name}` has the name of {owner}{hint}"));
                    continue;
                }
                names.insert(name.clone(), format!("a tool of `{key}`"));
            }
        }
    }

    /// Reports arguments that two equally specific patterns set to different values for one tool.
    fn ties(&mut self, known: &KnownTools, sections: &Sections) {
        for (agent, config) in &sections.agents {
            for (one, arguments) in &config.arguments {
                let after = config.arguments.range::<Pattern, _>((Bound::Excluded(one), Bound::Unbounded));
                for (other, others) in after.filter(|(other, _)| other.specificity() == one.specificity()) {
                    let differs = |argument: &&String| {
                        others.get(*argument).is_some_and(|value| arguments.get(*argument) != Some(value))
                    };
                    let Some(argument) = arguments.keys().find(differs) else { continue };
                    let mut tools = known.iter();
                    let is_both = |name: &str, bare: &str| [one, other].iter().all(|p| p.matches_either(name, bare));
                    let Some((tool, _)) = tools.find(|(name, tool)| is_both(name, &tool.bare_name)) else { continue };
                    let at = ["agents", agent.as_str(), "arguments", one.as_str(), argument];
                    let what = format!(
                        "`{one}` and `{other}` are equally specific, and set it to different values for the tool \
                         `{tool}`; expected one value, or a pattern that is more specific"
                    );
                    self.report_at(vec![at.map(str::to_owned).into()], Part::Key, what);
                }
            }
        }
    }

    /// Reports arguments that are set for tools which do not take them.
    fn forced(&mut self, known: &KnownTools, sections: &Sections) {
        for (agent, config) in &sections.agents {
            for (pattern, arguments) in &config.arguments {
                let matching = known.iter().filter(|(name, tool)| pattern.matches_either(name, &tool.bare_name));
                let declared: Vec<_> =
                    matching.filter_map(|(name, tool)| tool.arguments().map(|arguments| (name, arguments))).collect();
                for argument in arguments.keys() {
                    let refuses = |(_, names): &&(_, Vec<&str>)| !names.contains(&argument.as_str());
                    let Some((tool, names)) = declared.iter().find(refuses) else { continue };
                    let hint = if names.is_empty() { "it takes none".to_owned() } else { expected(argument, names) };
                    let at = ["agents", agent.as_str(), "arguments", pattern.as_str(), argument];
                    let what = format!("the tool `{tool}` has no argument `{argument}`; {hint}");
                    self.report_at(vec![at.map(str::to_owned).into()], Part::Key, what);
                }
            }
        }
    }
}

impl RuleChecker<'_> {
    /// Reports prefixes that are given twice, and endpoints that are missing or in two sets.
    pub(super) fn toolsets(&mut self, sections: &Sections) {
        let endpoints: BTreeSet<String> = self.endpoint_tools().map(|(name, _)| name.to_owned()).collect();
        let names: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        let mut prefixes: BTreeMap<&str, &str> = BTreeMap::new();
        let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
        for (set, config) in &sections.toolsets {
            let here = ["toolsets", set].map(str::to_owned);
            if let Some(other) = prefixes.insert(config.prefix(set), set) {
                let what = format!("the prefix `{}` is also that of the tool set `{other}`", config.prefix(set));
                self.report_at(vec![below(&here, &["prefix"]), here.to_vec()], Part::Value, what);
            }
            for (index, endpoint) in config.endpoints.iter().enumerate() {
                let at = below(&here, &["endpoints", &index.to_string()]);
                let what = match owners.insert(endpoint, set) {
                    Some(owner) if owner == set => format!("the endpoint `{endpoint}` is given twice"),
                    Some(owner) => format!("the endpoint `{endpoint}` belongs to the tool set `{owner}` already"),
                    None if endpoints.contains(endpoint) => continue,
                    // An entry without a usable name may have this one.
                    None if self.is_wrong_in("rest") || self.described.is_open => continue,
                    None if names.is_empty() => format!("there is no endpoint `{endpoint}`; there is none at all"),
                    None => format!("there is no endpoint `{endpoint}`; {}", expected(endpoint, &names)),
                };
                self.report_at(vec![at], Part::Value, what);
            }
        }
    }
}
