//! Opening connections to one server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use toolbus_core::redact::Redactor;

use super::HttpTransport;
use super::client::{HttpClient, Requester};
use super::error::{HttpError, HttpErrorKind};
use super::probe::{Probed, probe};
use super::sse::SseTransport;
use crate::spec::{Credential, Endpoint, HttpKind};

/// Longest wait for each step of opening a connection; longer than that for a connection or a token, whose texts say more.
const PATIENCE: Duration = Duration::from_secs(15);

/// Opens connections to one server with one credential, and remembers which transport it speaks.
pub(crate) struct Opener {
    requester: Arc<Requester>,
    configured: HttpKind,
    /// What was found out, where nothing is configured.
    found: Mutex<HttpKind>,
}

/// Why there is no connection. The texts are for operators: no secret, and of a URL only its origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpenError {
    /// A person has to give or renew a credential.
    #[error("{text}")]
    AuthRequired {
        /// What to do.
        text: String,
    },
    /// Nothing listens there, or there is no such host.
    #[error("{0}")]
    Refused(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Opener {
    /// Prepares connections. Nothing is sent. `redactor` learns the tokens that are fetched.
    ///
    /// # Errors
    ///
    /// When the URL, a header or the credential cannot be used.
    pub(crate) fn new(
        endpoint: &Endpoint,
        credential: Option<Credential>,
        redactor: &Redactor,
    ) -> Result<Self, OpenError> {
        let requester = Arc::new(Requester::new(endpoint, credential, redactor)?);
        Ok(Self { requester, configured: endpoint.kind, found: Mutex::new(endpoint.kind) })
    }

    /// Opens a connection by the transport that is configured or remembered; where that is neither, by Streamable HTTP
    /// if the server takes messages at its URL, else by HTTP+SSE. Streamable HTTP that is known connects when the first
    /// message is sent.
    pub(crate) async fn open(&self) -> Result<HttpTransport, OpenError> {
        let client = HttpClient::new(Arc::clone(&self.requester));
        match self.kind() {
            HttpKind::Streamable => Ok(HttpTransport::streamable(client)),
            HttpKind::Sse => {
                let opened = within(SseTransport::open(client)).await;
                // The server may have been replaced by one that speaks the other.
                let transport = opened.inspect_err(|_| self.remember(self.configured))?;
                Ok(HttpTransport::Sse(transport))
            }
            HttpKind::Detect => Ok(self.detect(client).await?),
        }
    }

    /// `http`, `sse`, or `http?` while that is not known.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind() {
            HttpKind::Streamable => "http",
            HttpKind::Sse => "sse",
            HttpKind::Detect => "http?",
        }
    }

    async fn detect(&self, client: HttpClient) -> Result<HttpTransport, HttpError> {
        let refusal = match within(probe(&client)).await? {
            Probed::Streamable => {
                self.remember(HttpKind::Streamable);
                return Ok(HttpTransport::streamable(client));
            }
            Probed::NoMessages(refusal) => Some(refusal),
            Probed::Unclear => None,
        };
        match (within(SseTransport::open(client.clone())).await, refusal) {
            (Ok(transport), _) => {
                self.remember(HttpKind::Sse);
                Ok(HttpTransport::Sse(transport))
            }
            (Err(_), None) => Ok(HttpTransport::streamable(client)),
            (Err(error), Some(_)) if error.kind == HttpErrorKind::AuthRequired => Err(error),
            (Err(_), Some(refusal)) => Err(refusal),
        }
    }

    fn kind(&self) -> HttpKind {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, kind: HttpKind) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = kind;
    }
}

async fn within<T>(step: impl Future<Output = Result<T, HttpError>>) -> Result<T, HttpError> {
    tokio::time::timeout(PATIENCE, step).await.unwrap_or_else(|_| {
        let text = format!("the MCP server did not answer within {} s", PATIENCE.as_secs());
        Err(HttpError::new(HttpErrorKind::ConnectionLost, text))
    })
}

impl From<HttpError> for OpenError {
    fn from(error: HttpError) -> Self {
        let text = error.to_string();
        match error.kind {
            HttpErrorKind::AuthRequired => Self::AuthRequired { text },
            HttpErrorKind::ConnectFailed => Self::Refused(text),
            _ => Self::Other(text),
        }
    }
}
