//! The web tools against servers of every kind.

mod browse;
mod hostile;
mod search;
mod server;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use toolbus_core::caller::Caller;
use toolbus_core::events::{Discard, WebEvents, WebFetch, WebSearch};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::{Tool, ToolCall, ToolOutput};
use toolbus_outbound::egress::{EgressConfig, EgressRules, HostLists, HostLookup};

use self::server::Server;
use crate::config::{BrowseConfig, WebConfig};
use crate::confined::Converter;
use crate::confined::tests::helper;

/// Hears what happens, and keeps it.
#[derive(Default)]
struct Heard {
    fetches: Mutex<Vec<WebFetch>>,
    searches: Mutex<Vec<WebSearch>>,
}

impl WebEvents for Heard {
    fn fetched(&self, fetch: &WebFetch) {
        self.fetches.lock().push(*fetch);
    }

    fn searched(&self, search: &WebSearch) {
        self.searches.lock().push(*search);
    }
}

fn discard() -> Arc<dyn WebEvents> {
    Arc::new(Discard)
}

/// Calls a tool as a caller that has two minutes.
async fn call(tool: &Tool, arguments: Value) -> Result<ToolOutput, ToolFailure> {
    call_for(tool, arguments, Duration::from_secs(120)).await
}

async fn call_for(tool: &Tool, arguments: Value, time: Duration) -> Result<ToolOutput, ToolFailure> {
    let call = ToolCall::new(
        Arc::clone(&tool.descriptor.name),
        Caller::unknown(),
        arguments.as_object().unwrap().clone(),
        time,
    );
    Arc::clone(&tool.executor).execute_boxed(call).await
}

/// The text of a result that is no error.
async fn text(tool: &Tool, arguments: Value) -> String {
    let output = call(tool, arguments).await.unwrap();
    assert!(!output.is_error, "{:?}", output.content);
    output.content.unwrap()
}

/// The text of a result that is an error of the tool.
async fn error(tool: &Tool, arguments: Value) -> String {
    let output = call(tool, arguments).await.unwrap();
    assert!(output.is_error, "{:?}", output.content);
    output.content.unwrap()
}

/// Resolves the names of a table, and no others.
fn names(table: &'static [(&'static str, &'static str)]) -> HostLookup {
    Arc::new(move |host| {
        let found: Vec<IpAddr> =
            table.iter().filter(|(name, _)| *name == host).map(|(_, address)| address.parse().unwrap()).collect();
        Box::pin(async move { if found.is_empty() { Err(std::io::Error::other("NXDOMAIN")) } else { Ok(found) } })
    })
}

/// The tool, with the servers of this machine as exceptions.
fn browse(servers: &[&Server]) -> Tool {
    browse_with(servers, WebConfig::default(), names(&[]))
}

fn browse_with(servers: &[&Server], config: WebConfig, lookup: HostLookup) -> Tool {
    browse_telling(servers, config, lookup, &discard())
}

fn browse_telling(servers: &[&Server], config: WebConfig, lookup: HostLookup, events: &Arc<dyn WebEvents>) -> Tool {
    let allow_hosts = servers.iter().map(|server| server.address.to_string().parse().unwrap()).collect();
    let config_of_egress = EgressConfig { allow_hosts, ..EgressConfig::default() };
    let rules = EgressRules::new(config_of_egress, BTreeMap::new(), HostLists::default());
    let converter = Converter::with(helper());
    crate::tools_with(&config, rules, Some(lookup), events, converter).unwrap().remove(0)
}

fn with_browse(browse: BrowseConfig) -> WebConfig {
    WebConfig { browse, ..WebConfig::default() }
}

async fn refusal(tool: &Tool, url: &str) -> String {
    let failure = call(tool, json!({"url": url})).await.unwrap_err();
    assert_eq!(failure.cause, Cause::NotAllowed, "{}", failure.message);
    failure.message
}
