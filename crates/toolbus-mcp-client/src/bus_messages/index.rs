//! `tool.meta.mcp.{agent}`: the servers that an agent may use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use toolbus_core::NotificationSource;
use toolbus_core::caller::AgentName;
use toolbus_core::policy::EffectiveTools;
use toolbus_core::store::Store;
use toolbus_protocol::{McpServerSummary, McpServersIndexed, message_type, topic};

use crate::model_tools::list::summaries;
use crate::servers::ServerControl;

/// Text of one message, in bytes; the rest goes into further messages.
const MAX_MESSAGE: usize = 1024 * 1024;
/// Where the store has which of the daemon's own servers agents know of: names, by the name of an agent.
const NAMESPACE: &str = "mcp.told";
/// Key of the agents without a section of their own, which all may use the same servers. No agent is named so.
const NO_SECTION: &str = "*";

/// The servers of which an agent may use tools, with the names of those tools. Published at the start, on request, and
/// on changes.
pub struct Index {
    servers: Arc<dyn ServerControl>,
    store: Arc<dyn Store>,
    /// By key.
    known: Mutex<BTreeMap<String, KnownServers>>,
}

/// Names of servers that the agents of one key know of, by the folded name.
#[derive(Default)]
struct KnownServers {
    /// Those of an earlier process.
    earlier: BTreeMap<String, String>,
    /// As the store has them.
    kept: BTreeSet<String>,
}

impl Index {
    /// The index of these servers. What agents know of is kept in `store`, so that servers are announced as removed that
    /// were removed while no daemon ran.
    #[must_use]
    pub fn new(servers: Arc<dyn ServerControl>, store: Arc<dyn Store>) -> Self {
        Self { servers, store, known: Mutex::default() }
    }

    /// Whether an earlier process announced servers that no daemon without servers has announced as removed.
    pub async fn has_announced(store: &dyn Store) -> bool {
        store.list(NAMESPACE).await.is_ok_and(|keys| !keys.is_empty())
    }

    /// Reads what agents of one key know of. Without it, nothing is announced as removed.
    async fn read(&self, key: &str) -> KnownServers {
        let stored = self.store.get(NAMESPACE, key).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "could not read which MCP servers agents know of");
            None
        });
        let kept: BTreeSet<String> = stored.and_then(|stored| serde_json::from_slice(&stored).ok()).unwrap_or_default();
        KnownServers { earlier: kept.iter().map(|name| (name.to_lowercase(), name.clone())).collect(), kept }
    }

    /// The servers that an earlier process announced to an agent, and that are no longer there.
    fn removed_since(&self, key: &str, now: &BTreeMap<String, McpServerSummary>) -> Vec<String> {
        let known = self.known.lock();
        let earlier = known.get(key).into_iter().flat_map(|known| &known.earlier);
        let is_gone = |folded: &str, name: &str| !now.contains_key(folded) && self.servers.origin(name).is_none();
        earlier.filter(|(folded, name)| is_gone(folded, name)).map(|(_, name)| name.clone()).collect()
    }
}

fn key_of<'a>(agent: &'a AgentName, now: &EffectiveTools) -> &'a str {
    if now.has_no_section() { NO_SECTION } else { agent.as_str() }
}

/// The topic of an agent's index. `None` for an agent named `refresh`, whose index every bridge would take for a
/// request.
fn topic_of(agent: &AgentName) -> Option<String> {
    Some(topic::mcp_servers(agent.as_str())).filter(|topic| topic != topic::MCP_REFRESH)
}

impl NotificationSource for Index {
    fn topic(&self, agent: &AgentName) -> Option<String> {
        topic_of(agent)
    }

    fn message_type(&self) -> &'static str {
        message_type::MCP_SERVERS_INDEXED
    }

    fn notifies_at_start(&self) -> bool {
        true
    }

    fn messages(&self, agent: &AgentName, before: Option<&EffectiveTools>, now: &EffectiveTools) -> Vec<Vec<u8>> {
        // Lazy servers are announced with all others, and as soon as their tools are known.
        let key = key_of(agent, now);
        let now = summaries(now, &*self.servers);
        let indexed = match before {
            // The requester waits for this message, even if it lists nothing.
            None => {
                let removed_servers = self.removed_since(key, &now);
                McpServersIndexed { servers: now.into_values().collect(), removed_servers }
            }
            Some(before) => {
                let indexed = difference(&summaries(before, &*self.servers), now);
                if indexed.servers.is_empty() && indexed.removed_servers.is_empty() {
                    return Vec::new();
                }
                indexed
            }
        };
        parts(indexed).iter().map(|part| serde_json::to_vec(part).unwrap_or_default()).collect()
    }

    fn recall<'a>(&'a self, agent: &'a AgentName, now: &'a EffectiveTools) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let key = key_of(agent, now);
            if !self.known.lock().contains_key(key) {
                let known = self.read(key).await;
                self.known.lock().entry(key.to_owned()).or_insert(known);
            }
        })
    }

    fn keep<'a>(&'a self, agent: &'a AgentName, now: &'a EffectiveTools) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let key = key_of(agent, now);
            let mut names: BTreeSet<String> =
                summaries(now, &*self.servers).into_values().map(|server| server.server_name).collect();
            {
                let known = self.known.lock();
                // A server that has not connected yet is still known.
                names.extend(known.get(key).into_iter().flat_map(|known| known.earlier.values().cloned()));
                names.retain(|name| self.servers.origin(name).is_some());
                if known.get(key).is_some_and(|known| known.kept == names) {
                    return;
                }
            }
            let kept = match names.is_empty() {
                true => self.store.delete(NAMESPACE, key).await.map(drop),
                false => self.store.put(NAMESPACE, key, serde_json::to_vec(&names).unwrap_or_default()).await,
            };
            match kept {
                Ok(()) => self.known.lock().entry(key.to_owned()).or_default().kept = names,
                Err(error) => tracing::warn!(%error, "could not keep which MCP servers agents know of"),
            }
        })
    }
}

fn difference(
    before: &BTreeMap<String, McpServerSummary>,
    now: BTreeMap<String, McpServerSummary>,
) -> McpServersIndexed {
    let gone = before.iter().filter(|(folded, _)| !now.contains_key(*folded));
    let removed_servers = gone.map(|(_, server)| server.server_name.clone()).collect();
    let servers = now.into_iter().filter(|(folded, server)| before.get(folded) != Some(server));
    McpServersIndexed { servers: servers.map(|(_, server)| server).collect(), removed_servers }
}

/// The same in messages that any broker takes: each adds to those before it.
fn parts(indexed: McpServersIndexed) -> Vec<McpServersIndexed> {
    let mut part = McpServersIndexed { servers: Vec::new(), removed_servers: indexed.removed_servers };
    let (mut parts, mut size) = (Vec::new(), 0);
    for server in indexed.servers {
        size += server.tool_names.iter().chain(&server.summary).map(String::len).sum::<usize>();
        if size > MAX_MESSAGE && !part.servers.is_empty() {
            parts.push(std::mem::take(&mut part));
            size = 0;
        }
        part.servers.push(server);
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, tools: usize) -> McpServerSummary {
        let tool_names: Vec<String> = (0..tools).map(|number| format!("{number:0100}")).collect();
        McpServerSummary { server_name: name.to_owned(), tool_count: tools, tool_names, ..McpServerSummary::default() }
    }

    #[test]
    fn an_agent_named_like_the_refresh_request_has_no_topic() {
        let topic = |agent: &str| topic_of(&AgentName::parse(agent).unwrap());
        assert_eq!(topic("refresh"), None);
        assert_eq!(topic("ana").as_deref(), Some("tool.meta.mcp.ana"));
    }

    #[test]
    fn a_large_index_is_split_into_several_messages() {
        let indexed = McpServersIndexed {
            servers: (0..30).map(|number| server(&format!("s{number}"), 1_000)).collect(),
            removed_servers: vec!["gone".to_owned()],
        };
        let parts = parts(indexed.clone());
        assert!(parts.len() > 1);
        for part in &parts {
            let size = serde_json::to_vec(part).unwrap().len();
            assert!(size < 2 * MAX_MESSAGE && !part.servers.is_empty(), "{size}");
        }
        let all: Vec<McpServerSummary> = parts.iter().flat_map(|part| part.servers.clone()).collect();
        assert_eq!(all, indexed.servers);
        let removed: Vec<&String> = parts.iter().flat_map(|part| &part.removed_servers).collect();
        assert_eq!(removed, ["gone"], "once, and first");
        assert_eq!(parts[0].removed_servers, ["gone"]);
    }

    #[test]
    fn a_server_larger_than_a_message_gets_a_message_of_its_own() {
        let indexed = McpServersIndexed {
            servers: vec![server("a", 1), server("b", 20_000), server("c", 1)],
            removed_servers: Vec::new(),
        };
        let sizes: Vec<usize> = parts(indexed).iter().map(|part| part.servers.len()).collect();
        assert_eq!(sizes.iter().sum::<usize>(), 3);
        assert!(sizes.iter().all(|size| *size > 0), "{sizes:?}");
    }
}
