//! Which agents asked to be told of servers, so that they are told again after a restart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Mutex;
use toolbus_core::caller::AgentName;
use toolbus_core::store::Store;

/// Where the store has them: one value, with the times at which they asked, in seconds since 1970.
const NAMESPACE: &str = "mcp.asked";
const KEY: &str = "agents";
/// Most agents that are remembered; of more those that asked first are forgotten.
const MAX_AGENTS: usize = 1_000;
/// How long an agent is remembered that does not ask again.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// An agent that asks again within this time is not written down again.
const FRESH: Duration = Duration::from_secs(60 * 60);

/// Remembers agents that have no section in the configuration: the others are told at the start anyway.
pub struct RememberedAgents {
    store: Arc<dyn Store>,
    /// As the store has them, once that was read.
    times: Mutex<Option<BTreeMap<String, u64>>>,
}

impl RememberedAgents {
    /// Remembers in this store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, times: Mutex::default() }
    }

    /// Remembers that an agent asked.
    pub(super) async fn note(&self, agent: &AgentName) {
        self.note_at(agent, now()).await;
    }

    async fn note_at(&self, agent: &AgentName, now: u64) {
        let mut held = self.times.lock().await;
        let mut times = self.read(&mut held).await.clone();
        if times.get(agent.as_str()).is_some_and(|time| now.saturating_sub(*time) < FRESH.as_secs()) {
            return;
        }
        times.insert(agent.to_string(), now);
        times.retain(|_, time| now.saturating_sub(*time) < REMEMBERED.as_secs());
        while times.len() > MAX_AGENTS {
            let oldest = times.iter().min_by_key(|(_, time)| **time).map(|(agent, _)| agent.clone());
            times.retain(|agent, _| Some(agent) != oldest.as_ref());
        }
        // Texts and numbers: there is nothing that JSON cannot hold.
        match self.store.put(NAMESPACE, KEY, serde_json::to_vec(&times).unwrap_or_default()).await {
            Ok(()) => *held = Some(times),
            Err(error) => tracing::warn!(%error, "could not remember which agents asked about MCP servers"),
        }
    }

    /// The agents that asked lately.
    pub(super) async fn agents(&self) -> Vec<AgentName> {
        let mut held = self.times.lock().await;
        let (times, now) = (self.read(&mut held).await, now());
        let lately = times.iter().filter(|(_, time)| now.saturating_sub(**time) < REMEMBERED.as_secs());
        lately.filter_map(|(agent, _)| AgentName::parse(agent).ok()).collect()
    }

    async fn read<'a>(&self, held: &'a mut Option<BTreeMap<String, u64>>) -> &'a BTreeMap<String, u64> {
        if held.is_none() {
            let stored = self.store.get(NAMESPACE, KEY).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "could not read which agents asked about MCP servers");
                None
            });
            *held = Some(stored.and_then(|stored| serde_json::from_slice(&stored).ok()).unwrap_or_default());
        }
        held.get_or_insert_default()
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use toolbus_store::Memory;

    use super::*;

    fn agent(number: usize) -> AgentName {
        AgentName::parse(&format!("agent-{number:04}")).unwrap()
    }

    #[tokio::test]
    async fn agents_are_remembered_by_whoever_has_the_store_next() {
        let store: Arc<dyn Store> = Arc::new(Memory::default());
        RememberedAgents::new(Arc::clone(&store)).note(&agent(1)).await;
        RememberedAgents::new(Arc::clone(&store)).note(&agent(2)).await;
        assert_eq!(RememberedAgents::new(store).agents().await, [agent(1), agent(2)]);
    }

    #[tokio::test]
    async fn those_that_asked_first_or_long_ago_are_forgotten() {
        let asked = RememberedAgents::new(Arc::new(Memory::default()));
        let now = now();
        asked.note_at(&agent(9_999), now - REMEMBERED.as_secs()).await;
        for number in 0..=MAX_AGENTS {
            asked.note_at(&agent(number), now + number as u64).await;
        }
        let known = asked.agents().await;
        assert_eq!((known.len(), &known[0]), (MAX_AGENTS, &agent(1)));
    }

    #[tokio::test]
    async fn an_agent_that_asks_again_and_again_is_written_down_once() {
        let store = Arc::new(Memory::default());
        let asked = RememberedAgents::new(Arc::clone(&store) as _);
        asked.note_at(&agent(1), 1_000).await;
        Store::delete(&*store, NAMESPACE, KEY).await.unwrap();
        asked.note_at(&agent(1), 1_000 + FRESH.as_secs() - 1).await;
        assert_eq!(Store::get(&*store, NAMESPACE, KEY).await.unwrap(), None);
        asked.note_at(&agent(1), 1_000 + FRESH.as_secs()).await;
        assert!(Store::get(&*store, NAMESPACE, KEY).await.unwrap().is_some());
    }
}
