//! How one connection is served: its requests, what it reads and writes, and its deadlines.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{IoSlice, Result as IoResult};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::response::IntoResponse as _;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1::Connection;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::IDLE_TIME;
use super::state::ConnectionState;

/// The routes. Each request has the [`ConnectionState`] among its extensions.
pub(super) struct Service {
    routes: TowerToHyperService<Router>,
    state: Arc<ConnectionState>,
}

impl Service {
    pub(super) fn new(routes: Router, state: Arc<ConnectionState>) -> Self {
        Self { routes: TowerToHyperService::new(routes), state }
    }
}

impl hyper::service::Service<Request<Incoming>> for Service {
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
pub(super) struct Reported {
    body: Body,
    state: Arc<ConnectionState>,
}

impl Drop for Reported {
    fn drop(&mut self) {
        self.state.answered();
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

/// A stream that reports to the connection's state what arrives, and whether what is written is read at the other end:
/// the system buffers little of it ([`super::SEND_BUFFER`]).
pub(super) struct Watched<S> {
    stream: S,
    state: Arc<ConnectionState>,
    is_blocked: bool,
    has_begun: bool,
}

impl<S> Watched<S> {
    pub(super) const fn new(stream: S, state: Arc<ConnectionState>) -> Self {
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
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<IoResult<()>> {
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
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<IoResult<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<IoResult<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Drives a connection until it ends, its deadline passes, or its slot is needed. Errors of the connection are dropped:
/// they concern the client alone.
pub(super) async fn drive<I>(connection: Connection<I, Service>, state: &ConnectionState, stop: &CancellationToken)
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
