//! The whiteboard of an agent and its sub-agents: `whiteboard_write`, `whiteboard_read` and `whiteboard_list`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolbus_core::caller::Caller;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::text::{excerpt, shown};
use toolbus_core::tool::{Effect, Executor, Tool, ToolCall, ToolDescriptor, ToolOutput};

use super::coordinator::Subagents;
use super::tools::{agent, away, stored_size};

/// Names of the tools.
pub const NAMES: [&str; 3] = [WRITE, READ, LIST];
/// Source of the tools. It is another one than that of tasks, which sub-agents may not give.
pub const SOURCE: &str = "whiteboard";
const WRITE: &str = "whiteboard_write";
const READ: &str = "whiteboard_read";
const LIST: &str = "whiteboard_list";
/// Longest key, in characters.
const MAX_KEY: usize = 100;
/// Longest value, in characters.
const MAX_VALUE: usize = 4000;
/// All keys and values of a whiteboard, in bytes as the store has them.
const MAX_BOARD: usize = 256 * 1024;

/// The entries of an agent's whiteboard.
type Board = BTreeMap<String, BoardEntry>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct BoardEntry {
    value: String,
    /// The agent that wrote it.
    by: String,
}

impl Subagents {
    /// The three tools.
    #[must_use]
    pub fn whiteboard_tools(&self) -> Vec<Tool> {
        let value = format!("The text, at most {MAX_VALUE} characters; an empty one removes the entry");
        let key =
            || json!({ "type": "string", "minLength": 1, "maxLength": MAX_KEY, "description": "Name of the entry" });
        let value = json!({ "type": "string", "maxLength": MAX_VALUE, "description": value });
        vec![
            Tool::new(
                descriptor(
                    WRITE,
                    "Writes an entry of the whiteboard that you share with your sub-agents, or with the agent that gave you a task. An entry with the same key is replaced.",
                    Effect::Idempotent,
                    json!({ "key": key(), "value": value }),
                    &["key", "value"],
                ),
                WriteWhiteboard(self.clone()),
            ),
            Tool::new(
                descriptor(
                    READ,
                    "Reads an entry of the whiteboard that you share with your sub-agents, or with the agent that gave you a task.",
                    Effect::ReadOnly,
                    json!({ "key": key() }),
                    &["key"],
                ),
                ReadWhiteboard(self.clone()),
            ),
            Tool::new(
                descriptor(
                    LIST,
                    "Lists the keys of the whiteboard that you share with your sub-agents, or with the agent that gave you a task.",
                    Effect::ReadOnly,
                    json!({}),
                    &[],
                ),
                ListWhiteboard(self.clone()),
            ),
        ]
    }

    /// The share whose board a call means: the caller's own, or that of the task that it works on.
    async fn board_of(&self, call: &ToolCall, task: Option<&str>) -> Result<Arc<str>, ToolFailure> {
        let agent = agent(call)?;
        let not_allowed = |text: &str| ToolFailure::new(Cause::NotAllowed, text);
        let Some(task) = task.filter(|task| !task.is_empty()) else {
            let text = "Only agents with a section of the configuration have a whiteboard of their own.";
            return if call.caller.has_section { Ok(call.caller.share()) } else { Err(not_allowed(text)) };
        };
        let own = self.share_of(task).await.map_err(|error| away(&error))?;
        // The tasks of all agents without a section are one share: a whiteboard of it would be open to each of them.
        if own.as_deref() == Some(&*Caller::unknown().share()) {
            let text =
                "The agent that gave this task has no whiteboard: only agents with a section of the configuration do.";
            return Err(not_allowed(text));
        }
        if call.caller.has_section && own.as_deref() == Some(&*call.caller.share()) {
            return Ok(call.caller.share());
        }
        match self.change(Some(&agent), task, |_| {}).await.map_err(|error| away(&error))? {
            Ok((share, _)) => Ok(share.into()),
            Err(_) => Err(not_allowed("You do not work on this task, or it has ended.")),
        }
    }
}

fn descriptor(name: &str, about: &str, effect: Effect, mut properties: Value, required: &[&str]) -> ToolDescriptor {
    if let Some(properties) = properties.as_object_mut() {
        let text = "Id of your sub-agent task; leave out for your own whiteboard";
        properties.insert("task_id".to_owned(), json!({ "type": "string", "maxLength": 64, "description": text }));
    }
    let parameters =
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false });
    ToolDescriptor::local(name, SOURCE, about, effect, parameters)
}

struct WriteWhiteboard(Subagents);
struct ReadWhiteboard(Subagents);
struct ListWhiteboard(Subagents);

#[derive(Deserialize)]
struct BoardArguments {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
    task_id: Option<String>,
}

impl Executor for WriteWhiteboard {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let BoardArguments { key, value, task_id } = call.read()?;
        let (subagents, by) = (&self.0, agent(&call)?.to_string());
        let share = subagents.board_of(&call, task_id.as_deref()).await?;
        let most = subagents.config.max_entries;
        let written = subagents.boards.update(&share, |board: &mut Board| {
            if value.is_empty() {
                board.remove(&key);
                return Ok(());
            }
            board.insert(key.clone(), BoardEntry { value: value.clone(), by: by.clone() });
            let size: usize = board.iter().map(|(key, entry)| stored_size(key) + stored_size(&entry.value)).sum();
            if board.len() > most || size > MAX_BOARD { Err(()) } else { Ok(()) }
        });
        let key = shown(&key);
        Ok(match written.await.map_err(|error| away(&error))? {
            Ok(()) if value.is_empty() => ToolOutput::text(format!("Removed '{key}' from the whiteboard.")),
            Ok(()) => ToolOutput::text(format!("Wrote '{key}' to the whiteboard.")),
            Err(()) => ToolOutput::error(format!(
                "Nothing was written: a whiteboard has room for {most} entries of {MAX_BOARD} bytes together. Remove some."
            )),
        })
    }
}

impl Executor for ReadWhiteboard {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let BoardArguments { key, task_id, .. } = call.read()?;
        let share = self.0.board_of(&call, task_id.as_deref()).await?;
        let mut board: Board = self.0.boards.read(&share).await.map_err(|error| away(&error))?;
        Ok(match board.remove(&key) {
            Some(entry) => ToolOutput::text(entry.value),
            None => ToolOutput::error(format!("The whiteboard has no entry '{}'.", shown(&key))),
        })
    }
}

impl Executor for ListWhiteboard {
    async fn execute(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let BoardArguments { task_id, .. } = call.read()?;
        let share = self.0.board_of(&call, task_id.as_deref()).await?;
        let board: Board = self.0.boards.read(&share).await.map_err(|error| away(&error))?;
        if board.is_empty() {
            return Ok(ToolOutput::text("The whiteboard is empty."));
        }
        let lines = board
            .iter()
            .map(|(key, entry)| (excerpt(key, MAX_KEY), entry))
            .map(|(key, entry)| format!("- {key}: {} characters, by {}", entry.value.chars().count(), entry.by));
        Ok(ToolOutput::text(lines.collect::<Vec<_>>().join("\n")))
    }
}
