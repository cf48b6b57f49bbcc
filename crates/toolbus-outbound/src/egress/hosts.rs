//! Lists of hosts in a configuration.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::Host;

/// An entry of a list of hosts: a name, `*.` and a name for all names below it, an address, or a network as
/// `10.0.0.0/8`; names and addresses may have a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRule {
    host: HostPattern,
    port: Option<u16>,
    written: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    /// In lower case, internationalised names in their ASCII form, without the dot at the end.
    Name(String),
    /// The same with a dot at the start.
    Below(String),
    Network(IpNet),
}

/// Reason why a string is no [`HostRule`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no host: write a name, `*.` and a name, an address, a network such as `10.0.0.0/8`, or a name or \
     address with a port"
)]
pub struct HostRuleError(String);

impl FromStr for HostRule {
    type Err = HostRuleError;

    fn from_str(written: &str) -> Result<Self, HostRuleError> {
        let error = || HostRuleError(toolbus_core::text::shown(written));
        let (host, port) = if let Ok(network) = written.parse::<IpNet>() {
            (HostPattern::Network(network.trunc()), None)
        } else if let Ok(address) = written.parse::<IpAddr>() {
            (HostPattern::Network(address.into()), None)
        } else {
            let (host, port) = match written.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                    (host, Some(port.parse().ok().filter(|port| *port != 0).ok_or_else(error)?))
                }
                _ => (written, None),
            };
            (HostPattern::parse(host).ok_or_else(error)?, port)
        };
        Ok(Self { host, port, written: written.to_owned() })
    }
}

impl HostPattern {
    fn parse(text: &str) -> Option<Self> {
        let (text, is_below) = text.strip_prefix("*.").map_or((text, false), |rest| (rest, true));
        match Host::parse(text).ok()? {
            Host::Domain(name) if name.contains('*') => None,
            Host::Domain(name) if is_below => Some(Self::Below(format!(".{}", bare(&name)?))),
            Host::Domain(name) => Some(Self::Name(bare(&name)?.to_owned())),
            _ if is_below => None,
            Host::Ipv4(address) => Some(Self::Network(IpAddr::from(address).into())),
            Host::Ipv6(address) => Some(Self::Network(IpAddr::from(address).into())),
        }
    }
}

/// A name without the dot at its end, which changes nothing but how it looks.
pub(super) fn bare(name: &str) -> Option<&str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    (!name.is_empty() && !name.starts_with('.') && !name.ends_with('.')).then_some(name)
}

impl HostRule {
    /// Whether the entry names this host, whose name is bare and in lower case.
    pub(super) fn names(&self, host: &str) -> bool {
        match &self.host {
            HostPattern::Name(name) => name == host,
            HostPattern::Below(suffix) => host.ends_with(suffix.as_str()),
            HostPattern::Network(_) => false,
        }
    }

    /// Whether the entry is a network with this address.
    pub(super) fn holds(&self, address: IpAddr) -> bool {
        matches!(&self.host, HostPattern::Network(network) if network.contains(&address))
    }

    /// Whether the entry is a network, or an address.
    pub(super) const fn is_network(&self) -> bool {
        matches!(self.host, HostPattern::Network(_))
    }

    /// The port, if it has one.
    pub(super) const fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whether the entry is for this port: one without a port is for all.
    pub(super) fn is_for(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl Serialize for HostRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.written)
    }
}

impl<'de> Deserialize<'de> for HostRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for HostRule {
    fn schema_name() -> Cow<'static, str> {
        "HostRule".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "toolbus-egress-host"})
    }
}

/// The hosts of one agent. They narrow what all agents may reach, and never widen it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostLists {
    /// The only hosts that it may reach; empty: all.
    pub allowed: Vec<HostRule>,
    /// Hosts that it may not reach.
    pub denied: Vec<HostRule>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> HostRule {
        text.parse().unwrap()
    }

    #[test]
    fn an_entry_is_a_name_names_below_it_an_address_or_a_network_with_or_without_a_port() {
        assert!(rule("Docs.RS").names("docs.rs") && !rule("docs.rs").names("a.docs.rs"));
        assert!(rule("*.docs.rs").names("a.b.docs.rs"));
        assert!(!rule("*.docs.rs").names("docs.rs") && !rule("*.docs.rs").names("evildocs.rs"));
        assert!(rule("bücher.example.").names("xn--bcher-kva.example"));
        assert!(rule("10.0.0.0/8").holds("10.9.8.7".parse().unwrap()));
        assert!(rule("10.1.2.3/8").holds("10.9.8.7".parse().unwrap()));
        assert!(rule("fd00::/8").holds("fd12::1".parse().unwrap()));
        assert!(rule("[::1]:9000").holds("::1".parse().unwrap()) && rule("::1").holds("::1".parse().unwrap()));
        assert!(rule("127.1:80").holds("127.0.0.1".parse().unwrap()));
        let port = |text| (rule(text).is_for(80), rule(text).is_for(81));
        assert_eq!(port("127.0.0.1:80"), (true, false));
        assert_eq!(port("docs.rs:81"), (false, true));
        assert_eq!(port("docs.rs"), (true, true));
    }

    #[test]
    fn an_invalid_host_is_refused() {
        for text in [
            "",
            "*",
            "*.",
            "a*b",
            "a.*.b",
            "*.1.2.3.4",
            "a b",
            "http://a",
            "a:0",
            "a:x",
            "a:65536",
            "10.0.0.0/33",
            "..",
            ".a",
            "a/b",
            "[::1",
            "[::1]:",
        ] {
            assert!(text.parse::<HostRule>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_entry_is_written_as_it_was_read() {
        for text in ["Docs.RS", "*.docs.rs:80", "10.1.2.3/8", "[::1]:9000"] {
            assert_eq!(serde_json::to_value(rule(text)).unwrap(), text);
        }
    }
}
