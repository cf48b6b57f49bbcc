//! The forms of what is said of MCP servers.

use toolbus_mcp::spec::ServerName;
use url::Url;

use super::{require, shortened};

pub(super) fn server(text: &str) -> Result<(), String> {
    ServerName::parse(text).map(|_| ()).map_err(|error| format!("{:?} {error}", shortened(text)))
}

/// A host, with its port where that is not the usual one.
pub(super) fn host(text: &str) -> Result<(), String> {
    let what =
        format!("{:?} is no host; expected for example \"mcp.example.com\" or \"127.0.0.1:8080\"", shortened(text));
    let url = Url::parse(&format!("https://{text}/")).map_err(|_| what.clone())?;
    let is_host = url.path() == "/" && url.username().is_empty() && url.password().is_none();
    require(is_host && url.has_host() && !text.contains(['/', '?', '#', '@', '*']), &what)
}
