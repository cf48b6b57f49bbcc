//! Agents that speak A2A over HTTP, version 1.0: their cards, and tasks by JSON-RPC.
//!
//! Source: A2A Protocol Specification 1.0, JSON-RPC binding.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Request, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use toolbus_core::Clock;
use toolbus_core::text::shown;
use toolbus_outbound::egress::{Egress, EgressError, HostLists};
use toolbus_outbound::read_up_to;
use toolbus_protocol::{
    AgentArtifact, AgentCard, AgentMessage, AgentMessagePart, AgentSkill, AgentTaskResult, AgentTaskState,
};
use url::Url;

use super::card::bounded;

/// The version of A2A, and the header that has it.
const VERSION: &str = "1.0";
const VERSION_HEADER: HeaderName = HeaderName::from_static("a2a-version");
/// Where an agent's card is, below its URL.
const CARD: &str = ".well-known/agent-card.json";
/// The binding of A2A.
const BINDING: &str = "JSONRPC";
/// Time for which a card is used.
const CARD_TIME: Duration = Duration::from_secs(10 * 60);
/// Longest body of a response, in bytes.
const MAX_BODY: usize = 1024 * 1024;
/// Longest wait for one response.
const REQUEST_TIME: Duration = Duration::from_secs(60);
/// Longest time between two looks at a task.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Looks in a row that may fail before a task that goes on is given up.
const MOST_FAILED_LOOKS: u32 = 10;

/// An agent that is reached over HTTP.
pub(crate) struct HttpAgent {
    /// URL of the agent, with a slash at its end.
    base: Url,
    headers: HeaderMap,
    card: Mutex<Option<FetchedCard>>,
    /// Number of times that another card was fetched.
    card_changes: AtomicU64,
}

/// Card in which an agent described itself.
#[derive(Clone)]
struct FetchedCard {
    card: Arc<AgentCard>,
    /// Where its methods are.
    endpoint: Url,
    at: Instant,
}

/// Egress of requests to an agent: the rules for hosts are those of the agent that gave the task.
pub(crate) struct HttpExchange<'a> {
    pub(crate) egress: &'a Egress,
    pub(crate) lists: &'a HostLists,
    pub(crate) clock: Clock,
}

/// A task for an agent.
pub(crate) struct HttpTask<'a> {
    pub(crate) id: &'a str,
    pub(crate) context: Option<&'a str>,
    pub(crate) skill: &'a str,
    pub(crate) message: &'a str,
    pub(crate) on_behalf_of: &'a str,
}

/// Progress of a task.
pub(crate) struct HttpProgress {
    /// The agent's own id of the task; absent where it has responded with a message.
    pub(crate) remote: Option<String>,
    /// Note of the agent on the state.
    pub(crate) note: Option<String>,
    pub(crate) result: AgentTaskResult,
}

/// Why there is no result. The texts are for the caller.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpAgentError {
    #[error("it may not be reached: {0}")]
    Refused(EgressError),
    #[error("it cannot be reached: {0}")]
    Unreachable(EgressError),
    #[error("it did not respond in time")]
    Late,
    #[error("the connection was lost before its response was complete")]
    Lost,
    #[error("it answered with HTTP status {0}")]
    Status(StatusCode),
    #[error("its response is larger than {MAX_BODY} bytes")]
    TooLarge,
    #[error("its response is not what A2A {VERSION} has: {0}")]
    Malformed(String),
    #[error("it speaks A2A {0}, and this daemon speaks {VERSION}: the agent has to be updated")]
    Version(String),
    #[error("its card has no interface `{BINDING}`, the one that this daemon speaks")]
    Binding,
    #[error("its card leads to another host, `{0}`; set `a2a.agents.url` to the agent itself")]
    OtherOrigin(String),
    #[error("it refused with error {0}: {1}")]
    Rpc(i64, String),
}

impl HttpAgentError {
    /// Whether a task that was given with this result may be under way there.
    pub(crate) fn may_have_begun(&self) -> bool {
        match self {
            Self::Late | Self::Lost | Self::TooLarge | Self::Malformed(_) => true,
            Self::Status(status) => status.is_server_error() && *status != StatusCode::SERVICE_UNAVAILABLE,
            // Codes of refusals. After others, as that of an internal error, the task may have begun.
            Self::Rpc(code, _) => !matches!(code, -32700 | -32602..=-32600 | -32009..=-32007 | -32005..=-32001),
            _ => false,
        }
    }

    /// Whether another look at a task may find more. What is too large stays so.
    fn is_passing(&self) -> bool {
        self.is_retryable() || self.may_have_begun() && !matches!(self, Self::TooLarge)
    }

    /// Whether the same may succeed later.
    pub(crate) const fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Late | Self::Lost => true,
            Self::Status(status) => matches!(status.as_u16(), 429 | 502..=504),
            _ => false,
        }
    }
}

impl From<EgressError> for HttpAgentError {
    fn from(error: EgressError) -> Self {
        match error {
            EgressError::Refused(_) => Self::Refused(error),
            // It was connected to, and may have read the request.
            EgressError::Failed(error) if !error.is_connect() => Self::Lost,
            _ => Self::Unreachable(error),
        }
    }
}

impl HttpAgent {
    pub(crate) fn new(mut base: Url, headers: HeaderMap) -> Self {
        if !base.path().ends_with('/') && !base.path().ends_with(".json") {
            base.set_path(&format!("{}/", base.path()));
        }
        Self { base, headers, card: Mutex::default(), card_changes: AtomicU64::new(0) }
    }

    /// Returns the card that was fetched last.
    pub(crate) fn last_card(&self) -> Option<Arc<AgentCard>> {
        self.card.lock().as_ref().map(|fetched| Arc::clone(&fetched.card))
    }

    /// Returns the number of times that [`Self::last_card`] became another.
    pub(crate) fn card_changes(&self) -> u64 {
        self.card_changes.load(Ordering::Acquire)
    }

    /// Fetches the agent's card, unless that was done lately.
    pub(crate) async fn refresh(&self, exchange: &HttpExchange<'_>) -> Result<(), HttpAgentError> {
        self.fetched(exchange).await.map(drop)
    }

    async fn fetched(&self, exchange: &HttpExchange<'_>) -> Result<FetchedCard, HttpAgentError> {
        let known = self.card.lock().clone();
        if let Some(known) = known.filter(|known| exchange.clock.since(known.at) < CARD_TIME) {
            return Ok(known);
        }
        let url = if self.base.path().ends_with(".json") { Ok(self.base.clone()) } else { self.base.join(CARD) };
        let url = url.map_err(|error| HttpAgentError::Malformed(error.to_string()))?;
        let fetching = async {
            let response = exchange.egress.get(&url, self.headers(), exchange.lists).await?;
            received(response).await
        };
        let card = tokio::time::timeout(REQUEST_TIME, fetching).await.map_err(|_| HttpAgentError::Late)??;
        let fetched = self.read_card(&card, exchange.clock.now())?;
        let before = self.card.lock().replace(fetched.clone());
        if before.is_none_or(|before| before.card != fetched.card) {
            self.card_changes.fetch_add(1, Ordering::Release);
        }
        Ok(fetched)
    }

    fn read_card(&self, card: &[u8], at: Instant) -> Result<FetchedCard, HttpAgentError> {
        let card: HttpCard = read(card)?;
        if card.supported_interfaces.is_empty()
            && let Some(version) = &card.protocol_version
        {
            return Err(HttpAgentError::Version(shown(version)));
        }
        let speaks = |one: &&AgentInterface| one.protocol_binding.eq_ignore_ascii_case(BINDING);
        let bound: Vec<&AgentInterface> = card.supported_interfaces.iter().filter(speaks).collect();
        let is_ours = |one: &&&AgentInterface| one.protocol_version == "1" || one.protocol_version.starts_with("1.");
        let interface = match (bound.iter().find(is_ours), bound.first()) {
            (Some(interface), _) => interface,
            (None, Some(other)) => return Err(HttpAgentError::Version(shown(&other.protocol_version))),
            (None, None) => return Err(HttpAgentError::Binding),
        };
        let endpoint = self.base.join(&interface.url).map_err(|error| HttpAgentError::Malformed(error.to_string()))?;
        // The headers may hold a credential, and the agent itself writes the card.
        if endpoint.origin() != self.base.origin() {
            return Err(HttpAgentError::OtherOrigin(shown(endpoint.host_str().unwrap_or_default())));
        }
        let skills = card.skills.into_iter().map(|skill| AgentSkill {
            id: skill.id,
            name: skill.name,
            description: skill.description,
            tags: skill.tags,
            examples: skill.examples,
        });
        let card = bounded(AgentCard {
            agent_name: card.name,
            description: card.description,
            version: card.version,
            skills: skills.collect(),
            ..AgentCard::default()
        });
        Ok(FetchedCard { card: Arc::new(card), endpoint, at })
    }

    /// Gives it a task.
    pub(crate) async fn start(
        &self,
        exchange: &HttpExchange<'_>,
        task: HttpTask<'_>,
    ) -> Result<HttpProgress, HttpAgentError> {
        let HttpTask { id, context, skill, message, on_behalf_of } = task;
        let mut body = json!({
            "messageId": id,
            "role": "ROLE_USER",
            "parts": [{ "text": message }],
            "metadata": { "skill": skill, "onBehalfOf": on_behalf_of },
        });
        if let (Some(context), Some(fields)) = (context, body.as_object_mut()) {
            fields.insert("contextId".to_owned(), context.into());
        }
        let configuration =
            json!({ "acceptedOutputModes": ["text/plain", "application/json"], "returnImmediately": true });
        let params = json!({ "message": body, "configuration": configuration });
        match self.call::<SendMessageResult>(exchange, "SendMessage", params).await? {
            SendMessageResult { message: Some(message), .. } => {
                let (state, message) = (AgentTaskState::Completed, Some(message.spoken()));
                let result = AgentTaskResult { task_id: id.to_owned(), state, message, ..AgentTaskResult::default() };
                Ok(HttpProgress { remote: None, note: None, result })
            }
            SendMessageResult { task: Some(task), .. } => task.progress(id),
            SendMessageResult { message: None, task: None } => {
                Err(HttpAgentError::Malformed("there is neither a message nor a task".to_owned()))
            }
        }
    }

    /// Queries the progress of a task, by the agent's own id of it.
    async fn look(&self, exchange: &HttpExchange<'_>, id: &str, remote: &str) -> Result<HttpProgress, HttpAgentError> {
        let params = json!({ "id": remote, "historyLength": 0 });
        self.call::<HttpTaskState>(exchange, "GetTask", params).await?.progress(id)
    }

    /// Looks at a task after `wait`, which is doubled for the next look. One that fails is followed by another, because the
    /// agent works on meanwhile; one that is refused is not.
    pub(crate) async fn look_later(
        &self,
        exchange: &HttpExchange<'_>,
        id: &str,
        remote: &str,
        wait: &mut Duration,
    ) -> Result<HttpProgress, HttpAgentError> {
        let mut failed = 0;
        loop {
            tokio::time::sleep(*wait).await;
            *wait = (*wait * 2).min(LONGEST_WAIT);
            match self.look(exchange, id, remote).await {
                Err(error) if error.is_passing() && failed < MOST_FAILED_LOOKS => failed += 1,
                looked => return looked,
            }
        }
    }

    /// Requests that the agent give up a task, by its own id of it; returns the state that the task has then.
    pub(crate) async fn cancel(
        &self,
        exchange: &HttpExchange<'_>,
        remote: &str,
    ) -> Result<AgentTaskState, HttpAgentError> {
        self.call::<HttpTaskState>(exchange, "CancelTask", json!({ "id": remote })).await?.status.state()
    }

    async fn call<T: for<'a> Deserialize<'a>>(
        &self,
        exchange: &HttpExchange<'_>,
        method: &str,
        params: Value,
    ) -> Result<T, HttpAgentError> {
        let FetchedCard { endpoint, .. } = self.fetched(exchange).await?;
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let sending = async {
            let mut http_request = Request::new(Method::POST, endpoint);
            *http_request.headers_mut() = self.headers();
            *http_request.body_mut() = Some(request.to_string().into());
            received(exchange.egress.send(http_request, exchange.lists).await?).await
        };
        let body = tokio::time::timeout(REQUEST_TIME, sending).await.map_err(|_| HttpAgentError::Late)??;
        match read::<JsonRpcReply<T>>(&body)? {
            JsonRpcReply { error: Some(error), .. } => Err(HttpAgentError::Rpc(error.code, shown(&error.message))),
            JsonRpcReply { result: Some(result), .. } => Ok(result),
            JsonRpcReply { .. } => Err(HttpAgentError::Malformed("there is neither a result nor an error".to_owned())),
        }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        let json = HeaderValue::from_static("application/json");
        headers.insert(ACCEPT, json.clone());
        headers.insert(CONTENT_TYPE, json);
        headers.insert(VERSION_HEADER, HeaderValue::from_static(VERSION));
        headers
    }
}

/// The body of a response of success.
async fn received(mut response: reqwest::Response) -> Result<Vec<u8>, HttpAgentError> {
    if !response.status().is_success() {
        return Err(HttpAgentError::Status(response.status()));
    }
    match read_up_to(&mut response, MAX_BODY).await {
        Ok((body, true)) => Ok(body),
        Ok((_, false)) => Err(HttpAgentError::TooLarge),
        Err(_) => Err(HttpAgentError::Lost),
    }
}

fn read<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, HttpAgentError> {
    // The parser's text may repeat what the agent wrote.
    serde_json::from_slice(body).map_err(|error| HttpAgentError::Malformed(shown(&error.to_string())))
}

#[derive(Deserialize)]
struct JsonRpcReply<T> {
    result: Option<T>,
    error: Option<JsonRpcFault>,
}

#[derive(Deserialize)]
struct JsonRpcFault {
    code: i64,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HttpCard {
    #[serde(default)]
    name: String,
    description: Option<String>,
    version: Option<String>,
    #[serde(default)]
    supported_interfaces: Vec<AgentInterface>,
    #[serde(default)]
    skills: Vec<HttpSkill>,
    /// Protocol version that cards before 1.0 have.
    protocol_version: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgentInterface {
    url: String,
    #[serde(default)]
    protocol_binding: String,
    #[serde(default)]
    protocol_version: String,
}

#[derive(Deserialize)]
struct HttpSkill {
    id: String,
    #[serde(default)]
    name: String,
    description: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    examples: Vec<String>,
}

/// Result of `SendMessage`.
#[derive(Deserialize)]
struct SendMessageResult {
    message: Option<HttpMessage>,
    task: Option<HttpTaskState>,
}

#[derive(Deserialize)]
struct HttpMessage {
    #[serde(default)]
    parts: Vec<HttpPart>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HttpPart {
    text: Option<String>,
    url: Option<String>,
    data: Option<Value>,
    raw: Option<String>,
    media_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HttpTaskState {
    id: String,
    context_id: Option<String>,
    status: HttpStatus,
    #[serde(default)]
    artifacts: Vec<HttpArtifact>,
}

#[derive(Deserialize)]
struct HttpStatus {
    state: String,
    message: Option<HttpMessage>,
}

#[derive(Deserialize)]
struct HttpArtifact {
    #[serde(default)]
    name: String,
    description: Option<String>,
    #[serde(default)]
    parts: Vec<HttpPart>,
}

impl HttpStatus {
    fn state(&self) -> Result<AgentTaskState, HttpAgentError> {
        Ok(match &*self.state {
            "TASK_STATE_SUBMITTED" => AgentTaskState::Submitted,
            "TASK_STATE_WORKING" => AgentTaskState::Working,
            "TASK_STATE_INPUT_REQUIRED" | "TASK_STATE_AUTH_REQUIRED" => AgentTaskState::InputRequired,
            "TASK_STATE_COMPLETED" => AgentTaskState::Completed,
            "TASK_STATE_FAILED" | "TASK_STATE_REJECTED" => AgentTaskState::Failed,
            "TASK_STATE_CANCELED" => AgentTaskState::Canceled,
            other => return Err(HttpAgentError::Malformed(format!("`{}` is no state of a task", shown(other)))),
        })
    }

    fn text(&self) -> Option<String> {
        let parts = self.message.iter().flat_map(|message| &message.parts);
        let text: Vec<&str> = parts.filter_map(|part| part.text.as_deref()).collect();
        (!text.is_empty()).then(|| text.join("\n"))
    }
}

impl HttpTaskState {
    fn progress(self, id: &str) -> Result<HttpProgress, HttpAgentError> {
        let (state, note) = (self.status.state()?, self.status.text());
        let artifacts = self.artifacts.into_iter().map(|artifact| AgentArtifact {
            name: artifact.name,
            description: artifact.description,
            parts: artifact.parts.into_iter().map(HttpPart::part).collect(),
        });
        let result = AgentTaskResult {
            task_id: id.to_owned(),
            context_id: self.context_id,
            state,
            artifacts: artifacts.collect(),
            message: self.status.message.map(HttpMessage::spoken),
        };
        Ok(HttpProgress { remote: Some(self.id), note, result })
    }
}

impl HttpMessage {
    fn spoken(self) -> AgentMessage {
        AgentMessage { role: "agent".to_owned(), parts: self.parts.into_iter().map(HttpPart::part).collect() }
    }
}

impl HttpPart {
    /// A file by its address is a text: nothing is fetched.
    fn part(self) -> AgentMessagePart {
        let Self { text, url, data, raw, media_type } = self;
        match text.or(url) {
            Some(text) => AgentMessagePart { mime_type: media_type, ..AgentMessagePart::text(text) },
            None => AgentMessagePart {
                kind: "data".to_owned(),
                text: None,
                mime_type: media_type.or_else(|| data.is_some().then(|| "application/json".to_owned())),
                data: data.map(|data| data.to_string()).or(raw),
            },
        }
    }
}

#[cfg(test)]
mod tests;
