//! Requests to the API of OpenRouter: `GET` alone, so that nothing of the account can be changed.

use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_outbound::{HttpClientError, http_client, read_up_to};
use url::Url;

/// Default address of the API.
pub(crate) const BASE_URL: &str = "https://openrouter.ai/api/v1";
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which unused connections are kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for a whole response.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Largest response, in bytes: the list of all models has about 1 MB.
const MAX_BODY: usize = 8 * 1024 * 1024;
/// Longest text of an error that is passed on, in characters.
const MAX_MESSAGE: usize = 300;

/// The API, with a key. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    client: Client,
    base: Url,
    key: ApiKey,
}

/// The key of an account. It is never shown.
#[derive(Clone)]
pub(crate) struct ApiKey(String);

/// Reason why a text is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the API key must have 1 to 512 printable ASCII characters and no blanks")]
pub(crate) struct ApiKeyError;

impl ApiKey {
    /// Reads a key; white space around it does not count.
    ///
    /// # Errors
    ///
    /// If nothing is left, or it cannot stand in a header.
    pub(crate) fn parse(text: &str) -> Result<Self, ApiKeyError> {
        let key = text.trim();
        let fits = (1..=512).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(Self(key.to_owned())) } else { Err(ApiKeyError) }
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey")
    }
}

/// Right that a request needs beyond a valid key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// Nothing.
    AnyKey,
    /// A management key: others may not read the account.
    ManagementKey,
}

/// The body of an error, as OpenRouter documents it.
#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorText,
}

#[derive(Deserialize)]
struct ErrorText {
    message: String,
}

impl Api {
    /// Sets the client up. Redirects are not followed: the key goes to `base` and nowhere else.
    ///
    /// # Errors
    ///
    /// If TLS cannot be set up.
    pub(crate) fn new(mut base: Url, key: ApiKey) -> Result<Self, HttpClientError> {
        let path = format!("{}/", base.path().trim_end_matches('/'));
        base.set_path(&path);
        Ok(Self { client: http_client(CONNECT_TIMEOUT, IDLE_TIMEOUT)?, base, key })
    }

    /// Sends a GET to a path below the base, and returns the JSON as it came.
    ///
    /// # Errors
    ///
    /// If there is no response in time, or it is an error, too large, or no JSON. `not_found` is the text for a 404.
    pub(crate) async fn get(
        &self,
        path: &[&str],
        query: Option<(&str, &str)>,
        right: Right,
        not_found: &str,
    ) -> Result<String, ToolFailure> {
        let request = self.client.get(self.url(path, query)).headers(self.headers()).timeout(TIMEOUT);
        let mut response = request.send().await.map_err(|error| of_transport(&error))?;
        let status = response.status();
        let retry_after = retry_after(&response);
        let (body, is_whole) = read_up_to(&mut response, MAX_BODY).await.map_err(|error| of_transport(&error))?;
        if status != StatusCode::OK {
            let failure = self.of_status(status, &body, right, not_found);
            return Err(retry_after.into_iter().fold(failure, ToolFailure::with_retry_after));
        }
        if !is_whole {
            let text = format!("OpenRouter's response has more than {} MiB.", MAX_BODY / (1024 * 1024));
            return Err(ToolFailure::new(Cause::ResultTooLarge, text));
        }
        let invalid = || ToolFailure::new(Cause::InvalidResult, "OpenRouter's response is no JSON.");
        let text = String::from_utf8(body).map_err(|_| invalid())?;
        serde_json::from_str::<&RawValue>(&text).map_err(|_| invalid())?;
        Ok(text)
    }

    fn url(&self, path: &[&str], query: Option<(&str, &str)>) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if let Some((name, value)) = query {
            url.query_pairs_mut().append_pair(name, value);
        }
        url
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", self.key.0)) {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        headers
    }

    /// Builds the failure for a status: its meaning, and what to do about it.
    fn of_status(&self, status: StatusCode, body: &[u8], right: Right, not_found: &str) -> ToolFailure {
        let message = self.message(body);
        let (cause, text) = match status.as_u16() {
            401 if right == Right::ManagementKey => (
                Cause::NotAllowed,
                "OpenRouter refuses the API key. This tool needs a valid management key, which an administrator makes \
                 at https://openrouter.ai/settings/management-keys."
                    .to_owned(),
            ),
            401 => (
                Cause::NotAllowed,
                "OpenRouter refuses the API key: it is wrong, disabled or expired. The operator of this server has to \
                 give another one."
                    .to_owned(),
            ),
            402 => (Cause::NotAllowed, "The account has no credits left.".to_owned()),
            403 if right == Right::ManagementKey => (
                Cause::NotAllowed,
                "The API key lacks the right to read the account. This tool needs a management key, which an \
                 administrator makes at https://openrouter.ai/settings/management-keys."
                    .to_owned(),
            ),
            403 => (Cause::NotAllowed, "The API key lacks the right to do this.".to_owned()),
            404 => (Cause::InvalidArguments, not_found.to_owned()),
            400 | 422 => (Cause::InvalidArguments, "OpenRouter refuses the request.".to_owned()),
            429 => (Cause::RateLimited, "OpenRouter receives too many requests with this key.".to_owned()),
            408 | 500..=599 => {
                (Cause::Unavailable, format!("OpenRouter cannot answer now (HTTP {}).", status.as_u16()))
            }
            _ => (Cause::Failed, format!("OpenRouter answers with HTTP {}.", status.as_u16())),
        };
        let text = message.map_or(text.clone(), |message| format!("{text} It says: {message}"));
        ToolFailure::new(cause, text)
    }

    /// The text of an error, without control characters and without the key.
    fn message(&self, body: &[u8]) -> Option<String> {
        let ErrorBody { error: ErrorText { message } } = serde_json::from_slice(body).ok()?;
        let clean = message.replace(&self.key.0, "[redacted]");
        let short: String = clean.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect();
        (!short.trim().is_empty()).then_some(short)
    }
}

/// A request without a response. Nothing is changed by any, so that all may be repeated.
fn of_transport(error: &reqwest::Error) -> ToolFailure {
    let (cause, text) = match () {
        () if error.is_connect() => (Cause::ConnectFailed, "OpenRouter cannot be reached."),
        () if error.is_timeout() => (Cause::Unavailable, "OpenRouter does not answer in time."),
        () => (Cause::ConnectionLost, "The connection to OpenRouter was lost."),
    };
    ToolFailure::new(cause, text).with_detail(error)
}

/// Reads the time to wait, where that is a number of seconds.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(base: &str) -> Api {
        Api::new(base.parse().unwrap(), ApiKey::parse(" sk-or-v1-secret\n").unwrap()).unwrap()
    }

    #[test]
    fn a_path_is_below_the_base_whatever_it_holds() {
        for base in ["https://example.com/api/v1", "https://example.com/api/v1/"] {
            let url = api(base).url(&["keys", "../a?b#c"], None);
            assert_eq!(url.as_str(), "https://example.com/api/v1/keys/..%2Fa%3Fb%23c");
            let url = api(base).url(&["generation"], Some(("id", "a&b=c")));
            assert_eq!(url.as_str(), "https://example.com/api/v1/generation?id=a%26b%3Dc");
        }
    }

    #[test]
    fn no_text_shows_the_key() {
        let body = br#"{"error":{"code":401,"message":"key sk-or-v1-secret\u0007 is unknown"}}"#;
        let failure = api(BASE_URL).of_status(StatusCode::UNAUTHORIZED, body, Right::AnyKey, "");
        assert!(failure.message.ends_with("It says: key [redacted] is unknown"), "{}", failure.message);
        assert!(!format!("{:?}", api(BASE_URL)).contains("secret"));
    }

    #[test]
    fn a_key_that_cannot_stand_in_a_header_is_refused() {
        for text in ["", " \n", "a b", "a\u{7f}", "ä", &"a".repeat(513)] {
            assert_eq!(ApiKey::parse(text).unwrap_err(), ApiKeyError, "{text:?}");
        }
    }
}
