//! The tools of a server: from what it lists to the registry, their quota, and their execution.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;
use toolbus_core::failure::ToolFailure;
use toolbus_core::tool::{Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

use super::definition::{Definitions, SourceToolset, definitions};
use super::entry::{ListedTools, ServerEntry};
use super::findings::Findings;
use super::{Limits, ServersState};
use crate::client::{ServerInfo, ServerListing, size};
use crate::spec::ServerName;
use crate::status::{HiddenTool, ServerDescription};
use crate::supervise::Listener;

/// Registers the tools that a server lists.
pub(super) struct RegisterTools {
    pub(super) entry: Arc<ServerEntry>,
    /// The index of the instance among several: the list of the first counts that is there or will be.
    pub(super) index: usize,
}

impl Listener for RegisterTools {
    fn listed(&self, about: &ServerInfo, listed: ServerListing) -> BoxFuture<'_, ()> {
        let (entry, about) = (Arc::clone(&self.entry), about.clone());
        Box::pin(async move {
            if !entry.takes_list_of(self.index) {
                return;
            }
            let Some(shared) = entry.shared.get().and_then(Weak::upgrade) else { return };
            // Schemas are compiled: not on a thread that calls run on.
            let _ = tokio::task::spawn_blocking(move || take(&entry, &shared, about, listed)).await;
        })
    }
}

impl ServerEntry {
    /// Whether a call may run whose tool had `executor` when it was admitted.
    pub(super) fn still_admits(&self, name: &Arc<str>, executor: &McpTool) -> bool {
        let shared = self.shared.get().and_then(Weak::upgrade);
        shared.is_none_or(|shared| shared.registry.still_admits(self.spec().name.source(), name, executor))
    }

    /// Returns the tools of the server, with these limits.
    pub(super) fn tools(self: &Arc<Self>, limits: &Limits) -> Vec<Tool> {
        let descriptors = self.known().tools.clone();
        let tools = descriptors.into_iter().map(|mut descriptor| {
            limits(&mut descriptor);
            match self.server.set.as_ref().and_then(|set| set.sessions.as_ref()) {
                Some(sessions) => sessions.tool(descriptor),
                None => McpTool::tool(Arc::clone(self), descriptor),
            }
        });
        tools.collect()
    }
}

impl ListedTools {
    /// A fingerprint of a server's texts and tools. Its keys are secret, so that no server can forge a collision.
    fn fingerprint(&self, about: &ServerInfo, listed: &ServerListing) -> u64 {
        let mut hasher = self.fingerprints.build_hasher();
        (&about.name, &about.version, &about.title, &about.description, &about.instructions).hash(&mut hasher);
        for tool in &listed.tools {
            serde_json::to_vec(tool).unwrap_or_default().hash(&mut hasher);
        }
        for HiddenTool { name, reason } in &listed.unreadable {
            (name, reason).hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// Makes tools of what a server lists. An unchanged list is skipped: compiling the schemas of a long list takes
/// seconds.
fn take(entry: &Arc<ServerEntry>, shared: &Arc<ServersState>, about: ServerInfo, listed: ServerListing) {
    let fingerprint = {
        let known = entry.known();
        let fingerprint = known.fingerprint(&about, &listed);
        if known.last_fingerprint == Some(fingerprint) {
            return;
        }
        fingerprint
    };
    let spec = entry.spec();
    let toolset = entry.server.set.as_ref().map(|set| SourceToolset {
        set: Arc::clone(&set.name),
        prefix: Arc::clone(&set.prefix),
        needs_session: set.sessions.is_some(),
    });
    let definitions =
        definitions(spec, toolset.as_ref(), listed.tools, listed.unreadable, &shared.scanner, shared.launcher.clock());
    let vetted = Findings::new(&about, &definitions, &shared.scanner);
    let Definitions { mut tools, mut hidden, .. } = definitions;
    let admitted = shared.admit(entry, &tools);
    if let Err(full) = &admitted {
        tools.clear();
        hidden.insert(0, HiddenTool { name: "…".to_owned(), reason: full.to_string() });
    }
    let name = &**spec.name.as_str();
    {
        let mut known = entry.known();
        if known.hidden != hidden && !hidden.is_empty() {
            let first = hidden.first().map(|tool| format!("{}: {}", tool.name, tool.reason));
            tracing::warn!(server = name, hidden = hidden.len(), first, "tools of an MCP server are not offered");
        }
        vetted.log(name, &known.vetted);
        known.vetted = vetted;
        let called = [about.name.as_deref(), about.version.as_deref()];
        known.implementation = about.name.is_some().then(|| called.into_iter().flatten().collect::<Vec<_>>().join(" "));
        known.about = ServerDescription {
            name: String::new(),
            summary: None,
            description: about.description.or(about.title),
            instructions: about.instructions,
        };
        tracing::debug!(server = name, tools = tools.len(), "an MCP server listed its tools");
        known.tools = tools;
        known.hidden = hidden;
        // What found no room may find it the next time.
        known.last_fingerprint = admitted.is_ok().then_some(fingerprint);
    }
    shared.described();
    shared.publish(entry);
    entry.is_known.send_replace(true);
}

/// Executes one tool at its server.
pub(super) struct McpTool {
    entry: Arc<ServerEntry>,
    /// The published name.
    name: Arc<str>,
    is_repeatable: bool,
}

impl McpTool {
    /// The tool that `descriptor` describes, run by `entry`.
    pub(super) fn tool(entry: Arc<ServerEntry>, descriptor: ToolDescriptor) -> Tool {
        let is_repeatable = descriptor.effect.is_repeatable();
        let name = Arc::clone(&descriptor.name);
        Tool::new(descriptor, Self { entry, name, is_repeatable })
    }
}

impl Executor for McpTool {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let server = self.entry.server_for(&call.caller)?;
        let is_admitted = || self.entry.still_admits(&self.name, self);
        server.call(&call.tool, &call, self.is_repeatable, &is_admitted).await
    }
}

/// Most tools of all servers.
const MAX_TOOLS: usize = 20_000;
/// Most MiB of definitions of all servers.
const MAX_MIB: usize = 64;

/// The quota, and the usage of each server.
#[derive(Default)]
pub(super) struct ToolQuota {
    taken: BTreeMap<ServerName, ServerUsage>,
}

/// The usage of one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerUsage {
    tools: usize,
    bytes: usize,
}

/// The quota does not suffice for a server's tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "its {tools} tools are not offered: all servers together may have {MAX_TOOLS} tools and {MAX_MIB} MiB of definitions; \
     offer less, and restart it"
)]
pub(super) struct QuotaExceeded {
    tools: usize,
}

impl ServerUsage {
    pub(super) fn of(tools: &[ToolDescriptor]) -> Self {
        let bytes =
            |tool: &ToolDescriptor| tool.name.len() + tool.description.len() + size(&tool.parameters.as_deref());
        Self { tools: tools.len(), bytes: tools.iter().map(bytes).sum() }
    }
}

impl ToolQuota {
    /// Reserves quota for a server's tools, and replaces its previous reservation.
    ///
    /// # Errors
    ///
    /// If the quota is exceeded; the server then has no reservation.
    pub(super) fn reserve(&mut self, server: &ServerName, share: ServerUsage) -> Result<(), QuotaExceeded> {
        self.release(server);
        let all = || self.taken.values().chain([&share]);
        let (tools, bytes) =
            (all().map(|share| share.tools).sum::<usize>(), all().map(|share| share.bytes).sum::<usize>());
        if tools > MAX_TOOLS || bytes > MAX_MIB << 20 {
            return Err(QuotaExceeded { tools: share.tools });
        }
        self.taken.insert(server.clone(), share);
        Ok(())
    }

    /// Releases the reservation of a server.
    pub(super) fn release(&mut self, server: &ServerName) {
        self.taken.remove(server);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn name(text: &str) -> ServerName {
        ServerName::parse(text).unwrap()
    }

    #[test]
    fn all_servers_share_one_quota_of_tools() {
        let mut quota = ToolQuota::default();
        let half = ServerUsage { tools: MAX_TOOLS / 2, bytes: 1 };
        assert_eq!(quota.reserve(&name("a"), half), Ok(()));
        assert_eq!(quota.reserve(&name("b"), half), Ok(()));
        let one = ServerUsage { tools: 1, bytes: 1 };
        let full = quota.reserve(&name("c"), one).unwrap_err();
        insta::assert_snapshot!(full, @"its 1 tools are not offered: all servers together may have 20000 tools and 64 MiB of definitions; offer less, and restart it");
        assert_eq!(quota.reserve(&name("A"), one), Ok(()), "replaces its reservation");
        assert_eq!(quota.reserve(&name("c"), one), Ok(()));
    }

    #[test]
    fn all_servers_share_one_quota_of_bytes() {
        let mut quota = ToolQuota::default();
        let most = ServerUsage { tools: 1, bytes: MAX_MIB << 20 };
        assert_eq!(quota.reserve(&name("a"), most), Ok(()));
        assert!(quota.reserve(&name("b"), ServerUsage { tools: 1, bytes: 1 }).is_err());
        quota.release(&name("A"));
        assert_eq!(quota.reserve(&name("b"), most), Ok(()));
        let too_much = ServerUsage { tools: 1, bytes: (MAX_MIB << 20) + 1 };
        assert!(quota.reserve(&name("b"), too_much).is_err());
        assert_eq!(quota.reserve(&name("c"), most), Ok(()), "what found no room has none");
    }

    #[test]
    fn a_tool_takes_the_room_of_its_texts_and_its_schema() {
        let tool = ToolDescriptor {
            description: "123".to_owned(),
            parameters: Some(Arc::new(json!({"a": 1}))),
            ..ToolDescriptor::new("12", "mcp:a", "mcp")
        };
        let ServerUsage { tools, bytes } = ServerUsage::of(&[tool.clone(), tool]);
        assert_eq!((tools, bytes), (2, 2 * (2 + 3 + 7)));
    }
}
