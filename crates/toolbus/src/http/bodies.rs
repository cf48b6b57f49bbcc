use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::refusal::Refusal;

/// How long a body may take to come.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Bodies up to here take no part of the room for large ones, in bytes.
const SMALL: usize = 64 * 1024;
/// Bytes of a body for which room is taken at a time.
const STEP: usize = 64 * 1024;
/// How many bodies of the largest size there is room for at once.
const LARGEST_AT_ONCE: usize = 16;
/// What is read of a body that nobody wants: as much as the largest one by default.
const MAX_DISCARDED: usize = 4 * 1024 * 1024;
/// How long it is read: what is on its way comes by then, and whoever announces one and sends none holds no place for long.
const DISCARD_TIME: Duration = Duration::from_millis(200);

/// Reads bodies, each up to a limit, and all large ones within a bound.
pub(super) struct Bodies {
    max: usize,
    room: Arc<Semaphore>,
}

/// All of a body.
pub(super) struct Whole {
    pub(super) bytes: Bytes,
    /// What it takes of the room for large ones, until this is dropped.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    pub(super) fn new(max: usize) -> Self {
        let steps = max.div_ceil(STEP).saturating_mul(LARGEST_AT_ONCE).min(Semaphore::MAX_PERMITS);
        Self { max, room: Arc::new(Semaphore::new(steps)) }
    }

    /// All of a body; or why not, and what is left of it.
    pub(super) async fn read(&self, body: Body, headers: &HeaderMap) -> Result<Whole, (Refusal, Body)> {
        let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|length| length > self.max) {
            return Err((Refusal::large_body(self.max), body));
        }
        let mut chunks = body.into_data_stream();
        let read = timeout(BODY_TIME, self.collect(&mut chunks)).await;
        read.unwrap_or(Err(Refusal::slow_body())).map_err(|refusal| (refusal, Body::from_stream(chunks)))
    }

    async fn collect(&self, chunks: &mut BodyDataStream) -> Result<Whole, Refusal> {
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

    fn within(&self, length: usize) -> Result<(), Refusal> {
        if length > self.max { Err(Refusal::large_body(self.max)) } else { Ok(()) }
    }

    /// Takes room for so many bytes.
    fn hold(&self, held: &mut Option<OwnedSemaphorePermit>, length: usize) -> Result<(), Refusal> {
        let taken = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let wanted = length.saturating_sub(SMALL).div_ceil(STEP).saturating_sub(taken);
        if wanted == 0 {
            return Ok(());
        }
        let more = Arc::clone(&self.room).try_acquire_many_owned(u32::try_from(wanted).unwrap_or(u32::MAX));
        let more = more.map_err(|_| Refusal::no_room())?;
        match held {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

async fn next(chunks: &mut BodyDataStream) -> Result<Option<Bytes>, Refusal> {
    chunks.next().await.transpose().map_err(|_| Refusal::broken_body())
}

/// Reads a body that is not wanted, up to a bound: a connection that is closed with bytes unread may lose the answer.
pub(super) async fn discard(body: Body) {
    let mut chunks = body.into_data_stream();
    let reading = async {
        let mut read = 0_usize;
        while let Some(Ok(chunk)) = chunks.next().await {
            read = read.saturating_add(chunk.len());
            if read > MAX_DISCARDED {
                return;
            }
        }
    };
    // However it ends, the answer is sent.
    let _ = timeout(DISCARD_TIME, reading).await;
}
