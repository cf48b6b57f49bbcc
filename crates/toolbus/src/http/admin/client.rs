//! A client of the admin API and of `/readyz`, over the Unix socket or over HTTP.

use std::error::Error as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, StatusCode};
use reqwest::{Client, ClientBuilder, RequestBuilder, redirect};
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;

use super::view::{ApiRefusal, MAX_BODY, is_failure};
use crate::config::Secret;

/// Longest wait for a response.
const PATIENCE: Duration = Duration::from_secs(15);
/// Largest response that is read, in bytes: room for a hundred thousand tools.
const MAX_RESPONSE: usize = 64 * 1024 * 1024;
/// Largest response to a probe that is read, in bytes.
const MAX_PROBE: usize = 64 * 1024;

/// A client of the admin API of a daemon.
#[derive(Debug, Clone)]
pub enum AdminClient {
    /// Over its Unix socket.
    Socket(PathBuf),
    /// Over its HTTP port.
    Http {
        /// Scheme, host and port.
        url: Url,
        /// The value of its `http.admin_token`.
        token: Secret,
    },
}

/// Reason why a request to a daemon failed, and the next step.
#[derive(Debug, thiserror::Error)]
pub enum AdminClientError {
    /// The socket is another user's.
    #[error(
        "the socket `{}` belongs to another user: run this command as the user of the daemon, or use --daemon with a \
         token",
        .0.display()
    )]
    Forbidden(PathBuf),
    /// Nothing listens there.
    #[error(
        "no daemon answers on {address}: {source}. Start one with `toolbus serve`; or point to one that runs, with --config \
         (its configuration), --socket (its daemon.socket) or --daemon (its http.listen)"
    )]
    Unreachable {
        /// The address that was tried.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// No response in time.
    #[error("{0} did not answer within {1:.0?}; its log may tell why")]
    TimedOut(String, Duration),
    /// The daemon has no admin token.
    #[error(
        "{0} answers no operators: set http.admin_token in its configuration, or ask on its machine, with --socket"
    )]
    Closed(String),
    /// The daemon refused the request.
    #[error("{0}")]
    Refused(String),
    /// The daemon could not carry out the request, or not in its present state.
    #[error("{0}")]
    Failed(String),
    /// The response is not one of this API.
    #[error("{0} does not answer as this version of the daemon does: {1}")]
    Unreadable(String, String),
}

impl AdminClient {
    /// Sends a request without a body, and reads the response as JSON.
    ///
    /// # Errors
    ///
    /// If there is no response, or it is a refusal.
    pub async fn send<A: DeserializeOwned>(&self, method: Method, path: &str) -> Result<A, AdminClientError> {
        self.send_within(PATIENCE, method, path).await
    }

    /// Like [`Self::send`], with another limit to the wait.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn send_within<A>(&self, patience: Duration, method: Method, path: &str) -> Result<A, AdminClientError>
    where
        A: DeserializeOwned,
    {
        self.exchange(patience, method, path, Vec::new()).await
    }

    /// Posts `body` as JSON.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn post<A: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<A, AdminClientError> {
        self.post_within(PATIENCE, path, body).await
    }

    /// Like [`Self::post`], with another limit to the wait.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn post_within<A>(
        &self,
        patience: Duration,
        path: &str,
        body: &impl Serialize,
    ) -> Result<A, AdminClientError>
    where
        A: DeserializeOwned,
    {
        let body = serde_json::to_vec(body).map_err(|error| self.unreadable(error))?;
        if body.len() > MAX_BODY {
            return Err(AdminClientError::Refused(format!("the question is larger than {} KiB", MAX_BODY / 1024)));
        }
        self.exchange(patience, Method::POST, path, body).await
    }

    async fn exchange<A>(
        &self,
        patience: Duration,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<A, AdminClientError>
    where
        A: DeserializeOwned,
    {
        let request = self.request(method, path)?.header(CONTENT_TYPE, "application/json").body(body);
        let (status, response) = tokio::time::timeout(patience, send(request, MAX_RESPONSE))
            .await
            .map_err(|_| AdminClientError::TimedOut(self.to_string(), patience))?
            .map_err(|error| self.failed(&error))?;
        if status.is_success() {
            return serde_json::from_slice(&response).map_err(|error| self.unreadable(error));
        }
        match serde_json::from_slice::<ApiRefusal>(&response) {
            Ok(refusal) if is_failure(status) => Err(AdminClientError::Failed(refusal.error)),
            Ok(refusal) => Err(AdminClientError::Refused(refusal.error)),
            Err(_) if status == StatusCode::NOT_FOUND => Err(AdminClientError::Closed(self.to_string())),
            Err(_) => Err(self.unreadable(status)),
        }
    }

    fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, AdminClientError> {
        let built = |builder: ClientBuilder| builder.build().map_err(|error| self.unreadable(error));
        match self {
            Self::Socket(socket) => {
                let client = built(plain().unix_socket(socket.as_path()))?;
                Ok(client.request(method, format!("http://localhost{path}")))
            }
            Self::Http { url, token } => {
                let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.expose())).map_err(|_| {
                    AdminClientError::Refused(
                        "the token has characters that no header can carry; look at its end".to_owned(),
                    )
                })?;
                bearer.set_sensitive(true);
                let target = format!("{}{path}", url.origin().ascii_serialization());
                Ok(built(plain())?.request(method, target).header(AUTHORIZATION, bearer))
            }
        }
    }

    fn failed(&self, error: &reqwest::Error) -> AdminClientError {
        match (self, system_error(error)) {
            (Self::Socket(path), source) if error.is_connect() && source.kind() == io::ErrorKind::PermissionDenied => {
                AdminClientError::Forbidden(path.clone())
            }
            (_, source) if error.is_connect() => AdminClientError::Unreachable { address: self.to_string(), source },
            _ => self.unreadable(causes(error).last().map_or_else(|| error.to_string(), ToString::to_string)),
        }
    }

    fn unreadable(&self, error: impl ToString) -> AdminClientError {
        AdminClientError::Unreadable(self.to_string(), error.to_string())
    }
}

impl std::fmt::Display for AdminClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "the socket `{}`", path.display()),
            Self::Http { url, .. } => write!(f, "{}", url.origin().ascii_serialization()),
        }
    }
}

/// Reason why a daemon could not be probed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The configuration leaves the port to the system.
    #[error("http.listen has port 0, which the system replaces by a free one: give the real port, with --listen")]
    NoPort,
    /// Nothing listens there.
    #[error("no daemon answers on {address} (http.listen): {source}")]
    Unreachable {
        /// The address that was tried.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// No response in time.
    #[error("no answer from {0} in time")]
    TimedOut(SocketAddr),
    /// The listener there is no HTTP server.
    #[error("{0} does not speak HTTP")]
    NotHttp(SocketAddr),
}

/// Requests `path` from the daemon that listens on `listen`; returns the status code and the body. An unspecified
/// address is replaced by loopback.
///
/// # Errors
///
/// If there is no response within `patience`.
pub async fn probe(listen: SocketAddr, path: &str, patience: Duration) -> Result<(u16, String), ProbeError> {
    if listen.port() == 0 {
        return Err(ProbeError::NoPort);
    }
    let address = reachable(listen);
    let client = plain().build().map_err(|_| ProbeError::NotHttp(address))?;
    let sent = send(client.get(format!("http://{address}{path}")), MAX_PROBE);
    let response = tokio::time::timeout(patience, sent).await.map_err(|_| ProbeError::TimedOut(address))?;
    let (status, body) = response.map_err(|error| match error.is_connect() {
        true => ProbeError::Unreachable { address, source: system_error(&error) },
        false => ProbeError::NotHttp(address),
    })?;
    Ok((status.as_u16(), String::from_utf8_lossy(&body).into_owned()))
}

fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// A client that reaches the daemon alone: no proxy, no redirect, and no certificates, which small containers lack.
fn plain() -> ClientBuilder {
    Client::builder().no_proxy().no_gzip().tls_certs_only([]).redirect(redirect::Policy::none())
}

/// Sends a request, and reads at most `max` bytes of the response.
async fn send(request: RequestBuilder, max: usize) -> Result<(StatusCode, Vec<u8>), reqwest::Error> {
    let mut response = request.send().await?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        body.extend_from_slice(chunk.get(..max - body.len()).unwrap_or(&chunk));
        if body.len() >= max {
            break;
        }
    }
    Ok((response.status(), body))
}

/// Returns the causes of an error, outermost first.
fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// The error of the system that made a connection fail.
fn system_error(error: &reqwest::Error) -> io::Error {
    let of_system = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>()).last();
    match of_system {
        Some(cause) => match cause.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(cause.kind(), cause.to_string()),
        },
        None => io::Error::other(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn port_zero_cannot_be_probed() {
        let refused = probe("127.0.0.1:0".parse().unwrap(), "/readyz", Duration::from_secs(1)).await.unwrap_err();
        assert!(matches!(refused, ProbeError::NoPort), "{refused}");
    }
}
