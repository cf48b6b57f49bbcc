//! Reports of agents about tasks.

use serde::Serialize;
use serde::de::DeserializeOwned;
use toolbus_core::redact::Redactor;
use toolbus_protocol::{
    AgentMessage, AgentMessageBody as _, AgentTaskError, AgentTaskResult, AgentTaskState, AgentTaskStatusUpdate,
    message_type,
};

/// End of a task.
#[derive(Debug, Clone)]
pub(crate) enum TaskEnd {
    Result(AgentTaskResult),
    Error(AgentTaskError),
}

impl TaskEnd {
    pub(crate) fn state(&self) -> AgentTaskState {
        match self {
            Self::Result(result) => result.state,
            Self::Error(_) => AgentTaskState::Failed,
        }
    }

    pub(super) fn task_id(&self) -> &str {
        match self {
            Self::Result(AgentTaskResult { task_id, .. }) | Self::Error(AgentTaskError { task_id, .. }) => task_id,
        }
    }

    pub(super) const fn message_type(&self) -> &'static str {
        match self {
            Self::Result(_) => message_type::AGENT_TASK_RESULT,
            Self::Error(_) => message_type::AGENT_TASK_ERROR,
        }
    }

    /// The body of a message with it.
    pub(super) fn body(&self) -> Vec<u8> {
        match self {
            Self::Result(result) => serde_json::to_vec(result),
            Self::Error(error) => serde_json::to_vec(error),
        }
        .unwrap_or_default()
    }

    /// The conversation to go on with.
    pub(super) fn context(&self) -> Option<&str> {
        match self {
            Self::Result(result) => result.context_id.as_deref(),
            Self::Error(error) => error.context_id.as_deref(),
        }
    }

    pub(super) fn without_secrets(self, redactor: &Redactor) -> Self {
        match self {
            Self::Result(result) => Self::Result(cleaned(result, redactor)),
            Self::Error(error) => Self::Error(cleaned(error, redactor)),
        }
    }

    /// Returns the text that the caller reads.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Result(result) => result.text(),
            Self::Error(AgentTaskError { code, message, .. }) => format!("{message} ({code})"),
        }
    }
}

/// A message without secrets. These types hold strings, numbers and enums only, which can be written and read again.
fn cleaned<T: Serialize + DeserializeOwned + Default>(message: T, redactor: &Redactor) -> T {
    let mut value = serde_json::to_value(message).unwrap_or_default();
    redactor.clean_value(&mut value);
    serde_json::from_value(value).unwrap_or_default()
}

/// Report of an agent about a task.
pub(super) enum TaskReport {
    End(TaskEnd),
    State { task_id: String, state: Option<AgentTaskState>, note: Option<String> },
}

impl TaskReport {
    pub(super) fn read(kind: &str, body: &[u8]) -> Option<Self> {
        let is = |expected: &str| kind.eq_ignore_ascii_case(expected);
        let text = |message: AgentMessage| {
            let result = AgentTaskResult { message: Some(message), ..AgentTaskResult::default() };
            Some(result.text()).filter(|text| !text.is_empty())
        };
        Some(if is(message_type::AGENT_TASK_RESULT) {
            let result = AgentTaskResult::parse(body).ok()?;
            if is_end(result.state) {
                Self::End(TaskEnd::Result(result))
            } else {
                let AgentTaskResult { task_id, state, message, .. } = result;
                Self::State { task_id, state: Some(state), note: message.and_then(text) }
            }
        } else if is(message_type::AGENT_TASK_ERROR) {
            match AgentTaskError::parse(body).ok()? {
                AgentTaskError { task_id, code, message, .. } if code == AgentTaskError::TASK_NOT_CANCELABLE => {
                    Self::State { task_id, state: None, note: Some(message) }
                }
                error => Self::End(TaskEnd::Error(error)),
            }
        } else if is(message_type::AGENT_TASK_STATUS_UPDATE) {
            let AgentTaskStatusUpdate { task_id, state, message, .. } = AgentTaskStatusUpdate::parse(body).ok()?;
            // The result itself ends it.
            let state = Some(state).filter(|state| !state.is_final());
            Self::State { task_id, state, note: message.and_then(text) }
        } else {
            return None;
        })
    }

    pub(super) fn task_id(&self) -> &str {
        match self {
            Self::End(end) => end.task_id(),
            Self::State { task_id, .. } => task_id,
        }
    }
}

/// Whether the agent does no more without another message.
pub(super) fn is_end(state: AgentTaskState) -> bool {
    state.is_final() || state == AgentTaskState::InputRequired
}
