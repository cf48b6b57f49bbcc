//! The calls of tasks: those that run, and the messages about those that have ended, until they are published.
//!
//! A call runs as the agent that scheduled it, by what that agent may use then. Its key is that of its time, so that the
//! ledger knows it in every process: after a crash it is not run again, and what is known of it is published.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::Caller;
use toolbus_core::failure::{Cause, Effect, ToolFailure};
use toolbus_core::policy::PolicyHandle;
use toolbus_core::{InnerCall, InnerOrigin, Invoker};
use toolbus_protocol::Outcome;

use super::message::{CallResult, PROFILE, body};
use super::task::{ScheduledCall, Task};

/// Calls that run at a time, of all agents and of one share.
const CALLS: usize = 64;
const CALLS_OF_SHARE: usize = 8;
/// Number of times that a call that could not begin is tried, before its failure is published.
pub(super) const TRIES: u32 = 6;
/// Bytes of messages that may wait here for a queue. A call whose message has no room is looked up in the ledger again.
const MAX_WAITING: usize = 16 * 1024 * 1024;

/// Calls tools at the times of tasks.
pub(super) struct ScheduledCalls {
    invoker: Arc<dyn Invoker>,
    policy: PolicyHandle,
    calls: JoinSet<CallResult>,
    running: HashMap<Id, StartedCall>,
    ended: Vec<EndedCall>,
    /// By the id of the task.
    messages: HashMap<String, WaitingMessage>,
    slots: Arc<Semaphore>,
    /// Shares with calls that are due and found no slot.
    waiting: HashSet<String>,
}

struct StartedCall {
    share: String,
    task: Task,
    time: u64,
}

/// A call that has ended.
pub(super) struct EndedCall {
    pub(super) share: String,
    pub(super) task: Task,
    pub(super) time: u64,
    pub(super) result: CallResult,
}

/// Message to be published of a call.
pub(super) struct WaitingMessage {
    pub(super) time: u64,
    pub(super) body: Bytes,
}

/// A call that may begin, once the store has its time.
pub(super) struct DueCall {
    pub(super) task: Task,
    pub(super) time: u64,
    pub(super) slot: OwnedSemaphorePermit,
}

impl EndedCall {
    /// Reason for which the call has no good result, without the tool's text.
    pub(super) fn failure(&self) -> Option<&'static str> {
        match &self.result {
            Ok(output) => output.is_error.then_some("error of the tool"),
            Err(failure) => Some(failure.verdict(Effect::Undeclared, false).code.as_str()),
        }
    }

    /// After which time the call may be tried again, if it did not begin; `None` if what became of it is final.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let failure = self.result.as_ref().err()?;
        let verdict = failure.verdict(Effect::Undeclared, false);
        let is_safe = verdict.is_retryable && verdict.outcome == Some(Outcome::NotStarted);
        is_safe.then(|| failure.retry_after.unwrap_or_default())
    }
}

impl ScheduledCalls {
    pub(super) fn new(invoker: Arc<dyn Invoker>, policy: PolicyHandle) -> Self {
        Self {
            invoker,
            policy,
            calls: JoinSet::new(),
            running: HashMap::new(),
            ended: Vec::new(),
            messages: HashMap::new(),
            slots: Arc::new(Semaphore::new(CALLS)),
            waiting: HashSet::new(),
        }
    }

    /// Whether no call runs, or has ended and was not taken.
    pub(super) fn are_over(&self) -> bool {
        self.running.is_empty() && self.ended.is_empty()
    }

    /// Whether a call of the task runs.
    pub(super) fn is_running(&self, task: &Task) -> bool {
        self.running.values().any(|call| call.task.id == task.id)
    }

    /// Returns the message to be published of the call of a task.
    pub(super) fn message_of(&self, task: &Task) -> Option<&WaitingMessage> {
        self.messages.get(&task.id).filter(|message| task.begun == Some(message.time))
    }

    /// Returns the number of further calls of a share that may run.
    pub(super) fn room_of(&self, share: &str) -> usize {
        CALLS_OF_SHARE.saturating_sub(self.running.values().filter(|call| call.share == share).count())
    }

    /// A slot to run in, if one is free.
    pub(super) fn slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Notes whether a share has calls that are due and found no slot.
    pub(super) fn note_waiting(&mut self, share: &str, is_waiting: bool) {
        if is_waiting {
            self.waiting.insert(share.to_owned());
        } else {
            self.waiting.remove(share);
        }
    }

    /// Whether calls of the share wait until another one has ended.
    pub(super) fn is_waiting(&self, share: &str) -> bool {
        self.waiting.contains(share)
    }

    /// Begins a call.
    pub(super) fn start(&mut self, share: &str, DueCall { task, time, slot }: DueCall) {
        let Some(ScheduledCall { name, arguments, binding }) = task.tool.clone() else { return };
        let caller = Caller {
            binding: binding.map(Into::into),
            profile: Some(PROFILE.into()),
            ..self.policy.agent(task.agent.clone())
        };
        let key: Arc<str> = task.fire_key(time).into();
        let call = InnerCall {
            origin: InnerOrigin::Schedule,
            caller: Arc::new(caller),
            call_id: Arc::clone(&key),
            server: None,
            tool: name,
            arguments: Some(serde_json::Value::Object(arguments).to_string()),
            deadline: None,
            cancelled: CancellationToken::new(),
            trace: None,
            around: None,
            progress: None,
            idempotency_key: Some(key),
        };
        let invoker = Arc::clone(&self.invoker);
        let running = self.calls.spawn(async move {
            let result = invoker.invoke(call).await;
            drop(slot);
            result
        });
        self.running.insert(running.id(), StartedCall { share: share.to_owned(), task, time });
    }

    /// Waits until a call has ended.
    pub(super) async fn changed(&mut self) {
        match self.calls.join_next_with_id().await {
            Some(joined) => self.note(joined),
            None => pending().await,
        }
    }

    /// The calls that have ended since, and the shares whose calls have waited for that.
    pub(super) fn take_ended(&mut self) -> (Vec<EndedCall>, Vec<String>) {
        while let Some(joined) = self.calls.try_join_next_with_id() {
            self.note(joined);
        }
        let ended = std::mem::take(&mut self.ended);
        let waiting = if ended.is_empty() { Vec::new() } else { self.waiting.drain().collect() };
        (ended, waiting)
    }

    fn note(&mut self, joined: Result<(Id, CallResult), JoinError>) {
        let (id, result) = match joined {
            Ok((id, result)) => (id, result),
            Err(error) => (error.id(), Err(ToolFailure::new(Cause::Failed, "The call broke down.").with_detail(error))),
        };
        if let Some(StartedCall { share, task, time }) = self.running.remove(&id) {
            self.ended.push(EndedCall { share, task, time, result });
        }
    }

    /// Keeps what is to be published of a call.
    pub(super) fn keep(&mut self, EndedCall { task, time, result, .. }: EndedCall) {
        let body = body(&task, time, Some(result));
        self.messages.insert(task.id, WaitingMessage { time, body });
    }

    /// Forgets the message of a task that is published.
    pub(super) fn published(&mut self, id: &str) {
        self.messages.remove(id);
    }

    /// Forgets the message of a task that no queue has taken, if all that wait are too large together.
    pub(super) fn not_published(&mut self, id: &str) {
        if self.messages.values().map(|message| message.body.len()).sum::<usize>() > MAX_WAITING {
            self.messages.remove(id);
        }
    }

    /// Forgets every message, and keeps those of the tasks that there are.
    pub(super) fn retain(&mut self, is_known: impl Fn(&str) -> bool) {
        self.messages.retain(|id, _| is_known(id));
    }
}
