use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Reason for which a call has no result: the `code` of a `ToolError`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// No tool of that name, or none that this caller may see.
    ToolNotFound,
    /// The request or its arguments are not JSON, not an object, or not valid against the tool's schema.
    InvalidArguments,
    /// The deadline of the call passed.
    Timeout,
    /// The tool could not be run to its end.
    ExecutionFailed,
    /// The tool is visible, but this use of it is refused.
    NotAllowed,
    /// Over the rate of (agent, binding, tool).
    RateLimited,
    /// No permit in time, or too many calls waiting.
    Overloaded,
    /// Cancelled on request, or by shutdown.
    Cancelled,
    /// The backend needs credentials that only a person can give.
    AuthRequired,
}

impl Code {
    /// Every code, in the order of the wire's table.
    pub const ALL: [Self; 9] = [
        Self::ToolNotFound,
        Self::InvalidArguments,
        Self::Timeout,
        Self::ExecutionFailed,
        Self::NotAllowed,
        Self::RateLimited,
        Self::Overloaded,
        Self::Cancelled,
        Self::AuthRequired,
    ];

    /// The code as written on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ToolNotFound => "tool_not_found",
            Self::InvalidArguments => "invalid_arguments",
            Self::Timeout => "timeout",
            Self::ExecutionFailed => "execution_failed",
            Self::NotAllowed => "not_allowed",
            Self::RateLimited => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::Cancelled => "cancelled",
            Self::AuthRequired => "auth_required",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is none of the known codes.
#[derive(Debug, thiserror::Error)]
#[error("unknown code")]
pub struct UnknownCode;

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|code| code.as_str() == text).ok_or(UnknownCode)
    }
}

/// Knowledge of a failed call's side effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The tool did not begin: repeating the call is safe.
    NotStarted,
    /// The tool ran and reported that it failed.
    Failed,
    /// The tool may have had its effect.
    Unknown,
}
