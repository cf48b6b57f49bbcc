//! The MCP door, put together.

use std::sync::Arc;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_util::sync::CancellationToken;
use toolbus_core::Invoker;
use toolbus_core::policy::{EffectiveTools, PolicyHandle};
use toolbus_core::toolsets::SessionSets;
use toolbus_mcp_client::servers::ServerControl as _;
use toolbus_mcp_server::{Document, Local, McpServer, Observer, Resources, Settings};

use super::Servers;
use crate::config::Config;

/// What MCP servers say of their use, for whoever may use some tool of theirs.
struct Instructions(Servers);

impl Resources for Instructions {
    fn documents(&self, effective: &EffectiveTools) -> Vec<Document> {
        let mut names: Vec<Arc<str>> =
            effective.of_servers().into_iter().filter_map(|allowed| allowed.tool.descriptor.server.clone()).collect();
        // Sorted by server already.
        names.dedup();
        let mut documents: Vec<Document> = names.iter().filter_map(|name| self.document(name)).collect();
        documents.sort_by(|a, b| a.uri.cmp(&b.uri));
        documents
    }
}

impl Instructions {
    fn document(&self, server: &str) -> Option<Document> {
        let about = self.0.bridge().describe(server)?;
        let text = about.instructions.filter(|text| !text.trim().is_empty())?;
        Some(Document {
            uri: format!("toolbus://servers/{}/instructions", utf8_percent_encode(&about.name, NON_ALPHANUMERIC)),
            name: format!("{}-instructions", about.name),
            title: format!("Instructions of {}", about.name),
            description: format!("What the MCP server {} says about the use of its tools.", about.name),
            mime_type: "text/plain",
            text: text.into(),
        })
    }
}

/// The door to the tools of this process. It closes when `closing` is cancelled.
#[must_use]
pub fn door(
    config: &Config,
    access: PolicyHandle,
    invoker: Arc<dyn Invoker>,
    sessions: SessionSets,
    servers: Option<Servers>,
    observer: Arc<dyn Observer>,
    closing: CancellationToken,
) -> McpServer {
    let settings = Settings {
        name: config.bus.name.clone(),
        version: crate::VERSION.to_owned(),
        max_body: config.max_door_body(),
    };
    let resources = servers.map(|servers| Arc::new(Instructions(servers)) as Arc<dyn Resources>);
    let backend = Arc::new(Local::new(access, invoker, sessions, resources));
    McpServer::new(settings, backend, observer, closing)
}
