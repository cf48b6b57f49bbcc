//! MCP servers: their configuration, the bridge that keeps them running, and their instructions as resources.

use std::io;
use std::sync::Arc;

use parking_lot::RwLock;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use toolbus_core::Clock;
use toolbus_core::events::{Discard, McpClientEvents};
use toolbus_core::policy::EffectiveTools;
use toolbus_core::store::Store;
use toolbus_core::toolsets::SessionSet;
use toolbus_mcp_client::model_tools::Registrar;
use toolbus_mcp_client::process::Launcher;
use toolbus_mcp_client::servers::sessions::ServerSessions;
use toolbus_mcp_client::servers::{self as mcp, Limits, ServerControl as _, ServerToolset, ServerWithSet};
use toolbus_mcp_client::spec::ServerName;
use toolbus_mcp_client::status::ServerStatus;
use toolbus_mcp_server::Document;
use toolbus_store::StoreUrl;
use toolbus_trust::scan::{RulesError, Scanner};

use super::rest::limits;
use super::{FamilyContext, Purpose};
use crate::config::daemon::Role;
use crate::config::toolsets::Scope;
use crate::config::{Config, McpServers};
use crate::http::{McpAdmin, NoServers, OUTDATED};

/// Reason why no MCP server can be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServersError {
    /// `/proc` cannot be read.
    #[error("no MCP server can be started: {0}")]
    Launcher(#[from] io::Error),
    /// The rules of the scan of definitions.
    #[error(transparent)]
    Scan(#[from] RulesError),
}

/// The MCP servers of this process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct AppServers {
    bridge: mcp::Servers,
    launcher: Launcher,
    observer: Arc<dyn McpClientEvents>,
    /// The configured servers, with their mistakes.
    configured: Arc<RwLock<McpServers>>,
}

impl AppServers {
    /// No servers yet; none at all where the configuration gives this process other parts to run.
    ///
    /// # Errors
    ///
    /// If `/proc` is not mounted, or a rule of the scan does not compile.
    pub(crate) fn new(context: &FamilyContext<'_>) -> Result<Option<Self>, ServersError> {
        if context.purpose == Purpose::Description || !context.config.roles().contains(&Role::Mcp) {
            return Ok(None);
        }
        let observer: Arc<dyn McpClientEvents> = match context.exporters {
            Some(exporters) => Arc::new(exporters.mcp_client()),
            None => Arc::new(Discard),
        };
        let results = context.memory.as_ref().map(|_| context.budget.clone());
        let launcher = Launcher::new()?.redacting(context.redactor.clone());
        let launcher = launcher.with_results(results).with_turns(context.policy().turns().clone());
        let registry = context.policy().registry().clone();
        let bridge = mcp::Servers::new(registry, launcher.clone(), Arc::clone(&observer), Scanner::new()?);
        Ok(Some(Self { bridge, launcher, observer, configured: Arc::default() }))
    }

    /// The bridge to the servers.
    pub(crate) const fn bridge(&self) -> &mcp::Servers {
        &self.bridge
    }

    /// The servers of a configuration with their tool sets, and the sets that are built for each session. A set that
    /// `known` gives for a name goes on, with its sessions. Nothing is started. Servers that cannot be used are left
    /// out.
    pub(crate) fn plan(
        &self,
        config: &Config,
        known: &dyn Fn(&str) -> Option<Arc<SessionSet>>,
    ) -> (Vec<ServerWithSet>, Vec<Arc<SessionSet>>) {
        let mut sets = Vec::new();
        let placed = config.mcp_servers().specs.into_iter().map(|spec| {
            let set = config.set_of_server(&spec.name).map(|(name, set)| {
                let sessions = (set.scope == Scope::Session).then(|| {
                    let new = || {
                        let (launcher, observer) = (self.launcher.clone(), Arc::clone(&self.observer));
                        SessionSet::new(name, ServerSessions::new(spec.clone(), launcher, observer), limits(set))
                    };
                    known(name).unwrap_or_else(new)
                });
                sets.extend(sessions.clone());
                ServerToolset { name: name.into(), prefix: set.prefix(name).into(), sessions }
            });
            ServerWithSet { spec, set }
        });
        (placed.collect(), sets)
    }

    /// Has these servers and no others, from now on.
    pub(crate) fn apply(&self, config: &Config, placed: Vec<ServerWithSet>) {
        *self.configured.write() = config.mcp_servers();
        let tools = config.tools.clone();
        let limits: Limits = Arc::new(move |descriptor| tools.limit(descriptor));
        self.bridge.apply(placed, limits);
    }

    /// The MCP servers of a process, which may have none.
    pub(crate) fn shown(servers: Option<&Self>) -> Arc<dyn McpAdmin> {
        servers.map_or_else(|| Arc::new(NoServers) as _, |servers| Arc::new(servers.clone()) as _)
    }

    /// Adds servers for callers, if the configuration allows that.
    pub(crate) fn registrar(&self, config: &Config, store: Arc<dyn Store>) -> Option<Arc<Registrar>> {
        let servers = Arc::new(self.bridge.clone());
        let is_lasting = config.store.url() != StoreUrl::Memory;
        let rules = config.mcp.register.rules()?;
        Some(Arc::new(Registrar::new(rules, store, is_lasting, servers, Clock::SYSTEM)))
    }
}

impl McpAdmin for AppServers {
    fn status(&self) -> Vec<ServerStatus> {
        let configured = self.configured.read();
        let mut all = self.bridge.status();
        for status in &mut all {
            let mistake = ServerName::parse(&status.name).ok().and_then(|name| configured.outdated.get(&name));
            if let Some(mistake) = mistake {
                let before = status.last_error.take().map(|error| format!("; {error}")).unwrap_or_default();
                status.last_error = Some(format!("{OUTDATED}: {mistake}{before}"));
            }
        }
        all
    }

    fn problems(&self) -> Vec<String> {
        self.configured.read().problems.clone()
    }

    fn restart(&self, name: &str) -> bool {
        self.bridge.restart(name)
    }
}

/// The instructions of MCP servers, for callers that may use a tool of theirs.
pub(super) struct Instructions(pub(super) AppServers);

impl Instructions {
    /// The instructions of each server, by its name.
    pub(super) fn by_server(&self, effective: &EffectiveTools) -> Vec<(String, Document)> {
        let mut names: Vec<Arc<str>> =
            effective.of_servers().into_iter().filter_map(|allowed| allowed.tool.descriptor.server.clone()).collect();
        // Sorted by server already.
        names.dedup();
        names.iter().filter_map(|name| self.document(name)).collect()
    }

    fn document(&self, server: &str) -> Option<(String, Document)> {
        let about = self.0.bridge().describe(server)?;
        let text = about.instructions.filter(|text| !text.trim().is_empty())?;
        let document = Document {
            uri: format!("toolbus://servers/{}/instructions", utf8_percent_encode(&about.name, NON_ALPHANUMERIC)),
            name: format!("{}-instructions", about.name),
            title: format!("Instructions of {}", about.name),
            description: format!("What the MCP server {} says about the use of its tools.", about.name),
            mime_type: "text/plain",
            text: text.into(),
        };
        Some((about.name, document))
    }
}
