//! Rules of the URLs and addresses that may be reached.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbus_core::caller::{AgentName, Caller};
use url::{Host, Url};

use super::address::special;
use super::hosts::{HostLists, HostRule, bare};

/// Most entries of a list.
const MAX_LIST: usize = 10_000;
/// Names of machines and networks that are not of the public Internet (RFC 6761, RFC 6762, RFC 8375).
const LOCAL_NAMES: [&str; 7] = [".localhost", ".local", ".internal", ".intranet", ".lan", ".home.arpa", ".localdomain"];

/// `[egress]`: hosts that callers may make the daemon reach.
///
/// Hosts of the public Internet may be reached, others not. Hosts that the configuration names, such as those of
/// `[rest]`, are not concerned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EgressConfig {
    /// Hosts that may be reached although they are not public, or their port is not in `ports`.
    #[schemars(length(max = MAX_LIST))]
    pub allow_hosts: Vec<HostRule>,
    /// Hosts that may not be reached, whatever else allows them.
    #[schemars(length(max = MAX_LIST))]
    pub deny_hosts: Vec<HostRule>,
    /// Ports that may be reached.
    #[schemars(length(min = 1, max = 64), inner(range(min = 1)))]
    pub ports: Vec<u16>,
    /// Whether requests go through the proxy of the environment. It then resolves names, and must refuse addresses
    /// itself.
    pub proxy: ProxyMode,
}

/// The proxy for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ProxyMode {
    /// There is none.
    #[default]
    None,
    /// That of `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`.
    Environment,
}

impl Default for EgressConfig {
    fn default() -> Self {
        Self { allow_hosts: Vec::new(), deny_hosts: Vec::new(), ports: vec![80, 443], proxy: ProxyMode::None }
    }
}

/// Reason why a URL or an address may not be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another protocol.
    #[error("only http and https are allowed, not `{0}`")]
    Scheme(String),
    /// A URL without a host.
    #[error("the URL has no host")]
    NoHost,
    /// A user name or password in the URL.
    #[error("a URL with a user name or a password is not allowed")]
    UserInfo,
    /// Another port.
    #[error("port {0} is not allowed")]
    Port(u16),
    /// A name that is not of the public Internet.
    #[error("`{0}` is the name of a machine or network that is not public")]
    LocalName(String),
    /// An address that is not of the public Internet.
    #[error("the address of `{host}` is not public but {what}")]
    Address {
        /// The host as the URL names it.
        host: String,
        /// Description of the address.
        what: &'static str,
    },
    /// A host that the configuration denies.
    #[error("the configuration denies `{0}`")]
    Denied(String),
    /// A host that the agent's list does not have.
    #[error("`{0}` is not among the hosts that this agent may reach")]
    NotListed(String),
}

impl Refusal {
    /// The reason as telemetry names it.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Scheme(_) => "scheme",
            Self::NoHost => "no_host",
            Self::UserInfo => "user_info",
            Self::Port(_) => "port",
            Self::LocalName(_) => "local_name",
            Self::Address { .. } => "address",
            Self::Denied(_) => "denied",
            Self::NotListed(_) => "not_listed",
        }
    }
}

/// Rules of the hosts that callers may make the daemon reach, for all agents and for each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EgressRules {
    config: EgressConfig,
    agents: BTreeMap<AgentName, HostLists>,
    default: HostLists,
}

/// A host and port that may be reached, if its addresses may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressTarget {
    /// The name or address, without a dot at its end.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether the host's name is an exception, whatever its addresses.
    is_excepted: bool,
    /// Whether the agent's list has the host by name, or there is none.
    is_listed: bool,
}

impl EgressRules {
    /// The rules of a configuration: `agents` has an entry for each section, `default` is for other callers.
    #[must_use]
    pub fn new(config: EgressConfig, mut agents: BTreeMap<AgentName, HostLists>, default: HostLists) -> Self {
        // `lists` returns the default for an agent without an entry, so an entry equal to the default is left out: rules
        // that decide the same then compare as equal.
        agents.retain(|_, lists| *lists != default);
        Self { config, agents, default }
    }

    /// The proxy for requests.
    #[must_use]
    pub const fn proxy(&self) -> ProxyMode {
        self.config.proxy
    }

    /// The lists of a caller.
    #[must_use]
    pub fn lists(&self, caller: &Caller) -> &HostLists {
        caller.agent.as_ref().and_then(|agent| self.agents.get(agent)).unwrap_or(&self.default)
    }

    /// Checks all of a URL that can be checked before its name is resolved.
    ///
    /// # Errors
    ///
    /// If it may not be reached, whatever it resolves to.
    pub fn check_url(&self, url: &Url, lists: &HostLists) -> Result<EgressTarget, Refusal> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refusal::Scheme(toolbus_core::text::shown(url.scheme())));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refusal::UserInfo);
        }
        let (host, port) = (url.host().ok_or(Refusal::NoHost)?, url.port_or_known_default().ok_or(Refusal::NoHost)?);
        match host {
            Host::Domain(name) => self.check_name(bare(name).ok_or(Refusal::NoHost)?, port, lists),
            Host::Ipv4(address) => self.check_literal(address.into(), port, lists),
            Host::Ipv6(address) => self.check_literal(address.into(), port, lists),
        }
    }

    fn check_name(&self, name: &str, port: u16, lists: &HostLists) -> Result<EgressTarget, Refusal> {
        let config = &self.config;
        let host = name.to_ascii_lowercase();
        if config.deny_hosts.iter().chain(&lists.denied).any(|rule| rule.names(&host) && rule.is_for(port)) {
            return Err(Refusal::Denied(host));
        }
        // A proxy resolves the name itself: no address is checked later, so that no network can be what allows it.
        let is_resolved = config.proxy == ProxyMode::None;
        let is_listed =
            lists.allowed.is_empty() || lists.allowed.iter().any(|rule| rule.names(&host) && rule.is_for(port));
        let may_be_listed_by_address = is_resolved && lists.allowed.iter().any(HostRule::is_network);
        if !is_listed && !may_be_listed_by_address {
            return Err(Refusal::NotListed(host));
        }
        let is_excepted = config.allow_hosts.iter().any(|rule| rule.names(&host) && self.excepts(rule, port));
        let may_be_by_address =
            is_resolved && config.allow_hosts.iter().any(|rule| rule.is_network() && self.excepts(rule, port));
        if !is_excepted && !may_be_by_address {
            if !config.ports.contains(&port) {
                return Err(Refusal::Port(port));
            }
            let is_local = !host.contains('.') || LOCAL_NAMES.iter().any(|suffix| host.ends_with(suffix));
            if is_local {
                return Err(Refusal::LocalName(host));
            }
        }
        Ok(EgressTarget { host, port, is_excepted, is_listed })
    }

    fn check_literal(&self, address: IpAddr, port: u16, lists: &HostLists) -> Result<EgressTarget, Refusal> {
        let is_listed = lists.allowed.is_empty();
        let target = EgressTarget { host: address.to_string(), port, is_excepted: false, is_listed };
        self.check_address(&target, address, lists)?;
        Ok(EgressTarget { is_listed: true, ..target })
    }

    /// Checks an address that a target has, or resolves to.
    ///
    /// # Errors
    ///
    /// If it may not be reached.
    pub fn check_address(&self, target: &EgressTarget, address: IpAddr, lists: &HostLists) -> Result<(), Refusal> {
        let EgressTarget { host, port, is_excepted, is_listed } = target;
        let has = |rule: &HostRule| rule.holds(address) && rule.is_for(*port);
        // A mapped address leads where the one of IPv4 in it does. Of the host of an exception, no other check looks at it.
        let denies = |rule: &HostRule| has(rule) || rule.holds(address.to_canonical()) && rule.is_for(*port);
        if self.config.deny_hosts.iter().chain(&lists.denied).any(denies) {
            return Err(Refusal::Denied(host.clone()));
        }
        if !is_listed && !lists.allowed.iter().any(has) {
            return Err(Refusal::NotListed(host.clone()));
        }
        let allows = |rule: &HostRule| rule.holds(address) && self.excepts(rule, *port);
        if *is_excepted || self.config.allow_hosts.iter().any(allows) {
            return Ok(());
        }
        if let Some(what) = special(address) {
            return Err(Refusal::Address { host: host.clone(), what });
        }
        if self.config.ports.contains(port) { Ok(()) } else { Err(Refusal::Port(*port)) }
    }

    /// Whether an exception is for this port: one without a port is for those that are allowed anyway.
    fn excepts(&self, rule: &HostRule, port: u16) -> bool {
        rule.port().map_or_else(|| self.config.ports.contains(&port), |own| own == port)
    }
}
