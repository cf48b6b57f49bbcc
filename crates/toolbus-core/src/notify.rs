//! What agents are told without being asked, because it changed for them.

mod callers;
mod tools;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::{self, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use toolbus_protocol::{Envelope, header, new_message_id};

use crate::bus::{Bus, Outgoing, PublishError, Target};
use crate::caller::{AgentName, Caller};
use crate::policy::{Catalogue, EffectiveTools, PolicyHandle};

pub(crate) use callers::Callers;
pub use tools::ToolNames;

/// Changes that come close together are told as one.
const DEBOUNCE: Duration = Duration::from_millis(250);
/// Wait before agents are told once more that could not be told because the broker was away.
const RETRY: Duration = Duration::from_secs(5);
/// Agents that are told at a time.
const MAX_AT_A_TIME: usize = 32;
/// Longest wait for the confirm of one announcement.
const PUBLISH_TIME: Duration = Duration::from_secs(5);
/// Agents that can wait to be told what they asked for.
const MAX_ASKING: usize = 64;

/// Something that agents are told of.
pub trait News: Send + Sync + 'static {
    /// Where an agent hears of it; absent for one that cannot be told.
    fn topic(&self, agent: &AgentName) -> Option<String>;

    /// The type of the messages.
    fn message_type(&self) -> &'static str;

    /// Whether agents that are configured know nothing at the start, so that they are told everything then.
    fn begins_untold(&self) -> bool;

    /// The bodies of the messages for an agent that had `before` and has `now`: none when nothing has changed. Without
    /// `before` the agent knows nothing, or has asked for everything.
    fn told(&self, before: Option<&EffectiveTools>, now: &EffectiveTools) -> Vec<Vec<u8>>;
}

/// Tells agents of changes.
pub struct ChangeNotifier<N> {
    news: Arc<N>,
    name: String,
    access: PolicyHandle,
    bus: Arc<dyn Bus>,
    callers: Callers,
    /// What each agent was told, or could have listed, last.
    known: HashMap<AgentName, EffectiveTools>,
    questions: mpsc::Receiver<Question>,
}

/// Asks an announcer to tell an agent everything. Cheap to clone.
#[derive(Clone)]
pub struct NotifyHandle {
    access: PolicyHandle,
    questions: mpsc::Sender<Question>,
}

/// An agent that wants to be told everything, and what is dropped when that was tried.
struct Question {
    agent: AgentName,
    /// What there is, for an agent that has no section of its own.
    catalogue: Option<Arc<Catalogue>>,
    tried: oneshot::Sender<()>,
}

/// What became of telling an agent.
struct Told {
    agent: AgentName,
    before: Option<EffectiveTools>,
    now: EffectiveTools,
    failure: Option<PublishError>,
}

impl NotifyHandle {
    /// Has an agent told everything, and returns when that was tried. From now on the agent is told of changes.
    pub async fn tell(&self, caller: &Caller) {
        let Some(agent) = &caller.agent else { return };
        let effective = self.access.effective(caller);
        let catalogue = effective.is_everybody().then(|| Arc::clone(effective.catalogue()));
        let (tried, wait) = oneshot::channel();
        if self.questions.send(Question { agent: agent.clone(), catalogue, tried }).await.is_ok() {
            let _ = wait.await;
        }
    }
}

impl<N: News> ChangeNotifier<N> {
    /// Tells of changes from now on, as `name`.
    pub(crate) fn new(
        news: N,
        name: String,
        access: PolicyHandle,
        bus: Arc<dyn Bus>,
        callers: Callers,
    ) -> (Self, NotifyHandle) {
        let known = match news.begins_untold() {
            true => HashMap::new(),
            false => access.configured_agents().into_iter().map(|agent| (agent.clone(), of(&access, agent))).collect(),
        };
        let (sender, questions) = mpsc::channel(MAX_ASKING);
        let asking = NotifyHandle { access: access.clone(), questions: sender };
        (Self { news: Arc::new(news), name, access, bus, callers, known, questions }, asking)
    }

    /// Tells every agent for which something changes, until dropped.
    pub async fn run(mut self) {
        let mut changes = self.access.changes();
        // Everybody is looked at once: what was untold at the start, and what has changed since this was made.
        let mut due = Some(Instant::now());
        let mut asking = Vec::new();
        loop {
            let at = due.unwrap_or_else(Instant::now);
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let soon = Instant::now() + DEBOUNCE;
                    due = Some(due.map_or(soon, |due| due.min(soon)));
                }
                () = tokio::time::sleep_until(at), if due.is_some() => {
                    changes.mark_unchanged();
                    due = self.tell_changes().await;
                }
                1.. = self.questions.recv_many(&mut asking, MAX_ASKING) => {
                    let retry = self.tell_everything(&mut asking).await;
                    due = [due, retry].into_iter().flatten().min();
                }
            }
        }
    }

    /// Tells everybody for whom something has changed; says when to try again, if that would help.
    async fn tell_changes(&mut self) -> Option<Instant> {
        let mut agents = self.access.configured_agents();
        agents.extend(self.callers.lately());
        if !self.news.begins_untold() {
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
        self.tell(all.collect()).await
    }

    /// Tells those who ask.
    async fn tell_everything(&mut self, asking: &mut Vec<Question>) -> Option<Instant> {
        // Whoever asks twice is told once.
        let mut questions: BTreeMap<AgentName, Vec<oneshot::Sender<()>>> = BTreeMap::new();
        for Question { agent, catalogue, tried } in asking.drain(..) {
            if let Some(catalogue) = catalogue {
                self.callers.note(&agent, &catalogue);
            }
            questions.entry(agent).or_default().push(tried);
        }
        for agent in questions.keys() {
            self.known.remove(agent);
        }
        self.tell(questions.keys().map(|agent| (agent.clone(), None)).collect()).await
    }

    /// Tells each of these agents what is new to it.
    async fn tell(&mut self, agents: Vec<(AgentName, Option<EffectiveTools>)>) -> Option<Instant> {
        let this = &*self;
        let all = stream::iter(agents).map(|(agent, before)| this.tell_one(agent, before));
        let all: Vec<Told> = all.buffer_unordered(MAX_AT_A_TIME).collect().await;
        let (mut untold, mut retry) = (0_usize, None);
        let mut last = None;
        for Told { agent, before, now, failure } in all {
            let known = match failure {
                None => Some(now),
                // They are told of this change with the next.
                Some(reason) => {
                    untold += 1;
                    if matches!(reason, PublishError::Unavailable(_)) {
                        retry = Some(Instant::now() + RETRY);
                    }
                    last = Some((agent.to_string(), reason));
                    before
                }
            };
            self.known.extend(known.map(|known| (agent, known)));
        }
        if let Some((agent, reason)) = last {
            let kind = self.news.message_type();
            tracing::warn!(untold, agent, %reason, kind, "agents were not told of a change");
        }
        retry
    }

    async fn tell_one(&self, agent: AgentName, before: Option<EffectiveTools>) -> Told {
        // Looking at many agents takes a while, and others want to run meanwhile.
        tokio::task::yield_now().await;
        let now = of(&self.access, agent.clone());
        let mut failure = None;
        if let Some(topic) = self.news.topic(&agent) {
            // Thousands of definitions are compared and hashed, beside the threads that calls run on.
            let (news, earlier, later) = (Arc::clone(&self.news), before.clone(), now.clone());
            let bodies = spawn_blocking(move || news.told(earlier.as_ref(), &later)).await;
            for body in bodies.unwrap_or_default() {
                let message = self.message(&agent, &topic, body);
                let published = tokio::time::timeout(PUBLISH_TIME, self.bus.publish(&message)).await;
                let late = |_| Err(PublishError::Unavailable("no confirm in time".to_owned()));
                if let Err(error) = published.unwrap_or_else(late) {
                    failure = Some(error);
                    break;
                }
            }
        }
        Told { agent, before, now, failure }
    }

    fn message(&self, agent: &AgentName, topic: &str, body: Vec<u8>) -> Outgoing {
        let properties = Envelope {
            message_id: Some(new_message_id()),
            message_type: self.news.message_type().to_owned(),
            timestamp: SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs()),
            source: Some(self.name.clone()),
            destination: Some(agent.to_string()),
            headers: vec![(header::CONTENT_TRUST.to_owned(), header::TRUST_SYSTEM.to_owned())],
            ..Envelope::default()
        };
        Outgoing {
            target: Target::Topic(topic.to_owned()),
            // An agent that does not listen misses nothing: it asks when it wants to know.
            mandatory: false,
            proven: false,
            properties: properties.into_properties().into(),
            body: body.into(),
        }
    }
}

/// What an agent has without a binding, and with its own profile.
fn of(access: &PolicyHandle, agent: AgentName) -> EffectiveTools {
    access.effective(&Caller::agent(agent))
}
