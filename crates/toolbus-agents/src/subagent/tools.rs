//! The tools: `spawn_subagent`, `cancel_subagent` and `list_subagents`.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use toolbus_core::caller::AgentName;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::text::{shortened, shown};
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput, rounded_text, time_text};

use super::coordinator::Subagents;
use super::task::{MAX_SHOWN, SubagentEnd, SubagentTask, forget_ended};
use crate::share_values::ShareValueError;

/// Names of the tools.
pub const NAMES: [&str; 3] = [SPAWN, CANCEL, LIST];
/// Source of the tools.
pub const SOURCE: &str = "subagent";
const SPAWN: &str = "spawn_subagent";
const CANCEL: &str = "cancel_subagent";
const LIST: &str = "list_subagents";
/// Longest description of a task, in characters.
const MAX_DESCRIPTION: usize = 4000;
/// Longest context of a task, in characters.
const MAX_CONTEXT: usize = 16_000;
/// All descriptions of the tasks of an agent that are under way, in bytes as the store has them: the results of those that
/// have ended need as much.
const MAX_DESCRIPTIONS: usize = 384 * 1024;
/// Minutes of a task without `timeout_minutes`.
const DEFAULT_MINUTES: u64 = 10;
/// Longest part of an output that a list shows, in characters.
const MAX_LISTED: usize = 2000;

impl Subagents {
    /// The three tools.
    #[must_use]
    pub fn tools(&self) -> Vec<Tool> {
        vec![
            Tool::new(spawn_descriptor(self), SpawnSubagent(self.clone())),
            Tool::new(cancel_descriptor(), CancelSubagent(self.clone())),
            Tool::new(list_descriptor(), ListSubagents(self.clone())),
        ]
    }

    fn minutes(&self, requested: Option<u64>) -> u64 {
        let most = (self.config.max_timeout.get().as_secs() / 60).max(1);
        requested.unwrap_or(DEFAULT_MINUTES).clamp(1, most)
    }
}

fn spawn_descriptor(subagents: &Subagents) -> ToolDescriptor {
    let pools: Vec<&String> = subagents.config.pools.keys().collect();
    let most = subagents.minutes(Some(u64::MAX));
    let about = "Gives a task to another agent, which works on it while you go on. It knows nothing of this conversation, so \
                 say everything that it needs. Its result arrives as a message; `list_subagents` shows what has become of it.";
    let mut parameters = json!({
        "type": "object",
        "properties": {
            "description": { "type": "string", "minLength": 1, "maxLength": MAX_DESCRIPTION,
                "description": "What to do, complete in itself, and what the result should be" },
            "context": { "type": "string", "maxLength": MAX_CONTEXT, "description": "What you know that helps with the task" },
            "timeout_minutes": { "type": "integer", "minimum": 1,
                "description": format!("Minutes that the task may take, at most {most}; default {DEFAULT_MINUTES}") },
        },
        "required": ["description"],
    });
    // An empty list of values would make a provider refuse the tool, and all others with it.
    if let (Some(first), Some(properties)) =
        (pools.first(), parameters.get_mut("properties").and_then(Value::as_object_mut))
    {
        let about = format!("The group of agents that are asked; default `{first}`");
        properties.insert("pool".to_owned(), json!({ "type": "string", "enum": pools, "description": about }));
    }
    ToolDescriptor::local(SPAWN, SOURCE, about, Effect::Effectful, parameters)
}

fn cancel_descriptor() -> ToolDescriptor {
    ToolDescriptor::local(
        CANCEL,
        SOURCE,
        "Cancels a task that you have given to another agent. Work already done is not undone.",
        Effect::Idempotent,
        json!({
            "type": "object",
            "properties": { "task_id": { "type": "string", "minLength": 1, "maxLength": 64,
                "description": format!("The task, as `{LIST}` shows it") } },
            "required": ["task_id"],
            "additionalProperties": false,
        }),
    )
}

fn list_descriptor() -> ToolDescriptor {
    ToolDescriptor::local(
        LIST,
        SOURCE,
        "Lists the tasks that you have given to other agents: those under way, and the results of those that ended last.",
        Effect::ReadOnly,
        json!({ "type": "object", "properties": {}, "additionalProperties": false }),
    )
}

struct SpawnSubagent(Subagents);
struct CancelSubagent(Subagents);
struct ListSubagents(Subagents);

#[derive(Deserialize)]
struct SpawnSubagentArguments {
    description: String,
    context: Option<String>,
    timeout_minutes: Option<u64>,
    pool: Option<String>,
}

#[derive(Deserialize)]
struct CancelSubagentArguments {
    task_id: String,
}

impl Executor for SpawnSubagent {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let SpawnSubagentArguments { description, context, timeout_minutes, pool } = call.read()?;
        let (subagents, agent, share) = (&self.0, agent(&call)?, call.caller.share());
        let Some(pool) = pool.or_else(|| subagents.config.pools.keys().next().cloned()) else {
            return Ok(ToolOutput::error("Error: there is no pool of agents that work on tasks."));
        };
        if !subagents.config.pools.contains_key(&pool) {
            return Err(ToolFailure::invalid(format!("There is no pool `{}`.", shown(&pool))));
        }
        let (id, created) = (subagents.task_id(&share), subagents.now());
        let task = SubagentTask {
            session: format!("subagent/{id}"),
            primary_session: call.caller.session.as_deref().unwrap_or_default().to_owned(),
            deadline: created + subagents.minutes(timeout_minutes) * 60,
            id,
            agent,
            pool,
            description,
            created,
            worker: None,
            end: None,
        };
        let most = subagents.config.max_tasks;
        // Kept before it is offered: a report may come at once.
        let kept = subagents.tasks.update(&share, |tasks: &mut Vec<SubagentTask>| {
            let under_way = tasks.iter().filter(|task| task.end.is_none());
            if under_way.clone().count() >= most {
                return Err(format!("{most} tasks are under way, which is the most"));
            }
            if under_way.map(description_size).sum::<usize>() + description_size(&task) > MAX_DESCRIPTIONS {
                return Err("the descriptions of the tasks that are under way leave no room for another".to_owned());
            }
            tasks.push(task.clone());
            forget_ended(tasks);
            Ok(())
        });
        if let Err(full) = kept.await.map_err(|error| away(&error))? {
            return Ok(ToolOutput::error(format!("Error: {full}. Wait for one, or cancel it.")));
        }
        if let Err(error) = subagents.offer(&task, context).await {
            if !error.is_certain() {
                // An agent may have it: what it reports counts.
                let text = format!(
                    "It is not known whether an agent of the pool `{}` has got the task with task_id: {}. If one has, its \
                     result arrives as a message. `{LIST}` shows who works on it; cancel it before you give it again.",
                    shown(&task.pool),
                    task.id
                );
                return Err(ToolFailure::new(Cause::OutcomeUnknown, text).with_detail(error));
            }
            let dropped = subagents.tasks.update(&share, |tasks: &mut Vec<SubagentTask>| {
                tasks.retain(|one| one.id != task.id);
                Ok::<_, ()>(())
            });
            let _ = dropped.await.map_err(|error| away(&error))?;
            let text = format!("Error: no agent of the pool `{}` can be reached: {error}.", shown(&task.pool));
            return Ok(ToolOutput::error(text));
        }
        let (id, minutes) = (&task.id, (task.deadline - task.created) / 60);
        let text = format!(
            "Subagent spawned with task_id: {id}. Its result arrives as a message within {}.",
            time_text(Duration::from_secs(minutes * 60))
        );
        Ok(ToolOutput::text(text))
    }
}

/// Returns the size in the store of the texts that a task has from its agent, in bytes.
fn description_size(task: &SubagentTask) -> usize {
    stored_size(&task.description) + stored_size(&task.primary_session)
}

/// Returns the size of a text in the store, in bytes.
pub(super) fn stored_size(text: &str) -> usize {
    let escape = |character: char| match character {
        '"' | '\\' => 2,
        '\u{0}'..='\u{1f}' => 6,
        _ => character.len_utf8(),
    };
    text.chars().map(escape).sum()
}

impl Executor for CancelSubagent {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let CancelSubagentArguments { task_id } = call.read()?;
        let (subagents, agent, share) = (&self.0, agent(&call)?, call.caller.share());
        let now = subagents.now();
        let cancelled = subagents.tasks.update(&share, |tasks: &mut Vec<SubagentTask>| {
            let is_it = |task: &&mut SubagentTask| task.id == task_id && task.agent == agent && task.end.is_none();
            let task = tasks.iter_mut().find(is_it).ok_or(())?;
            let error = Some("Cancelled.".to_owned());
            task.end = Some(SubagentEnd { at: now, output: String::new(), is_success: false, error, is_told: true });
            let task = task.clone();
            forget_ended(tasks);
            Ok::<_, ()>(task)
        });
        let task_id = shown(&task_id);
        Ok(ToolOutput::text(match cancelled.await.map_err(|error| away(&error))? {
            Ok(task) => {
                subagents.call_off(&task, "It was cancelled.").await;
                format!("Subagent {task_id} cancelled.")
            }
            Err(()) => format!("No active subagent found with task_id '{task_id}'."),
        }))
    }
}

impl Executor for ListSubagents {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let agent = agent(&call)?;
        let tasks: Result<Vec<SubagentTask>, _> = self.0.tasks.read(&call.caller.share()).await;
        let mut tasks = tasks.map_err(|error| away(&error))?;
        tasks.retain(|task| task.agent == agent);
        Ok(ToolOutput::text(listed(&tasks, self.0.now())))
    }
}

fn listed(tasks: &[SubagentTask], now: u64) -> String {
    let (active, ended): (Vec<&SubagentTask>, Vec<&SubagentTask>) = tasks.iter().partition(|task| task.end.is_none());
    let mut text = match active.is_empty() {
        true => "No active subagents.".to_owned(),
        false => format!("Active subagents ({}):", active.len()),
    };
    for SubagentTask { id, description, created, deadline, worker, .. } in active {
        let [since, left] = [now.saturating_sub(*created), deadline.saturating_sub(now)]
            .map(|seconds| rounded_text(Duration::from_secs(seconds)));
        let worker = worker.as_ref().map_or_else(|| "no agent yet".to_owned(), AgentName::to_string);
        let description = shortened(description, MAX_SHOWN);
        // Writing to a string does not fail.
        let _ = write!(text, "\n- {id}, by {worker}, for {since}, {left} left: {description}");
    }
    for task in ended {
        let Some(SubagentEnd { output, is_success, error, .. }) = &task.end else { continue };
        let (id, description) = (&task.id, shortened(&task.description, MAX_SHOWN));
        let became = match (is_success, error) {
            (true, _) => shortened(output, MAX_LISTED),
            (false, Some(error)) => format!("failed: {}", shortened(error, MAX_LISTED)).into(),
            (false, None) => "failed".into(),
        };
        // Indented, so that no line of another agent is taken for one of this list.
        let became = became.lines().collect::<Vec<_>>().join("\n  ");
        let _ = write!(text, "\n\nEnded: {id}: {description}\n{became}");
    }
    text
}

pub(super) fn agent(call: &ToolCall) -> Result<AgentName, ToolFailure> {
    call.caller.agent.clone().ok_or_else(|| {
        let text = "Tasks and whiteboards belong to an agent, and this request names none: send the agent's name in \
                    `rb-source`, or log in to the broker as the agent.";
        ToolFailure::new(Cause::NotAllowed, text)
    })
}

pub(super) fn away(error: &ShareValueError) -> ToolFailure {
    let text = "What is kept of tasks cannot be reached now. Try again later.";
    ToolFailure::new(Cause::Unavailable, text).with_detail(error.to_string())
}
