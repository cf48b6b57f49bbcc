//! Pipelines: small lists of steps that call tools, with values of earlier steps. `spawn_wisps`.
//!
//! * [`config`]: the section of the configuration.
//! * `definition`: what a caller wants, checked before anything runs.
//! * `run`: runs it. Every step is a call of the caller's own, which passes every gate.

mod condition;
pub mod config;
mod definition;
mod run;
mod template;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::policy::PolicyHandle;
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};
use toolbus_core::{Clock, Invoker};

pub use self::config::PipelinesConfig;
use self::run::PipelineRun;

/// Names of the tools.
pub const NAMES: [&str; 1] = [NAME];
/// Source of the tools.
pub const SOURCE: &str = "wisp";
/// Guide to the use of the pipeline tools, for models.
pub const GUIDE: &str = include_str!("pipeline/guide.md");
const NAME: &str = "spawn_wisps";
/// All calls keep values of so many times what one call may keep; the calls of one agent those of half as many.
const CALLS_OF_VALUES: usize = 4;
/// When a caller may try again that has too many calls under way.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Runs pipelines. Cheap to clone.
#[derive(Clone)]
pub struct Pipelines {
    config: Arc<PipelinesConfig>,
    policy: PolicyHandle,
    invoker: Arc<dyn Invoker>,
    clock: Clock,
    running: RunningPipelines,
}

impl Pipelines {
    /// Pipelines whose steps `invoker` runs; `policy` has the effects of their tools.
    #[must_use]
    pub fn new(config: &PipelinesConfig, policy: PolicyHandle, invoker: Arc<dyn Invoker>, clock: Clock) -> Self {
        Self { config: Arc::new(config.clone()), policy, invoker, clock, running: RunningPipelines::default() }
    }

    /// The tool.
    #[must_use]
    pub fn tool(&self) -> Tool {
        Tool::new(descriptor(&self.config), self.clone())
    }
}

impl Executor for Pipelines {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let plans = definition::read(&call.arguments, &self.config)?;
        let (share, most) =
            (call.caller.share(), usize::try_from(self.config.max_values.bytes()).unwrap_or(usize::MAX));
        let running = self.running.enter(&share, self.config.max_running, most).ok_or_else(|| {
            let text = "Too many pipelines run already. Try again later, or call the tools one by one.";
            ToolFailure::new(Cause::Overloaded, text).with_retry_after(RETRY_AFTER)
        })?;
        Ok(PipelineRun::new(self, &call, &running, &plans).run(&plans).await)
    }
}

/// The running calls, by share: they take no permit, because those within take some.
#[derive(Clone, Default)]
struct RunningPipelines(Arc<Mutex<HashMap<Arc<str>, Share>>>);

/// Calls and bytes that one share uses.
#[derive(Default)]
struct Share {
    calls: usize,
    /// Bytes of the values that its calls keep.
    bytes: usize,
}

/// A running call, until it is dropped.
struct RunningPipeline {
    room: ValueRoom,
}

/// Room for the values of one call. Clones are of the same call.
#[derive(Clone)]
struct ValueRoom(Arc<ValueRoomState>);

struct ValueRoomState {
    running: RunningPipelines,
    share: Arc<str>,
    /// Bytes of the values of this call, and the most that they may be.
    taken: AtomicUsize,
    most: usize,
}

/// Other values, beside which one has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// The other values of its call.
    ByThis,
    /// The values of all calls.
    ByAll,
}

impl RunningPipelines {
    /// Enters a call, if not `max` run, and not more of this share than are free: so that others find one. Its values may
    /// take `most` bytes.
    fn enter(&self, share: &Arc<str>, max: usize, most: usize) -> Option<RunningPipeline> {
        let mut running = self.0.lock();
        let all: usize = running.values().map(|share| share.calls).sum();
        let free = max.saturating_sub(all);
        let own = running.get(share).map_or(0, |share| share.calls);
        if free == 0 || own >= free && own > 0 {
            return None;
        }
        running.entry(Arc::clone(share)).or_default().calls += 1;
        drop(running);
        let (running, share) = (self.clone(), Arc::clone(share));
        let room = ValueRoom(Arc::new(ValueRoomState { running, share, taken: AtomicUsize::new(0), most }));
        Some(RunningPipeline { room })
    }
}

impl RunningPipeline {
    /// Bytes of the values of this call.
    fn bytes(&self) -> usize {
        self.room.0.taken.load(Ordering::Relaxed)
    }

    fn room(&self) -> ValueRoom {
        self.room.clone()
    }
}

impl ValueRoom {
    /// Takes room for a value, until the call has ended: a share has at most as much as is free then.
    fn take(&self, bytes: usize) -> Result<(), Taken> {
        let ValueRoomState { running, share, taken, most } = &*self.0;
        let mut running = running.0.lock();
        if bytes > most.saturating_sub(taken.load(Ordering::Relaxed)) {
            return Err(Taken::ByThis);
        }
        let all: usize = running.values().map(|share| share.bytes).sum();
        let free = most.saturating_mul(CALLS_OF_VALUES).saturating_sub(all + bytes);
        let own = running.entry(Arc::clone(share)).or_default();
        if own.bytes + bytes > free {
            return Err(Taken::ByAll);
        }
        own.bytes += bytes;
        taken.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for ValueRoomState {
    fn drop(&mut self) {
        let mut running = self.running.0.lock();
        if let Some(own) = running.get_mut(&self.share) {
            own.calls = own.calls.saturating_sub(1);
            own.bytes = own.bytes.saturating_sub(*self.taken.get_mut());
            if own.calls == 0 {
                running.remove(&self.share);
            }
        }
    }
}

fn descriptor(config: &PipelinesConfig) -> ToolDescriptor {
    let description = "Runs small pipelines side by side: lists of tool calls, where later calls use values of earlier \
                       ones. Use it for a few calls in a row whose order and arguments you know now. Everything is checked \
                       before anything runs. The result has the outcome of each step, and the values that you ask for.";
    let text = |description: &str| json!({ "type": "string", "description": description });
    let step = json!({
        "type": "object",
        "properties": {
            "id": text("Its name, such as `find`"),
            "tool": text("Name of the tool that it calls"),
            "server": text("The MCP server that has the tool, where another one has a tool of that name"),
            "params": {
                "type": "object",
                "description": "The tool's arguments. `{{find}}` in a string is the value of the step `find`, and \
                    `{{find/items/0/name}}` a part of it, by JSON pointer. A string that is only that becomes the value",
            },
            "input_from": text("A step, or a part of its value (`find/items`), that is `{{input}}` in `params`"),
            "for_each": text("A list in the value of a step, such as `find/items`: the tool is called for each element, \
                which is `{{item}}` in `params`; the step's value is the list of the results"),
            "when": {
                "type": "array",
                "maxItems": 8,
                "items": { "type": "object" },
                "description": "Conditions, all of which must be met, or else the step is skipped: \
                    `{\"value\": \"find/count\", \"above\": 0}`; also `below`, `equals`, `not_equals`, `contains`, `exists`",
            },
            "on_failure": text("`stop` (default) ends the pipeline, `continue` goes on without this value, `retry 3` \
                tries again up to three times where that is safe"),
            "output_to": text("Another name for its value, under which the result has it; the result has the value of the \
                last step in any case"),
        },
        "required": ["id"],
    });
    let parameters = json!({
        "type": "object",
        "properties": { "definitions": {
            "type": "array",
            "minItems": 1,
            "maxItems": config.max_pipelines,
            "items": {
                "type": "object",
                "properties": {
                    "description": {
                        "type": "string", "maxLength": 1000, "description": "What the pipeline is for, in a few words",
                    },
                    "steps": { "type": "array", "minItems": 1, "maxItems": config.max_steps, "items": step },
                    "tools": {
                        "type": "array",
                        "items": { "type": "string" },
                        "description": "Names of the only tools that its steps may call; absent: any that you may use",
                    },
                    "timeout_seconds": {
                        "type": "integer", "minimum": 1, "maximum": 86_400,
                        "description": "Most time that the pipeline may take",
                    },
                },
                "required": ["description", "steps"],
            },
        } },
        "required": ["definitions"],
        "additionalProperties": false,
    });
    ToolDescriptor {
        delegates: true,
        ..ToolDescriptor::local(NAME, SOURCE, description, Effect::Undeclared, parameters)
    }
}
