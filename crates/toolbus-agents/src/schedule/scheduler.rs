//! Publishes what is due.
//!
//! One process does so at a time: where processes share a store, the one that holds the lease. A task stays due until
//! the broker has confirmed its message and put it into a queue; then the store is told, so that a crash between the two
//! publishes the message again, with the same id.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::bus::{Bus, Outgoing, PublishError, Routing, Target};
use toolbus_protocol::{Envelope, Random, ScheduledTaskMessage, derived_message_id, header, message_type, topic};

use super::config::ScheduleConfig;
use super::lease::Lease;
use super::task::{DueTimes, Task};
use super::task_store::TaskStore;
use crate::share_values::ShareValueError;

/// Longest time between two looks at the clock and at what other processes have changed.
const PERIOD: Duration = Duration::from_millis(500);
/// Time after which everything is read again.
const RELOAD: Duration = Duration::from_secs(60);
/// How far the clock may be set back before everything is read again.
const SET_BACK: Duration = Duration::from_secs(60);
/// Longest wait for a confirm.
const PUBLISH_TIME: Duration = Duration::from_secs(4);
/// First time between two tries of a message that no queue takes; doubled up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_secs(5);
const MAX_RETRY: Duration = Duration::from_secs(5 * 60);
/// Agents whose tasks are published at a time, and tasks of each.
const SHARES: usize = 32;
const MESSAGES: usize = 64;
/// The profile under which agents do what was scheduled.
const PROFILE: &str = "scheduled";

/// Publishes the tasks of a store when they are due.
pub struct Scheduler {
    tasks: TaskStore,
    config: ScheduleConfig,
    bus: Arc<dyn Bus>,
    /// This daemon's name: the source of its messages.
    name: String,
    clock: Clock,
    /// `None` where no other process uses the store.
    lease: Option<Lease>,
    /// When each share is due next, in milliseconds since 1970.
    due: BTreeMap<String, u64>,
    /// What could not be published, by the id of its task.
    failing: HashMap<String, Retry>,
    /// What was published, and the store could not be told, by the id of its task.
    unsettled: HashMap<String, Published>,
    /// The last change that was read, and when everything was.
    read: Option<(Option<Vec<u8>>, Instant)>,
    /// The latest time of the wall clock.
    latest: Duration,
    is_away: bool,
}

/// A task whose message was not taken.
#[derive(Debug, Clone, Copy)]
struct Retry {
    tries: u32,
    /// In milliseconds since 1970.
    at: u64,
}

/// What was published of a task.
struct Published {
    id: String,
    /// As it was when the task was read.
    next: u64,
    last: Option<u64>,
    /// The first time that is not published; absent where the task has ended.
    then: Option<u64>,
    failure: Option<PublishFailure>,
}

/// Why a message was not published.
#[derive(Debug, thiserror::Error)]
enum PublishFailure {
    #[error("no queue is bound to `scheduled.task.{0}`")]
    Unroutable(String),
    #[error(transparent)]
    Refused(#[from] PublishError),
    #[error("the broker does not confirm it")]
    Late,
    #[error("the expression cannot be read: {0}")]
    Cron(String),
    #[error("another process may publish by now")]
    LeaseEnded,
}

impl Scheduler {
    /// A scheduler; `is_shared` says that other processes may use the store.
    #[must_use]
    pub fn new(
        tasks: TaskStore,
        config: ScheduleConfig,
        bus: Arc<dyn Bus>,
        name: String,
        is_shared: bool,
        (clock, random): (Clock, Random),
    ) -> Self {
        let lease = is_shared.then(|| Lease::new(Arc::clone(tasks.store()), random.id(), clock));
        let (due, failing, unsettled) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        Self {
            tasks,
            config,
            bus,
            name,
            clock,
            lease,
            due,
            failing,
            unsettled,
            read: None,
            latest: Duration::ZERO,
            is_away: false,
        }
    }

    /// Publishes what is due until `stop` is cancelled; then it leaves the rest to other processes.
    pub async fn run(mut self, stop: CancellationToken) {
        let tasks = self.tasks.clone();
        while !stop.is_cancelled() {
            let wait = match self.step().await {
                Ok(wait) => {
                    if std::mem::take(&mut self.is_away) {
                        tracing::info!("scheduled tasks can be read again");
                    }
                    wait
                }
                Err(error) => {
                    self.read = None;
                    if !std::mem::replace(&mut self.is_away, true) {
                        tracing::warn!(%error, "scheduled tasks cannot be read: none is published");
                    }
                    PERIOD
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = tasks.changed() => {}
                () = stop.cancelled() => {}
            }
        }
        if let Some(lease) = &mut self.lease {
            lease.release().await;
        }
    }

    /// Publishes what is due now; returns how long to wait.
    async fn step(&mut self) -> Result<Duration, ShareValueError> {
        let until = match &mut self.lease {
            None => None,
            Some(lease) => match lease.hold().await? {
                Some(until) => Some(until),
                None => {
                    self.read = None;
                    return Ok(PERIOD);
                }
            },
        };
        self.refresh().await?;
        let now = self.now();
        let due: Vec<String> = self.due.iter().filter(|(_, at)| **at <= now).map(|(share, _)| share.clone()).collect();
        let this = &*self;
        let publish = |share: String| async move { (this.publish_share(&share, until).await, share) }.boxed();
        let publishing: Vec<BoxFuture<'_, _>> = due.into_iter().map(publish).collect();
        let published: Vec<_> = stream::iter(publishing).buffer_unordered(SHARES).collect().await;
        let mut away = None;
        for ((published, tasks), share) in published {
            published.iter().for_each(|one| self.note(one));
            let settled = published.into_iter().map(|one| (one.id.clone(), one));
            match tasks {
                Ok(tasks) => {
                    settled.for_each(|(id, _)| drop(self.unsettled.remove(&id)));
                    self.plan(share, &tasks);
                }
                Err(error) => {
                    self.unsettled.extend(settled.filter(|(_, one)| one.last.is_some()));
                    away = Some(error);
                }
            }
        }
        if let Some(error) = away {
            return Err(error);
        }
        let now = self.now();
        let next = self.due.values().min().map(|at| Duration::from_millis(at.saturating_sub(now)));
        Ok(next.unwrap_or(PERIOD).min(PERIOD))
    }

    /// Reads everything again where something may have changed.
    async fn refresh(&mut self) -> Result<(), ShareValueError> {
        let wall = self.clock.since_epoch();
        let is_set_back = wall + SET_BACK < self.latest;
        self.latest = if is_set_back { wall } else { wall.max(self.latest) };
        let change = self.tasks.last_change().await?;
        if let Some((known, at)) = &self.read
            && *known == change
            && !is_set_back
            && self.clock.since(*at) < RELOAD
        {
            return Ok(());
        }
        let read = (change, self.clock.now());
        let shares = self.tasks.shares().await?;
        let mut ids = HashSet::new();
        self.due.clear();
        for share in shares {
            let mut tasks = match self.tasks.read(&share).await {
                Err(ShareValueError::Store(error)) => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, "tasks of an agent are not published");
                    continue;
                }
                Ok(tasks) => tasks,
            };
            let now = wall.as_secs();
            if tasks.iter_mut().any(|task| task.follow_clock(now)) {
                tracing::warn!(share, "the clock was ahead when tasks were published or made: they begin anew");
                let begun = self.tasks.update(&share, |tasks| {
                    for task in tasks.iter_mut() {
                        let _ = task.follow_clock(now);
                    }
                    Ok::<_, Infallible>(tasks.clone())
                });
                tasks = match begun.await? {
                    Ok(tasks) => tasks,
                };
            }
            ids.extend(tasks.iter().map(|task| task.id.clone()));
            self.plan(share, &tasks);
        }
        self.failing.retain(|id, _| !is_set_back && ids.contains(id));
        self.unsettled.retain(|id, _| ids.contains(id));
        self.read = Some(read);
        Ok(())
    }

    /// Notes when a share is due next.
    fn plan(&mut self, share: String, tasks: &[Task]) {
        let at = |task: &Task| (task.next * 1000).max(self.failing.get(&task.id).map_or(0, |retry| retry.at));
        match tasks.iter().map(at).min() {
            Some(at) => self.due.insert(share, at),
            None => self.due.remove(&share),
        };
    }

    /// Publishes what is due of a share, and tells the store; returns what was published, and the tasks that there are then.
    async fn publish_share(
        &self,
        share: &str,
        until: Option<Instant>,
    ) -> (Vec<Published>, Result<Vec<Task>, ShareValueError>) {
        // Read now, so that a task that was cancelled by another process is not published.
        let tasks = match self.tasks.read(share).await {
            Ok(tasks) => tasks,
            Err(error) => return (Vec::new(), Err(error)),
        };
        let now = self.now();
        let is_due =
            |task: &&Task| task.next * 1000 <= now && self.failing.get(&task.id).is_none_or(|retry| retry.at <= now);
        let publish = |task| self.publish_task(task, now / 1000, until).boxed();
        let publishing: Vec<BoxFuture<'_, _>> = tasks.iter().filter(is_due).map(publish).collect();
        let published: Vec<Published> = stream::iter(publishing).buffer_unordered(MESSAGES).collect().await;
        if published.is_empty() {
            return (published, Ok(tasks));
        }
        let settled = self.settle(share, &published).await;
        (published, settled)
    }

    /// Tells the store what was published.
    async fn settle(&self, share: &str, published: &[Published]) -> Result<Vec<Task>, ShareValueError> {
        let settled = self.tasks.update(share, |tasks| {
            for Published { id, next, last, then, .. } in published {
                // Another one where it was replaced or published by another process meanwhile.
                let is_same = |task: &&mut Task| task.id == *id && task.next == *next;
                match (tasks.iter_mut().find(is_same), then) {
                    (Some(task), Some(then)) => {
                        task.last = last.or(task.last);
                        task.next = *then;
                    }
                    (Some(_), None) => tasks.retain(|task| task.id != *id),
                    (None, _) => {}
                }
            }
            Ok::<_, Infallible>(tasks.clone())
        });
        match settled.await? {
            Ok(tasks) => Ok(tasks),
        }
    }

    /// Publishes every time of a task that is due, until one fails.
    async fn publish_task(&self, task: &Task, now: u64, until: Option<Instant>) -> Published {
        let (id, next) = (task.id.clone(), task.next);
        if let Some(Published { last, then, .. }) = self.unsettled.get(&id).filter(|one| one.next == next) {
            return Published { id, next, last: *last, then: *then, failure: None };
        }
        let due = match task.due(now, self.config.missed, self.config.max_missed) {
            Ok(due) => due.unwrap_or(DueTimes { times: Vec::new(), next: Some(next) }),
            Err(error) => {
                let failure = Some(PublishFailure::Cron(error.to_string()));
                return Published { id, next, last: None, then: Some(next), failure };
            }
        };
        let mut last = None;
        for time in due.times {
            if let Err(failure) = self.publish(task, time, until).await {
                return Published { id, next, last, then: Some(time), failure: Some(failure) };
            }
            last = Some(time);
        }
        Published { id, next, last, then: due.next, failure: None }
    }

    /// Publishes a message of a task.
    async fn publish(&self, task: &Task, time: u64, until: Option<Instant>) -> Result<(), PublishFailure> {
        let Task { id, agent, name, description, .. } = task;
        let message_id = derived_message_id(agent.as_str(), id, &time.to_string());
        let kind = message_type::SCHEDULED_TASK_MESSAGE;
        let mut envelope = Envelope::outgoing(kind, &self.name, message_id, self.clock.wall())
            .with_header(header::TOOL_PROFILE, PROFILE);
        envelope.destination = Some(agent.to_string());
        let due_at = i64::try_from(time).ok().and_then(|time| Timestamp::from_second(time).ok());
        let body = ScheduledTaskMessage {
            task_name: name.clone(),
            description: description.clone(),
            due_at: due_at.map(|time| time.to_string()),
        };
        let message = Outgoing {
            target: Target::Topic(topic::scheduled_task(agent.as_str())),
            mandatory: true,
            proven: false,
            properties: envelope.into_properties().into(),
            body: serde_json::to_vec(&body).unwrap_or_default().into(),
        };
        let now = self.clock.now();
        let limit = until.map_or(PUBLISH_TIME, |until| until.saturating_duration_since(now).min(PUBLISH_TIME));
        if limit.is_zero() {
            return Err(PublishFailure::LeaseEnded);
        }
        match tokio::time::timeout(limit, self.bus.publish(&message)).await {
            Ok(Ok(Routing::Routed)) => Ok(()),
            Ok(Ok(Routing::Unroutable)) => Err(PublishFailure::Unroutable(agent.to_string())),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(PublishFailure::Late),
        }
    }

    /// Notes what failed, so that it is tried again later.
    fn note(&mut self, Published { id, failure, .. }: &Published) {
        let Some(failure) = failure else {
            self.failing.remove(id);
            return;
        };
        let now = self.now();
        let retry = self.failing.entry(id.clone()).or_insert(Retry { tries: 0, at: 0 });
        let wait = match failure {
            // What is meant for every message passes soon.
            PublishFailure::Refused(PublishError::Unavailable(_) | PublishError::Closed)
            | PublishFailure::Late
            | PublishFailure::LeaseEnded => PERIOD,
            _ => MIN_RETRY.saturating_mul(1 << retry.tries.min(10)).min(MAX_RETRY),
        };
        if retry.tries == 0 {
            tracing::warn!(reason = %failure, "a scheduled task could not be published; it is tried again");
        }
        *retry = Retry { tries: retry.tries.saturating_add(1), at: now.saturating_add(millis(wait)) };
    }

    /// The present time, in milliseconds since 1970.
    fn now(&self) -> u64 {
        millis(self.clock.since_epoch())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
