//! The status of a server, for operators.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toolbus_core::text::{first_paragraph, shortened};
use toolbus_core::tool::Suspicion;
use toolbus_trust::text::Removed;

use crate::spec::{ServerOrigin, ServerSpec, TransportSpec};

/// One server, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    /// Name of the server.
    pub name: String,
    /// `stdio`, `http` or `sse`; `http?` while that is not known.
    pub transport: String,
    /// Phase of the connection.
    pub phase: PhaseName,
    /// Last error, if there was one.
    pub last_error: Option<String>,
    /// Version of the protocol that was agreed on.
    pub protocol_version: Option<String>,
    /// Name and version that the server gives itself.
    pub implementation: Option<String>,
    /// Tools that are offered.
    pub tools: Vec<String>,
    /// Tools that are not offered, and why.
    pub hidden: Vec<HiddenTool>,
    /// Tools that are called by this server alone, because another source has their names.
    pub shadowed: Vec<ShadowedTool>,
    /// Number of shadowed tools, of which the first are named.
    pub shadowed_total: usize,
    /// Tools whose definitions look as if they meant to turn the model against the user.
    pub suspect: Vec<SuspectTexts>,
    /// Number of suspect tools, of which the first are named.
    pub suspect_total: usize,
    /// Parts that were removed from texts of tools.
    pub cleaned: Vec<CleanedTexts>,
    /// Number of tools with cleaned texts, of which the first are named.
    pub cleaned_total: usize,
    /// Process id of the server's supervisor.
    pub pid: Option<u32>,
    /// Number of restarts after the server ended by itself.
    pub restarts: u64,
    /// Seconds since it became ready.
    pub ready_seconds: Option<u64>,
    /// Calls that run.
    pub in_flight: usize,
    /// Time of the last response to a ping or a call, in microseconds.
    pub latency_us: Option<u64>,
    /// The last lines that it wrote to its standard error.
    pub stderr: Vec<String>,
    /// `configuration` or `registration`.
    pub origin: String,
    /// The tool set that it backs.
    pub toolset: Option<String>,
    /// Sessions of the tool set that have a server of their own now.
    pub sessions: usize,
}

impl ServerStatus {
    /// Returns the status of a server before any attempt to connect.
    pub(crate) fn untried(spec: &ServerSpec, phase: PhaseName) -> Self {
        let transport = match &spec.transport {
            TransportSpec::Stdio(_) => "stdio",
            TransportSpec::Http(_) => "http?",
        };
        let origin = match spec.origin {
            ServerOrigin::Configuration => "configuration",
            ServerOrigin::Registration => "registration",
        };
        Self {
            name: spec.name.to_string(),
            transport: transport.to_owned(),
            phase,
            last_error: None,
            protocol_version: None,
            implementation: None,
            tools: Vec::new(),
            hidden: Vec::new(),
            shadowed: Vec::new(),
            shadowed_total: 0,
            suspect: Vec::new(),
            suspect_total: 0,
            cleaned: Vec::new(),
            cleaned_total: 0,
            pid: None,
            restarts: 0,
            ready_seconds: None,
            in_flight: 0,
            latency_us: None,
            stderr: Vec::new(),
            origin: origin.to_owned(),
            toolset: None,
            sessions: 0,
        }
    }
}

/// A tool that a server has and callers do not get.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HiddenTool {
    /// Name of the tool, shortened if long.
    pub name: String,
    /// Reason why it is not offered.
    pub reason: String,
}

/// A tool that is called by its server alone, because another source has its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShadowedTool {
    /// The name.
    pub name: String,
    /// The source that has it, whether it offers a tool of the name now or not.
    pub owner: String,
}

/// A tool, or a server's own texts, that look as if they meant to turn the model against the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuspectTexts {
    /// Name of the tool; [`OF_SERVER`] for the server's own texts.
    pub name: String,
    /// Suspicions about the texts.
    pub suspicions: Vec<Suspicion>,
}

/// A tool, or a server's own texts, that were cleaned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CleanedTexts {
    /// Name of the tool; [`OF_SERVER`] for the server's own texts.
    pub name: String,
    /// Parts that were removed.
    pub removed: Removed,
}

/// The name that stands for a server's own texts.
pub const OF_SERVER: &str = "(server)";

/// The state of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PhaseName {
    /// The server is disabled.
    Disabled,
    /// The first call starts the server.
    Idle,
    /// The server is being started or connected to.
    Connecting,
    /// The server takes calls.
    Ready,
    /// The last attempt failed; the next one is soon.
    Waiting,
    /// Several attempts failed; further ones are rare.
    Parked,
    /// The server needs credentials that only a person can give.
    AuthRequired,
    /// The server has been stopped.
    Stopped,
}

impl PhaseName {
    /// Whether the server takes no calls until it recovers by itself or an operator acts.
    #[must_use]
    pub const fn is_failing(self) -> bool {
        matches!(self, Self::Waiting | Self::Parked | Self::AuthRequired)
    }

    /// Every phase.
    pub const ALL: [Self; 8] = [
        Self::Disabled,
        Self::Idle,
        Self::Connecting,
        Self::Ready,
        Self::Waiting,
        Self::Parked,
        Self::AuthRequired,
        Self::Stopped,
    ];

    /// As it is written on the wire and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Ready => "ready",
            Self::Waiting => "waiting",
            Self::Parked => "parked",
            Self::AuthRequired => "auth-required",
            Self::Stopped => "stopped",
        }
    }
}

/// Report of a trial of one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeReport {
    /// Steps of the trial, in order. Only the last step may have failed.
    pub steps: Vec<ProbeStep>,
    /// The server as it was after the last step.
    pub status: ServerStatus,
}

/// One thing that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeStep {
    /// `connect`, `list` or `ping`.
    pub name: String,
    /// Duration of the step, in microseconds.
    pub duration_us: u64,
    /// Whether the step passed.
    pub passed: bool,
    /// Result of the step, or the reason of its failure.
    pub text: String,
}

impl ProbeReport {
    /// Whether every step worked.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.steps.iter().all(|step| step.passed)
    }
}

/// Description and instructions of a server. The texts are the server's own, but for the summary, and bounded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerDescription {
    /// Name of the server, as configured.
    pub name: String,
    /// Purpose of the server, in the operator's words.
    pub summary: Option<Arc<str>>,
    /// Description that the server gives itself.
    pub description: Option<String>,
    /// Instructions that the server gives.
    pub instructions: Option<String>,
}

/// Longest summary, in characters.
pub const MAX_SUMMARY: usize = 300;

impl ServerDescription {
    /// Returns the purpose of the server in at most [`MAX_SUMMARY`] characters: the operator's summary, else the
    /// server's own description or the first paragraph of its instructions. `None` if there is none of them.
    #[must_use]
    pub fn summarised(&self) -> Option<String> {
        let mut own = [&self.description, &self.instructions].into_iter().flatten().map(|text| first_paragraph(text));
        let summary = match &self.summary {
            Some(summary) => summary.to_string(),
            None => own.find(|text| !text.is_empty())?,
        };
        Some(shortened(&summary, MAX_SUMMARY).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_summarised_by_the_operator_else_by_itself() {
        let about = |summary: Option<&str>, description: Option<&str>, instructions: Option<&str>| {
            let [description, instructions] = [description, instructions].map(|text| text.map(str::to_owned));
            ServerDescription { name: "a".to_owned(), summary: summary.map(Arc::from), description, instructions }
                .summarised()
        };
        assert_eq!(about(Some("Files"), Some("Own"), Some("Text")).as_deref(), Some("Files"));
        assert_eq!(about(None, Some("Own"), Some("Text")).as_deref(), Some("Own"));
        assert_eq!(about(None, Some(" "), Some("# Use\n\nFirst\nline\n\nMore")).as_deref(), Some("First line"));
        assert_eq!(about(None, None, None), None);
        let long = about(None, None, Some(&"x".repeat(1000))).unwrap();
        assert_eq!(long.chars().count(), MAX_SUMMARY + 1, "and the ellipsis");
    }

    #[test]
    fn a_phase_has_one_spelling() {
        for phase in PhaseName::ALL {
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.as_str());
        }
    }
}
