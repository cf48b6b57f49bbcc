//! Checks of MCP servers, and of the backends of tool sets.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use toolbus_config::{Part, expected};
use toolbus_mcp_client::config::{ServerConfig, misplaced, placeholder};
use toolbus_mcp_client::spec::ServerName;
use toolbus_protocol::topic::{TOOL_INVOKE_MCP, TOOL_LIST, control_of};

use super::agents::Sections;
use super::{RuleChecker, below, path};
use crate::config::toolsets::{Kind, Scope, ToolsetConfig};

impl RuleChecker<'_> {
    /// Whether there can be MCP servers.
    pub(super) fn has_servers(&self) -> bool {
        let servers = self.tree.get(&path("mcp.servers")).and_then(Value::as_object);
        self.tree.get(&path("mcp.servers_file")).is_some()
            || servers.is_some_and(|servers| !servers.is_empty())
            || self.tree.get(&path("mcp.register.enabled")) == Some(&Value::Bool(true))
    }

    /// Reports MCP servers whose settings contradict each other, names that are given twice or that no server has, and
    /// tool sets without a server of their own.
    pub(super) fn servers(&mut self, sections: &Sections) {
        let mut backed: BTreeMap<ServerName, (&str, &ToolsetConfig)> = BTreeMap::new();
        for (set, config) in &sections.toolsets {
            let Some(server) = self.backing(set, config) else { continue };
            if let Some((other, _)) = backed.get(&server) {
                let what = format!("the MCP server `{server}` belongs to the tool set `{other}` already");
                self.report_at(vec![at_server(set)], Part::Value, what);
                continue;
            }
            backed.insert(server, (set, config));
        }
        let required = self.tree.get(&path("mcp.required")).and_then(Value::as_array);
        for (index, name) in required.into_iter().flatten().enumerate() {
            let name = name.as_str().and_then(|name| ServerName::parse(name).ok());
            let Some(name) = name else { continue };
            self.is_there(path(&format!("mcp.required.{index}")), &name);
        }
        let servers = self.tree.get(&path("mcp.servers")).and_then(Value::as_object);
        let mut names: BTreeMap<ServerName, &str> = BTreeMap::new();
        for (name, server) in servers.into_iter().flatten() {
            let here = below(&path("mcp.servers"), &[name]);
            if let Ok(parsed) = ServerName::parse(name) {
                if let Some(other) = names.get(&parsed) {
                    let what = format!("the same name as `{other}`, because the case of letters does not count");
                    self.report_at(vec![here.clone()], Part::Key, what);
                }
                names.insert(parsed, name);
            }
            if self.wrong.iter().any(|wrong| wrong.starts_with(&here)) {
                continue;
            }
            let Ok(server) = ServerConfig::deserialize(server) else { continue };
            match server.finish(name) {
                Err(mistake) if mistake.key.is_empty() => self.report_at(vec![here], Part::Key, mistake.what),
                Err(mistake) => {
                    // A missing key is reported at the server as a whole.
                    let at = vec![below(&here, &[mistake.key]), here];
                    self.report_at(at, Part::Value, mistake.what);
                }
                Ok((spec, _)) => {
                    let in_sessions = backed.get(&spec.name).is_some_and(|(_, set)| set.scope == Scope::Session);
                    if let Some(key) = placeholder(&spec).filter(|_| !in_sessions) {
                        self.report_at(vec![below(&here, &[key])], Part::Value, misplaced(key));
                    }
                }
            }
        }
    }

    /// The server of a tool set, if it has one. Reports keys that the set's kind does not use, and missing ones.
    fn backing(&mut self, set: &str, config: &ToolsetConfig) -> Option<ServerName> {
        let here = ["toolsets", set].map(str::to_owned);
        let missing = |key: &str, what: &str| format!("`{key}` is missing; expected {what}");
        if config.kind != Kind::Remote {
            let remote = [
                ("topic", config.topic.is_some()),
                ("provider", config.provider.is_some()),
                ("tools", !config.tools.is_empty()),
            ];
            for (key, is_given) in remote {
                if is_given {
                    let what = "only used by a tool set of kind \"remote\"";
                    self.report_at(vec![below(&here, &[key])], Part::Key, what);
                }
            }
        }
        match (config.kind, &config.server) {
            (Kind::Rest, server) => {
                if server.is_some() {
                    let what = "not used by a tool set of kind \"rest\"; expected `endpoints` alone";
                    self.report_at(vec![at_server(set)], Part::Key, what);
                }
                if config.endpoints.is_empty() {
                    let what = missing("endpoints", "a list of names of `rest.endpoints`");
                    self.report_at(vec![here.to_vec()], Part::Value, what);
                }
                None
            }
            (Kind::Remote, server) => {
                if !config.endpoints.is_empty() {
                    let what = "not used by a tool set of kind \"remote\"; expected `topic` and `tools`";
                    self.report_at(vec![below(&here, &["endpoints"])], Part::Key, what);
                }
                if config.scope == Scope::Session {
                    let what = "a tool set of kind \"remote\" is shared: the other daemon has its sessions";
                    self.report_at(vec![below(&here, &["scope"])], Part::Value, what);
                }
                if config.provider.is_some() {
                    self.provided(set, config);
                } else if config.topic.is_none() {
                    let what = missing("topic", "the topic from which the other daemon takes calls, or `provider`");
                    self.report_at(vec![here.to_vec()], Part::Value, what);
                }
                let has_list = config.topic.as_deref().is_none_or(|topic| control_of(TOOL_LIST, topic).is_some());
                let is_bridged = config.topic.as_deref() == Some(TOOL_INVOKE_MCP);
                if config.is_of_scripts() {
                    self.scripts_elsewhere(set, config);
                } else if server.is_some() && config.provider.is_none() {
                    self.bridged(set, config);
                } else if config.is_learnt() && is_bridged {
                    let what = missing("server", "the name of an MCP server that a bridge has");
                    self.report_at(vec![here.to_vec()], Part::Value, what);
                } else if config.is_learnt() && !has_list {
                    let what = "a daemon lists its tools for a topic that begins with `tool.invoke`; expected such a topic, \
                                or `tools`";
                    self.report_at(vec![below(&here, &["topic"])], Part::Value, what);
                }
                for (name, tool) in &config.tools {
                    if let Err(error) = tool.descriptor((set, config), name) {
                        let at = below(&here, &["tools", name, "parameters"]);
                        self.report_at(vec![at], Part::Value, error.to_string());
                    }
                }
                server.as_deref().and_then(|name| ServerName::parse(name).ok())
            }
            (Kind::Mcp, server) => {
                if !config.endpoints.is_empty() {
                    let what = "not used by a tool set of kind \"mcp\"; expected `server` alone";
                    self.report_at(vec![below(&here, &["endpoints"])], Part::Key, what);
                }
                let Some(name) = server else {
                    let what = missing("server", "the name of an MCP server");
                    self.report_at(vec![here.to_vec()], Part::Value, what);
                    return None;
                };
                let name = ServerName::parse(name).ok()?;
                self.is_there(at_server(set), &name).then_some(name)
            }
        }
    }

    /// Reports mistakes in a remote tool set whose tools a program provides.
    fn provided(&mut self, set: &str, config: &ToolsetConfig) {
        let here = ["toolsets", set].map(str::to_owned);
        let others = [("topic", config.topic.is_some()), ("tools", !config.tools.is_empty())];
        for (key, _) in others.into_iter().filter(|(_, is_given)| *is_given) {
            let what = "not used with `provider`: the program has a topic of its own, and lists its tools";
            self.report_at(vec![below(&here, &[key])], Part::Key, what);
        }
        if config.server.is_some() {
            let what = "not used with `provider`, which is no MCP server";
            self.report_at(vec![at_server(set)], Part::Key, what);
        }
    }

    /// Reports mistakes in a remote tool set that runs scripts.
    fn scripts_elsewhere(&mut self, set: &str, config: &ToolsetConfig) {
        let here = ["toolsets", set].map(str::to_owned);
        for (key, is_given) in [("server", config.server.is_some()), ("tools", !config.tools.is_empty())] {
            if is_given {
                let what = "not used with the topic `script.invoke`, whose one tool is `execute_python_script`";
                self.report_at(vec![below(&here, &[key])], Part::Key, what);
            }
        }
        if self.tree.get(&path("script")).is_some() {
            let what = "a daemon with a section `script` takes scripts from this topic, and would get its own; expected no \
                        such section, or another topic";
            self.report_at(vec![below(&here, &["topic"])], Part::Value, what);
        }
    }

    /// Reports mistakes in a remote tool set that is an MCP server of a bridge.
    fn bridged(&mut self, set: &str, config: &ToolsetConfig) {
        let here = ["toolsets", set].map(str::to_owned);
        if config.topic.as_deref().is_some_and(|topic| topic != TOOL_INVOKE_MCP) {
            let what = format!("bridges take calls of MCP servers from `{TOOL_INVOKE_MCP}`; expected this topic");
            self.report_at(vec![below(&here, &["topic"])], Part::Value, what);
        }
        if !config.tools.is_empty() {
            let what = "not used with `server`, whose tools are those that the bridge has";
            self.report_at(vec![below(&here, &["tools"])], Part::Key, what);
        }
        if self.has_servers() {
            let what = "a daemon with MCP servers is a bridge, too, and would get its own calls; expected no `server` here, or \
                        no MCP servers";
            self.report_at(vec![at_server(set)], Part::Key, what);
        }
    }

    /// Whether there is a server of this name, which is the value of the key `at`. Reports a missing one.
    fn is_there(&mut self, at: Vec<String>, name: &ServerName) -> bool {
        let servers = self.tree.get(&path("mcp.servers")).and_then(Value::as_object);
        let mut names: Vec<&str> = servers.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let is_same = |other: &&str| ServerName::parse(other).is_ok_and(|other| other == *name);
        if names.iter().any(is_same) || self.servers.has(name) || self.servers.is_unread() {
            return true;
        }
        names.extend(self.servers.names());
        let hint = if names.is_empty() { "there is none at all".to_owned() } else { expected(name.as_str(), &names) };
        self.report_at(vec![at], Part::Value, format!("there is no MCP server `{name}`; {hint}"));
        false
    }
}

fn at_server(set: &str) -> Vec<String> {
    ["toolsets", set, "server"].map(str::to_owned).into()
}
