//! Bounds of bodies: of requests, and of responses that are queued for clients that do not read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody as _, to_bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use toolbus_mcp_server::TokenId;

use super::refusal::HttpRefusal;

/// Longest time for a body to arrive.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Bodies up to this size take none of the room for large ones, in bytes.
const SMALL: usize = 64 * 1024;
/// Granularity of the room for large bodies, in bytes.
const STEP: usize = 64 * 1024;
/// Bodies of the largest size that there is room for at a time.
const LARGEST_AT_ONCE: usize = 16;
/// Responses, and parts of streams, up to this size are not counted, in bytes.
const UNCOUNTED: usize = 64 * 1024;
/// Bytes of responses that may be queued for the clients of one token. The largest response has 16 MiB.
const MAX_OF_TOKEN: usize = 64 * 1024 * 1024;
/// Bytes of responses that may be queued for all clients.
const MAX_OF_ALL: usize = 256 * 1024 * 1024;

/// Reads bodies, each up to a limit and all large ones within a bound.
pub(super) struct Bodies {
    max: usize,
    room: Arc<Semaphore>,
}

/// A complete body.
pub(super) struct Whole {
    pub(super) bytes: Bytes,
    /// Permit for a part of the room for large bodies; `None` for a small body.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    pub(super) fn new(max: usize) -> Self {
        let steps = max.div_ceil(STEP).saturating_mul(LARGEST_AT_ONCE).min(Semaphore::MAX_PERMITS);
        Self { max, room: Arc::new(Semaphore::new(steps)) }
    }

    /// Reads all of a body.
    ///
    /// # Errors
    ///
    /// If the body is too large, too slow or incomplete, or there is no room for it; with the rest of it.
    pub(super) async fn read(&self, body: Body, headers: &HeaderMap) -> Result<Whole, (HttpRefusal, Body)> {
        let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|length| length > self.max) {
            return Err((HttpRefusal::large_body(self.max), body));
        }
        let mut chunks = body.into_data_stream();
        let read = timeout(BODY_TIME, self.collect(&mut chunks)).await;
        read.unwrap_or(Err(HttpRefusal::slow_body())).map_err(|refusal| (refusal, Body::from_stream(chunks)))
    }

    async fn collect(&self, chunks: &mut BodyDataStream) -> Result<Whole, HttpRefusal> {
        let first = next(chunks).await?.unwrap_or_default();
        self.within(first.len())?;
        let Some(second) = next(chunks).await? else { return Ok(Whole { bytes: first, room: None }) };
        let mut bytes = BytesMut::from(first);
        let mut room = None;
        let mut more = Some(second);
        while let Some(chunk) = more {
            self.within(bytes.len().saturating_add(chunk.len()))?;
            bytes.extend_from_slice(&chunk);
            self.hold(&mut room, bytes.len())?;
            more = next(chunks).await?;
        }
        Ok(Whole { bytes: bytes.freeze(), room })
    }

    fn within(&self, length: usize) -> Result<(), HttpRefusal> {
        if length > self.max { Err(HttpRefusal::large_body(self.max)) } else { Ok(()) }
    }

    /// Takes room for `length` bytes in all.
    fn hold(&self, held: &mut Option<OwnedSemaphorePermit>, length: usize) -> Result<(), HttpRefusal> {
        let taken = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let wanted = length.saturating_sub(SMALL).div_ceil(STEP).saturating_sub(taken);
        if wanted == 0 {
            return Ok(());
        }
        let more = Arc::clone(&self.room).try_acquire_many_owned(u32::try_from(wanted).unwrap_or(u32::MAX));
        let more = more.map_err(|_| HttpRefusal::no_room())?;
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

async fn next(chunks: &mut BodyDataStream) -> Result<Option<Bytes>, HttpRefusal> {
    chunks.next().await.transpose().map_err(|_| HttpRefusal::broken_body())
}

/// Bounds the responses that are queued for clients that read slowly, or not at all.
#[derive(Debug, Default)]
pub(super) struct QueuedResponses(Arc<Mutex<Queued>>);

#[derive(Debug, Default)]
struct Queued {
    of_all: usize,
    /// By token; clients without one are counted together.
    of_token: HashMap<Option<TokenId>, usize>,
}

/// Bytes that are queued for a client, counted until they are sent.
struct Counted {
    bytes: Bytes,
    token: Option<TokenId>,
    queued: Arc<Mutex<Queued>>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut queued = self.queued.lock();
        queued.of_all = queued.of_all.saturating_sub(self.bytes.len());
        if let Some(count) = queued.of_token.get_mut(&self.token) {
            *count = count.saturating_sub(self.bytes.len());
            if *count == 0 {
                queued.of_token.remove(&self.token);
            }
        }
    }
}

impl QueuedResponses {
    /// Counts a response until it is sent. If too much is queued already, the response is replaced by a refusal, or a
    /// stream is broken off.
    pub(super) async fn counted(&self, response: Response, token: Option<TokenId>) -> Response {
        let (parts, body) = response.into_parts();
        if body.size_hint().exact().is_none() {
            let responses = Self(Arc::clone(&self.0));
            // Without an error at its end, the client would take the arrived part for the whole.
            let untaken = || axum::Error::new("too much waits for this client");
            let counted = body
                .into_data_stream()
                .map(move |part| part.and_then(|bytes| responses.count(bytes, token).ok_or_else(untaken)));
            return Response::from_parts(parts, Body::from_stream(counted));
        }
        let Ok(bytes) = to_bytes(body, usize::MAX).await else {
            return HttpRefusal::untaken().respond(Body::empty()).await;
        };
        match self.count(bytes, token) {
            Some(bytes) => Response::from_parts(parts, Body::from(bytes)),
            None => HttpRefusal::untaken().respond(Body::empty()).await,
        }
    }

    /// The same bytes, counted; `None` if they exceed a bound.
    fn count(&self, bytes: Bytes, token: Option<TokenId>) -> Option<Bytes> {
        if bytes.len() <= UNCOUNTED {
            return Some(bytes);
        }
        let mut queued = self.0.lock();
        let of_token = queued.of_token.get(&token).copied().unwrap_or_default() + bytes.len();
        if of_token > MAX_OF_TOKEN || queued.of_all + bytes.len() > MAX_OF_ALL {
            return None;
        }
        queued.of_all += bytes.len();
        queued.of_token.insert(token, of_token);
        drop(queued);
        Some(Bytes::from_owner(Counted { bytes, token, queued: Arc::clone(&self.0) }))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    const LARGE: usize = 16 * 1024 * 1024;

    async fn response(responses: &QueuedResponses, token: u64) -> Result<Bytes, u16> {
        let response = responses.counted(Response::new(Body::from(vec![b'x'; LARGE])), Some(TokenId(token))).await;
        match response.status().as_u16() {
            200 => Ok(to_bytes(response.into_body(), usize::MAX).await.unwrap()),
            code => Err(code),
        }
    }

    #[tokio::test]
    async fn queued_responses_are_bounded_for_each_token_and_in_total_until_they_are_sent() {
        let responses = QueuedResponses::default();
        let mut waiting = Vec::new();
        for token in 0..MAX_OF_ALL / MAX_OF_TOKEN {
            for _ in 0..MAX_OF_TOKEN / LARGE {
                waiting.push(response(&responses, token as u64).await.unwrap());
            }
            assert_eq!(response(&responses, token as u64).await, Err(503));
        }
        assert_eq!(response(&responses, 99).await, Err(503));
        // A part of a taken response still counts as queued.
        let part = waiting.pop().unwrap().slice(..1);
        assert_eq!(response(&responses, 99).await, Err(503));
        drop(part);
        assert!(response(&responses, 99).await.is_ok());
        drop(waiting);
        assert_eq!(responses.0.lock().of_all, 0);
        assert!(responses.0.lock().of_token.is_empty());
    }

    #[tokio::test]
    async fn a_refused_response_states_that_the_request_was_carried_out_and_has_no_time_to_retry() {
        let responses = QueuedResponses::default();
        let large = || Response::new(Body::from(vec![b'x'; LARGE]));
        let mut queued = Vec::new();
        for _ in 0..MAX_OF_TOKEN / LARGE {
            let body = responses.counted(large(), None).await.into_body();
            queued.push(to_bytes(body, usize::MAX).await.unwrap());
        }
        let refused = responses.counted(large(), None).await;
        assert_eq!(refused.status(), 503);
        assert_eq!(refused.headers().get("retry-after"), None, "a proxy would repeat the call");
        assert_eq!(refused.headers()["connection"], "close");
        let body = to_bytes(refused.into_body(), usize::MAX).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        insta::assert_snapshot!(body["error"]["message"].as_str().unwrap(), @"the request was carried out, but its answer is not sent, because too much waits for this client already: read the answers that are on their way, and if it was a call, find out what it did before calling again");
    }

    #[tokio::test]
    async fn a_stream_with_too_many_queued_bytes_is_aborted_and_small_parts_are_not_counted() {
        let responses = QueuedResponses::default();
        let parts = |size, count| {
            let parts = (0..count).map(move |_| Ok::<_, axum::Error>(Bytes::from(vec![b'x'; size])));
            Response::new(Body::from_stream(stream::iter(parts)))
        };
        let taken = |response: Response| response.into_body().into_data_stream().collect::<Vec<_>>();
        let small = taken(responses.counted(parts(UNCOUNTED, 2 * MAX_OF_TOKEN / UNCOUNTED), None).await).await;
        assert!(small.iter().all(Result::is_ok));
        let large = taken(responses.counted(parts(LARGE, 5), None).await).await;
        let fits = MAX_OF_TOKEN / LARGE;
        assert!(large[..fits].iter().all(Result::is_ok) && large[fits].is_err());
    }
}
