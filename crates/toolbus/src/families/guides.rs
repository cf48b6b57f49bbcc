//! Guides to tools: their tools, and resources of the MCP server.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use toolbus_agents::Guides;
use toolbus_agents::guides::Guide;
use toolbus_core::policy::{EffectiveTools, PolicyHandle};
use toolbus_core::tool::Tool;
use toolbus_mcp_server::{Document, Resources};

use super::servers::Instructions;
use super::{AppServers, Contributions, FamilyContext, FamilyError, FamilyGuide, FamilyPlan, Phase, ToolFamily};
use crate::config::Config;

/// Characters that are encoded in a URI: all but the unreserved ones of RFC 3986, section 2.3.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Guides to tools.
pub(super) struct GuideFamily {
    policy: PolicyHandle,
    documents: Documents,
}

/// A folder of guides that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("guides.folder: `{folder}` cannot be read: {error}")]
struct GuidesError {
    folder: PathBuf,
    error: io::Error,
}

impl GuideFamily {
    /// Guides, and the instructions of `servers`.
    pub(super) fn new(context: &FamilyContext<'_>, servers: Option<AppServers>) -> Self {
        Self { policy: context.policy().clone(), documents: Documents { guides: Arc::default(), servers } }
    }
}

impl ToolFamily for GuideFamily {
    fn name(&self) -> &'static str {
        "guides"
    }

    fn phase(&self) -> Phase {
        Phase::Finding
    }

    fn tools(&self, plan: &mut FamilyPlan<'_>) -> Result<Vec<Tool>, FamilyError> {
        let read = load(plan.config, &plan.guides, self.documents.servers.as_ref())?;
        let tools = read.as_ref().map(|guides| guides.tools(&self.policy)).unwrap_or_default();
        let current = Arc::clone(&self.documents.guides);
        plan.on_commit(move || *current.write() = read);
        Ok(tools)
    }

    fn contribute(&self, to: &mut Contributions) {
        to.resources = Some(Arc::new(self.documents.clone()));
        to.views.guides = Arc::clone(&self.documents.guides);
    }
}

/// Reads the guides, if the configuration has a section for them.
///
/// # Errors
///
/// If the folder cannot be read.
fn load(
    config: &Config,
    families: &[FamilyGuide],
    servers: Option<&AppServers>,
) -> Result<Option<Guides>, GuidesError> {
    let Some(section) = &config.guides else { return Ok(None) };
    let servers = servers.cloned();
    let of_servers = move |effective: &EffectiveTools| {
        let Some(servers) = servers.clone() else { return Vec::new() };
        let documents = Instructions(servers).by_server(effective).into_iter();
        documents.map(|(server, document)| Guide::new(&server, &document.text)).collect()
    };
    let guides = Guides::new(families, section, Arc::new(of_servers)).map_err(|error| {
        let folder = section.folder.clone().unwrap_or_default();
        GuidesError { folder, error }
    })?;
    Ok(Some(guides))
}

/// Guides and the instructions of MCP servers, for the MCP server.
#[derive(Clone)]
struct Documents {
    /// The guides that are in force.
    guides: Arc<RwLock<Option<Guides>>>,
    servers: Option<AppServers>,
}

impl Resources for Documents {
    fn documents(&self, effective: &EffectiveTools) -> Vec<Document> {
        let of_servers = self.servers.clone().map(|servers| Instructions(servers).by_server(effective));
        let of_servers = of_servers.unwrap_or_default();
        let is_server = |guide: &Guide| of_servers.iter().any(|(server, _)| **server == *guide.name);
        let guides = self.guides.read().clone();
        let guides = guides.map(|guides| guides.visible(effective)).unwrap_or_default();
        let guides: Vec<Document> = guides.iter().filter(|guide| !is_server(guide)).map(document).collect();
        let mut documents: Vec<Document> = of_servers.into_iter().map(|(_, one)| one).chain(guides).collect();
        documents.sort_by(|a, b| a.uri.cmp(&b.uri));
        documents
    }
}

fn document(guide: &Guide) -> Document {
    Document {
        uri: format!("toolbus://guides/{}", utf8_percent_encode(&guide.name, RESERVED)),
        name: format!("{}-guide", guide.name),
        title: format!("Guide: {}", guide.name),
        description: guide.summary.clone(),
        mime_type: "text/markdown",
        text: Arc::clone(&guide.text),
    }
}
