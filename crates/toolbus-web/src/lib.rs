//! Reads pages of the web as Markdown, and searches the web.
//!
//! [`tools`] makes `web_browse`, and `web_search` where a search engine is configured. A page goes this way:
//!
//! 1. `fetch` requests it, through the egress rules of `toolbus-outbound`, redirect by redirect. `github` reads pages of
//!    GitHub by its API instead.
//! 2. [`page`] determines its type, and decodes it. [`html`] turns HTML into Markdown.
//! 3. `browse` cleans the text, and marks suspect parts of it.
//!
//! Conversions run beside the runtime's workers, a few at a time, each with limits of time, depth and size; those of
//! hostile formats and large pages run in confined processes (`confined`).

mod browse;
mod chunks;
mod config;
mod confined;
mod fetch;
mod github;
pub mod html;
pub mod page;
mod search;
mod slots;
mod superscript;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use toolbus_core::events::WebEvents;
use toolbus_core::tool::Tool;
use toolbus_outbound::egress::{Egress, EgressRules, HostLookup};
use toolbus_outbound::{HttpClient, HttpClientError};
use toolbus_trust::scan::{RulesError, Scanner};

pub use self::config::{BrowseConfig, WebConfig};
use self::confined::Converter;
pub use self::confined::take_over;
pub use self::search::{JsonResults, SearchProvider};

/// The source of the tools.
pub const SOURCE: &str = "web";
/// Name of the tool that searches.
pub const SEARCH: &str = search::NAME;
/// Guide to the use of the web tools, for models.
pub const GUIDE: &str = include_str!("guide.md");
/// The same for models that cannot search.
pub const BROWSE_GUIDE: &str = include_str!("browse_guide.md");
/// Time that is left of a call for its reply.
const MARGIN: Duration = Duration::from_millis(100);

/// Reason why there are no web tools.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// No HTTP client.
    #[error(transparent)]
    HttpClient(#[from] HttpClientError),
    /// The system's trusted certificates cannot be read.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// The rules of the scan for suspect texts.
    #[error(transparent)]
    Scan(#[from] RulesError),
}

/// The web tools of a configuration. `lookup` replaces the system's name lookup; `events` receives each page and query.
///
/// # Errors
///
/// If TLS cannot be set up.
pub fn tools(
    config: &WebConfig,
    rules: EgressRules,
    lookup: Option<HostLookup>,
    events: &Arc<dyn WebEvents>,
) -> Result<Vec<Tool>, WebError> {
    tools_with(config, rules, lookup, events, Converter::new())
}

fn tools_with(
    config: &WebConfig,
    rules: EgressRules,
    lookup: Option<HostLookup>,
    events: &Arc<dyn WebEvents>,
    converter: Converter,
) -> Result<Vec<Tool>, WebError> {
    let default_agent = concat!("toolbus/", env!("CARGO_PKG_VERSION"));
    let mut egress = Egress::new(rules, config.browse.user_agent.as_deref().unwrap_or(default_agent))?;
    if let Some(lookup) = lookup {
        egress = egress.with_lookup(lookup);
    }
    let mut tools = vec![browse::tool(config, egress, Scanner::new()?, Arc::clone(events), converter)?];
    if !config.search.is_empty() {
        tools.push(search::tool(&config.search, &HttpClient::new()?, Arc::clone(events)));
    }
    Ok(tools)
}

/// The names of the web tools of a configuration.
#[must_use]
pub fn tool_names(config: &WebConfig) -> Vec<&'static str> {
    let search = (!config.search.is_empty()).then_some(search::NAME);
    std::iter::once(browse::NAME).chain(search).collect()
}
