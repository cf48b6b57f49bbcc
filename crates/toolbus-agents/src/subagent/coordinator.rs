//! Brings tasks to the agents that volunteer, and what they report to the agents that gave the tasks.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, TryFutureExt as _};
use parking_lot::Mutex;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use toolbus_core::bus::{Bus, Outgoing, PublishError, Routing, Target};
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::events::SubagentEvents;
use toolbus_core::store::Store;
use toolbus_core::text::{shortened, shown};
use toolbus_core::throttle::Throttle;
use toolbus_core::{Clock, ControlError, ControlHandler, ControlReply, ControlRequest};
use toolbus_protocol::{
    Envelope, Random, SubagentCancelMessage, SubagentProgressMessage, SubagentResultMessage, SubagentTaskMessage,
    derived_message_id, header, message_type, topic,
};

use super::config::SubagentsConfig;
use super::task::{Ignored, SubagentEnd, SubagentTask, forget_ended};
use crate::share_plan::SharePlan;
use crate::share_values::{ShareValueError, ShareValues};
use crate::texts::rfc3339;

/// The profile that an agent works on a task with.
const PROFILE: &str = "subagent";
/// Longest wait for the confirm of a message.
const PUBLISH_TIME: Duration = Duration::from_secs(10);
/// Time between two sweeps for expired tasks and undelivered results.
const PERIOD: Duration = Duration::from_secs(5);
/// Shortest time of a task.
const MIN_TIME: Duration = Duration::from_secs(60);
/// Digits of the digest of a share that the ids of its tasks begin with.
const SHARE_DIGITS: usize = 8;
/// Digits of an id after that.
const ID_DIGITS: usize = 16;
/// Longest report of progress, in characters.
const MAX_PROGRESS: usize = 1000;

/// The tasks of agents for others. Cheap to clone.
#[derive(Clone)]
pub struct Subagents {
    pub(super) config: Arc<SubagentsConfig>,
    pub(super) tasks: ShareValues,
    pub(super) boards: ShareValues,
    bus: Arc<dyn Bus>,
    events: Arc<dyn SubagentEvents>,
    /// The daemon's name.
    name: Arc<str>,
    pub(super) clock: Clock,
    random: Random,
    /// When the tasks of each share are looked at.
    plan: Arc<tokio::sync::Mutex<SharePlan>>,
    /// Shares with a result that did not arrive: they are looked at soon.
    undelivered: Arc<Mutex<BTreeSet<String>>>,
    ignored: Arc<Throttle>,
    away: Arc<Throttle>,
    lost: Arc<Throttle>,
}

/// Reason why a message did not arrive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotPublished {
    #[error("no queue takes it")]
    Unroutable,
    #[error(transparent)]
    Bus(#[from] PublishError),
    #[error("the broker has not confirmed it in time")]
    Late,
}

impl NotPublished {
    /// Whether no queue has the message; else that is not known.
    pub(super) const fn is_certain(&self) -> bool {
        match self {
            Self::Unroutable => true,
            Self::Bus(error) => error.is_certain(),
            Self::Late => false,
        }
    }
}

impl Subagents {
    /// Tasks that are kept in `store` and travel over `bus`.
    #[must_use]
    pub fn new(
        config: &SubagentsConfig,
        store: &Arc<dyn Store>,
        bus: Arc<dyn Bus>,
        events: Arc<dyn SubagentEvents>,
        name: &str,
        (clock, random): (Clock, Random),
    ) -> Self {
        Self {
            config: Arc::new(config.clone()),
            tasks: ShareValues::new(Arc::clone(store), "subagents"),
            boards: ShareValues::new(Arc::clone(store), "whiteboards"),
            bus,
            events,
            name: name.into(),
            clock,
            random,
            plan: Arc::new(tokio::sync::Mutex::new(SharePlan::new(MIN_TIME))),
            undelivered: Arc::default(),
            ignored: Arc::default(),
            away: Arc::default(),
            lost: Arc::default(),
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.since_epoch().as_secs()
    }

    /// An id for a task, which begins with the digits of its share.
    pub(super) fn task_id(&self, share: &str) -> String {
        let random = self.random.id();
        format!("{}{}", digits(share), random.get(..ID_DIGITS).unwrap_or(&random))
    }

    /// The share whose task may have this id.
    pub(super) async fn share_of(&self, task: &str) -> Result<Option<String>, ShareValueError> {
        let shares = self.tasks.shares().await?;
        Ok(shares.into_iter().find(|share| task.strip_prefix(&digits(share)).is_some()))
    }

    /// The agents of a pool.
    pub(super) fn pool(&self, name: &str) -> &[AgentName] {
        self.config.pools.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Times out tasks and delivers pending results, until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            if let Err(error) = self.sweep().await
                && self.away.due().is_some()
            {
                tracing::warn!(%error, "tasks of sub-agents cannot be read or changed");
            }
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Looks at the tasks of the shares that are due.
    pub(super) async fn sweep(&self) -> Result<(), ShareValueError> {
        let (now, mut plan) = (self.now(), self.plan.lock().await);
        let mut failed = None;
        std::mem::take(&mut *self.undelivered.lock()).into_iter().for_each(|share| plan.hurry(share));
        for share in plan.due(&self.tasks, now).await? {
            // Tasks that cannot be read keep none of the others from being.
            match self.sweep_share(&share, now).await {
                Ok(next) => plan.plan(share, next, now),
                Err(error) => failed = Some(error),
            }
        }
        drop(plan);
        failed.map_or(Ok(()), Err)
    }

    /// Times out tasks of a share and delivers its pending results; returns when something is due next.
    async fn sweep_share(&self, share: &str, now: u64) -> Result<Option<u64>, ShareValueError> {
        let mut tasks: Vec<SubagentTask> = self.tasks.read(share).await?;
        if tasks.iter().any(|task| task.end.is_none() && task.deadline <= now) {
            let expired = self.tasks.update(share, |tasks: &mut Vec<SubagentTask>| {
                let expired: Vec<SubagentTask> =
                    tasks.iter_mut().filter_map(|task| task.expire(now).then(|| task.clone())).collect();
                Ok::<_, Infallible>((expired, tasks.clone()))
            });
            let Ok((expired, left)) = expired.await?;
            for task in expired {
                self.call_off(&task, "Its time is over.").await;
            }
            tasks = left;
        }
        let mut next = tasks.iter().filter(|task| task.end.is_none()).map(|task| task.deadline).min();
        for task in tasks.iter().filter(|task| task.end.as_ref().is_some_and(|end| !end.is_told)) {
            if !self.deliver(share, task).await? {
                next = Some(now);
            }
        }
        Ok(next)
    }

    /// Publishes a task to its pool.
    pub(super) async fn offer(&self, task: &SubagentTask, context: Option<String>) -> Result<(), NotPublished> {
        let body = SubagentTaskMessage {
            task_id: task.id.clone(),
            subagent_session_id: task.session.clone(),
            primary_session_id: task.primary_session.clone(),
            agent: task.agent.to_string(),
            description: task.description.clone(),
            context,
            deadline: rfc3339(task.deadline),
        };
        let mut envelope = self.envelope(message_type::SUBAGENT_TASK_MESSAGE, task, "task");
        envelope = envelope.with_header(header::TOOL_PROFILE, PROFILE);
        topic::SUBAGENT_REPORT.clone_into(&mut envelope.reply_to);
        self.publish(topic::subagent_task(&task.pool), envelope, &body, true).await
    }

    /// Cancels a task at its pool; later reports of agents that miss the message are ignored.
    pub(super) async fn call_off(&self, task: &SubagentTask, reason: &str) {
        let body = SubagentCancelMessage { task_id: task.id.clone(), reason: reason.to_owned() };
        let envelope = self.envelope(message_type::SUBAGENT_CANCEL_MESSAGE, task, "cancel");
        let _ = self.publish(topic::subagent_cancel(&task.pool), envelope, &body, false).await;
    }

    /// Publishes the result of a task to the agent that gave it; returns whether it has arrived.
    async fn deliver(&self, share: &str, task: &SubagentTask) -> Result<bool, ShareValueError> {
        let Some(end) = &task.end else { return Ok(true) };
        let body = SubagentResultMessage {
            task_id: task.id.clone(),
            subagent_session_id: task.session.clone(),
            primary_session_id: task.primary_session.clone(),
            output: end.output.clone(),
            is_success: end.is_success,
            error: end.error.clone(),
            timestamp: rfc3339(end.at),
        };
        let envelope = self.to_agent(message_type::SUBAGENT_RESULT_MESSAGE, task, "result");
        let has_arrived =
            self.publish(topic::subagent_result(task.agent.as_str()), envelope, &body, true).await.is_ok();
        if has_arrived {
            let marked = self.tasks.update(share, |tasks: &mut Vec<SubagentTask>| {
                let end = tasks.iter_mut().find(|one| one.id == task.id).and_then(|one| one.end.as_mut());
                end.into_iter().for_each(|end| end.is_told = true);
                Ok::<_, Infallible>(())
            });
            let Ok(()) = marked.await?;
        }
        Ok(has_arrived)
    }

    /// Takes a report, and counts it.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or has to come again because the store is away.
    pub(super) async fn take_report(&self, kind: &str, sender: &Caller, body: &[u8]) -> Result<(), ControlError> {
        let agent = sender.agent.as_ref();
        let taken = if kind == message_type::SUBAGENT_PROGRESS_MESSAGE {
            self.progressed(agent, SubagentProgressMessage::parse(body)?).await
        } else if kind == message_type::SUBAGENT_RESULT_MESSAGE {
            self.ended(agent, SubagentResultMessage::parse(body)?).await
        } else {
            return Err(ControlError::Type(shown(kind)));
        };
        let outcome = match taken {
            Ok(Ok(())) => "taken",
            Ok(Err(ignored)) => {
                if let Some(left_out) = self.ignored.due() {
                    let (sender, reason) = (shown(&sender.name), ignored.as_str());
                    tracing::warn!(sender, reason, left_out, "ignored a report of a sub-agent");
                }
                ignored.as_str()
            }
            Err(error) if error.is_passing() => {
                if let Some(left_out) = self.away.due() {
                    tracing::warn!(%error, left_out, "a report of a sub-agent goes back to its queue");
                }
                return Err(ControlError::StoreAway);
            }
            Err(error) => {
                if let Some(left_out) = self.lost.due() {
                    tracing::error!(%error, left_out, "a report of a sub-agent was lost: its task cannot be changed");
                }
                "lost"
            }
        };
        self.events.reported(outcome);
        Ok(())
    }

    /// Takes a report of progress; `Ok` if it comes from the agent that works on the task.
    pub(super) async fn progressed(
        &self,
        sender: Option<&AgentName>,
        report: SubagentProgressMessage,
    ) -> Result<Result<(), Ignored>, ShareValueError> {
        let claimed = self.change(sender, &report.task_id, |_| {}).await?;
        let Ok((_, task)) = claimed else { return Ok(claimed.map(drop)) };
        let body = SubagentProgressMessage {
            task_id: task.id.clone(),
            subagent_session_id: task.session.clone(),
            primary_session_id: task.primary_session.clone(),
            message: shortened(&report.message, MAX_PROGRESS).into_owned(),
            timestamp: rfc3339(self.now()),
        };
        let mut envelope = self.to_agent(message_type::SUBAGENT_PROGRESS_MESSAGE, &task, "progress");
        envelope.message_id = Some(self.random.id());
        let _ = self.publish(topic::subagent_progress(task.agent.as_str()), envelope, &body, false).await;
        Ok(Ok(()))
    }

    /// Takes a result, and delivers it.
    pub(super) async fn ended(
        &self,
        sender: Option<&AgentName>,
        report: SubagentResultMessage,
    ) -> Result<Result<(), Ignored>, ShareValueError> {
        let now = self.now();
        let SubagentResultMessage { output, is_success, error, .. } = report;
        let ended = self.change(sender, &report.task_id, |task| {
            let (output, error) = (output.clone(), error.clone());
            task.end = Some(SubagentEnd { at: now, output, is_success, error, is_told: false });
        });
        let ended = ended.await?;
        let Ok((share, task)) = ended else { return Ok(ended.map(drop)) };
        // It is kept: a failed delivery is repeated later.
        if !matches!(self.deliver(&share, &task).await, Ok(true)) {
            self.undelivered.lock().insert(share);
        }
        Ok(Ok(()))
    }

    /// Changes a task that its sender works on, or begins to work on by this; returns it with its share.
    pub(super) async fn change(
        &self,
        sender: Option<&AgentName>,
        id: &str,
        change: impl Fn(&mut SubagentTask),
    ) -> Result<Result<(String, SubagentTask), Ignored>, ShareValueError> {
        // Outsiders make the daemon read nothing.
        if !sender.is_some_and(|sender| self.config.pools.values().flatten().any(|agent| agent == sender)) {
            return Ok(Err(Ignored::NotAsked));
        }
        let Some(share) = self.share_of(id).await? else { return Ok(Err(Ignored::NoTask)) };
        let now = self.now();
        let changed = self.tasks.update(&share, |tasks: &mut Vec<SubagentTask>| {
            let task = tasks.iter_mut().find(|task| task.id == id).ok_or(Ignored::NoTask)?;
            task.claim(sender, self.pool(&task.pool.clone()), now)?;
            change(task);
            let task = task.clone();
            forget_ended(tasks);
            Ok(task)
        });
        Ok(changed.await?.map(|task| (share, task)))
    }

    /// The envelope of a message about a task.
    fn envelope(&self, kind: &str, task: &SubagentTask, purpose: &str) -> Envelope {
        let id = derived_message_id(task.agent.as_str(), &task.id, purpose);
        let mut envelope = Envelope::outgoing(kind, &self.name, id, self.clock.wall());
        task.id.clone_into(&mut envelope.correlation_id);
        envelope
    }

    /// The same for the agent that gave it, with words of another agent in it.
    fn to_agent(&self, kind: &str, task: &SubagentTask, purpose: &str) -> Envelope {
        let envelope = self.envelope(kind, task, purpose);
        Envelope { destination: Some(task.agent.to_string()), ..envelope }
            .with_header(header::CONTENT_TRUST, header::TRUST_TOOL_OUTPUT)
    }

    async fn publish(
        &self,
        topic: String,
        envelope: Envelope,
        body: &impl Serialize,
        mandatory: bool,
    ) -> Result<(), NotPublished> {
        let message = Outgoing {
            target: Target::Topic(topic),
            mandatory,
            proven: false,
            properties: envelope.into_properties().into(),
            body: serde_json::to_vec(body).unwrap_or_default().into(),
        };
        match tokio::time::timeout(PUBLISH_TIME, self.bus.publish(&message)).await {
            Ok(Ok(Routing::Routed)) => Ok(()),
            Ok(Ok(Routing::Unroutable)) => Err(NotPublished::Unroutable),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(NotPublished::Late),
        }
    }
}

/// Takes reports of sub-agents. None has a reply: a report that does not count is counted and ignored.
impl ControlHandler for Subagents {
    fn message_type(&self) -> Option<&'static str> {
        None
    }

    fn handle<'a>(&'a self, asked: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        let (kind, sender) = (&*asked.envelope.message_type, &*asked.caller);
        self.take_report(kind, sender, &asked.body).map_ok(|()| None).boxed()
    }
}

/// Returns the digits that ids of tasks of a share begin with.
fn digits(share: &str) -> String {
    let mut digest = derived_message_id(share, "", "");
    digest.truncate(SHARE_DIGITS);
    digest
}
