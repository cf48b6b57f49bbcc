use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::future::{Either, select};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HOST;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::exchange::ExchangeError;

/// Most that is repeated of a response that was not good, in bytes.
const MAX_SHOWN: usize = 300;
/// Longest wait for one response.
const RESPONSE_TIME: Duration = Duration::from_secs(30);

/// Body that is sent.
type Outgoing = Full<Bytes>;

/// A connection that is kept for the next request, and opened again where the server closed it.
///
/// The task that waits for a response reads it from the socket, so that no task has to wake another.
pub(crate) struct HttpConnection {
    address: SocketAddr,
    open: Option<OpenConnection>,
}

struct OpenConnection {
    sender: SendRequest<Outgoing>,
    socket: Pin<Box<http1::Connection<TokioIo<TcpStream>, Outgoing>>>,
}

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A response that does not end: it is read, and kept open until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenStream(JoinHandle<()>);

impl HttpConnection {
    /// Nothing is connected before the first request.
    pub(crate) const fn new(address: SocketAddr) -> Self {
        Self { address, open: None }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request, and waits for the whole response.
    pub(crate) async fn send(&mut self, request: Request<Outgoing>) -> Result<HttpResponse, ExchangeError> {
        let response = match tokio::time::timeout(RESPONSE_TIME, self.exchange(request)).await {
            Ok(response) => response,
            Err(_) => Err(ExchangeError::Late(RESPONSE_TIME.as_secs())),
        };
        if response.is_err() {
            self.open = None;
        }
        response
    }

    async fn exchange(&mut self, request: Request<Outgoing>) -> Result<HttpResponse, ExchangeError> {
        let OpenConnection { sender, socket } = match &mut self.open {
            Some(open) if !open.sender.is_closed() => open,
            open => open.insert(OpenConnection::connect(self.address).await?),
        };
        let (response, is_over) = {
            let exchange = pin!(async { HttpResponse::read(sender.send_request(request).await?).await });
            match select(exchange, socket).await {
                Either::Left((response, _)) => (response, false),
                // The server closes after this response, which may be there already.
                Either::Right((_, exchange)) => (exchange.await, true),
            }
        };
        if is_over {
            self.open = None;
        }
        response
    }

    /// Sends a request whose response is a stream.
    pub(crate) async fn stream(&self, request: Request<Outgoing>) -> Result<OpenStream, ExchangeError> {
        let OpenConnection { mut sender, socket } = OpenConnection::connect(self.address).await?;
        let task = tokio::spawn(async move {
            let _ = socket.await;
        });
        let stream = OpenStream(task);
        let response = tokio::time::timeout(RESPONSE_TIME, sender.send_request(request)).await;
        let response = response.map_err(|_| ExchangeError::Late(RESPONSE_TIME.as_secs()))??;
        if response.status() != StatusCode::OK {
            return Err(HttpResponse::read(response).await?.refusal());
        }
        let reading = tokio::spawn(async move {
            // The connection lives as long as both parts of it.
            let (_sender, _socket, mut body) = (sender, stream, response.into_body());
            while let Some(Ok(_)) = body.frame().await {}
        });
        Ok(OpenStream(reading))
    }
}

impl OpenConnection {
    async fn connect(address: SocketAddr) -> Result<Self, ExchangeError> {
        let socket = TcpStream::connect(address).await.map_err(ExchangeError::Connect)?;
        // Data that waits for an acknowledgement costs 40 ms.
        socket.set_nodelay(true).map_err(ExchangeError::Connect)?;
        let (sender, socket) = http1::handshake(TokioIo::new(socket)).await?;
        Ok(Self { sender, socket: Box::pin(socket) })
    }
}

impl HttpResponse {
    async fn read(response: Response<Incoming>) -> Result<Self, ExchangeError> {
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Self { status: head.status, headers: head.headers, body })
    }

    /// Builds the error for a response that is not the wanted one.
    pub(crate) fn refusal(&self) -> ExchangeError {
        let text = String::from_utf8_lossy(self.body.get(..MAX_SHOWN).unwrap_or(&self.body)).into_owned();
        ExchangeError::Refused(self.status.as_u16(), text)
    }
}

impl OpenStream {
    /// Whether the server has ended it.
    #[must_use]
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A page that is requested again and again, and must not change.
pub(crate) struct MeasuredPage {
    connection: HttpConnection,
    uri: Uri,
    headers: HeaderMap,
    first: Option<Bytes>,
}

impl MeasuredPage {
    /// A page of the server at this address.
    ///
    /// # Errors
    ///
    /// If `path` is not the path of a URI.
    pub(crate) fn new(address: SocketAddr, path: &str) -> Result<Self, ExchangeError> {
        let uri = path.parse().map_err(|_| ExchangeError::Unreadable(format!("{path:?} is no path")))?;
        let headers = HeaderMap::from_iter([(HOST, host(address)?)]);
        Ok(Self { connection: HttpConnection::new(address), uri, headers, first: None })
    }
}

impl crate::exchange::Exchange for MeasuredPage {
    async fn once(&mut self) -> Result<(), ExchangeError> {
        let mut request = Request::new(Full::default());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        let response = self.connection.send(request).await?;
        let is_same = self.first.as_ref().is_none_or(|first| *first == response.body);
        if response.status != StatusCode::OK || !is_same {
            return Err(response.refusal());
        }
        self.first = Some(response.body);
        Ok(())
    }
}

/// Builds the value of `Host`.
pub(crate) fn host(address: SocketAddr) -> Result<hyper::header::HeaderValue, ExchangeError> {
    address.to_string().parse().map_err(|_| ExchangeError::Unreadable(format!("{address} is no host")))
}

#[cfg(test)]
mod tests;
