//! `tool.meta.mcp.refresh`: requests to publish the index of servers again, and the agents that sent one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::policy::PolicyHandle;
use toolbus_core::store::Store;
use toolbus_core::{Clock, ControlError, ControlHandler, ControlReply, ControlRequest, NotifyHandle};
use toolbus_protocol::{McpMetadataRefreshRequest, message_type};

use crate::servers::ServerControl;
use crate::spec::ServerName;

/// Time between two requests that make a server list its tools again.
const PAUSE: Duration = Duration::from_secs(5);

/// Publishes the agent's index again, and has its servers list their tools. Changes follow as further messages.
pub struct RefreshHandler {
    policy: PolicyHandle,
    notify: NotifyHandle,
    servers: Arc<dyn ServerControl>,
    pauses: Mutex<Pauses>,
    remembered: RememberedAgents,
}

/// Times of the last listing that was requested of each server, of those whose pause is not over.
#[derive(Default)]
struct Pauses(BTreeMap<ServerName, Instant>);

impl RefreshHandler {
    /// Informs agents through `notify`, and refreshes those of `servers` whose tools they could use by `policy`. The
    /// requesters are kept in `remembered`.
    #[must_use]
    pub fn new(
        policy: PolicyHandle,
        notify: NotifyHandle,
        servers: Arc<dyn ServerControl>,
        remembered: RememberedAgents,
    ) -> Self {
        Self { policy, notify, servers, pauses: Mutex::default(), remembered }
    }

    /// Notifies every remembered agent that has no section in the configuration.
    pub async fn notify_again(&self) {
        let configured = self.policy.configured_agents();
        let agents = self.remembered.agents().await.into_iter().filter(|agent| !configured.contains(agent));
        let notify = async |agent| self.notify.notify(&Caller { has_section: false, ..Caller::agent(agent) }).await;
        join_all(agents.map(notify)).await;
    }

    /// Remembers an agent without a section that could use some server.
    async fn remember(&self, caller: &Caller) {
        if let Some(agent) = &caller.agent
            && !caller.has_section
            && !self.servers.within_reach(&self.policy.effective(caller)).is_empty()
        {
            self.remembered.note(agent).await;
        }
    }

    /// Refreshes one server, or all, as far as the caller could use their tools and they were not refreshed just now.
    fn refresh(&self, caller: &Caller, server: Option<&str>) {
        let mut servers = self.servers.within_reach(&self.policy.effective(caller));
        if let Some(server) = server {
            let Ok(server) = ServerName::parse(server) else { return };
            servers.retain(|known| *known == server);
        }
        let due = self.pauses.lock().due(servers, self.remembered.clock.now());
        due.iter().for_each(|server| self.servers.refresh(server));
    }
}

impl ControlHandler for RefreshHandler {
    fn message_type(&self) -> Option<&'static str> {
        Some(message_type::MCP_METADATA_REFRESH_REQUEST)
    }

    fn handle<'a>(&'a self, received: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        Box::pin(async move {
            let request = McpMetadataRefreshRequest::parse(&received.body)?;
            if received.caller.agent.is_none() {
                return Err(ControlError::NoAgent);
            }
            self.refresh(&received.caller, request.server_name.as_deref());
            self.notify.notify(&received.caller).await;
            self.remember(&received.caller).await;
            Ok(None)
        })
    }
}

impl Pauses {
    /// Those of the servers whose pause is over; it begins again.
    fn due(&mut self, mut servers: Vec<ServerName>, now: Instant) -> Vec<ServerName> {
        self.0.retain(|_, last| now.saturating_duration_since(*last) < PAUSE);
        servers.retain(|server| match self.0.entry(server.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(now);
                true
            }
        });
        servers
    }
}

/// Namespace of the remembered agents in the store: one value, with the times of their requests in seconds since 1970.
const NAMESPACE: &str = "mcp.asked";
const KEY: &str = "agents";
/// Most agents that are remembered; beyond, the earliest requesters are forgotten.
const MAX_AGENTS: usize = 1_000;
/// Longest time that an agent is remembered without another request.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// An agent that requests again within this time is not stored again.
const FRESH: Duration = Duration::from_secs(60 * 60);

/// Remembers agents without a section in the configuration. Those with one are notified at the start anyway.
pub struct RememberedAgents {
    store: Arc<dyn Store>,
    clock: Clock,
    /// As the store has them, once that was read.
    times: tokio::sync::Mutex<Option<BTreeMap<String, u64>>>,
}

impl RememberedAgents {
    /// Remembers in this store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        Self { store, clock, times: tokio::sync::Mutex::default() }
    }

    /// Remembers a request of an agent.
    pub(super) async fn note(&self, agent: &AgentName) {
        self.note_at(agent, self.now()).await;
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
        // Strings and numbers always serialise.
        match self.store.put(NAMESPACE, KEY, serde_json::to_vec(&times).unwrap_or_default()).await {
            Ok(()) => *held = Some(times),
            Err(error) => tracing::warn!(%error, "could not remember which agents asked about MCP servers"),
        }
    }

    /// The agents with recent requests.
    pub(super) async fn agents(&self) -> Vec<AgentName> {
        let mut held = self.times.lock().await;
        let (times, now) = (self.read(&mut held).await, self.now());
        let lately = times.iter().filter(|(_, time)| now.saturating_sub(**time) < REMEMBERED.as_secs());
        lately.filter_map(|(agent, _)| AgentName::parse(agent).ok()).collect()
    }

    /// Seconds since 1970.
    fn now(&self) -> u64 {
        self.clock.since_epoch().as_secs()
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

#[cfg(test)]
mod tests {
    use toolbus_store::MemoryStore;

    use super::*;

    fn due(pauses: &mut Pauses, servers: &[&str], now: Instant) -> Vec<String> {
        let servers = servers.iter().map(|name| ServerName::parse(name).unwrap()).collect();
        pauses.due(servers, now).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_server_is_refreshed_again_after_its_own_pause() {
        let (mut pauses, now) = (Pauses::default(), Clock::SYSTEM.now());
        assert_eq!(due(&mut pauses, &["A", "b"], now), ["A", "b"]);
        assert_eq!(due(&mut pauses, &["a", "c"], now + PAUSE / 2), ["c"]);
        assert_eq!(due(&mut pauses, &["a", "b", "c"], now + PAUSE), ["a", "b"]);
        assert_eq!(due(&mut pauses, &["c"], now + PAUSE + PAUSE / 2), ["c"]);
    }

    #[test]
    fn a_server_is_forgotten_after_its_pause() {
        let (mut pauses, now) = (Pauses::default(), Clock::SYSTEM.now());
        due(&mut pauses, &["a", "b"], now);
        due(&mut pauses, &["c"], now + PAUSE);
        assert_eq!(pauses.0.len(), 1);
    }

    fn agent(number: usize) -> AgentName {
        AgentName::parse(&format!("agent-{number:04}")).unwrap()
    }

    #[tokio::test]
    async fn remembered_agents_survive_a_restart() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        RememberedAgents::new(Arc::clone(&store), Clock::SYSTEM).note(&agent(1)).await;
        RememberedAgents::new(Arc::clone(&store), Clock::SYSTEM).note(&agent(2)).await;
        assert_eq!(RememberedAgents::new(store, Clock::SYSTEM).agents().await, [agent(1), agent(2)]);
    }

    #[tokio::test]
    async fn the_earliest_and_expired_requesters_are_forgotten() {
        let remembered = RememberedAgents::new(Arc::new(MemoryStore::default()), Clock::SYSTEM);
        let now = remembered.now();
        remembered.note_at(&agent(9_999), now - REMEMBERED.as_secs()).await;
        for number in 0..=MAX_AGENTS {
            remembered.note_at(&agent(number), now + number as u64).await;
        }
        let known = remembered.agents().await;
        assert_eq!((known.len(), &known[0]), (MAX_AGENTS, &agent(1)));
    }

    #[tokio::test]
    async fn an_agent_that_requests_repeatedly_is_stored_once() {
        let store = Arc::new(MemoryStore::default());
        let remembered = RememberedAgents::new(Arc::clone(&store) as _, Clock::SYSTEM);
        remembered.note_at(&agent(1), 1_000).await;
        Store::delete(&*store, NAMESPACE, KEY).await.unwrap();
        remembered.note_at(&agent(1), 1_000 + FRESH.as_secs() - 1).await;
        assert_eq!(Store::get(&*store, NAMESPACE, KEY).await.unwrap(), None);
        remembered.note_at(&agent(1), 1_000 + FRESH.as_secs()).await;
        assert!(Store::get(&*store, NAMESPACE, KEY).await.unwrap().is_some());
    }
}
