//! The forms of what is said of MCP servers.

use std::net::Ipv6Addr;

use toolbus_mcp_client::spec::ServerName;

use super::policy::pattern;
use super::{require, shortened};

pub(super) fn server(text: &str) -> Result<(), String> {
    ServerName::parse(text).map(|_| ()).map_err(|error| format!("{:?} {error}", shortened(text)))
}

/// A pattern of hosts, with a port where that is not the usual one.
pub(super) fn host(text: &str) -> Result<(), String> {
    pattern(text)?;
    let (name, port) = match text.split_once(':') {
        _ if text.parse::<Ipv6Addr>().is_ok() => return Ok(()),
        Some((name, port)) => (name, port),
        None => (text, "443"),
    };
    let is_wild = |c: char| matches!(c, '*' | '?');
    let is_name =
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c) || is_wild(c));
    let is_port = !port.is_empty() && port.chars().all(|c| c.is_ascii_digit() || is_wild(c));
    let what = format!(
        "{:?} is no host; expected for example \"mcp.example.com\", \"*.example.com:8443\" or \"::1\"",
        shortened(text)
    );
    require(is_name && is_port, &what)
}
