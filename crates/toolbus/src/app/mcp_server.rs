//! The MCP server of an app, with the instructions of MCP servers as resources.

use std::sync::Arc;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use toolbus_core::policy::EffectiveTools;
use toolbus_core::{Clock, Invoker};
use toolbus_mcp_client::servers::ServerControl as _;
use toolbus_mcp_server::{Document, Local, McpServer, Resources, Settings};
use toolbus_telemetry::Exporters;

use super::telemetry::watch_mcp_server;
use super::{App, Servers};

/// The instructions of MCP servers, for callers that may use a tool of theirs.
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

impl App {
    /// The MCP server for the tools of this process. It ends when the app stops serving HTTP.
    pub(super) fn mcp_server(&self, exporters: &Exporters) -> McpServer {
        let settings = Settings {
            name: self.config.bus.name.clone(),
            version: crate::VERSION.to_owned(),
            max_body: self.config.max_mcp_body(),
            clock: Clock::SYSTEM,
        };
        let resources =
            self.servers.as_ref().map(|servers| Arc::new(Instructions(servers.clone())) as Arc<dyn Resources>);
        let invoker: Arc<dyn Invoker> = Arc::new(self.dispatcher.clone());
        let backend = Arc::new(Local::new(self.policy.clone(), invoker, self.sessions.clone(), resources));
        let observer = Arc::new(exporters.mcp_server());
        let server = McpServer::new(settings, backend, observer, self.stop_serving.clone());
        watch_mcp_server(exporters, server.clone());
        server
    }
}
