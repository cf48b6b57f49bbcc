//! The tools: a list of agents, and tasks for them.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolbus_core::caller::Caller;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::text::{excerpt, list, shown};
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_outbound::egress::Egress;
use toolbus_protocol::{AgentCard, AgentTaskError, AgentTaskState};

use super::directory::{AllowedAgents, KnownAgent};
use super::ends::late_at;
use super::http::HttpExchange;
use super::report::TaskEnd;
use super::service::{AgentService, TaskOrder, TaskPublishError};
use super::tasks::{AgentTask, BeginError};
use crate::texts::{agent, as_json, rfc3339};

/// Names of the tools.
pub const NAMES: [&str; 5] = [INVOKE, LIST, DETAILS, TASK, CANCEL];
/// Source of the tools.
pub const SOURCE: &str = "a2a";
/// Guide to the use of the A2A tools, for models.
pub const GUIDE: &str = include_str!("guide.md");
pub(crate) const INVOKE: &str = "invoke_agent";
const LIST: &str = "list_known_agents";
const DETAILS: &str = "get_agent_details";
const TASK: &str = "get_agent_task";
const CANCEL: &str = "cancel_agent_task";
/// Longest names, and longest message, in characters.
const MAX_NAME: usize = 100;
const MAX_MESSAGE: usize = 64_000;
/// Time of a task whose caller gives none, in minutes.
const DEFAULT_MINUTES: u64 = 5;
/// Longest wait for the result of a task whose request is not confirmed.
const UNCONFIRMED_TIME: Duration = Duration::from_secs(30);
/// Descriptions and skills of a list of agents, in bytes: what outsiders wrote must not make it too large for a result.
const MAX_LIST: usize = 256 * 1024;
/// Names that a result lists.
const MAX_LISTED: usize = 20;

/// Parts that the tools have in common. Cheap to clone.
#[derive(Clone)]
pub struct A2aTools {
    service: AgentService,
    allowed: Arc<AllowedAgents>,
    egress: Egress,
}

impl A2aTools {
    /// Tools for these agents: `allowed` has the agents that each may give tasks to, and `egress` the reachable hosts.
    #[must_use]
    pub fn new(service: AgentService, allowed: AllowedAgents, egress: Egress) -> Self {
        Self { service, allowed: Arc::new(allowed), egress }
    }

    /// The five tools.
    #[must_use]
    pub fn tools(&self) -> Vec<Tool> {
        let minutes = self.service.config().max_timeout.get().as_secs() / 60;
        vec![
            Tool::new(invoke_descriptor(minutes.max(1)), InvokeAgent(self.clone())),
            Tool::new(list_descriptor(), ListAgents(self.clone())),
            Tool::new(details_descriptor(), GetAgentDetails(self.clone())),
            Tool::new(task_descriptor(), GetAgentTask(self.clone())),
            Tool::new(cancel_descriptor(), CancelAgentTask(self.clone())),
        ]
    }

    /// The cards of the agents that a caller may give tasks to, by name.
    #[must_use]
    pub fn visible(&self, caller: &Caller) -> Vec<AgentCard> {
        self.known(caller).iter().map(KnownAgent::card).collect()
    }

    /// A number that changes whenever [`Self::visible`] may be something else for some caller.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.service.directory().version()
    }

    fn known(&self, caller: &Caller) -> Vec<KnownAgent> {
        self.service.directory().list(|name| self.allowed.allows(caller, name))
    }

    /// The agent of a name, if the caller may give it tasks; else what the caller reads.
    fn agent(&self, caller: &Caller, name: &str) -> Result<KnownAgent, ToolOutput> {
        let known = self.service.directory().get(name);
        if let Some(known) = known.filter(|known| self.allowed.allows(caller, known.name.as_str())) {
            return Ok(known);
        }
        let names: Vec<String> = self.known(caller).iter().map(|agent| agent.name.to_string()).collect();
        let name = shown(name);
        Err(ToolOutput::error(match names.is_empty() {
            true => format!("Agent '{name}' is not known. No agents have announced themselves yet."),
            false => format!("Agent '{name}' is not known. Known agents: {}.", list(&names, MAX_LISTED)),
        }))
    }

    fn exchange<'a>(&'a self, caller: &Caller) -> HttpExchange<'a> {
        HttpExchange { egress: &self.egress, lists: self.egress.rules().lists(caller), clock: self.service.clock() }
    }
}

fn text(most: usize, purpose: &str) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": most, "description": purpose })
}

fn invoke_descriptor(max_minutes: u64) -> ToolDescriptor {
    ToolDescriptor::local(
        INVOKE,
        SOURCE,
        "Gives another agent a task, by one of its skills. With `wait`, returns the result if it comes in time; otherwise the \
         result arrives later as a message. The other agent knows nothing of this conversation: write a message that \
         says everything.",
        Effect::Effectful,
        json!({
            "type": "object",
            "properties": {
                "agent_name": text(MAX_NAME, &format!("Name of the agent, as `{LIST}` shows it")),
                "skill": text(MAX_NAME, "Id of the skill to use, as `{LIST}` shows it"),
                "message": text(MAX_MESSAGE, "What is to be done, complete in itself"),
                "timeout_minutes": {
                    "type": "integer", "minimum": 1, "maximum": max_minutes,
                    "description": format!("Minutes that the task may take; default {DEFAULT_MINUTES}"),
                },
                "wait": { "type": "boolean", "description": "Whether to wait for the result; default false" },
                "context_id": text(MAX_NAME, "The conversation to go on with, as an earlier result gives it"),
            },
            "required": ["agent_name", "skill", "message"],
            "additionalProperties": false,
        }),
    )
}

fn list_descriptor() -> ToolDescriptor {
    ToolDescriptor::local(
        LIST,
        SOURCE,
        "Lists the agents that you can give tasks to, with their skills.",
        Effect::ReadOnly,
        json!({
            "type": "object",
            "properties": { "skill": text(MAX_NAME, "Lists only agents that have this skill; upper and lower case are the same") },
            "additionalProperties": false,
        }),
    )
}

fn details_descriptor() -> ToolDescriptor {
    ToolDescriptor::local(
        DETAILS,
        SOURCE,
        "Shows all that is known of an agent: its description, and its skills with examples.",
        Effect::ReadOnly,
        one("agent_name", &format!("Name of the agent, as `{LIST}` shows it")),
    )
}

fn task_descriptor() -> ToolDescriptor {
    ToolDescriptor::local(
        TASK,
        SOURCE,
        "Shows how far a task is that you have given to another agent, and its result once there is one.",
        Effect::ReadOnly,
        one("task_id", &format!("Id of the task, as `{INVOKE}` returned it")),
    )
}

fn cancel_descriptor() -> ToolDescriptor {
    ToolDescriptor::local(
        CANCEL,
        SOURCE,
        "Asks another agent to give up a task that you have given to it. Not every agent can.",
        Effect::Idempotent,
        one("task_id", &format!("Id of the task, as `{INVOKE}` returned it")),
    )
}

fn one(name: &str, purpose: &str) -> Value {
    json!({
        "type": "object", "properties": { name: text(MAX_NAME, purpose) }, "required": [name],
        "additionalProperties": false,
    })
}

struct InvokeAgent(A2aTools);
struct ListAgents(A2aTools);
struct GetAgentDetails(A2aTools);
struct GetAgentTask(A2aTools);
struct CancelAgentTask(A2aTools);

#[derive(Deserialize)]
struct InvokeAgentArguments {
    agent_name: String,
    skill: String,
    message: String,
    timeout_minutes: Option<u64>,
    #[serde(default)]
    wait: bool,
    context_id: Option<String>,
}

#[derive(Deserialize)]
struct ListAgentsArguments {
    skill: Option<String>,
}

#[derive(Deserialize)]
struct AgentDetailsArguments {
    agent_name: String,
}

#[derive(Deserialize)]
struct AgentTaskArguments {
    task_id: String,
}

impl Executor for InvokeAgent {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let InvokeAgentArguments { agent_name, skill, message, timeout_minutes, wait, context_id } = call.read()?;
        let (tools, service) = (&self.0, &self.0.service);
        let caller = agent(&call)?;
        let known = match tools.agent(&call.caller, &agent_name) {
            Ok(known) => known,
            Err(unknown) => return Ok(unknown),
        };
        let skills = known.card().skills;
        if !skills.is_empty() && !skills.iter().any(|one| is_skill(&one.id, &one.name, &skill)) {
            let ids: Vec<String> = skills.into_iter().map(|one| excerpt(&one.id, MAX_NAME)).collect();
            let (skill, ids) = (shown(&skill), list(&ids, MAX_LISTED));
            return Ok(ToolOutput::error(format!("Agent '{}' has no skill '{skill}'. It has: {ids}.", known.name)));
        }
        let max = service.config().max_timeout.get();
        let limit = Duration::from_secs(timeout_minutes.unwrap_or(DEFAULT_MINUTES).saturating_mul(60)).min(max);
        let now = service.now();
        let task = AgentTask {
            id: service.new_id(),
            caller,
            share: call.caller.share().to_string(),
            agent: known.name.clone(),
            skill,
            context: context_id,
            begun: now,
            deadline: now + limit.as_secs(),
            ended: None,
            state: AgentTaskState::Submitted,
            is_late: false,
            note: None,
            result: None,
            remote: None,
            waiter: wait.then(|| service.topics()[1].to_owned()),
            ended_by: None,
            digest: None,
        };
        let max_tasks = service.config().max_tasks;
        match service.tasks().begin(&task, max_tasks, late_at(task.deadline)).await {
            Ok(()) => {}
            Err(BeginError::Full) => {
                let text =
                    format!("{max_tasks} tasks of yours are under way. Wait until one has ended, or cancel one.");
                return Ok(ToolOutput::error(text));
            }
            Err(error) => return Err(away(&error)),
        }
        let (id, order) = (task.id.clone(), TaskOrder { task: task.clone(), message });
        let (waiting, mut is_sent) = (wait.then(|| service.wait_for(&task)), Ok(()));
        match known.http {
            Some(http) => {
                let lists = tools.egress.rules().lists(&call.caller).clone();
                service.run_http(order, http, tools.egress.clone(), lists);
            }
            None => match service.send(&order).await {
                Ok(()) => {}
                Err(error) if error.is_certain() => return Err(not_sent(service, &task, &error).await),
                // The agent may have it: its result counts.
                Err(error) => is_sent = Err(unknown(&task, &error)),
            },
        }
        let Some(mut waiting) = waiting else { return is_sent.map(|()| dispatched(&task)) };
        let end_of_task = service.clock().now() + limit;
        let mut until = end_of_task.min(call.deadline);
        if is_sent.is_err() {
            until = until.min(service.clock().now() + UNCONFIRMED_TIME);
        }
        let ended = tokio::time::timeout_at(until.into(), waiting.ended()).await.ok().flatten();
        let ended = match ended.or_else(|| waiting.give_up()) {
            Some(end) => Some(end),
            None => service.kept_end(&id).await,
        };
        if let Some(end) = ended {
            return Ok(result_of(&task, &end));
        }
        // The call ends before the task: that goes on, and its result comes later.
        if until < end_of_task {
            let text = format!(
                "Agent '{}' has not answered yet. The task goes on with task_id: {id}. The result will arrive \
                 asynchronously and fold into the conversation.",
                task.agent
            );
            return is_sent.map(|()| ToolOutput::text(text));
        }
        let end = TaskEnd::Error(AgentTaskError {
            task_id: id.clone(),
            code: AgentTaskError::EXECUTION_FAILED.to_owned(),
            message: "There was no result in time; it may go on with the task".to_owned(),
            ..AgentTaskError::default()
        });
        service.mark_late(&id, &end).await;
        is_sent.map(|()| result_of(&task, &end))
    }
}

/// Builds the output where the result comes later.
fn dispatched(AgentTask { agent, id, .. }: &AgentTask) -> ToolOutput {
    ToolOutput::text(format!(
        "Task dispatched to agent '{agent}' with task_id: {id}. The result will arrive asynchronously and fold into the \
         conversation."
    ))
}

/// Builds the output once a task has ended.
fn result_of(task: &AgentTask, end: &TaskEnd) -> ToolOutput {
    let AgentTask { agent, id, .. } = task;
    let text = end.text();
    match end {
        TaskEnd::Result(result) => match result.state {
            AgentTaskState::Completed if text.is_empty() => {
                ToolOutput::text(format!("Agent '{agent}' has done the task (task_id: {id}), and says nothing of it."))
            }
            AgentTaskState::Completed => ToolOutput::text(text),
            AgentTaskState::InputRequired => {
                // What a call could not give, or would not be the same when it is given, is of no use.
                let context = result.context_id.as_deref().filter(|context| excerpt(context, MAX_NAME) == **context);
                let context = context.map(|context| format!(" with context_id: {context}"));
                let context = context.unwrap_or_default();
                ToolOutput::text(format!("Agent '{agent}' needs input: {text}\nAnswer by `{INVOKE}`{context}."))
            }
            state => ToolOutput::error(format!("Agent '{agent}': the task {} (task_id: {id}). {text}", state.as_str())),
        },
        TaskEnd::Error(_) => ToolOutput::error(format!("Agent '{agent}' gave no result (task_id: {id}): {text}")),
    }
}

/// The failure of a task that may have been published or not.
fn unknown(AgentTask { agent, id, .. }: &AgentTask, error: &TaskPublishError) -> ToolFailure {
    let text = format!(
        "It is not known whether agent '{agent}' has got the task with task_id: {id}. If it has, the result will arrive \
         asynchronously, and `{TASK}` shows it. Do not give the task again before you have looked there."
    );
    ToolFailure::new(Cause::OutcomeUnknown, text).with_detail(error)
}

/// The failure of a task that was not published, and is forgotten.
async fn not_sent(service: &AgentService, task: &AgentTask, error: &TaskPublishError) -> ToolFailure {
    service.not_sent();
    if let Err(error) = service.tasks().remove(&task.id, &task.share).await {
        service.warn_away(&error, "a task that was not sent could not be forgotten");
    }
    let agent = &task.agent;
    let (cause, text) = match error {
        TaskPublishError::Unroutable(_) => (
            Cause::ConnectFailed,
            format!("Agent '{agent}' takes no tasks now. Try again later, or ask another agent."),
        ),
        TaskPublishError::Refused(_) | TaskPublishError::Late => {
            (Cause::ConnectFailed, format!("The task for agent '{agent}' could not be sent. Try again later."))
        }
    };
    ToolFailure::new(cause, text).with_detail(error)
}

/// Whether a skill is meant by this name.
fn is_skill(id: &str, name: &str, wanted: &str) -> bool {
    [id, name].iter().any(|known| known.to_lowercase() == wanted.to_lowercase())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListedAgent {
    agent_name: String,
    description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seen: Option<String>,
    skills: Vec<ListedSkill>,
    /// Advice on what to do where there was no room for description and skills.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<&'static str>,
}

#[derive(Serialize)]
struct ListedSkill {
    id: String,
    description: Option<String>,
}

impl Executor for ListAgents {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let ListAgentsArguments { skill } = call.read()?;
        let known = self.0.known(&call.caller);
        if known.is_empty() {
            return Ok(ToolOutput::text("No agents have announced themselves yet."));
        }
        let mut room = MAX_LIST;
        let agents = known.into_iter().filter_map(|agent| {
            let card = agent.card();
            let has = |wanted: &String| card.skills.iter().any(|one| is_skill(&one.id, &one.name, wanted));
            if !skill.as_ref().is_none_or(has) {
                return None;
            }
            let size = |text: &Option<String>| text.as_ref().map_or(0, String::len);
            let skills = card.skills.into_iter().map(|one| ListedSkill { id: one.id, description: one.description });
            let skills: Vec<ListedSkill> = skills.collect();
            let of_skills: usize = skills.iter().map(|one| one.id.len() + size(&one.description)).sum();
            let has_room = room.checked_sub(of_skills + size(&card.description));
            room = has_room.unwrap_or(room);
            Some(ListedAgent {
                agent_name: card.agent_name,
                description: card.description.filter(|_| has_room.is_some()),
                last_seen: agent.last_seen.map(rfc3339),
                skills: if has_room.is_some() { skills } else { Vec::new() },
                more: has_room.is_none().then_some("`get_agent_details` shows description and skills"),
            })
        });
        let agents: Vec<ListedAgent> = agents.collect();
        match (agents.is_empty(), skill) {
            (true, Some(skill)) => Ok(ToolOutput::text(format!("No agents found with skill '{}'.", shown(&skill)))),
            _ => as_json(&agents),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AgentDetails {
    #[serde(flatten)]
    card: AgentCard,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seen: Option<String>,
    /// Reason why the agent's card could not be fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl Executor for GetAgentDetails {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let AgentDetailsArguments { agent_name } = call.read()?;
        let known = match self.0.agent(&call.caller, &agent_name) {
            Ok(known) => known,
            Err(unknown) => return Ok(unknown),
        };
        let problem = match &known.http {
            Some(http) => http.refresh(&self.0.exchange(&call.caller)).await.err().map(|error| error.to_string()),
            None => None,
        };
        let card = AgentCard { url: None, ..known.card() };
        as_json(&AgentDetails { card, last_seen: known.last_seen.map(rfc3339), problem })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownTask {
    task_id: String,
    agent_name: String,
    skill: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_id: Option<String>,
    begun: String,
    deadline: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
}

impl Executor for GetAgentTask {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let AgentTaskArguments { task_id } = call.read()?;
        let task = self.0.service.tasks().of_caller(&task_id, &call.caller).await.map_err(|error| away(&error))?;
        let Some(task) = task else { return Ok(no_task(&task_id)) };
        as_json(&ShownTask {
            task_id: task.id,
            agent_name: task.agent.to_string(),
            skill: task.skill,
            state: task.state.as_str(),
            context_id: task.context,
            begun: rfc3339(task.begun),
            deadline: rfc3339(task.deadline),
            ended: task.ended.map(rfc3339),
            note: task.note,
            result: task.result,
        })
    }
}

impl Executor for CancelAgentTask {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let AgentTaskArguments { task_id } = call.read()?;
        let (tools, service) = (&self.0, &self.0.service);
        let task = service.tasks().of_caller(&task_id, &call.caller).await.map_err(|error| away(&error))?;
        let Some(task) = task else { return Ok(no_task(&task_id)) };
        let AgentTask { agent, id, .. } = &task;
        if task.ended.is_some() {
            return Ok(ToolOutput::text(format!("Task {id} has ended already: {}.", task.state.as_str())));
        }
        let http = service.directory().get(agent.as_str()).and_then(|known| known.http);
        match (http, &task.remote) {
            (Some(http), Some(remote)) => match http.cancel(&tools.exchange(&call.caller), remote).await {
                Ok(state) => Ok(ToolOutput::text(format!("Task {id} of agent '{agent}' is {} now.", state.as_str()))),
                Err(error) => Ok(ToolOutput::error(format!("Agent '{agent}' did not cancel task {id}: {error}."))),
            },
            (Some(_), None) => {
                Ok(ToolOutput::error(format!("Agent '{agent}' has not taken task {id} yet. Try again in a moment.")))
            }
            (None, _) => match service.send_cancel(&task).await {
                Ok(()) => Ok(ToolOutput::text(format!(
                    "Asked agent '{agent}' to cancel task {id}. `{TASK}` shows what became of it."
                ))),
                Err(error) => {
                    let (cause, text) = match error.is_certain() {
                        true => (Cause::ConnectFailed, "could not be asked"),
                        false => (Cause::ConnectionLost, "was asked or not, which is not known,"),
                    };
                    let text = format!("Agent '{agent}' {text} to cancel task {id}.");
                    Err(ToolFailure::new(cause, text).with_detail(error))
                }
            },
        }
    }
}

fn no_task(id: &str) -> ToolOutput {
    ToolOutput::error(format!("No task of yours has the id '{}'. It may have ended some time ago.", shown(id)))
}

fn away(error: &impl ToString) -> ToolFailure {
    ToolFailure::new(Cause::Unavailable, "Tasks cannot be reached now. Try again later.").with_detail(error.to_string())
}

#[cfg(test)]
mod tests;
