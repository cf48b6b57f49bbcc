//! Warnings about valid but suspicious settings of MCP servers.

use toolbus_mcp_client::config::placeholder;
use toolbus_mcp_client::process::hindrance;
use toolbus_mcp_client::spec::{ServerSpec, TransportSpec};

use crate::config::mcp::MANAGEMENT_SOURCE;
use crate::config::pattern_sites::PatternSite;
use crate::config::toolsets::{Kind, ToolsetConfig};
use crate::config::{Config, Role};

/// The warning about a name that no tool of the configuration has.
pub(super) const UNKNOWN: &str = "is no tool of this configuration; it may be one of an MCP server, which is known once \
                                  that is connected";

/// Warnings about valid but suspicious settings, and about servers that cannot be used now.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let mcp = &config.mcp;
    let mut warnings = Vec::new();
    if mcp.is_configured() {
        let known = config.known_tools();
        let unknown = config.tools.required.iter().filter(|name| !known.contains_key(name.as_str()));
        warnings.extend(unknown.map(|name| format!("tools.required: `{name}` {UNKNOWN}")));
        if !config.roles().contains(&Role::Mcp) {
            warnings.push("mcp: not used, because `daemon.roles` has no \"mcp\"".to_owned());
        }
    } else {
        if config.roles().contains(&Role::Mcp) {
            warnings.push("daemon.roles: \"mcp\" has nothing to do, because there is no MCP server".to_owned());
        }
        if config.bus.compat_queues != Default::default() {
            warnings.push("bus.compat_queues: not used, because there is no MCP server".to_owned());
        }
    }
    let register = &mcp.register;
    if register.enabled && register.commands.is_empty() && register.hosts.is_empty() {
        warnings.push("mcp.register: allows no server, because `commands` and `hosts` are empty".to_owned());
    }
    let is_open = |first: &str| first.trim_matches('*').is_empty();
    if register.enabled && register.commands.iter().any(|line| line.first().is_some_and(|one| is_open(one.as_str()))) {
        warnings.push("mcp.register.commands: lets callers run any program".to_owned());
    }
    let known = config.known_tools();
    let servers = config.mcp_servers();
    for pattern in config.pins.sources.keys().filter(|pattern| pattern.is_exact()) {
        let is_source = known.values().any(|tool| pattern.matches(&tool.source));
        let is_server = servers.specs.iter().any(|spec| pattern.matches(spec.name.source()));
        if !is_source && !is_server && !pattern.matches(MANAGEMENT_SOURCE) {
            warnings.push(format!("pins.sources: `{pattern}` is no source of this configuration"));
        }
    }
    warnings.extend(servers.warnings);
    warnings.extend(servers.problems);
    warnings
}

impl Config {
    /// Programs of MCP servers that cannot be started here, by server: for a check of the configuration. The daemon
    /// tries them.
    pub(crate) fn missing_programs(&self) -> Vec<String> {
        let missing = |spec: ServerSpec| match &spec.transport {
            // The value of a placeholder is known to a session alone.
            TransportSpec::Stdio(program) if !spec.is_disabled && placeholder(&spec).is_none() => {
                Some(format!("MCP server `{}`: {}", spec.name, hindrance(program)?))
            }
            _ => None,
        };
        self.mcp_servers().specs.into_iter().filter_map(missing).collect()
    }

    /// Whether a pattern may well mean tools of an MCP server or of another daemon: it is no single name, or one of a set
    /// that such a one backs.
    pub(super) fn may_be_of_a_server(&self, site: &PatternSite<'_>) -> bool {
        let start = site.pattern.literal_prefix();
        let is_open = |config: &ToolsetConfig| config.kind == Kind::Mcp || config.is_learnt();
        let mut sets = self.toolsets.iter().filter(|(_, config)| is_open(config));
        let is_of_set =
            sets.any(|(set, config)| start.strip_prefix(config.prefix(set)).is_some_and(|rest| rest.starts_with('.')));
        self.has_unknown_tools() && (!site.pattern.is_exact() || is_of_set)
    }

    /// Whether there may be tools that are known while the daemon runs alone: of MCP servers, or of other daemons.
    pub(super) fn has_unknown_tools(&self) -> bool {
        self.mcp.is_configured() || self.toolsets.values().any(ToolsetConfig::is_learnt)
    }
}
