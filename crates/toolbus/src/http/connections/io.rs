use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::state::Link;

/// A stream that tells its link what comes, and whether what leaves is taken: the system keeps little of it
/// ([`super::SEND_BUFFER`]), so what is written was taken, but for that.
pub(super) struct Watched<S> {
    stream: S,
    link: Arc<Link>,
    is_blocked: bool,
    has_begun: bool,
}

impl<S> Watched<S> {
    pub(super) const fn new(stream: S, link: Arc<Link>) -> Self {
        Self { stream, link, is_blocked: false, has_begun: false }
    }

    fn wrote<T>(&mut self, result: Poll<T>) -> Poll<T> {
        if result.is_pending() != self.is_blocked {
            self.is_blocked = !self.is_blocked;
            self.link.wrote(self.is_blocked);
        }
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Some(bytes) = buffer.filled().get(before..).filter(|bytes| !bytes.is_empty()) {
            if !self.has_begun {
                self.has_begun = true;
                self.link.began(bytes);
            }
            self.link.heard();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
