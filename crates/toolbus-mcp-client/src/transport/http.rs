//! HTTP transports: Streamable HTTP here, and how it is told from HTTP+SSE.

mod body;
mod client;
pub(crate) mod credentials;
mod error;
mod events;
pub(crate) mod headers;
mod opener;
mod probe;
pub(crate) mod sse;
mod streamable;
#[cfg(test)]
mod tests;

use std::time::Duration;

use futures_util::future::Either;
use rmcp::RoleClient;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransport, StreamableHttpClientTransportConfig};
use tokio_util::sync::DropGuard;

use self::sse::SseTransport;
use super::TransportFailure;

pub(crate) use self::client::{HttpClient, Outgoing};
pub(crate) use self::error::{HttpError, HttpErrorKind, classify};
pub(crate) use self::opener::{OpenError, Opener};
pub(crate) use self::streamable::is_of_type;

/// Requests that may be on their way at a time. Calls are limited elsewhere, and must not wait here.
const MAX_POSTS: usize = 1024;
/// Longest wait between two attempts at the stream of notifications.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(30);
/// Longest wait for the end of a connection: the server has 5 s to delete its session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(6);

/// A connection to an HTTP server.
pub(crate) enum HttpTransport {
    /// By Streamable HTTP.
    Streamable(StreamableTransport),
    /// By HTTP+SSE.
    Sse(SseTransport),
}

/// A connection by Streamable HTTP.
pub(crate) struct StreamableTransport {
    worker: StreamableHttpClientTransport<HttpClient>,
    client: HttpClient,
    /// Ends requests that the worker waits for without listening, so that it ends as well.
    _guard: DropGuard,
}

impl HttpTransport {
    fn streamable(client: HttpClient) -> Self {
        let mut config = StreamableHttpClientTransportConfig::with_uri(client.url().as_str());
        config.max_concurrent_requests = MAX_POSTS;
        let mut backoff = ExponentialBackoff::default();
        backoff.max_delay = Some(MAX_RECONNECT_DELAY);
        config.retry_config = std::sync::Arc::new(backoff);
        let worker = StreamableHttpClientTransport::with_client(client.clone(), config);
        let guard = client.closed().clone().drop_guard();
        Self::Streamable(StreamableTransport { worker, client, _guard: guard })
    }

    /// Why the connection has ended, for whoever finds that it has.
    pub(crate) fn failure(&self) -> TransportFailure {
        match self {
            Self::Streamable(transport) => transport.client.failure().clone(),
            Self::Sse(transport) => transport.failure().clone(),
        }
    }
}

impl Transport<RoleClient> for HttpTransport {
    type Error = HttpError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        match self {
            Self::Streamable(transport) => {
                let sent = transport.worker.send(message);
                Either::Left(async { sent.await.map_err(HttpError::from) })
            }
            Self::Sse(transport) => Either::Right(transport.send(message)),
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        match self {
            Self::Streamable(transport) => transport.worker.receive().await,
            Self::Sse(transport) => transport.receive().await,
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        match self {
            Self::Streamable(transport) => {
                transport.client.closed().cancel();
                match tokio::time::timeout(CLOSE_TIMEOUT, transport.worker.close()).await {
                    Ok(closed) => Ok(closed?),
                    Err(_) => Err(HttpError::closed()),
                }
            }
            Self::Sse(transport) => transport.close().await,
        }
    }
}
