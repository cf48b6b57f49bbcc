//! Connections: accepted, driven within their deadlines, and ended in order.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::response::IntoResponse as _;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1::{self, Connection};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::slots::{ConnectionState, IDLE_TIME, Slots};

/// Size of the socket's send buffer, in bytes. The default grows to some 4 MiB, and progress is reported by thirds of
/// it: a client that reads 100 kB/s would seem to read nothing for ten seconds, and each client that does not read would
/// cost as much.
pub(super) const SEND_BUFFER: usize = 256 * 1024;
/// Largest head of a request, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// Most headers of a request.
const MAX_HEADERS: usize = 64;
/// Pause after `accept` failed for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A source of connections.
pub(super) trait Accept: Send {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and the address at its other end if it has one.
    fn accept_one(&mut self) -> impl Future<Output = io::Result<(Self::Stream, Option<IpAddr>)>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept_one(&mut self) -> io::Result<(TcpStream, Option<IpAddr>)> {
        let (stream, remote): (_, SocketAddr) = self.accept().await?;
        // Head and body of a response may leave in two writes; the second must not wait until the first is acknowledged.
        // Setting an option fails only if the client is gone.
        let _ = stream.set_nodelay(true);
        let _ = set_socket_send_buffer_size(&stream, SEND_BUFFER);
        Ok((stream, Some(remote.ip().to_canonical())))
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept_one(&mut self) -> io::Result<(UnixStream, Option<IpAddr>)> {
        self.accept().await.map(|(stream, _)| (stream, None))
    }
}

/// Serves until `stop` is cancelled, then lets requests in progress finish.
pub(super) async fn serve(mut listener: impl Accept, slots: Arc<Slots>, routes: Router, stop: CancellationToken) {
    let connections = TaskTracker::new();
    let accepting = async {
        loop {
            let (stream, remote) = next(&mut listener, || slots.make_room()).await;
            let Some(state) = slots.enter(remote).await else { return };
            connections.spawn(serve_one(stream, state, routes.clone(), true, stop.clone()));
        }
    };
    stop.run_until_cancelled(accepting).await;
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// The next connection; `make_room` is to close one where there are too few file descriptors.
pub(super) async fn next<A: Accept>(listener: &mut A, make_room: impl Fn()) -> (A::Stream, Option<IpAddr>) {
    loop {
        match listener.accept_one().await {
            Ok(accepted) => return accepted,
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "HTTP: no connection could be accepted");
                make_room();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether the client ended the connection before it was accepted.
fn is_gone(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves the requests of one connection; the first one alone unless `keep_alive`.
pub(super) async fn serve_one<S>(
    stream: S,
    state: Arc<ConnectionState>,
    routes: Router,
    keep_alive: bool,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let deregister = state.deregister_on_drop();
    let connection = http1::Builder::new()
        // `ConnectionState` keeps the times: hyper does not distinguish a slow head from an idle connection.
        .header_read_timeout(None)
        .keep_alive(keep_alive)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD)
        .serve_connection(
            TokioIo::new(Watched::new(stream, Arc::clone(&state))),
            ConnectionService::new(routes, Arc::clone(&state)),
        );
    drive(connection, &state, &stop).await;
    drop(deregister);
}

/// The routes. Each request has the [`ConnectionState`] among its extensions.
struct ConnectionService {
    routes: TowerToHyperService<Router>,
    state: Arc<ConnectionState>,
}

impl ConnectionService {
    fn new(routes: Router, state: Arc<ConnectionState>) -> Self {
        Self { routes: TowerToHyperService::new(routes), state }
    }
}

impl hyper::service::Service<Request<Incoming>> for ConnectionService {
    type Response = Response<Reported>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let state = Arc::clone(&self.state);
        state.begin();
        request.extensions_mut().insert(Arc::clone(&state));
        let response = AssertUnwindSafe(self.routes.call(request)).catch_unwind();
        async move {
            let response = match response.await {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(_) => {
                    tracing::error!("HTTP: a request made its handler panic");
                    failed()
                }
            };
            Ok(response.map(|body| Reported { body, state }))
        }
        .boxed()
    }
}

fn failed() -> Response<Body> {
    let close = [(CONNECTION, HeaderValue::from_static("close"))];
    (StatusCode::INTERNAL_SERVER_ERROR, close, "The daemon could not answer this; its log has more.\n").into_response()
}

/// The body of a response. Its end is reported to the connection's state.
struct Reported {
    body: Body,
    state: Arc<ConnectionState>,
}

impl Drop for Reported {
    fn drop(&mut self) {
        self.state.responded();
    }
}

impl HttpBody for Reported {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that reports to the connection's state the arrival of bytes, and whether the client reads its response: the
/// system buffers little of it ([`SEND_BUFFER`]).
struct Watched<S> {
    stream: S,
    state: Arc<ConnectionState>,
    is_blocked: bool,
    has_begun: bool,
}

impl<S> Watched<S> {
    const fn new(stream: S, state: Arc<ConnectionState>) -> Self {
        Self { stream, state, is_blocked: false, has_begun: false }
    }

    fn wrote<T>(&mut self, result: Poll<T>) -> Poll<T> {
        if result.is_pending() != self.is_blocked {
            self.is_blocked = !self.is_blocked;
            self.state.wrote(self.is_blocked);
        }
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Some(bytes) = buffer.filled().get(before..).filter(|bytes| !bytes.is_empty()) {
            if !self.has_begun {
                self.has_begun = true;
                self.state.began(bytes);
            }
            self.state.heard();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Drives a connection until it ends, its deadline passes, or its slot is needed. Errors of the connection are dropped:
/// they concern the client alone.
async fn drive<I>(connection: Connection<I, ConnectionService>, state: &ConnectionState, stop: &CancellationToken)
where
    I: Read + Write + Unpin,
{
    let clock = state.clock();
    let mut connection = pin!(connection);
    let mut evicted = pin!(state.evicted());
    let mut stopped = pin!(stop.cancelled());
    let mut is_stopping = false;
    // Reset only for an earlier deadline, and compared when it is due: most requests are over by then.
    let mut alarm = pin!(sleep_until(clock.now().into()));
    poll_fn(|cx| {
        if !is_stopping && stopped.as_mut().poll(cx).is_ready() {
            is_stopping = true;
            state.stop();
            connection.as_mut().graceful_shutdown();
        }
        while evicted.as_mut().poll(cx).is_ready() {
            evicted.set(state.evicted());
        }
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            let now = clock.now();
            let deadline = state.deadline();
            if deadline.is_some_and(|deadline| deadline <= now) {
                tracing::debug!("HTTP: a connection took too long and was closed");
                return Poll::Ready(());
            }
            let is_over = alarm.deadline().into_std() <= now;
            let next = deadline.unwrap_or(now + IDLE_TIME);
            if is_over || next < alarm.deadline().into_std() {
                alarm.as_mut().reset(next.into());
            }
            if alarm.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}
