//! Asks a running daemon, over its socket for operators or over HTTP.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Method, Request, StatusCode};
use bytes::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use url::Url;

use super::MAX_BODY;
use super::view::Refusal;
use crate::config::Secret;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// Largest answer that is read, in bytes: room for a hundred thousand tools.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Where a daemon is asked.
#[derive(Debug, Clone)]
pub enum Door {
    /// On its Unix socket.
    Socket(PathBuf),
    /// On its HTTP port, with the token that this takes.
    Http {
        /// Scheme, host and port.
        url: Url,
        /// The value of its `http.admin_token`.
        token: Secret,
    },
}

/// Why a running daemon did not answer, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The socket is another user's.
    #[error(
        "the socket `{}` belongs to another user: run this command as the user of the daemon, or use --daemon with a \
         token",
        .0.display()
    )]
    Forbidden(PathBuf),
    /// Nobody listens.
    #[error(
        "no daemon answers on {place}: {source}. Start one with `toolbus serve`; or point to one that runs, with --config \
         (its configuration), --socket (its daemon.socket) or --daemon (its http.listen)"
    )]
    Nobody {
        /// The address that was tried.
        place: String,
        /// What the system said.
        source: io::Error,
    },
    /// The time is over.
    #[error("{0} did not answer within {1:.0?}; its log may tell why")]
    TimedOut(String, Duration),
    /// The daemon takes no tokens.
    #[error(
        "{0} answers no operators: set http.admin_token in its configuration, or ask on its machine, with --socket"
    )]
    Closed(String),
    /// It does not take the question.
    #[error("{0}")]
    Refused(String),
    /// It could not do what was asked.
    #[error("{0}")]
    Failed(String),
    /// What answers is no daemon of this kind.
    #[error("{0} does not answer as this version of the daemon does: {1}")]
    Unreadable(String, String),
}

impl Door {
    /// Asks for what is behind a path.
    ///
    /// # Errors
    ///
    /// When there is no answer, or the answer is a refusal.
    pub async fn ask<A: DeserializeOwned>(&self, method: Method, path: &str) -> Result<A, AskError> {
        self.ask_within(PATIENCE, method, path).await
    }

    /// The same with another limit to the wait for the answer.
    ///
    /// # Errors
    ///
    /// As [`Self::ask`].
    pub async fn ask_within<A>(&self, patience: Duration, method: Method, path: &str) -> Result<A, AskError>
    where
        A: DeserializeOwned,
    {
        self.exchange(patience, method, path, Body::empty()).await
    }

    /// Sends `question` as JSON.
    ///
    /// # Errors
    ///
    /// As [`Self::ask`].
    pub async fn post<A: DeserializeOwned>(&self, path: &str, question: &impl Serialize) -> Result<A, AskError> {
        let body = serde_json::to_vec(question).map_err(|error| self.unreadable(error))?;
        if body.len() > MAX_BODY {
            return Err(AskError::Refused(format!("the question is larger than {} KiB", MAX_BODY / 1024)));
        }
        self.exchange(PATIENCE, Method::POST, path, body.into()).await
    }

    async fn exchange<A>(&self, patience: Duration, method: Method, path: &str, body: Body) -> Result<A, AskError>
    where
        A: DeserializeOwned,
    {
        let request = self.request(method, path, body)?;
        let (status, answer) = tokio::time::timeout(patience, self.send(request))
            .await
            .map_err(|_| AskError::TimedOut(self.to_string(), patience))??;
        if status.is_success() {
            return serde_json::from_slice(&answer).map_err(|error| self.unreadable(error));
        }
        match serde_json::from_slice::<Refusal>(&answer) {
            Ok(refusal) if status.is_server_error() => Err(AskError::Failed(refusal.error)),
            Ok(refusal) => Err(AskError::Refused(refusal.error)),
            Err(_) if status == StatusCode::NOT_FOUND => Err(AskError::Closed(self.to_string())),
            Err(_) => Err(self.unreadable(status)),
        }
    }

    fn request(&self, method: Method, path: &str, body: Body) -> Result<Request<Body>, AskError> {
        let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
        let request = match self {
            Self::Socket(_) => request.header(HOST, "localhost"),
            Self::Http { url, token } => {
                let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.reveal())).map_err(|_| {
                    AskError::Refused("the token has characters that no header can carry; look at its end".to_owned())
                })?;
                bearer.set_sensitive(true);
                request.header(HOST, url.authority()).header(AUTHORIZATION, bearer)
            }
        };
        request.body(body).map_err(|error| self.unreadable(error))
    }

    async fn send(&self, request: Request<Body>) -> Result<(StatusCode, Bytes), AskError> {
        match self {
            Self::Socket(path) => {
                let stream = UnixStream::connect(path).await.map_err(|source| match source.kind() {
                    io::ErrorKind::PermissionDenied => AskError::Forbidden(path.clone()),
                    _ => AskError::Nobody { place: self.to_string(), source },
                })?;
                self.over(stream, request).await
            }
            Self::Http { url, .. } => {
                let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
                let stream = TcpStream::connect((host, url.port_or_known_default().unwrap_or_default())).await;
                self.over(stream.map_err(|source| AskError::Nobody { place: self.to_string(), source })?, request).await
            }
        }
    }

    async fn over<S>(&self, stream: S, request: Request<Body>) -> Result<(StatusCode, Bytes), AskError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.unreadable(error))?;
        // Ends with the connection, which ends with the sender; what goes wrong there is told by the answer.
        tokio::spawn(async move { drop(connection.await) });
        let answer = sender.send_request(request).await.map_err(|error| self.unreadable(error))?;
        let status = answer.status();
        let body = to_bytes(Body::new(answer.into_body()), MAX_ANSWER).await;
        Ok((status, body.map_err(|error| self.unreadable(error))?))
    }

    fn unreadable(&self, error: impl ToString) -> AskError {
        AskError::Unreadable(self.to_string(), error.to_string())
    }
}

impl std::fmt::Display for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "the socket `{}`", path.display()),
            Self::Http { url, .. } => write!(f, "{}", url.origin().ascii_serialization()),
        }
    }
}
