//! Queries one search engine: spaced, and again when it limits requests.

use std::time::{Duration, Instant};

use reqwest::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::Mutex;
use toolbus_core::Clock;
use toolbus_outbound::{HttpClient, HttpReply, read_up_to};

use super::SearchResult;
use super::provider::SearchProvider;
use crate::fetch::retry_after;

/// Times that a query is sent again.
const MAX_RETRIES: u32 = 3;
/// Waits before that, where the engine gives no time.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Longest wait.
const MAX_WAIT: Duration = Duration::from_secs(8);
/// Time between two requests: a little over what the smallest plan of Brave allows.
const SPACING: Duration = Duration::from_millis(1100);
/// Most bytes of a response.
const MAX_RESPONSE: usize = 4 << 20;
/// Most characters of an engine's own message.
const MAX_MESSAGE: usize = 200;

/// A search engine, and the time of its next query.
#[derive(Debug)]
pub(crate) struct SearchEngine {
    pub(super) provider: SearchProvider,
    client: HttpClient,
    /// Time of its next query. Held while a request is waiting or under way, so that requests go one by one.
    next: Mutex<Option<Instant>>,
    spacing: Duration,
    first_wait: Duration,
}

/// Reason why an engine has no results.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SearchError {
    #[error("{0} has no key: the operator has to set one")]
    NoKey(&'static str),
    #[error("{name} refused the key{message}: the operator has to replace it")]
    KeyRefused { name: &'static str, message: String },
    #[error("the quota of {name} is used up{message}")]
    OverQuota { name: &'static str, message: String },
    #[error(
        "web_search was rate-limited by {name} (HTTP {status}) after {MAX_RETRIES} retries — wait a few seconds and \
         retry this query, or continue with web_browse on a known URL"
    )]
    RateLimited { name: &'static str, status: u16 },
    #[error("{name} answered HTTP {status}{message}")]
    Status { name: &'static str, status: StatusCode, message: String },
    #[error("{0} could not be reached")]
    Unreachable(&'static str),
    #[error("{0} answered with something that is no list of results")]
    Invalid(&'static str),
    #[error("{0} answered HTTP 403: the format `json` seems not to be among the `search.formats` of the instance")]
    NoJson(&'static str),
    #[error("{name} found nothing, and engines that it asks did not answer ({silent})")]
    Silent { name: &'static str, silent: String },
    #[error("{0} did not answer within the time of the call")]
    Timeout(&'static str),
}

impl SearchError {
    /// Returns the outcome of the query, as telemetry names it.
    pub(super) const fn outcome(&self) -> &'static str {
        match self {
            Self::NoKey(_) => "no_key",
            Self::KeyRefused { .. } => "key_refused",
            Self::OverQuota { .. } => "over_quota",
            Self::RateLimited { .. } => "rate_limited",
            Self::Status { .. } | Self::NoJson(_) => "http_error",
            // Engines behind this one count as its network.
            Self::Unreachable(_) | Self::Silent { .. } => "unreachable",
            Self::Invalid(_) => "invalid",
            Self::Timeout(_) => "timeout",
        }
    }
}

impl SearchEngine {
    pub(crate) fn new(provider: SearchProvider, client: HttpClient) -> Self {
        Self { provider, client, next: Mutex::default(), spacing: SPACING, first_wait: FIRST_WAIT }
    }

    /// The same with other waits.
    #[cfg(test)]
    pub(crate) fn with_waits(self, spacing: Duration, first_wait: Duration) -> Self {
        Self { spacing, first_wait, ..self }
    }

    /// Asks until there are results, another error than that there are too many requests, or the retries are used up.
    pub(crate) async fn search(
        &self,
        query: &str,
        count: usize,
        until: Instant,
    ) -> Result<Vec<SearchResult>, SearchError> {
        let name = self.provider.name();
        if self.provider.lacks_key() {
            return Err(SearchError::NoKey(name));
        }
        let searching = async {
            let mut next = self.next.lock().await;
            for tried in 0.. {
                if let Some(next) = *next {
                    tokio::time::sleep_until(next.into()).await;
                }
                let outcome = self.once(query, count).await;
                let now = Clock::SYSTEM.now();
                *next = Some(now + self.spacing);
                let (status, retry_after) = match outcome {
                    Ok(results) => return Ok(results),
                    Err(Failure::Final(error)) => return Err(error),
                    Err(Failure::TryAgain { status, after }) => (status, after),
                };
                let wait = retry_after.unwrap_or_else(|| self.first_wait.saturating_mul(1 << tried)).min(MAX_WAIT);
                *next = Some(now + wait.max(self.spacing));
                if tried >= MAX_RETRIES {
                    return Err(SearchError::RateLimited { name, status: status.as_u16() });
                }
            }
            Err(SearchError::Timeout(name))
        };
        tokio::time::timeout_at(until.into(), searching).await.unwrap_or(Err(SearchError::Timeout(name)))
    }

    async fn once(&self, query: &str, count: usize) -> Result<Vec<SearchResult>, Failure> {
        let name = self.provider.name();
        let request = self.provider.request(query, count).ok_or(SearchError::Invalid(name))?;
        let reply = self.client.send(request).await.map_err(|_| SearchError::Unreachable(name))?;
        let HttpReply::Response(response) = reply else { return Err(SearchError::Invalid(name).into()) };
        let status = response.status();
        let after = retry_after(response.headers());
        let body = body(response).await;
        if status.is_success() {
            let found = body.as_ref().and_then(|body| Some((self.provider.results(body, count)?, body)));
            let (results, body) = found.ok_or(SearchError::Invalid(name))?;
            return match self.provider.silent(body).filter(|_| results.is_empty()) {
                Some(silent) => Err(SearchError::Silent { name, silent: clean(&silent) }.into()),
                None => Ok(results),
            };
        }
        let error = body.as_ref().map(EngineError::of).unwrap_or_default();
        let message = if error.text.is_empty() { String::new() } else { format!(" (“{}”)", clean(&error.text)) };
        Err(match status.as_u16() {
            // Tavily responds 432 and 433 when a plan or a budget is used up.
            402 | 432 | 433 => SearchError::OverQuota { name, message }.into(),
            429 if error.is_quota => SearchError::OverQuota { name, message }.into(),
            429 | 503 => Failure::TryAgain { status, after },
            403 if self.provider.has_formats() => SearchError::NoJson(name).into(),
            401 | 403 => SearchError::KeyRefused { name, message }.into(),
            // Brave responds 404 and 422, too: the status alone does not show whether query or key is at fault.
            _ if error.is_of_key => SearchError::KeyRefused { name, message }.into(),
            _ => SearchError::Status { name, status, message }.into(),
        })
    }
}

enum Failure {
    Final(SearchError),
    TryAgain { status: StatusCode, after: Option<Duration> },
}

impl From<SearchError> for Failure {
    fn from(error: SearchError) -> Self {
        Self::Final(error)
    }
}

async fn body(mut response: Response) -> Option<Value> {
    let (bytes, _) = read_up_to(&mut response, MAX_RESPONSE).await.ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Details that an engine gives of an error.
#[derive(Debug, Default)]
struct EngineError {
    text: String,
    /// Whether the month's quota is used up, and not that of the second.
    is_quota: bool,
    is_of_key: bool,
}

impl EngineError {
    fn of(body: &Value) -> Self {
        // The examples of Brave's reference have a list of errors, its responses have one.
        let brave = ["/error", "/errors/0"].iter().find_map(|at| body.pointer(at)).filter(|error| error.is_object());
        let code = brave.and_then(|error| error.get("code")).and_then(Value::as_str).unwrap_or_default();
        let meta = |name: &str| brave.and_then(|error| error.pointer("/meta")?.get(name)).and_then(Value::as_u64);
        let is_used_up = meta("quota_limit").is_some_and(|limit| limit > 0 && meta("quota_current") >= Some(limit));
        // The invalid argument, as Brave and Tavily report it.
        let invalid = brave.and_then(|error| error.pointer("/meta/errors/0")).or_else(|| body.pointer("/detail/0"));
        let location = invalid.map_or_else(String::new, location);
        let texts = [
            brave.and_then(|error| error.get("detail").or_else(|| error.get("message"))),
            body.pointer("/detail/error").or_else(|| body.get("detail")),
            body.get("message"),
            body.get("error"),
        ];
        let mut text = texts.into_iter().flatten().find_map(Value::as_str).unwrap_or_default().to_owned();
        if let Some(why) = invalid.and_then(|invalid| invalid.get("msg")).and_then(Value::as_str) {
            let before = if text.is_empty() { String::new() } else { format!("{}: ", text.trim_end_matches('.')) };
            text = format!("{before}{location}: {why}");
        }
        Self {
            text,
            is_quota: code == "QUOTA_LIMITED" || is_used_up,
            is_of_key: code.starts_with("SUBSCRIPTION_") || location == "header.x-subscription-token",
        }
    }
}

/// The location of an argument that is wrong: `query.q`.
fn location(invalid: &Value) -> String {
    let location = invalid.get("loc").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    location.iter().take(8).filter_map(Value::as_str).collect::<Vec<_>>().join(".")
}

/// A text of an engine as one short line.
fn clean(text: &str) -> String {
    let clean = toolbus_trust::text::clean(text, MAX_MESSAGE).text;
    clean.split_whitespace().collect::<Vec<_>>().join(" ")
}
