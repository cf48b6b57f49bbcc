//! The tools: `schedule_task`, `list_scheduled_tasks` and `cancel_scheduled_task`.
//!
//! A call that is to be scheduled passes the gates of a call of now, as its caller and as what it will run as, so that
//! mistakes are reported at once; it passes them again when it runs.

use std::fmt::Write as _;
use std::sync::Arc;

use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolbus_core::caller::{AgentName, Caller};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::store::StoreError;
use toolbus_core::text::{shortened, shown};
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::{Clock, Gates, ToolRef};
use toolbus_protocol::Random;

use super::config::ScheduleConfig;
use super::cron::{CronExpression, shown_in, zone_name};
use super::message::PROFILE;
use super::task::{ScheduledCall, Task};
use super::task_store::TaskStore;
use crate::share_values::ShareValueError;
use crate::texts::agent;

/// Names of the tools.
pub const NAMES: [&str; 3] = [SCHEDULE, LIST, CANCEL];
/// Source of the tools.
pub const SOURCE: &str = "scheduling";
/// Guide to the use of the scheduling tools, for models.
pub const GUIDE: &str = include_str!("guide.md");
const SCHEDULE: &str = "schedule_task";
const LIST: &str = "list_scheduled_tasks";
const CANCEL: &str = "cancel_scheduled_task";
/// Longest name of a task, in characters.
const MAX_NAME: usize = 100;
/// Longest description of a task, in characters.
const MAX_DESCRIPTION: usize = 4000;
/// Longest expression, in characters.
const MAX_CRON: usize = 200;
/// Longest name of a tool, in characters.
const MAX_TOOL: usize = 200;
/// Largest arguments of a tool, in bytes of JSON.
const MAX_ARGUMENTS: usize = 64 * 1024;
/// Longest text of arguments in a list, in characters.
const MAX_SHOWN: usize = 200;
/// In seconds.
const HALF_YEAR: u64 = 183 * 24 * 3600;
/// Delay from which a task is shown as overdue, in seconds.
const OVERDUE: u64 = 5;

/// Parts that the tools have in common. Cheap to clone.
#[derive(Clone)]
pub struct ScheduleTools {
    tasks: TaskStore,
    gates: Arc<Gates>,
    config: Arc<ScheduleConfig>,
    zone: TimeZone,
    clock: Clock,
    random: Random,
}

impl ScheduleTools {
    /// Tools for these tasks, whose calls `gates` let pass.
    #[must_use]
    pub fn new(config: &ScheduleConfig, tasks: TaskStore, gates: Arc<Gates>, clock: Clock, random: Random) -> Self {
        let zone = config.zone().unwrap_or(TimeZone::UTC);
        Self { tasks, gates, config: Arc::new(config.clone()), zone, clock, random }
    }

    /// The three tools.
    #[must_use]
    pub fn tools(&self) -> Vec<Tool> {
        vec![
            Tool::new(schedule_descriptor(&self.zone), Schedule(self.clone())),
            Tool::new(list_descriptor(), ListTasks(self.clone())),
            Tool::new(cancel_descriptor(), CancelTask(self.clone())),
        ]
    }

    fn now(&self) -> u64 {
        self.clock.since_epoch().as_secs()
    }
}

fn schedule_descriptor(zone: &TimeZone) -> ToolDescriptor {
    let zone = zone_name(zone);
    let text = |most: usize, purpose: &str| json!({ "type": "string", "minLength": 1, "maxLength": most, "description": purpose });
    ToolDescriptor::local(
        SCHEDULE,
        SOURCE,
        "Schedules a task for yourself: at each of the times, you receive its name and description as a message, and do then \
         what the description says. Use it for reminders and for what recurs. You will know nothing else of this \
         conversation, so write a description that says everything. With `tool`, you schedule a call, and receive its \
         result. A task of the same name is replaced.",
        Effect::Effectful,
        json!({
            "type": "object",
            "properties": {
                "name": text(MAX_NAME, "A short name, such as `morning-mail`; upper and lower case are the same"),
                "cron": text(MAX_CRON, "When: five fields (minute hour day-of-month month day-of-week), such as \
                    `0 9 * * MON-FRI`, or six with seconds first. A day must match both day-of-month and day-of-week. For \
                    one moment, such as 14:30 on 3 May, `30 14 3 5 *` with `run_once`"),
                "description": text(MAX_DESCRIPTION, "What is to be done then, complete in itself"),
                "run_once": { "type": "boolean", "description": "Whether the task ends after its first time; default false" },
                "runOnce": { "type": "boolean", "description": "The same as `run_once`" },
                "timezone": text(64, &format!("IANA name of the time zone of `cron`, such as `Europe/Berlin`; default \
                    `{zone}`")),
                "tool": {
                    "type": "object",
                    "description": "A call of a tool that you may use, which is made at each of the times",
                    "properties": {
                        "name": text(MAX_TOOL, "The tool's name"),
                        "arguments": { "type": "object", "description": "Its arguments; default none" },
                    },
                    "required": ["name"],
                    "additionalProperties": false,
                },
            },
            "required": ["name", "cron", "description"],
            "additionalProperties": false,
        }),
    )
}

fn list_descriptor() -> ToolDescriptor {
    ToolDescriptor::local(
        LIST,
        SOURCE,
        "Lists the tasks that you have scheduled, with their next and last times, and the present time.",
        Effect::ReadOnly,
        json!({ "type": "object", "properties": {}, "additionalProperties": false }),
    )
}

fn cancel_descriptor() -> ToolDescriptor {
    ToolDescriptor::local(
        CANCEL,
        SOURCE,
        "Cancels a task that you have scheduled.",
        Effect::Idempotent,
        json!({
            "type": "object",
            "properties": { "name": {
                "type": "string", "minLength": 1, "maxLength": MAX_NAME,
                "description": format!("The task's name, as `{LIST}` shows it"),
            } },
            "required": ["name"],
            "additionalProperties": false,
        }),
    )
}

struct Schedule(ScheduleTools);
struct ListTasks(ScheduleTools);
struct CancelTask(ScheduleTools);

#[derive(Deserialize)]
struct ScheduleArguments {
    name: String,
    cron: String,
    description: String,
    run_once: Option<bool>,
    #[serde(rename = "runOnce")]
    run_once_alias: Option<bool>,
    timezone: Option<String>,
    tool: Option<ToolArguments>,
}

#[derive(Deserialize)]
struct ToolArguments {
    name: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// Reason why a task was not stored.
enum NotStored {
    NoRoom,
    /// There is one of the name, and the caller may not end it.
    NotReplaced,
}

#[derive(Deserialize)]
struct CancelTaskArguments {
    name: String,
}

impl Executor for Schedule {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let tools = &self.0;
        let agent = agent(&call)?;
        let mut arguments: ScheduleArguments = call.read()?;
        let scheduled = match arguments.tool.take() {
            Some(tool) => Some(tools.checked(&call, &agent, tool).await?),
            None => None,
        };
        let task = Task { tool: scheduled, ..tools.task(&agent, arguments).await? };
        let now = tools.now();
        // Replacing a task ends it.
        let may_replace = tools.gates.policy().effective(&call.caller).get(CANCEL).is_some();
        let (next, max_tasks) = (task.next, tools.config.max_tasks);
        let share = call.caller.share();
        let changed = tools.tasks.update(&share, |tasks| {
            let before = tasks.len();
            tasks.retain(|other| !other.is_named(&agent, &task.name));
            if tasks.len() < before && !may_replace {
                return Err(NotStored::NotReplaced);
            }
            if tasks.len() >= max_tasks {
                return Err(NotStored::NoRoom);
            }
            tasks.push(task.clone());
            Ok(())
        });
        match changed.await {
            Ok(Ok(())) => {}
            Ok(Err(NotStored::NotReplaced)) => {
                let text = format!(
                    "There is a task named '{}', and you may not cancel tasks, which replacing it would do. Choose \
                     another name.",
                    shown(&task.name)
                );
                return Err(ToolFailure::new(Cause::NotAllowed, text));
            }
            Ok(Err(NotStored::NoRoom)) => {
                let text = format!("Nothing was scheduled: there is room for {max_tasks} tasks. Cancel one of them.");
                return Ok(ToolOutput::error(text));
            }
            Err(ShareValueError::Store(StoreError::Value(_))) => {
                return Ok(ToolOutput::error(
                    "Nothing was scheduled: all tasks together are too long. Cancel one of them.",
                ));
            }
            Err(error) => return Err(away(&error)),
        }
        tools.tasks.announce(&share).await.map_err(|error| away(&error))?;
        let zone = task.zone();
        let Task { name, cron, tool, .. } = task;
        let called = tool.map_or_else(String::new, |call| format!(" `{}` is called then.", call.name));
        let (next, now, zone) = (shown_in(&zone, next), shown_in(&zone, now), zone_name(&zone));
        Ok(ToolOutput::text(format!(
            "Scheduled task '{name}' with cron '{cron}'. Next fire: {next} ({zone}). Current time: {now}.{called}"
        )))
    }
}

impl ScheduleTools {
    /// The task of the arguments.
    async fn task(&self, agent: &AgentName, arguments: ScheduleArguments) -> Result<Task, ToolFailure> {
        let ScheduleArguments { name, cron, description, run_once, run_once_alias, timezone, tool: _ } = arguments;
        if name.chars().any(char::is_control) || name.trim().is_empty() {
            return Err(invalid("name", &name, "is no name: expected visible characters on one line"));
        }
        let run_once = match (run_once, run_once_alias) {
            (Some(one), Some(other)) if one != other => {
                return Err(ToolFailure::invalid("`run_once` and `runOnce` differ; give one of them."));
            }
            (one, other) => one.or(other).unwrap_or_default(),
        };
        let zone = match timezone {
            None => self.zone.clone(),
            Some(name) => TimeZone::get(&name).map_err(|_| {
                invalid("timezone", &name, "is no time zone; expected an IANA name such as `Europe/Berlin` or `UTC`")
            })?,
        };
        let expression = CronExpression::parse(&cron, zone.clone())
            .map_err(|error| invalid("cron", &cron, &format!("is no cron expression: {error}")))?;
        let now = self.now();
        // One that has no time is looked for through three thousand years.
        let times = tokio::task::spawn_blocking(move || {
            let last = expression.next_after(now.saturating_sub(HALF_YEAR)).filter(|last| *last <= now);
            (expression.next_after(now), last, expression.shortest_gap(now))
        });
        let (next, last, gap) = times.await.map_err(|error| ToolFailure::new(Cause::Failed, "").with_detail(error))?;
        let Some(next) = next else { return Err(invalid("cron", &cron, "never comes; choose another expression")) };
        // A moment that has just passed would come in a year.
        if let Some(last) = last.filter(|_| run_once && next > now.saturating_add(HALF_YEAR)) {
            let [last, next, now] = [last, next, now].map(|time| shown_in(&zone, time));
            return Err(invalid(
                "cron",
                &cron,
                &format!("is in the past: it was {last}, and is next {next}. The present time is {now}"),
            ));
        }
        let least = self.config.min_interval;
        if !run_once && gap.is_some_and(|gap| gap < least.get().as_secs()) {
            return Err(invalid(
                "cron",
                &cron,
                &format!("comes too often: at least {least} must lie between two times"),
            ));
        }
        Ok(Task {
            id: self.random.id(),
            agent: agent.clone(),
            name,
            description,
            cron,
            zone: zone_name(&zone).to_owned(),
            run_once,
            created: now,
            next,
            last: None,
            tool: None,
            begun: None,
        })
    }

    /// A call, if its caller might make it now, and may by itself at the times of a task.
    async fn checked(
        &self,
        call: &ToolCall,
        agent: &AgentName,
        ToolArguments { name, arguments }: ToolArguments,
    ) -> Result<ScheduledCall, ToolFailure> {
        let text = Value::Object(arguments.clone()).to_string();
        if text.len() > MAX_ARGUMENTS {
            let text = format!("Argument `tool`: the arguments have {} bytes; at most {MAX_ARGUMENTS}.", text.len());
            return Err(ToolFailure::invalid(text));
        }
        let binding = call.caller.binding.clone();
        let policy = self.gates.policy();
        let now = policy.effective(&call.caller);
        self.gates.resolve(&now, &call.caller, ToolRef::named(&name)).map_err(of_tool)?;
        let later = Caller { profile: Some(PROFILE.into()), binding, ..policy.agent(agent.clone()) };
        let effective = policy.effective(&later);
        let allowed = self.gates.resolve(&effective, &later, ToolRef::named(&name)).map_err(of_tool)?;
        if *allowed.tool.descriptor.source == *SOURCE {
            return Err(invalid("tool", &name, "cannot be scheduled: a schedule makes no schedules"));
        }
        let sharer = Arc::clone(&later.owner);
        let checked = self.gates.arguments(&effective, allowed, Some(&text), sharer, call.deadline);
        self.gates.recipients(&effective, allowed, &checked.await.map_err(of_tool)?)?;
        let name = allowed.tool.descriptor.name.to_string();
        Ok(ScheduledCall { name, arguments, binding: later.binding.as_deref().map(str::to_owned) })
    }
}

/// Turns what is wrong with a call that is to be scheduled into what is wrong with an argument.
fn of_tool(failure: ToolFailure) -> ToolFailure {
    match failure.cause {
        Cause::UnknownTool | Cause::UnknownServer | Cause::InvalidArguments => {
            ToolFailure::invalid(format!("Argument `tool`: {}", failure.message))
        }
        _ => failure,
    }
}

impl Executor for ListTasks {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let agent = agent(&call)?;
        let mut tasks = self.0.tasks.read(&call.caller.share()).await.map_err(|error| away(&error))?;
        tasks.retain(|task| task.agent == agent);
        tasks.sort_by_key(|task| task.name.to_lowercase());
        Ok(ToolOutput::text(listed(&tasks, &self.0.zone, self.0.now())))
    }
}

impl Executor for CancelTask {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let CancelTaskArguments { name } = call.read()?;
        let agent = agent(&call)?;
        let share = call.caller.share();
        let cancelled = self.0.tasks.update(&share, |tasks| {
            let before = tasks.len();
            tasks.retain(|task| !task.is_named(&agent, &name));
            if tasks.len() < before { Ok(()) } else { Err(()) }
        });
        let name = shown(&name);
        Ok(ToolOutput::text(match cancelled.await.map_err(|error| away(&error))? {
            Ok(()) => format!("Cancelled scheduled task '{name}'."),
            Err(()) => format!("No scheduled task named '{name}' was found."),
        }))
    }
}

/// The tasks as a Markdown table.
fn listed(tasks: &[Task], zone: &TimeZone, now: u64) -> String {
    let time = format!("Current time: {} ({})", shown_in(zone, now), zone_name(zone));
    if tasks.is_empty() {
        return format!("No scheduled tasks. {time}");
    }
    let mut text = format!("{time}\n\nScheduled tasks ({}):\n\n", tasks.len());
    text.push_str("| Name | Cron | Next fire | Last fired | Description |\n|---|---|---|---|---|\n");
    for task in tasks {
        let zone = task.zone();
        let overdue = if task.next + OVERDUE < now { " ⚠️ OVERDUE" } else { "" };
        let once = if task.run_once { ", once" } else { "" };
        let last = task.last.map(|last| shown_in(&zone, last));
        let called = task.tool.as_ref().map_or_else(String::new, |ScheduledCall { name, arguments, .. }| {
            let arguments = Value::Object(arguments.clone()).to_string();
            format!("Calls `{}` with `{}`: ", cell(name), cell(&shortened(&arguments, MAX_SHOWN)))
        });
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| **{}** | `{}`{once} | {} ({}){overdue} | {} | {called}{} |",
            cell(&task.name),
            cell(&task.cron),
            shown_in(&zone, task.next),
            zone_name(&zone),
            last.as_deref().unwrap_or("never"),
            cell(&task.description),
        );
    }
    text
}

/// A text as the cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', r"\|").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn invalid(argument: &str, text: &str, what: &str) -> ToolFailure {
    ToolFailure::invalid(format!("Argument `{argument}`: `{}` {what}.", shown(text)))
}

fn away(error: &ShareValueError) -> ToolFailure {
    let text = "Scheduled tasks cannot be reached now. Try again later.";
    ToolFailure::new(Cause::Unavailable, text).with_detail(error.to_string())
}

#[cfg(test)]
mod tests;
