//! Tasks for agents, sent over the bus or over HTTP, and the reports on them.
//!
//! A task is in the store before its request is published. A report on it counts if it comes from the agent that has
//! the task, names the task, and the task has not ended: then the call that waits gets it, or the topic of the agent
//! that gave the task. Reports come to a queue that all replicas share, so that none is lost with the replica that
//! waits. A result that another replica's call waits for is kept, and then handed over to that replica, which accepts
//! a result whose digest the store has.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, TryFutureExt as _};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use toolbus_core::bus::{Bus, Outgoing, PublishError, Routing, Target};
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::events::AgentEvents;
use toolbus_core::redact::Redactor;
use toolbus_core::store::StoreError;
use toolbus_core::text::shortened;
use toolbus_core::throttle::Throttle;
use toolbus_core::{Clock, ControlError, ControlHandler, ControlReply, ControlRequest};
use toolbus_outbound::egress::{Egress, HostLists};
use toolbus_protocol::{
    AgentMessage, AgentTaskCancelRequest, AgentTaskError, AgentTaskRequest, AgentTaskResult, AgentTaskState, Envelope,
    Random, header, message_type, topic,
};

use super::config::A2aConfig;
use super::directory::AgentDirectory;
use super::http::{HttpAgent, HttpAgentError, HttpExchange, HttpTask};
use super::report::{TaskEnd, TaskReport, is_end};
use super::tasks::{AgentTask, AgentTasks};

/// Longest wait for a confirm.
const PUBLISH_TIME: Duration = Duration::from_secs(4);
/// Number of attempts to hand on a result, or to read or write the store, and the time between them.
pub(super) const ATTEMPTS: usize = 5;
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// Counted outcome of a message that has to come again, because the store cannot be read or written.
pub(super) const STORE_AWAY: &str = "store_unavailable";
/// Longest message about a task that is read, in bytes.
const MAX_REPORT: usize = 1024 * 1024;
/// Longest message by which a replica hands over a result: it may write out what the report left out.
const MAX_HANDOVER: usize = 2 * MAX_REPORT;
/// Longest note, in characters.
const MAX_NOTE: usize = 1000;
/// Longest id of a conversation, and of a task at an agent that is reached over HTTP, in characters.
pub(super) const MAX_ID: usize = 100;
/// Time before the first look at a task over HTTP.
const FIRST_POLL: Duration = Duration::from_secs(2);

/// A task, and its message.
pub(crate) struct TaskOrder {
    pub(crate) task: AgentTask,
    pub(crate) message: String,
}

/// State that the daemon has of agents and their tasks. Cheap to clone.
#[derive(Clone)]
pub struct AgentService {
    parts: Arc<ServiceParts>,
}

struct ServiceParts {
    config: A2aConfig,
    directory: AgentDirectory,
    tasks: AgentTasks,
    bus: Arc<dyn Bus>,
    /// This daemon's name: the source of its messages.
    name: String,
    /// Topics of reports, which any replica may take, and of results that others hand over to this one.
    topics: [String; 2],
    /// The calls that wait in this process, by the task's id.
    waiting: Mutex<HashMap<String, oneshot::Sender<TaskEnd>>>,
    /// Results that are being handed on, by the task's id.
    finishing: Mutex<HashSet<String>>,
    /// Tasks over HTTP.
    running: TaskTracker,
    events: Arc<dyn AgentEvents>,
    clock: Clock,
    random: Random,
    /// Removes secrets from reports: an agent that is called over HTTP gets some in headers.
    redactor: Redactor,
    /// Lines of the log about the store, and about results that were not delivered.
    away: Throttle,
    undelivered: Throttle,
}

/// Waits for the end of a task. When it is dropped, the end goes to the topic of the agent that gave the task.
pub(crate) struct PendingResult {
    service: AgentService,
    task: AgentTask,
    end: oneshot::Receiver<TaskEnd>,
}

impl Drop for PendingResult {
    fn drop(&mut self) {
        // The call was cancelled before it took the end: the end is sent to its agent.
        if let (Some(end), Ok(runtime)) = (self.last(), Handle::try_current()) {
            let (service, task) = (self.service.clone(), self.task.clone());
            runtime.spawn(async move { service.hand_on(&task, &end).await });
        }
    }
}

/// Keeps a second result of a task from being handed on while the first is.
struct FinishClaim<'a> {
    service: &'a AgentService,
    id: &'a str,
}

impl<'a> FinishClaim<'a> {
    fn begin(service: &'a AgentService, id: &'a str) -> Option<Self> {
        let is_first = service.parts.finishing.lock().insert(id.to_owned());
        // Made only then: dropping it takes the id, which is another's, from the set.
        is_first.then(|| Self { service, id })
    }
}

impl Drop for FinishClaim<'_> {
    fn drop(&mut self) {
        self.service.parts.finishing.lock().remove(self.id);
    }
}

impl PendingResult {
    /// The end of the task.
    pub(crate) async fn ended(&mut self) -> Option<TaskEnd> {
        (&mut self.end).await.ok()
    }

    /// Waits no longer: what comes from now on is handed on. Returns what has come at the last moment.
    pub(crate) fn give_up(mut self) -> Option<TaskEnd> {
        self.last()
    }

    fn last(&mut self) -> Option<TaskEnd> {
        self.service.parts.waiting.lock().remove(&self.task.id);
        self.end.close();
        self.end.try_recv().ok()
    }
}

/// Reason why a message was not published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TaskPublishError {
    #[error("no queue is bound to `{0}`")]
    Unroutable(String),
    #[error(transparent)]
    Refused(#[from] PublishError),
    #[error("the broker does not confirm it")]
    Late,
}

impl TaskPublishError {
    /// Whether no queue has the message; else that is not known.
    pub(crate) const fn is_certain(&self) -> bool {
        match self {
            Self::Unroutable(_) => true,
            Self::Refused(error) => error.is_certain(),
            Self::Late => false,
        }
    }
}

/// Reason why a task that was given over HTTP has no result.
struct LostTask {
    error: HttpAgentError,
    may_go_on: bool,
}

impl LostTask {
    fn at_start(error: HttpAgentError) -> Self {
        Self { may_go_on: error.may_have_begun(), error }
    }
}

impl AgentService {
    /// A service that takes reports from `agent.response.{queue_prefix}`, and results of other replicas from that with
    /// an id of this process.
    #[must_use]
    pub fn new(
        config: A2aConfig,
        directory: AgentDirectory,
        tasks: AgentTasks,
        bus: Arc<dyn Bus>,
        (name, queue_prefix): (String, &str),
        events: Arc<dyn AgentEvents>,
        (clock, random, redactor): (Clock, Random, Redactor),
    ) -> Self {
        let shared = topic::agent_response(queue_prefix);
        let topics = [shared.clone(), format!("{shared}.{}", random.id())];
        let parts = ServiceParts {
            config,
            directory,
            tasks,
            bus,
            name,
            topics,
            waiting: Mutex::default(),
            finishing: Mutex::default(),
            running: TaskTracker::new(),
            events,
            clock,
            random,
            redactor,
            away: Throttle::default(),
            undelivered: Throttle::default(),
        };
        Self { parts: Arc::new(parts) }
    }

    /// Topics of reports, which any replica may take, and of results that others hand over to this one.
    #[must_use]
    pub fn topics(&self) -> [&str; 2] {
        self.parts.topics.each_ref().map(String::as_str)
    }

    pub(crate) fn config(&self) -> &A2aConfig {
        &self.parts.config
    }

    pub(crate) fn directory(&self) -> &AgentDirectory {
        &self.parts.directory
    }

    pub(crate) fn tasks(&self) -> &AgentTasks {
        &self.parts.tasks
    }

    pub(crate) fn clock(&self) -> Clock {
        self.parts.clock
    }

    pub(crate) fn new_id(&self) -> String {
        self.parts.random.id()
    }

    /// The present time, in seconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        self.parts.clock.since_epoch().as_secs()
    }

    /// Waits for the end of a task from now on.
    pub(crate) fn wait_for(&self, task: &AgentTask) -> PendingResult {
        let (sender, end) = oneshot::channel();
        self.parts.waiting.lock().insert(task.id.clone(), sender);
        PendingResult { service: self.clone(), task: task.clone(), end }
    }

    /// Sends a task over the bus.
    pub(crate) async fn send(&self, order: &TaskOrder) -> Result<(), TaskPublishError> {
        let TaskOrder { task, message } = order;
        let on_behalf_of = task.caller.as_str();
        let request = AgentTaskRequest {
            task_id: task.id.clone(),
            context_id: task.context.clone(),
            skill: task.skill.clone(),
            message: AgentMessage::text("user", message),
            metadata: Some([("onBehalfOf".to_owned(), on_behalf_of.into())].into_iter().collect()),
        };
        let mut envelope = self.envelope(message_type::AGENT_TASK_REQUEST, task, self.new_id());
        envelope.reply_to.clone_from(&self.parts.topics[0]);
        self.publish(topic::agent_task(task.agent.as_str()), envelope, body(&request)).await
    }

    /// Requests over the bus that an agent give up a task; its reply becomes the task's note.
    pub(crate) async fn send_cancel(&self, task: &AgentTask) -> Result<(), TaskPublishError> {
        let request = AgentTaskCancelRequest { task_id: task.id.clone(), context_id: task.context.clone() };
        let mut envelope = self.envelope(message_type::AGENT_TASK_CANCEL_REQUEST, task, self.new_id());
        envelope.reply_to.clone_from(&self.parts.topics[0]);
        self.publish(topic::agent_task_cancel(task.agent.as_str()), envelope, body(&request)).await
    }

    /// Runs a task over HTTP, beside what began it. `lists` are the hosts that the agent that gave it may have reached.
    pub(crate) fn run_http(&self, order: TaskOrder, http: Arc<HttpAgent>, egress: Egress, lists: HostLists) {
        let service = self.clone();
        self.parts.running.spawn(async move {
            let TaskOrder { task, message } = order;
            let limit = Duration::from_secs(task.deadline.saturating_sub(service.now()));
            let exchange = HttpExchange { egress: &egress, lists: &lists, clock: service.clock() };
            let running = service.drive(&task, &message, &http, &exchange);
            // What is too late is found by the sweep.
            let Ok(ended) = tokio::time::timeout(limit, running).await else { return };
            let end = match ended {
                Ok(result) => TaskEnd::Result(result),
                Err(LostTask { error, may_go_on }) => TaskEnd::Error(AgentTaskError {
                    task_id: task.id.clone(),
                    code: AgentTaskError::EXECUTION_FAILED.to_owned(),
                    message: match may_go_on {
                        true => format!("Agent '{}': {error}. It may go on with the task.", task.agent),
                        false => format!("Agent '{}': {error}.", task.agent),
                    },
                    is_retryable: error.is_retryable() && !may_go_on,
                    ..AgentTaskError::default()
                }),
            };
            service.finish(task, end).await;
        });
    }

    /// Gives a task to an agent over HTTP, and looks at it until it has ended.
    async fn drive(
        &self,
        task: &AgentTask,
        message: &str,
        http: &HttpAgent,
        exchange: &HttpExchange<'_>,
    ) -> Result<AgentTaskResult, LostTask> {
        let begun = |error| LostTask { error, may_go_on: true };
        let order = HttpTask {
            id: &task.id,
            context: task.context.as_deref(),
            skill: &task.skill,
            message,
            on_behalf_of: task.caller.as_str(),
        };
        // Nothing has begun where its card is not there.
        http.refresh(exchange).await.map_err(|error| LostTask { error, may_go_on: false })?;
        let mut progress = http.start(exchange, order).await.map_err(LostTask::at_start)?;
        let mut wait = FIRST_POLL;
        loop {
            let state = progress.result.state;
            let Some(remote) = progress.remote.filter(|_| !is_end(state)) else { return Ok(progress.result) };
            if remote.chars().nth(MAX_ID).is_some() {
                let text = format!("the id of its task has more than {MAX_ID} characters");
                return Err(begun(HttpAgentError::Malformed(text)));
            }
            let note = progress.note.take().map(|note| self.parts.redactor.text(&note).into_owned());
            let noted = self.parts.tasks.update(&task.id, |task| {
                task.remote = Some(remote.clone());
                task.note_state(Some(state), note.clone())
            });
            if let Err(error) = noted.await {
                tracing::debug!(%error, "the state of a task could not be kept");
            }
            progress = http.look_later(exchange, &task.id, &remote, &mut wait).await.map_err(begun)?;
        }
    }

    /// Logs that the store is away, unless that was logged lately.
    pub(super) fn warn_away(&self, error: &dyn Display, what: &str) {
        if let Some(left_out) = self.parts.away.due() {
            tracing::warn!(%error, left_out, "{what}");
        }
    }

    /// Logs that a result was not delivered, unless that was logged lately.
    pub(super) fn warn_undelivered(&self, error: &dyn Display, agent: &AgentName) {
        if let Some(left_out) = self.parts.undelivered.due() {
            tracing::warn!(%error, %agent, left_out, "the result of a task was not delivered; it can be asked for");
        }
    }

    /// Counts the end of a task.
    pub(super) fn count_end(&self, outcome: &'static str) {
        self.parts.events.task_ended(outcome);
    }

    /// Returns the redactor, which removes secrets of the daemon.
    pub(super) fn redactor(&self) -> &Redactor {
        &self.parts.redactor
    }

    /// Removes and returns the call that waits in this process for the end of a task.
    pub(super) fn take_waiting(&self, id: &str) -> Option<oneshot::Sender<TaskEnd>> {
        self.parts.waiting.lock().remove(id)
    }

    /// Counts a task that was not sent.
    pub(crate) fn not_sent(&self) {
        self.parts.events.task_ended("not_sent");
    }

    pub(super) fn envelope(&self, kind: &'static str, task: &AgentTask, id: String) -> Envelope {
        let envelope = Envelope::outgoing(kind, &self.parts.name, id, self.parts.clock.wall())
            .with_header(header::ON_BEHALF_OF, task.caller.as_str());
        Envelope { correlation_id: task.id.clone(), ..envelope }
    }

    pub(super) async fn publish(&self, to: String, envelope: Envelope, body: Vec<u8>) -> Result<(), TaskPublishError> {
        let message = Outgoing {
            target: Target::Topic(to.clone()),
            mandatory: true,
            proven: false,
            properties: envelope.into_properties().into(),
            body: body.into(),
        };
        match tokio::time::timeout(PUBLISH_TIME, self.parts.bus.publish(&message)).await {
            Ok(Ok(Routing::Routed)) => Ok(()),
            Ok(Ok(Routing::Unroutable)) => Err(TaskPublishError::Unroutable(to)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(TaskPublishError::Late),
        }
    }

    /// Repeats an operation on the store while the store is away.
    pub(super) async fn retried<'a, T, F: Future<Output = Result<T, StoreError>> + 'a>(
        &'a self,
        operation: impl Fn() -> F,
    ) -> Result<T, StoreError> {
        let mut result = operation().await;
        for _ in 1..ATTEMPTS {
            if !matches!(result, Err(StoreError::Failed(_))) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            result = operation().await;
        }
        result
    }

    /// Takes an announcement, and counts it.
    pub(crate) fn take_announcement(&self, envelope: &Envelope, sender: &Caller, body: &[u8]) {
        let outcome = match envelope.message_type.eq_ignore_ascii_case(message_type::AGENT_CARD) {
            true => self.parts.directory.announce(sender.agent.as_ref(), body),
            false => "malformed",
        };
        self.parts.events.announced(outcome);
    }

    /// Takes an agent's report on a task, and counts it.
    ///
    /// # Errors
    ///
    /// If it has to come again because the store is away.
    pub(crate) async fn take_report(
        &self,
        envelope: &Envelope,
        sender: &Caller,
        body: &[u8],
    ) -> Result<(), ControlError> {
        self.count_report(self.hear(envelope, sender, body).await)
    }

    /// Takes the end of a task that another replica hands over, and counts it if it is not the one that was kept.
    async fn take_handover(&self, envelope: &Envelope, body: &[u8]) -> Result<(), ControlError> {
        self.take_over(envelope, body).await.map_or(Ok(()), |outcome| self.count_report(outcome))
    }

    fn count_report(&self, outcome: &'static str) -> Result<(), ControlError> {
        self.parts.events.task_message(outcome);
        if outcome == STORE_AWAY { Err(ControlError::StoreAway) } else { Ok(()) }
    }

    /// Handles a message about a task; returns the outcome that is counted.
    pub(crate) async fn hear(&self, envelope: &Envelope, sender: &Caller, body: &[u8]) -> &'static str {
        let Some(report) = TaskReport::read(&envelope.message_type, body) else { return "malformed" };
        let task = match self.retried(|| self.parts.tasks.get(report.task_id())).await {
            Ok(Some(task)) => task,
            Ok(None) => return "unknown_task",
            Err(error) => {
                self.warn_away(&error, "the store is away: what an agent said about a task goes back to its queue");
                return STORE_AWAY;
            }
        };
        if sender.agent.as_ref() != Some(&task.agent) {
            return "not_asked";
        }
        if envelope.correlation_id != task.id {
            return "uncorrelated";
        }
        match task.ended {
            Some(_) if task.is_late => return "late",
            Some(_) => return "repeated",
            None => {}
        }
        match report {
            TaskReport::End(end) => match FinishClaim::begin(self, &task.id) {
                Some(_finishing) => match self.is_first(&task, body).await {
                    Ok(true) => {
                        self.finish(task.clone(), end).await;
                        "result"
                    }
                    Ok(false) => "repeated",
                    Err(error) => {
                        self.warn_away(&error, "the store is away: the end of a task goes back to its queue");
                        STORE_AWAY
                    }
                },
                None => "repeated",
            },
            TaskReport::State { state, note, .. } => {
                let note = note.map(|note| self.redactor().text(&note).into_owned());
                let noted =
                    self.retried(|| self.parts.tasks.update(&task.id, |task| task.note_state(state, note.clone())));
                if noted.await.is_err() { STORE_AWAY } else { "state" }
            }
        }
    }
}

impl AgentTask {
    /// Notes the state that the agent reports; returns whether there is anything to note.
    fn note_state(&mut self, state: Option<AgentTaskState>, note: Option<String>) -> bool {
        if self.ended.is_some() {
            return false;
        }
        self.state = state.unwrap_or(self.state);
        self.note = note.map(|note| shortened(&note, MAX_NOTE).into_owned()).or_else(|| self.note.take());
        true
    }
}

fn body(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

/// Takes announcements of agents.
pub struct AnnouncementHandler(pub AgentService);

/// Takes reports of agents on tasks.
pub struct TaskReportHandler(pub AgentService);

/// Takes results that other replicas hand over.
pub struct TaskHandoverHandler(pub AgentService);

impl ControlHandler for AnnouncementHandler {
    fn message_type(&self) -> Option<&'static str> {
        None
    }

    fn is_listening(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, asked: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        self.0.take_announcement(&asked.envelope, &asked.caller, &asked.body);
        std::future::ready(Ok(None)).boxed()
    }
}

impl ControlHandler for TaskReportHandler {
    fn message_type(&self) -> Option<&'static str> {
        None
    }

    fn is_listening(&self) -> bool {
        true
    }

    fn max_body(&self) -> usize {
        MAX_REPORT
    }

    fn handle<'a>(&'a self, asked: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        self.0.take_report(&asked.envelope, &asked.caller, &asked.body).map_ok(|()| None).boxed()
    }
}

impl ControlHandler for TaskHandoverHandler {
    fn message_type(&self) -> Option<&'static str> {
        None
    }

    fn is_listening(&self) -> bool {
        true
    }

    fn max_body(&self) -> usize {
        MAX_HANDOVER
    }

    fn handle<'a>(&'a self, asked: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>> {
        self.0.take_handover(&asked.envelope, &asked.body).map_ok(|()| None).boxed()
    }
}
