//! `tool.meta.tools.{agent}`: an agent is told when what it may use has changed.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::stream::{self, StreamExt};
use lru::LruCache;
use toolbus_protocol::{Envelope, ToolsChanged, header, message_type, new_message_id, topic};

use crate::bus::{Bus, Outgoing, Target};
use crate::caller::{AgentName, Caller};
use crate::policy::{Access, Catalogue, Effective};

/// Agents without a section of their own that are told, because they called lately.
const MAX_SEEN: NonZeroUsize = NonZeroUsize::new(1_000).unwrap();
/// How long an agent counts as having called lately.
const LATELY: Duration = Duration::from_secs(60 * 60);
/// Changes that come close together are told as one.
const DEBOUNCE: Duration = Duration::from_millis(250);
/// Agents that are told at a time.
const MAX_AT_A_TIME: usize = 32;
/// Longest wait for the confirm of one announcement.
const PUBLISH_TIME: Duration = Duration::from_secs(5);

/// Agents without a section of their own that called.
#[derive(Clone)]
pub(crate) struct Callers(Arc<Mutex<LruCache<AgentName, Visit>>>);

/// When an agent called last, and what there was when it called first, until that has been compared.
struct Visit {
    last: Instant,
    first: Option<Arc<Catalogue>>,
}

/// What changed for an agent, and what it had before.
struct Change {
    agent: AgentName,
    before: Effective,
    told: ToolsChanged,
}

/// Tells agents of changes.
pub struct Announcer {
    name: String,
    access: Access,
    bus: Arc<dyn Bus>,
    callers: Callers,
    /// What each agent was told, or could have listed, last.
    known: HashMap<AgentName, Effective>,
}

impl Default for Callers {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(LruCache::new(MAX_SEEN))))
    }
}

impl Callers {
    /// Notes that an agent called.
    pub(crate) fn note(&self, agent: &AgentName, catalogue: &Arc<Catalogue>) {
        let now = Instant::now();
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.get_mut(agent) {
            Some(visit) => visit.last = now,
            None => drop(seen.put(agent.clone(), Visit { last: now, first: Some(Arc::clone(catalogue)) })),
        }
    }

    /// The agents that called lately, each with what there was when it first did, once.
    fn lately(&self) -> Vec<(AgentName, Option<Arc<Catalogue>>)> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |(agent, visit): (&AgentName, &Visit)| (visit.last.elapsed() >= LATELY).then(|| agent.clone());
        let old: Vec<AgentName> = seen.iter().filter_map(is_old).collect();
        for agent in old {
            seen.pop(&agent);
        }
        seen.iter_mut().map(|(agent, visit)| (agent.clone(), visit.first.take())).collect()
    }
}

impl Announcer {
    /// Tells of changes from now on, as `name`.
    pub(crate) fn new(name: String, access: Access, bus: Arc<dyn Bus>, callers: Callers) -> Self {
        let known = access.agents().into_iter().map(|agent| (agent.clone(), of(&access, agent))).collect();
        Self { name, access, bus, callers, known }
    }

    /// Tells every agent whose set of tools changes, until dropped.
    pub async fn run(mut self) {
        let mut changes = self.access.changes();
        while changes.changed().await.is_ok() {
            tokio::time::sleep(DEBOUNCE).await;
            changes.mark_unchanged();
            let changes = self.changes();
            let all = stream::iter(changes).map(|change| self.tell(change)).buffer_unordered(MAX_AT_A_TIME);
            let untold: Vec<Change> = all.filter_map(|untold| async { untold }).collect().await;
            // They are told of this change with the next.
            self.known.extend(untold.into_iter().map(|change| (change.agent, change.before)));
        }
    }

    /// What changed for whom. An agent that was not known is known from now on.
    fn changes(&mut self) -> Vec<Change> {
        let mut agents: BTreeSet<AgentName> = self.access.agents().into_iter().collect();
        for (agent, first) in self.callers.lately() {
            if let Some(first) = first {
                let then = Effective::new(first, &Caller::agent(agent.clone()));
                self.known.entry(agent.clone()).or_insert(then);
            }
            agents.insert(agent);
        }
        self.known.retain(|agent, _| agents.contains(agent));
        let mut changes = Vec::new();
        for agent in agents {
            let now = of(&self.access, agent.clone());
            let before = self.known.insert(agent.clone(), now.clone());
            if let Some(before) = before.filter(|before| !before.lists_like(&now)) {
                changes.push(Change { told: difference(&before, &now), agent, before });
            }
        }
        changes
    }

    /// Tells an agent; the change comes back when that did not succeed.
    async fn tell(&self, change: Change) -> Option<Change> {
        let agent = &change.agent;
        let properties = Envelope {
            message_id: Some(new_message_id()),
            message_type: message_type::TOOLS_CHANGED.to_owned(),
            timestamp: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs()),
            source: Some(self.name.clone()),
            destination: Some(agent.to_string()),
            headers: vec![(header::CONTENT_TRUST.to_owned(), header::TRUST_SYSTEM.to_owned())],
            ..Envelope::default()
        };
        let message = Outgoing {
            target: Target::Topic(topic::tools_changed(agent.as_str())),
            // An agent that does not listen misses nothing: it lists its tools when it wants them.
            mandatory: false,
            proven: false,
            properties: properties.into_properties(),
            body: serde_json::to_vec(&change.told).unwrap_or_default().into(),
        };
        let published = tokio::time::timeout(PUBLISH_TIME, self.bus.publish(&message)).await;
        if matches!(published, Ok(Ok(_))) {
            return None;
        }
        tracing::warn!(%agent, "an agent was not told that its tools have changed");
        Some(change)
    }
}

/// What an agent has without a binding, and with its own profile.
fn of(access: &Access, agent: AgentName) -> Effective {
    access.effective(&Caller::agent(agent))
}

fn difference(before: &Effective, now: &Effective) -> ToolsChanged {
    let names = |effective: &Effective| effective.names().map(str::to_owned).collect::<BTreeSet<_>>();
    let (before, after) = (names(before), names(now));
    ToolsChanged {
        version: now.version().to_string(),
        added: after.difference(&before).cloned().collect(),
        removed: before.difference(&after).cloned().collect(),
    }
}
