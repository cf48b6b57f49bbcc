//! Publishes what is due.
//!
//! One process does so at a time: where processes share a store, the one that holds the lease. A task stays due until
//! the broker has confirmed its message and put it into a queue; then the store is updated, so that a crash between the
//! two publishes the message again, with the same id.
//!
//! Where a task calls a tool, the store has the time before the call begins, and the message is published when the call
//! has ended. Other tasks do not wait for that.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio_util::sync::CancellationToken;
use toolbus_core::bus::{Bus, PublishError, Routing};
use toolbus_core::policy::PolicyHandle;
use toolbus_core::{Clock, Invoker, milliseconds};
use toolbus_protocol::Random;

use super::calls::{DueCall, ScheduledCalls, TRIES};
use super::config::ScheduleConfig;
use super::cron::CronError;
use super::failures::FiringStep;
use super::lease::Lease;
use super::message::{body, message};
use super::task::{DueTimes, Task};
use super::task_store::TaskStore;
use crate::share_values::ShareValueError;

/// Longest time between two looks at the clock and at what other processes have changed.
const PERIOD: Duration = Duration::from_millis(500);
/// Time after which everything is read again.
const RELOAD: Duration = Duration::from_secs(60);
/// Time by which the clock may be set back before everything is read again.
const SET_BACK: Duration = Duration::from_secs(60);
/// Longest wait for a confirm.
const PUBLISH_TIME: Duration = Duration::from_secs(4);
/// First time between two tries of a message that no queue takes; doubled up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_secs(5);
const MAX_RETRY: Duration = Duration::from_secs(5 * 60);
/// Agents whose tasks are published at a time, and tasks of each.
const SHARES: usize = 32;
const MESSAGES: usize = 64;

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
    /// Messages that could not be published, by the id of their task.
    failing: HashMap<String, Retry>,
    /// Messages that were published, and could not be noted in the store, by the id of their task.
    unsettled: HashMap<String, Published>,
    calls: ScheduledCalls,
    /// Whether nothing begins any more.
    is_stopping: bool,
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

/// Record of what was published of a task.
struct Published {
    id: String,
    /// As it was when the task was read.
    next: u64,
    last: Option<u64>,
    /// The first time that is not published; absent where the task has ended.
    then: Option<u64>,
    failure: Option<PublishFailure>,
}

/// Reason why a message was not published.
#[derive(Debug, thiserror::Error)]
enum PublishFailure {
    #[error("no queue is bound to `scheduled.task.{0}`")]
    Unroutable(String),
    #[error(transparent)]
    Refused(#[from] PublishError),
    #[error("the broker does not confirm it")]
    Late,
    #[error("the expression cannot be read: {0}")]
    Cron(#[from] CronError),
    #[error("another process may publish by now")]
    LeaseEnded,
}

/// Record of what was done of a share.
struct SharePass {
    published: Vec<Published>,
    /// Calls whose times the store has.
    calls: Vec<DueCall>,
    /// Whether calls are due that found no slot.
    is_waiting: bool,
    /// The tasks that there are then.
    tasks: Result<Vec<Task>, ShareValueError>,
}

impl Scheduler {
    /// A scheduler, which calls tools by `invoker`, as agents of `policy`; `is_shared` if other processes may use
    /// the store.
    #[must_use]
    pub fn new(
        tasks: TaskStore,
        config: ScheduleConfig,
        bus: Arc<dyn Bus>,
        name: String,
        is_shared: bool,
        (invoker, policy): (Arc<dyn Invoker>, PolicyHandle),
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
            calls: ScheduledCalls::new(invoker, policy),
            is_stopping: false,
            read: None,
            latest: Duration::ZERO,
            is_away: false,
        }
    }

    /// Publishes what is due until `stop` is cancelled and the calls that run have ended; then it leaves the rest to other
    /// processes.
    pub async fn run(mut self, stop: CancellationToken) {
        let tasks = self.tasks.clone();
        loop {
            self.is_stopping = stop.is_cancelled();
            if self.is_stopping && self.calls.are_over() {
                break;
            }
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
                () = self.calls.changed() => {}
                () = stop.cancelled(), if !self.is_stopping => {}
            }
        }
        if let Some(lease) = &mut self.lease {
            lease.release().await;
        }
    }

    /// Publishes what is due now; returns how long to wait.
    async fn step(&mut self) -> Result<Duration, ShareValueError> {
        self.take_ended();
        let until = match &mut self.lease {
            None => None,
            Some(lease) => match lease.hold().await? {
                Some(until) => Some(until),
                None => {
                    self.read = None;
                    // The process that publishes now reads the ledger.
                    self.calls.retain(|_| false);
                    self.tasks.failures().retain(|_| false);
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
        for (SharePass { published, calls, is_waiting, tasks }, share) in published {
            published.iter().for_each(|one| self.note(one));
            for call in calls {
                self.tasks.failures().note_retry(&call.task.id, None);
                self.calls.start(&share, call);
            }
            self.calls.note_waiting(&share, is_waiting);
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
        if self.is_stopping {
            return Ok(PERIOD);
        }
        let now = self.now();
        let next = self.due.values().min().map(|at| Duration::from_millis(at.saturating_sub(now)));
        Ok(next.unwrap_or(PERIOD).min(PERIOD))
    }

    /// Reads again what may have changed.
    async fn refresh(&mut self) -> Result<(), ShareValueError> {
        let wall = self.clock.since_epoch();
        let is_set_back = wall + SET_BACK < self.latest;
        self.latest = if is_set_back { wall } else { wall.max(self.latest) };
        let change = self.tasks.last_change().await?;
        if let Some((known, at)) = &self.read
            && !is_set_back
            && self.clock.since(*at) < RELOAD
        {
            if *known == change {
                return Ok(());
            }
            if let Some(shares) = self.tasks.changed_between(known.as_deref(), change.as_deref()) {
                let at = *at;
                for share in shares {
                    self.read_share(share, wall.as_secs()).await?;
                }
                self.read = Some((change, at));
                return Ok(());
            }
        }
        let read = (change, self.clock.now());
        let shares = self.tasks.shares().await?;
        let mut ids = HashSet::new();
        self.due.clear();
        for share in shares {
            ids.extend(self.read_share(share, wall.as_secs()).await?);
        }
        self.failing.retain(|id, _| !is_set_back && ids.contains(id));
        self.unsettled.retain(|id, _| ids.contains(id));
        self.calls.retain(|id| ids.contains(id));
        self.tasks.failures().retain(|id| ids.contains(id));
        self.read = Some(read);
        Ok(())
    }

    /// Reads the tasks of a share; returns their ids.
    async fn read_share(&mut self, share: String, now: u64) -> Result<Vec<String>, ShareValueError> {
        let mut tasks = match self.tasks.read(&share).await {
            Err(ShareValueError::Store(error)) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "tasks of an agent are not published");
                return Ok(Vec::new());
            }
            Ok(tasks) => tasks,
        };
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
        self.plan(share, &tasks);
        Ok(tasks.into_iter().map(|task| task.id).collect())
    }

    /// Notes when a share is due next. Calls that run, and those that wait for a slot, are looked at when one ends.
    fn plan(&mut self, share: String, tasks: &[Task]) {
        let is_waiting = self.calls.is_waiting(&share);
        let at = |task: &Task| {
            let has_to_call = task.tool.is_some() && !self.has_message(task);
            let is_later = has_to_call && (is_waiting || self.calls.is_running(task));
            let due = if task.begun.is_some() { 0 } else { task.next * 1000 };
            (!is_later).then(|| due.max(self.failing.get(&task.id).map_or(0, |retry| retry.at)))
        };
        match tasks.iter().filter_map(at).min() {
            Some(at) => self.due.insert(share, at),
            None => self.due.remove(&share),
        };
    }

    /// Takes calls that have ended: their results are published, or they are tried again.
    fn take_ended(&mut self) {
        let (ended, waiting) = self.calls.take_ended();
        self.due.extend(waiting.into_iter().map(|share| (share, 0)));
        for call in ended {
            self.due.insert(call.share.clone(), 0);
            let id = &call.task.id;
            // The next process reads its result from the ledger.
            if self.is_stopping && call.result.is_err() {
                continue;
            }
            self.tasks.failures().note(id, FiringStep::Call, call.failure());
            let tries = self.failing.get(id).map_or(0, |retry| retry.tries);
            match call.retry_after().filter(|_| tries + 1 < TRIES) {
                Some(wait) => {
                    let wait = wait.max(MIN_RETRY.saturating_mul(1 << tries.min(10))).min(MAX_RETRY);
                    let at = self.now().saturating_add(milliseconds(wait));
                    self.failing.insert(id.clone(), Retry { tries: tries + 1, at });
                    self.tasks.failures().note_retry(id, Some(at / 1000));
                }
                None => {
                    self.failing.remove(id);
                    self.calls.keep(call);
                }
            }
        }
    }

    /// Whether the call of a task was made, and its message is to be published or noted.
    fn has_message(&self, task: &Task) -> bool {
        self.calls.message_of(task).is_some() || self.unsettled.get(&task.id).is_some_and(|one| one.next == task.next)
    }

    /// Publishes what is due of a share, and notes that and the calls that may begin in the store.
    async fn publish_share(&self, share: &str, until: Option<Instant>) -> SharePass {
        let mut pass = SharePass { published: Vec::new(), calls: Vec::new(), is_waiting: false, tasks: Ok(Vec::new()) };
        // Read now, so that a task that was cancelled by another process is not published.
        let tasks = match self.tasks.read(share).await {
            Ok(tasks) => tasks,
            Err(error) => return SharePass { tasks: Err(error), ..pass },
        };
        let now = self.now();
        let is_due = |task: &&Task| {
            let has_come = task.begun.is_some() || task.next * 1000 <= now;
            has_come && self.failing.get(&task.id).is_none_or(|retry| retry.at <= now)
        };
        let mut publishing: Vec<BoxFuture<'_, Published>> = Vec::new();
        for task in tasks.iter().filter(is_due) {
            let has_message = self.has_message(task);
            if has_message || (task.tool.is_none() && !self.is_stopping) {
                publishing.push(self.publish_task(task, now / 1000, until).boxed());
            } else if task.tool.is_some() && !self.is_stopping && !self.calls.is_running(task) {
                self.call(share, task, now / 1000, &mut pass);
            }
        }
        pass.published.extend(stream::iter(publishing).buffer_unordered(MESSAGES).collect::<Vec<_>>().await);
        if pass.published.is_empty() && pass.calls.is_empty() {
            return SharePass { tasks: Ok(tasks), ..pass };
        }
        pass.tasks = self.settle(share, &pass).await;
        let written: HashSet<&str> = match &pass.tasks {
            Ok(tasks) => tasks.iter().filter(|task| task.begun.is_some()).map(|task| task.id.as_str()).collect(),
            Err(_) => HashSet::new(),
        };
        pass.calls.retain(|call| written.contains(call.task.id.as_str()));
        pass
    }

    /// Notes the call of a task that is due, if a slot is free.
    fn call(&self, share: &str, task: &Task, now: u64, pass: &mut SharePass) {
        let (id, next) = (task.id.clone(), task.next);
        let due = match task.begun {
            Some(time) => Ok(DueTimes { times: vec![time], next: None }),
            None => self.due(task, now),
        };
        let (first, then, failure) = match due {
            Ok(DueTimes { times, next }) => (times.first().copied(), next, None),
            Err(failure) => (None, Some(next), Some(failure)),
        };
        let Some(time) = first else {
            pass.published.push(Published { id, next, last: None, then, failure });
            return;
        };
        let room = self.calls.room_of(share).saturating_sub(pass.calls.len());
        match (room > 0).then(|| self.calls.slot()).flatten() {
            Some(slot) => pass.calls.push(DueCall { task: Task { begun: Some(time), ..task.clone() }, time, slot }),
            None => pass.is_waiting = true,
        }
    }

    /// Notes in the store what was published, and which calls may begin.
    async fn settle(&self, share: &str, pass: &SharePass) -> Result<Vec<Task>, ShareValueError> {
        let settled = self.tasks.update(share, |tasks| {
            for Published { id, next, last, then, .. } in &pass.published {
                // Another one where it was replaced or published by another process meanwhile.
                let is_same = |task: &&mut Task| task.id == *id && task.next == *next;
                match (tasks.iter_mut().find(is_same), then) {
                    (Some(task), Some(then)) => {
                        task.begun = task.begun.filter(|_| last.is_none());
                        task.last = last.or(task.last);
                        task.next = *then;
                    }
                    (Some(_), None) => tasks.retain(|task| task.id != *id),
                    (None, _) => {}
                }
            }
            for DueCall { task: called, time, .. } in &pass.calls {
                let is_same = |task: &&mut Task| task.id == called.id && task.next == called.next;
                if let Some(task) = tasks.iter_mut().find(is_same) {
                    task.begun.get_or_insert(*time);
                }
            }
            Ok::<_, Infallible>(tasks.clone())
        });
        match settled.await? {
            Ok(tasks) => Ok(tasks),
        }
    }

    /// The times of a task that are due.
    fn due(&self, task: &Task, now: u64) -> Result<DueTimes, PublishFailure> {
        let due = task.due(now, self.config.missed, self.config.max_missed)?;
        Ok(due.unwrap_or(DueTimes { times: Vec::new(), next: Some(task.next) }))
    }

    /// Publishes what became of the call of a task, or else every time of it that is due, until one fails.
    async fn publish_task(&self, task: &Task, now: u64, until: Option<Instant>) -> Published {
        let (id, next) = (task.id.clone(), task.next);
        if let Some(Published { last, then, .. }) = self.unsettled.get(&id).filter(|one| one.next == next) {
            return Published { id, next, last: *last, then: *then, failure: None };
        }
        if let Some(message) = self.calls.message_of(task) {
            let time = message.time;
            return match self.publish(task, time, message.body.clone(), until).await {
                Ok(()) => Published { id, next, last: Some(time), then: task.next_after(time), failure: None },
                Err(failure) => Published { id, next, last: None, then: Some(next), failure: Some(failure) },
            };
        }
        let due = match self.due(task, now) {
            Ok(due) => due,
            Err(failure) => return Published { id, next, last: None, then: Some(next), failure: Some(failure) },
        };
        let mut last = None;
        for time in due.times {
            if let Err(failure) = self.publish(task, time, body(task, time, None), until).await {
                return Published { id, next, last, then: Some(time), failure: Some(failure) };
            }
            last = Some(time);
        }
        Published { id, next, last, then: due.next, failure: None }
    }

    /// Publishes a message of a task.
    async fn publish(&self, task: &Task, time: u64, body: Bytes, until: Option<Instant>) -> Result<(), PublishFailure> {
        let message = message(task, time, body, &self.name, self.clock);
        let now = self.clock.now();
        let limit = until.map_or(PUBLISH_TIME, |until| until.saturating_duration_since(now).min(PUBLISH_TIME));
        if limit.is_zero() {
            return Err(PublishFailure::LeaseEnded);
        }
        match tokio::time::timeout(limit, self.bus.publish(&message)).await {
            Ok(Ok(Routing::Routed)) => Ok(()),
            Ok(Ok(Routing::Unroutable)) => Err(PublishFailure::Unroutable(task.agent.to_string())),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(PublishFailure::Late),
        }
    }

    /// Notes what failed, so that it is tried again later.
    fn note(&mut self, Published { id, failure, .. }: &Published) {
        let Some(failure) = failure else {
            self.failing.remove(id);
            self.calls.published(id);
            self.tasks.failures().note(id, FiringStep::Message, None);
            return;
        };
        self.calls.not_published(id);
        self.tasks.failures().note(id, FiringStep::Message, Some(&failure.to_string()));
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
        *retry = Retry { tries: retry.tries.saturating_add(1), at: now.saturating_add(milliseconds(wait)) };
    }

    /// The present time, in milliseconds since 1970.
    fn now(&self) -> u64 {
        milliseconds(self.clock.since_epoch())
    }
}

#[cfg(test)]
mod tests;
