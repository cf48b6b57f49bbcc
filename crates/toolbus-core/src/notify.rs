//! Notifications: messages to agents about changes of what they may use.
//!
//! One [`ChangeNotifier`] runs for each [`NotificationSource`]. It compares what each agent may use with what the agent
//! was sent last, after every change, and publishes what its source makes of the difference.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use futures_util::stream::{self, StreamExt};
use lru::LruCache;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use toolbus_protocol::{Envelope, Random, ToolsChanged, header, message_type, topic};

use crate::Clock;
use crate::bus::{Bus, Outgoing, PublishError, Target};
use crate::caller::{AgentName, Caller};
use crate::policy::{Catalogue, EffectiveTools, PolicyHandle};

/// Changes within this time are notified together.
const DEBOUNCE: Duration = Duration::from_millis(250);
/// Wait before another try, for agents that could not be notified because the broker was away.
const RETRY: Duration = Duration::from_secs(5);
/// Agents that are notified at a time.
const MAX_CONCURRENT: usize = 32;
/// Longest wait for the confirm of one notification.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests for everything that can wait.
const MAX_REQUESTS: usize = 64;
/// Agents without a section of their own that are notified because they called lately.
const MAX_SEEN: NonZeroUsize = NonZeroUsize::new(1_000).unwrap();
/// Time for which an agent counts as having called lately.
const LATELY: Duration = Duration::from_secs(60 * 60);
/// Agents whose last list waits to be compared with what there is.
const MAX_LISTED: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Something that agents are notified of.
pub trait NotificationSource: Send + Sync + 'static {
    /// The topic of an agent's notifications; `None` for an agent that cannot have any.
    fn topic(&self, agent: &AgentName) -> Option<String>;

    /// The type of the messages.
    fn message_type(&self) -> &'static str;

    /// Whether agents that are configured get everything at the start.
    fn notifies_at_start(&self) -> bool;

    /// The bodies of the messages for an agent that had `before` and has `now`: none when nothing has changed. Without
    /// `before` the agent knows nothing, or has requested everything.
    fn messages(&self, agent: &AgentName, before: Option<&EffectiveTools>, now: &EffectiveTools) -> Vec<Vec<u8>>;

    /// Reads what agents with these rules were sent by an earlier process. Awaited before [`Self::messages`] without
    /// `before`.
    fn recall<'a>(&'a self, _agent: &'a AgentName, _now: &'a EffectiveTools) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }

    /// Keeps what an agent has been sent, for a later process.
    fn keep<'a>(&'a self, _agent: &'a AgentName, _now: &'a EffectiveTools) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }
}

/// Notifies agents of changes.
pub struct ChangeNotifier<N> {
    source: Arc<N>,
    name: String,
    policy: PolicyHandle,
    bus: Arc<dyn Bus>,
    random: Random,
    callers: RecentCallers,
    /// Tools that each agent was notified of, or could have listed, last.
    known: HashMap<AgentName, EffectiveTools>,
    requests: mpsc::Receiver<NotifyRequest>,
}

/// Has a [`ChangeNotifier`] send an agent everything. Cheap to clone.
#[derive(Clone)]
pub struct NotifyHandle {
    policy: PolicyHandle,
    requests: mpsc::Sender<NotifyRequest>,
}

/// An agent that gets everything, and what is dropped when that was tried.
struct NotifyRequest {
    agent: AgentName,
    /// Catalogue for an agent that has no section of its own.
    catalogue: Option<Arc<Catalogue>>,
    tried: oneshot::Sender<()>,
}

/// The outcome of notifying one agent.
struct Sent {
    agent: AgentName,
    before: Option<EffectiveTools>,
    now: EffectiveTools,
    failure: Option<PublishError>,
}

impl NotifyHandle {
    /// Sends an agent everything, and returns when that was tried. From now on the agent is notified of changes.
    pub async fn notify(&self, caller: &Caller) {
        let Some(agent) = &caller.agent else { return };
        let effective = self.policy.effective(caller);
        let catalogue = effective.has_no_section().then(|| Arc::clone(effective.catalogue()));
        let (tried, wait) = oneshot::channel();
        if self.requests.send(NotifyRequest { agent: agent.clone(), catalogue, tried }).await.is_ok() {
            let _ = wait.await;
        }
    }
}

impl<N: NotificationSource> ChangeNotifier<N> {
    /// Notifies of changes from now on, as `name`.
    pub(crate) fn new(
        source: N,
        name: String,
        policy: PolicyHandle,
        bus: Arc<dyn Bus>,
        random: Random,
        callers: RecentCallers,
    ) -> (Self, NotifyHandle) {
        let known = match source.notifies_at_start() {
            true => HashMap::new(),
            false => policy.configured_agents().into_iter().map(|agent| (agent.clone(), of(&policy, agent))).collect(),
        };
        let (sender, requests) = mpsc::channel(MAX_REQUESTS);
        let handle = NotifyHandle { policy: policy.clone(), requests: sender };
        (Self { source: Arc::new(source), name, policy, bus, random, callers, known, requests }, handle)
    }

    /// Notifies every agent for which something changes, until dropped.
    pub async fn run(mut self) {
        let mut changes = self.policy.changes();
        // Every agent is compared once: for what it gets at the start, and for changes since this was made.
        let clock = self.callers.clock;
        let mut due = Some(clock.now());
        let mut batch = Vec::new();
        loop {
            let at = due.unwrap_or_else(|| clock.now());
            // Biased, so that the same run twice notifies in the same order. No branch is ready again and again.
            tokio::select! {
                biased;
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let soon = clock.now() + DEBOUNCE;
                    due = Some(due.map_or(soon, |due| due.min(soon)));
                }
                () = tokio::time::sleep_until(at.into()), if due.is_some() => {
                    changes.mark_unchanged();
                    due = self.notify_changed().await;
                }
                1.. = self.requests.recv_many(&mut batch, MAX_REQUESTS) => {
                    let retry = self.notify_requested(&mut batch).await;
                    due = [due, retry].into_iter().flatten().min();
                }
            }
        }
    }

    /// Notifies every agent for which something has changed; returns when to try again, if that would help.
    async fn notify_changed(&mut self) -> Option<Instant> {
        let mut agents = self.policy.configured_agents();
        agents.extend(self.callers.lately());
        if !self.source.notifies_at_start() {
            for (agent, first) in self.callers.take_firsts() {
                let then = EffectiveTools::new(first, &Caller::agent(agent.clone()));
                self.known.entry(agent).or_insert(then);
            }
            for (agent, listed) in self.callers.take_listed() {
                self.known.insert(agent.clone(), EffectiveTools::new(listed, &Caller::agent(agent)));
            }
        }
        let mut known = std::mem::take(&mut self.known);
        let all = agents.into_iter().map(|agent| {
            let before = known.remove(&agent);
            (agent, before)
        });
        self.notify(all.collect()).await
    }

    /// Sends everything to the agents of these requests.
    async fn notify_requested(&mut self, batch: &mut Vec<NotifyRequest>) -> Option<Instant> {
        // An agent with two requests is notified once.
        let mut requests: BTreeMap<AgentName, Vec<oneshot::Sender<()>>> = BTreeMap::new();
        for NotifyRequest { agent, catalogue, tried } in batch.drain(..) {
            if let Some(catalogue) = catalogue {
                self.callers.note(&agent, &catalogue);
            }
            requests.entry(agent).or_default().push(tried);
        }
        for agent in requests.keys() {
            self.known.remove(agent);
        }
        self.notify(requests.keys().map(|agent| (agent.clone(), None)).collect()).await
    }

    /// Notifies each of these agents of what is new to it.
    async fn notify(&mut self, agents: Vec<(AgentName, Option<EffectiveTools>)>) -> Option<Instant> {
        let this = &*self;
        let all = stream::iter(agents).map(|(agent, before)| this.notify_one(agent, before));
        let all: Vec<Sent> = all.buffer_unordered(MAX_CONCURRENT).collect().await;
        let (mut untold, mut retry) = (0_usize, None);
        let mut last = None;
        for Sent { agent, before, now, failure } in all {
            let known = match failure {
                None => Some(now),
                // Notified of this change with the next.
                Some(reason) => {
                    untold += 1;
                    if matches!(reason, PublishError::Unavailable(_)) {
                        retry = Some(self.callers.clock.now() + RETRY);
                    }
                    last = Some((agent.to_string(), reason));
                    before
                }
            };
            self.known.extend(known.map(|known| (agent, known)));
        }
        if let Some((agent, reason)) = last {
            let kind = self.source.message_type();
            tracing::warn!(untold, agent, %reason, kind, "agents were not notified of a change");
        }
        retry
    }

    async fn notify_one(&self, agent: AgentName, before: Option<EffectiveTools>) -> Sent {
        // Comparing the sets of many agents takes a while; other tasks run meanwhile.
        tokio::task::yield_now().await;
        let now = of(&self.policy, agent.clone());
        let mut failure = None;
        if let Some(topic) = self.source.topic(&agent) {
            // Thousands of definitions are compared and hashed, beside the threads that calls run on.
            let (source, earlier, later) = (Arc::clone(&self.source), before.clone(), now.clone());
            let of = agent.clone();
            if before.is_none() {
                self.source.recall(&agent, &now).await;
            }
            let bodies = spawn_blocking(move || source.messages(&of, earlier.as_ref(), &later)).await;
            for body in bodies.unwrap_or_default() {
                let message = self.message(&agent, &topic, body);
                let published = tokio::time::timeout(PUBLISH_TIMEOUT, self.bus.publish(&message)).await;
                let late = |_| Err(PublishError::Unavailable("no confirm in time".to_owned()));
                if let Err(error) = published.unwrap_or_else(late) {
                    failure = Some(error);
                    break;
                }
            }
            if failure.is_none() {
                self.source.keep(&agent, &now).await;
            }
        }
        Sent { agent, before, now, failure }
    }

    fn message(&self, agent: &AgentName, topic: &str, body: Vec<u8>) -> Outgoing {
        let mut envelope =
            Envelope::outgoing(self.source.message_type(), &self.name, self.random.id(), self.callers.clock.wall())
                .with_header(header::CONTENT_TRUST, header::TRUST_SYSTEM);
        envelope.destination = Some(agent.to_string());
        Outgoing {
            target: Target::Topic(topic.to_owned()),
            // An agent that does not listen misses nothing: it can request everything.
            mandatory: false,
            proven: false,
            properties: envelope.into_properties().into(),
            body: body.into(),
        }
    }
}

/// Tools that an agent has without a binding, and with its own profile.
fn of(policy: &PolicyHandle, agent: AgentName) -> EffectiveTools {
    policy.effective(&Caller::agent(agent))
}

/// `tool.meta.tools.{agent}`: the names of the tools that an agent may use. An agent lists them by `tool.list`; it is
/// notified of changes only.
pub struct ToolNames;

impl NotificationSource for ToolNames {
    fn topic(&self, agent: &AgentName) -> Option<String> {
        Some(topic::tools_changed(agent.as_str()))
    }

    fn message_type(&self) -> &'static str {
        message_type::TOOLS_CHANGED
    }

    fn notifies_at_start(&self) -> bool {
        false
    }

    fn messages(&self, _: &AgentName, before: Option<&EffectiveTools>, now: &EffectiveTools) -> Vec<Vec<u8>> {
        let changed = before.filter(|before| !before.lists_like(now));
        changed.map(|before| serde_json::to_vec(&difference(before, now)).unwrap_or_default()).into_iter().collect()
    }
}

fn difference(before: &EffectiveTools, now: &EffectiveTools) -> ToolsChanged {
    let names = |effective: &EffectiveTools| effective.names().map(str::to_owned).collect::<BTreeSet<_>>();
    let (before, after) = (names(before), names(now));
    ToolsChanged {
        version: now.version().to_string(),
        added: after.difference(&before).cloned().collect(),
        removed: before.difference(&after).cloned().collect(),
    }
}

/// Agents without a section of their own that called, and what agents were listed.
#[derive(Clone)]
pub(crate) struct RecentCallers {
    clock: Clock,
    seen: Arc<Mutex<LruCache<AgentName, LastCall>>>,
    /// Catalogue at the time when an agent listed its tools last, until that has been compared.
    listed: Arc<Mutex<LruCache<AgentName, Arc<Catalogue>>>>,
}

/// When an agent called last, and the catalogue of its first call until that has been compared.
struct LastCall {
    last: Instant,
    first: Option<Arc<Catalogue>>,
}

impl RecentCallers {
    /// No callers yet.
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            seen: Arc::new(Mutex::new(LruCache::new(MAX_SEEN))),
            listed: Arc::new(Mutex::new(LruCache::new(MAX_LISTED))),
        }
    }

    /// Notes that an agent called.
    pub(crate) fn note(&self, agent: &AgentName, catalogue: &Arc<Catalogue>) {
        let now = self.clock.now();
        let mut seen = self.seen();
        match seen.get_mut(agent) {
            Some(visit) => visit.last = now,
            None => drop(seen.put(agent.clone(), LastCall { last: now, first: Some(Arc::clone(catalogue)) })),
        }
    }

    /// Notes that an agent has listed all of its tools.
    pub(crate) fn note_list(&self, agent: &AgentName, catalogue: &Arc<Catalogue>) {
        self.listed().put(agent.clone(), Arc::clone(catalogue));
    }

    /// Takes the catalogues of the time when agents listed their tools last; each is given once.
    fn take_listed(&self) -> Vec<(AgentName, Arc<Catalogue>)> {
        let mut listed = self.listed();
        std::iter::from_fn(|| listed.pop_lru()).collect()
    }

    /// The agents that called lately.
    fn lately(&self) -> Vec<AgentName> {
        let mut seen = self.seen();
        let is_old =
            |(agent, visit): (&AgentName, &LastCall)| (self.clock.since(visit.last) >= LATELY).then(|| agent.clone());
        let old: Vec<AgentName> = seen.iter().filter_map(is_old).collect();
        for agent in old {
            seen.pop(&agent);
        }
        seen.iter().map(|(agent, _)| agent.clone()).collect()
    }

    /// Takes the catalogue of the time of each agent's first call; each is given once.
    fn take_firsts(&self) -> Vec<(AgentName, Arc<Catalogue>)> {
        self.seen().iter_mut().filter_map(|(agent, visit)| Some((agent.clone(), visit.first.take()?))).collect()
    }

    fn seen(&self) -> MutexGuard<'_, LruCache<AgentName, LastCall>> {
        self.seen.lock()
    }

    fn listed(&self) -> MutexGuard<'_, LruCache<AgentName, Arc<Catalogue>>> {
        self.listed.lock()
    }
}
