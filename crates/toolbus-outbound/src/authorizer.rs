//! Authorises requests, with tokens of the OAuth 2.1 client credentials grant where a credential requires them.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode};
use serde::Deserialize;
use tokio::sync::Mutex;
use toolbus_core::Clock;
use toolbus_core::redact::{Learnt, Redactor};
use toolbus_core::secret::Secret;
use url::form_urlencoded::byte_serialize;

use crate::credential::{ClientCredentials, Credential, CredentialError};
use crate::headers::parse_value;
use crate::read_up_to;

/// Source of the header that authorises a request. The header is made for each request, because tokens expire while a
/// session lives.
pub struct Authorizer(HeaderSource);

enum HeaderSource {
    /// Requests need no header.
    None,
    /// The header is always the same.
    Fixed(HeaderName, HeaderValue),
    /// The header carries a token that is fetched.
    Fetched(Box<TokenSource>),
}

impl Authorizer {
    /// Prepares a credential. `http` fetches its tokens, which `redactor` learns.
    ///
    /// # Errors
    ///
    /// If the credential is empty, or a header cannot carry it.
    pub fn new(
        credential: Option<Credential>,
        http: &reqwest::Client,
        redactor: &Redactor,
        clock: Clock,
    ) -> Result<Self, CredentialError> {
        let kind = match credential {
            None => HeaderSource::None,
            Some(Credential::ClientCredentials(grant)) => {
                if [&*grant.client_id, grant.client_secret.expose()].iter().any(|part| part.trim().is_empty()) {
                    return Err(CredentialError::Empty(WHOLE));
                }
                HeaderSource::Fetched(Box::new(TokenSource::new(grant, http.clone(), redactor.clone(), clock)))
            }
            Some(credential) => {
                let (name, value) = credential.header().map_err(|error| match error {
                    CredentialError::Empty(_) => CredentialError::Empty(WHOLE),
                    other => other,
                })?;
                HeaderSource::Fixed(name, value)
            }
        };
        Ok(Self(kind))
    }

    /// Whether requests carry a credential.
    #[must_use]
    pub const fn has_credential(&self) -> bool {
        !matches!(self.0, HeaderSource::None)
    }

    /// The header of a request. Fetches a token if there is no valid one.
    ///
    /// # Errors
    ///
    /// If the token endpoint gives no token.
    pub async fn header(&self) -> Result<Option<(HeaderName, HeaderValue)>, TokenError> {
        match &self.0 {
            HeaderSource::None => Ok(None),
            HeaderSource::Fixed(name, value) => Ok(Some((name.clone(), value.clone()))),
            HeaderSource::Fetched(source) => Ok(Some((AUTHORIZATION, source.value().await?))),
        }
    }

    /// Drops a token that the server does not accept. Returns whether another one can be fetched.
    pub async fn forget(&self, value: &HeaderValue) -> bool {
        let HeaderSource::Fetched(source) = &self.0 else { return false };
        source.forget(value).await;
        true
    }
}

/// Names the credential in the error of one that is empty.
const WHOLE: &str = "credential";

/// Longest wait for a token.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest response of a token endpoint, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;
/// Longest token, in bytes.
const MAX_TOKEN: usize = 16 * 1024;
/// Time before the end of a token from which the token is no longer used.
const MARGIN: Duration = Duration::from_secs(30);
/// Shortest time that a token is used. The server may refuse one that ends before, and then another one is fetched.
const MIN_LIFETIME: Duration = Duration::from_secs(5);
/// Lifetime of a token without `expires_in`, or with 0, which some servers write for one that does not end.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(5 * 60);
/// Longest time that a token is used.
const MAX_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
/// Time for which a failure stands for the requests that wait behind it.
const FAILURE_STANDS: Duration = Duration::from_secs(1);
/// The error codes of RFC 6749, section 5.2. What else a server writes is not repeated.
const CODES: [&str; 6] = [
    "invalid_request",
    "invalid_client",
    "invalid_grant",
    "unauthorized_client",
    "unsupported_grant_type",
    "invalid_scope",
];

/// Reason why there is no token. Texts have the origin of the token endpoint, and nothing that it wrote but a known
/// code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// No response, or none in time.
    #[error("the token endpoint at {0} does not answer")]
    Unreachable(String),
    /// The endpoint cannot serve now.
    #[error("the token endpoint at {origin} cannot serve now: it answered HTTP {status}")]
    Unavailable {
        /// The origin of the token endpoint.
        origin: String,
        /// The status of its response.
        status: u16,
    },
    /// The endpoint refuses.
    #[error(
        "the token endpoint at {origin} gives no token: it answered HTTP {status} {code}; check the client's id, secret and scopes"
    )]
    Refused {
        /// The origin of the token endpoint.
        origin: String,
        /// The status of its response.
        status: u16,
        /// The error code of RFC 6749 that it gave.
        code: &'static str,
    },
    /// The response cannot be used.
    #[error("the answer of the token endpoint at {origin} is of no use: {problem}; check its URL")]
    Unusable {
        /// The origin of the token endpoint.
        origin: String,
        /// Problem of the token endpoint's response.
        problem: &'static str,
    },
}

/// Fetches tokens, and keeps them while they are valid. One fetch runs at a time, for all requests that wait.
struct TokenSource {
    grant: ClientCredentials,
    http: reqwest::Client,
    state: Mutex<TokenState>,
    /// Learns every token before it is used.
    redactor: Redactor,
    clock: Clock,
}

enum TokenState {
    Empty,
    Good { value: HeaderValue, until: Instant, _learnt: Option<Learnt> },
    Failed { error: TokenError, until: Instant },
}

/// A new token, which is removed from texts while it is kept.
struct Fetched {
    value: HeaderValue,
    lifetime: Duration,
    learnt: Option<Learnt>,
}

#[derive(Deserialize)]
struct TokenResponse {
    access_token: String,
    token_type: Option<String>,
    expires_in: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct TokenErrorResponse {
    error: String,
}

impl TokenSource {
    fn new(grant: ClientCredentials, http: reqwest::Client, redactor: Redactor, clock: Clock) -> Self {
        Self { grant, http, state: Mutex::new(TokenState::Empty), redactor, clock }
    }

    /// The value of the header that carries the token.
    async fn value(&self) -> Result<HeaderValue, TokenError> {
        let mut state = self.state.lock().await;
        match &*state {
            TokenState::Good { value, until, .. } if self.clock.now() < *until => return Ok(value.clone()),
            TokenState::Failed { error, until } if self.clock.now() < *until => return Err(error.clone()),
            _ => {}
        }
        let fetched = tokio::time::timeout(PATIENCE, self.fetch()).await;
        match fetched.unwrap_or_else(|_| Err(TokenError::Unreachable(self.origin()))) {
            Ok(Fetched { value, lifetime, learnt }) => {
                *state = TokenState::Good { value: value.clone(), until: self.clock.now() + lifetime, _learnt: learnt };
                Ok(value)
            }
            Err(error) => {
                *state = TokenState::Failed { error: error.clone(), until: self.clock.now() + FAILURE_STANDS };
                Err(error)
            }
        }
    }

    /// Drops the token, unless another has replaced it since.
    async fn forget(&self, refused: &HeaderValue) {
        let mut state = self.state.lock().await;
        if matches!(&*state, TokenState::Good { value, .. } if value == refused) {
            *state = TokenState::Empty;
        }
    }

    async fn fetch(&self) -> Result<Fetched, TokenError> {
        let scope = self.grant.scopes.join(" ");
        let mut form = vec![("grant_type", "client_credentials")];
        if !scope.is_empty() {
            form.push(("scope", &scope));
        }
        let request = self.http.post(self.grant.token_url.clone()).header(ACCEPT, "application/json");
        let request = request.header(AUTHORIZATION, self.basic()?).form(&form);
        let response = request.send().await.map_err(|_| TokenError::Unreachable(self.origin()))?;
        let status = response.status();
        let body = self.read(response).await?;
        if status == StatusCode::OK { self.token(&body) } else { Err(self.refusal(status, &body)) }
    }

    /// `client_secret_basic`: both parts are form-encoded first (RFC 6749, section 2.3.1).
    fn basic(&self) -> Result<HeaderValue, TokenError> {
        let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
        let pair = format!("{}:{}", encoded(&self.grant.client_id), encoded(self.grant.client_secret.expose()));
        parse_value(&AUTHORIZATION, &format!("Basic {}", STANDARD.encode(pair)))
            .map_err(|_| self.unusable("the client's id cannot be sent"))
    }

    async fn read(&self, mut response: Response) -> Result<Vec<u8>, TokenError> {
        let read = read_up_to(&mut response, MAX_RESPONSE).await;
        match read.map_err(|_| TokenError::Unreachable(self.origin()))? {
            (body, true) => Ok(body),
            (_, false) => Err(self.unusable("it is larger than 64 KiB")),
        }
    }

    fn token(&self, body: &[u8]) -> Result<Fetched, TokenError> {
        let token: TokenResponse = serde_json::from_slice(body).map_err(|_| self.unusable("it has no access_token"))?;
        if token.token_type.is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) {
            return Err(self.unusable("its token is no bearer token"));
        }
        if token.access_token.is_empty() || token.access_token.len() > MAX_TOKEN {
            return Err(self.unusable("its token is empty or too long"));
        }
        let value = parse_value(&AUTHORIZATION, &format!("Bearer {}", token.access_token))
            .map_err(|_| self.unusable("its token has characters that a header cannot carry"))?;
        let learnt = self.redactor.learn(&Secret::new(token.access_token));
        Ok(Fetched { value, lifetime: lifetime(token.expires_in.as_ref()), learnt })
    }

    fn refusal(&self, status: StatusCode, body: &[u8]) -> TokenError {
        let (origin, code) = (self.origin(), status.as_u16());
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return TokenError::Unavailable { origin, status: code };
        }
        if status.is_redirection() || status.is_success() {
            return self.unusable("it is not HTTP 200");
        }
        let sent = serde_json::from_slice(body).map_or_else(|_| String::new(), |sent: TokenErrorResponse| sent.error);
        let known = CODES.into_iter().find(|known| *known == sent).unwrap_or("without a known error code");
        TokenError::Refused { origin, status: code, code: known }
    }

    fn unusable(&self, problem: &'static str) -> TokenError {
        TokenError::Unusable { origin: self.origin(), problem }
    }

    fn origin(&self) -> String {
        self.grant.token_url.origin().ascii_serialization()
    }
}

/// Returns the time for which a token is used. Some servers write the seconds as a text.
fn lifetime(expires_in: Option<&serde_json::Value>) -> Duration {
    let seconds = expires_in.and_then(|value| value.as_u64().or_else(|| value.as_str()?.parse().ok()));
    let seconds = seconds.filter(|seconds| *seconds > 0);
    let lifetime = seconds.map_or(DEFAULT_LIFETIME, Duration::from_secs).min(MAX_LIFETIME);
    (lifetime - MARGIN.min(lifetime / 2)).max(MIN_LIFETIME)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_token_is_used_until_shortly_before_its_end() {
        let table = [
            (json!(3600), 3570),
            (json!("3600"), 3570),
            (json!(20), 10),
            (json!(6), 5),
            (json!(1), 5),
            (json!(0), 270),
            (json!("0"), 270),
            (json!(u64::MAX), 24 * 3600 - 30),
            (json!(-5), 270),
            (Value::Null, 270),
        ];
        for (expires_in, seconds) in table {
            assert_eq!(lifetime(Some(&expires_in)), Duration::from_secs(seconds), "{expires_in}");
        }
        assert_eq!(lifetime(None), Duration::from_secs(270));
    }
}
