//! The tools of a entry, from what its server lists to the registry.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;
use toolbus_core::tool::Tool;

use super::ServerDescription;
use super::definition::{Definitions, ToolsetPlace, definitions};
use super::entry::{KnownTools, ServerEntry};
use super::executor::McpTool;
use super::findings::Findings;
use super::{Inner, Limits};
use crate::client::{Listed, ServerInfo};
use crate::status::HiddenTool;
use crate::supervise::Listener;

/// Takes the tools of a entry.
pub(super) struct RegisterTools {
    pub(super) entry: Arc<ServerEntry>,
    /// Whether this server is the one whose list counts, where there are several.
    pub(super) is_main: bool,
}

impl Listener for RegisterTools {
    fn listed(&self, about: &ServerInfo, listed: Listed) -> BoxFuture<'_, ()> {
        let (entry, about) = (Arc::clone(&self.entry), about.clone());
        Box::pin(async move {
            if !self.is_main && entry.is_known() {
                return;
            }
            let Some(shared) = entry.shared.get().and_then(Weak::upgrade) else { return };
            // Schemas are compiled: not on a thread that calls run on.
            let _ = tokio::task::spawn_blocking(move || take(&entry, &shared, about, listed)).await;
        })
    }
}

impl ServerEntry {
    /// Whether a call of a tool that `executor` had when the call was let in may be run.
    pub(super) fn still_admits(&self, name: &Arc<str>, executor: &McpTool) -> bool {
        let shared = self.shared.get().and_then(Weak::upgrade);
        shared.is_none_or(|shared| shared.registry.still_admits(self.spec().name.source(), name, executor))
    }

    /// What is known of its tools, with these limits.
    pub(super) fn tools(self: &Arc<Self>, limits: &Limits) -> Vec<Tool> {
        let descriptors = self.known().tools.clone();
        let tools = descriptors.into_iter().map(|mut descriptor| {
            limits(&mut descriptor);
            match self.placed.set.as_ref().and_then(|set| set.sessions.as_ref()) {
                Some(sessions) => sessions.tool(descriptor),
                None => McpTool::tool(Arc::clone(self), descriptor),
            }
        });
        tools.collect()
    }
}

impl KnownTools {
    /// By which what a server says is known again. Its keys are secret, so that no server can have other tools taken for the
    /// same ones.
    fn fingerprint(&self, about: &ServerInfo, listed: &Listed) -> u64 {
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

/// Makes tools of what a server lists. One that says what it said before has them already: compiling the schemas of a
/// long list takes seconds.
fn take(entry: &Arc<ServerEntry>, shared: &Arc<Inner>, about: ServerInfo, listed: Listed) {
    let said = {
        let known = entry.known();
        let said = known.fingerprint(&about, &listed);
        if known.said == Some(said) {
            return;
        }
        said
    };
    let spec = entry.spec();
    let place = entry.placed.set.as_ref().map(|set| ToolsetPlace {
        set: Arc::clone(&set.name),
        prefix: Arc::clone(&set.prefix),
        needs_session: set.sessions.is_some(),
    });
    let definitions = definitions(spec, place.as_ref(), listed.tools, listed.unreadable, &shared.scanner);
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
            description: about.description.or(about.title),
            instructions: about.instructions,
        };
        tracing::debug!(server = name, tools = tools.len(), "an MCP server listed its tools");
        known.tools = tools;
        known.hidden = hidden;
        // What found no room may find it the next time.
        known.said = admitted.is_ok().then_some(said);
    }
    shared.publish(entry);
    entry.is_known.send_replace(true);
}
