//! Guides to tools and search: their tools, and guides as resources of the MCP server.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use toolbus_agents::guides::{self, Guide, GuideFor};
use toolbus_agents::{A2aTools, CallerSearch, Guides, SearchSources, a2a, pipeline, schedule, search, subagent};
use toolbus_core::caller::Caller;
use toolbus_core::policy::{EffectiveTools, PolicyHandle};
use toolbus_core::tool::Tool;
use toolbus_core::{Clock, HintSource};
use toolbus_mcp_client::model_tools;
use toolbus_mcp_client::servers::ServerControl as _;
use toolbus_mcp_server::{Document, Resources, ShortListRules, ShortLists};
use toolbus_scripts::{commands, tool as script};
use toolbus_tools::{rest, time};

use super::AppServers;
use super::servers::Instructions;
use crate::config::Config;

/// The guides of families of tools: who gets them, name and text.
const FAMILIES: [(GuideFor, &str, &str); 13] = [
    (GuideFor::Source("time"), "time", time::GUIDE),
    (GuideFor::Source("rest"), "rest", rest::GUIDE),
    (GuideFor::Source(commands::SOURCE), "commands", commands::GUIDE),
    (GuideFor::Source(script::SOURCE), "script-tools", script::GUIDE),
    (GuideFor::Tool(toolbus_web::SEARCH), "web-tools", toolbus_web::GUIDE),
    (GuideFor::Source(toolbus_web::SOURCE), "web-tools", toolbus_web::BROWSE_GUIDE),
    (GuideFor::Source(toolbus_memory::tools::SOURCE), "working-memory", toolbus_memory::tools::GUIDE),
    (GuideFor::Source(schedule::tools::SOURCE), "scheduling", schedule::GUIDE),
    (GuideFor::Source(pipeline::SOURCE), "pipelines", pipeline::GUIDE),
    (GuideFor::Source(a2a::tools::SOURCE), "agents", a2a::GUIDE),
    (GuideFor::Source(subagent::tools::SOURCE), "subagents", subagent::GUIDE),
    (GuideFor::Source(subagent::whiteboard::SOURCE), "subagents", subagent::GUIDE),
    (GuideFor::Source(model_tools::SOURCE), "mcp-tool-guide", model_tools::GUIDE),
];

/// What is encoded in a URI: all but the unreserved characters of RFC 3986, section 2.3.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The guides that are in force.
pub(super) type CurrentGuides = Arc<RwLock<Option<Guides>>>;

/// A folder of guides that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("guides.folder: `{folder}` cannot be read: {error}")]
pub struct GuidesError {
    folder: PathBuf,
    error: io::Error,
}

/// Reads the guides, if the configuration has a section for them.
///
/// # Errors
///
/// If the folder cannot be read.
pub(super) fn load(config: &Config, servers: Option<&AppServers>) -> Result<Option<Guides>, GuidesError> {
    let Some(section) = &config.guides else { return Ok(None) };
    let servers = servers.cloned();
    let of_servers = move |effective: &EffectiveTools| {
        let Some(servers) = servers.clone() else { return Vec::new() };
        let documents = Instructions(servers).by_server(effective).into_iter();
        documents.map(|(server, document)| Guide::new(&server, &document.text)).collect()
    };
    let guides = Guides::new(&FAMILIES, section, Arc::new(of_servers)).map_err(|error| {
        let folder = section.folder.clone().unwrap_or_default();
        GuidesError { folder, error }
    })?;
    Ok(Some(guides))
}

/// The search that is in force, for hints.
#[derive(Clone)]
pub(super) struct CurrentSearch(pub(super) Arc<RwLock<CallerSearch>>);

impl HintSource for CurrentSearch {
    fn hints(&self, caller: &Caller, effective: &EffectiveTools, text: &str) -> String {
        let search = self.0.read().clone();
        search.hints(caller, effective, text)
    }
}

/// Searches MCP servers and other agents, and the tools of callers.
pub(super) fn searching(policy: &PolicyHandle, servers: Option<&AppServers>, agents: Option<A2aTools>) -> CallerSearch {
    let (described, changes) = (servers.cloned(), servers.cloned());
    let summary = move |server: &str| described.as_ref()?.bridge().describe(server)?.summarised();
    let known = agents.clone();
    let visible = move |caller: &Caller| known.as_ref().map(|agents| agents.visible(caller)).unwrap_or_default();
    // Neither of the two ever becomes less.
    let version = move || {
        let of_servers = changes.as_ref().map_or(0, |servers| servers.bridge().descriptions());
        of_servers + agents.as_ref().map_or(0, A2aTools::version)
    };
    let (summaries, agents, version) = (Arc::new(summary), Arc::new(visible), Arc::new(version));
    CallerSearch::new(policy, SearchSources { summaries, agents, version })
}

/// Short lists for MCP clients that may use more tools than `above`.
pub(super) fn short_lists(above: usize) -> ShortLists {
    let rules = ShortListRules {
        above,
        is_finder: |tool| *tool.source == *search::SOURCE && *tool.name == *search::FINDER,
        // Tools of MCP servers can also be called by one that clients know.
        is_always: |tool| {
            [search::SOURCE, guides::SOURCE].contains(&&*tool.source) || *tool.name == *model_tools::INVOKE
        },
    };
    ShortLists::new(rules, Clock::SYSTEM)
}

/// The tools for guides and for search, with their limits.
pub(super) fn tools(
    config: &Config,
    guides: Option<&Guides>,
    policy: &PolicyHandle,
    search: &CallerSearch,
) -> Vec<Tool> {
    let mut tools = guides.map(|guides| guides.tools(policy)).unwrap_or_default();
    if config.tools.search {
        tools.extend(search.tools());
    }
    tools.iter_mut().for_each(|tool| config.limit(tool));
    tools
}

/// Guides and the instructions of MCP servers, for the MCP server.
pub(super) struct Documents {
    pub(super) guides: CurrentGuides,
    pub(super) servers: Option<AppServers>,
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
