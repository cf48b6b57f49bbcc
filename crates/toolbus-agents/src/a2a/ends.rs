//! The ends of tasks: handed to waiting calls, kept for later looks, set where no result came in time, and forgotten.
//!
//! The list of a share has the time when each of its tasks is due, and the plan the time when each list is read: no
//! task is read before it is due, however many there are.

use std::time::Duration;

use toolbus_core::bus::PublishError;
use toolbus_core::store::StoreError;
use toolbus_core::text::shortened;
use toolbus_protocol::{
    AgentMessage, AgentTaskError, AgentTaskResult, AgentTaskState, Envelope, derived_message_id, header, topic,
};

use super::report::{TaskEnd, TaskReport};
use super::service::{ATTEMPTS, AgentService, MAX_ID, PAUSE, STORE_AWAY, TaskPublishError};
use super::tasks::{AgentTask, TaskEntry};
use crate::share_plan::SharePlan;
use crate::share_values::ShareValueError;

/// Time between two looks at what is due.
const PERIOD: Duration = Duration::from_secs(5);
/// Time between the deadline of a task and its end, in seconds: the call that waits for the task ends it itself.
const GRACE: u64 = 6;

/// Longest part of a result that is kept for a later look, in characters.
const MAX_KEPT: usize = 16_000;
/// The profile under which an agent reads the results of others.
const PROFILE: &str = "a2a-synthesis";

/// When a task with this deadline is too late for all that wait for it.
pub(super) const fn late_at(deadline: u64) -> u64 {
    deadline + GRACE
}

impl AgentService {
    /// Looks at the tasks that are due, for ever.
    pub async fn run(self) {
        let mut plan = self.plan();
        loop {
            tokio::time::sleep(PERIOD).await;
            if let Err(error) = self.sweep(&mut plan).await {
                self.warn_away(&error, "tasks of agents cannot be read: none is ended for being late");
            }
        }
    }

    /// A plan by which nothing was read yet.
    pub(crate) fn plan(&self) -> SharePlan {
        SharePlan::new(self.config().max_timeout.get())
    }

    pub(crate) async fn sweep(&self, plan: &mut SharePlan) -> Result<(), ShareValueError> {
        let now = self.now();
        let mut failed = None;
        for share in plan.due(self.tasks().shares(), now).await? {
            // A list that cannot be read keeps none of the others from being.
            match self.sweep_share(&share, now).await {
                Ok(next) => plan.plan(share, next, now),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Looks at what is due of a share; returns when something is next.
    async fn sweep_share(&self, share: &str, now: u64) -> Result<Option<u64>, ShareValueError> {
        let tasks = self.tasks();
        let entries: Vec<TaskEntry> = tasks.shares().read(share).await?;
        let (due, later): (Vec<TaskEntry>, Vec<TaskEntry>) = entries.into_iter().partition(|entry| entry.due <= now);
        if due.is_empty() {
            return Ok(later.iter().map(|entry| entry.due).min());
        }
        let keep = self.config().keep.get().as_secs();
        for TaskEntry { id, is_over, .. } in due {
            match tasks.get(&id).await? {
                Some(task) if task.ended.is_none() => self.expire(task).await,
                // Its end was kept, and its list lacks it.
                Some(AgentTask { ended: Some(ended), .. }) if !is_over && ended + keep > now => {
                    tasks.settle(&id, share, ended + keep).await?;
                }
                _ => tasks.remove(&id, share).await?,
            }
        }
        let entries: Vec<TaskEntry> = tasks.shares().read(share).await?;
        Ok(entries.iter().map(|entry| entry.due).min())
    }

    /// Ends a task that is too late. The process that marks it notifies the agent that gave it.
    async fn expire(&self, task: AgentTask) {
        let end = TaskEnd::Error(AgentTaskError {
            task_id: task.id.clone(),
            context_id: task.context.clone(),
            code: AgentTaskError::EXECUTION_FAILED.to_owned(),
            message: format!("Agent '{}' gave no result in time. It may go on with the task.", task.agent),
            // It has the request, or may have it.
            is_retryable: false,
        });
        if self.mark_late(&task.id, &end).await {
            self.hand_on(&task, &end).await;
        }
    }

    /// Marks a task as too late; returns whether it had not ended.
    pub(crate) async fn mark_late(&self, id: &str, end: &TaskEnd) -> bool {
        let (now, text) = (self.now(), end.text());
        let marked = self.tasks().update(id, |task| {
            let is_open = task.ended.is_none();
            if is_open {
                task.is_late = true;
                task.end(now, AgentTaskState::Failed, text.clone());
                task.ended_by = Some(self.topics()[1].to_owned());
            }
            is_open
        });
        let Ok(Some(task)) = marked.await else { return false };
        self.settle(&task, now).await;
        self.count_end("timeout");
        true
    }

    /// Whether a report is the one that counts: the first, or the same again, which no replica may have handed on.
    pub(super) async fn is_first(&self, task: &AgentTask, body: &[u8]) -> Result<bool, StoreError> {
        let digest = task.digest_of(body);
        let update = |task: &mut AgentTask| {
            let is_new = task.ended.is_none() && task.digest.is_none();
            if is_new {
                task.digest = Some(digest.clone());
            }
            is_new
        };
        if self.retried(|| self.tasks().update(&task.id, update)).await?.is_some() {
            return Ok(true);
        }
        let known = self.retried(|| self.tasks().get(&task.id)).await?;
        Ok(known.is_some_and(|known| known.ended.is_none() && known.digest == Some(digest.clone())))
    }

    /// Hands the end of a task to the call that waits for it, and keeps it.
    pub(super) async fn finish(&self, task: AgentTask, end: TaskEnd) {
        let end = end.without_secrets(self.redactor());
        let waiting = self.take_waiting(&task.id);
        let is_taken = waiting.is_some_and(|waiting| waiting.send(end.clone()).is_ok());
        let elsewhere = task.waiter.as_ref().filter(|waiter| !is_taken && **waiter != self.topics()[1]);
        if let Some(waiter) = elsewhere {
            // First: the other replica accepts only a kept result.
            if !self.keep(&task, &end).await || !self.hand_over(waiter, &task, &end).await {
                self.hand_on(&task, &end).await;
            }
        } else {
            if !is_taken {
                self.hand_on(&task, &end).await;
            }
            self.keep(&task, &end).await;
        }
        self.count_end(match end.state() {
            AgentTaskState::Completed => "completed",
            AgentTaskState::Canceled => "canceled",
            AgentTaskState::InputRequired => "input_required",
            _ => "failed",
        });
    }

    /// Keeps the end of a task for later looks; false if the store did not take it.
    async fn keep(&self, task: &AgentTask, end: &TaskEnd) -> bool {
        let (now, state, text) = (self.now(), end.state(), end.text());
        let digest = task.waiter.as_ref().map(|_| task.digest_of(&end.body()));
        let context = end.context().filter(|context| context.chars().nth(MAX_ID).is_none());
        let kept = self.retried(|| {
            self.tasks().update(&task.id, |task| {
                let is_open = task.ended.is_none();
                if is_open {
                    task.end(now, state, text.clone());
                    task.digest.clone_from(&digest);
                    task.ended_by = Some(self.topics()[1].to_owned());
                    task.context = context.map(str::to_owned).or_else(|| task.context.take());
                }
                is_open
            })
        });
        match kept.await {
            Ok(Some(task)) => self.settle(&task, now).await,
            Ok(None) => {}
            Err(error) => {
                self.warn_away(&error, "the end of a task could not be kept");
                return false;
            }
        }
        true
    }

    /// Notes that a task has ended, so that others find room. Where that fails, the sweep does it later.
    async fn settle(&self, task: &AgentTask, now: u64) {
        let due = now + self.config().keep.get().as_secs();
        if let Err(error) = self.tasks().settle(&task.id, &task.share, due).await {
            tracing::debug!(%error, "a task that has ended takes a place until its time is over");
        }
    }

    /// Hands the end of a task, which is kept, to the replica whose call waits; returns whether that is there.
    async fn hand_over(&self, waiter: &str, task: &AgentTask, end: &TaskEnd) -> bool {
        let envelope = self.envelope(end.message_type(), task, self.new_id());
        self.publish(waiter.to_owned(), envelope, end.body()).await.is_ok()
    }

    /// Takes the end of a task that another replica hands over, if that is what was kept; else returns the outcome that is
    /// counted.
    pub(crate) async fn take_over(&self, envelope: &Envelope, body: &[u8]) -> Option<&'static str> {
        let Some(TaskReport::End(end)) = TaskReport::read(&envelope.message_type, body) else {
            return Some("malformed");
        };
        let id = end.task_id().to_owned();
        let mut refused = "unknown_task";
        let taken = self.tasks().update(&id, |task| {
            let is_kept = task.ended.is_some() && task.digest.as_ref() == Some(&task.digest_of(body));
            refused = if is_kept { "repeated" } else { "not_asked" };
            // Taken once: a repetition finds no waiter.
            is_kept && task.waiter.take_if(|waiter| *waiter == self.topics()[1]).is_some()
        });
        match taken.await {
            Ok(Some(task)) => {
                let waiting = self.take_waiting(&id);
                if waiting.is_none_or(|waiting| waiting.send(end.clone()).is_err()) {
                    self.hand_on(&task, &end).await;
                }
                None
            }
            Ok(None) => Some(refused),
            Err(_) => Some(STORE_AWAY),
        }
    }

    /// The end of a task of which nothing was handed over: what any replica has kept of it.
    pub(crate) async fn kept_end(&self, id: &str) -> Option<TaskEnd> {
        let has_result = |task: &AgentTask| task.ended.is_some() && !task.is_late;
        let task = self.tasks().get(id).await.ok().flatten().filter(has_result)?;
        // The call has it now.
        let taken = self.tasks().update(id, |task| task.waiter.take().is_some());
        match taken.await {
            Ok(Some(_)) => {}
            // It is handed on as a message.
            Ok(None) => return None,
            Err(_) => tracing::debug!("a result may be handed on although its call has it"),
        }
        let AgentTask { id: task_id, context: context_id, state, result, .. } = task;
        let message = result.map(|text| AgentMessage::text("agent", text));
        Some(TaskEnd::Result(AgentTaskResult { task_id, context_id, state, message, ..AgentTaskResult::default() }))
    }

    /// Publishes the end of a task for the agent that gave it. A repetition has the same id.
    pub(super) async fn hand_on(&self, task: &AgentTask, end: &TaskEnd) {
        let (id, kind) = (derived_message_id(task.caller.as_str(), &task.id, "result"), end.message_type());
        for attempt in 1..=ATTEMPTS {
            let envelope =
                Envelope { destination: Some(task.caller.to_string()), ..self.envelope(kind, task, id.clone()) }
                    .with_header(header::ANSWERING_AGENT, task.agent.as_str())
                    .with_header(header::TOOL_PROFILE, PROFILE)
                    .with_header(header::CONTENT_TRUST, header::TRUST_TOOL_OUTPUT);
            let to = topic::agent_response(task.caller.as_str());
            match self.publish(to, envelope, end.body()).await {
                Ok(()) => return,
                Err(TaskPublishError::Late | TaskPublishError::Refused(PublishError::Unavailable(_)))
                    if attempt < ATTEMPTS =>
                {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => {
                    self.warn_undelivered(&error, &task.caller);
                    return;
                }
            }
        }
    }
}

impl AgentTask {
    fn end(&mut self, now: u64, state: AgentTaskState, text: String) {
        (self.ended, self.state) = (Some(now), state);
        self.result = Some(shortened(&text, MAX_KEPT).into_owned());
    }

    /// Digest of a message that hands over its end.
    fn digest_of(&self, body: &[u8]) -> String {
        derived_message_id(self.caller.as_str(), &self.id, &String::from_utf8_lossy(body))
    }
}
