use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::response::Response;
use futures_util::StreamExt as _;
use toolbus_mcp_server::TokenId;

use super::refusal::Refusal;

/// Answers, and parts of streams, up to here are not counted, in bytes.
const SMALL: usize = 64 * 1024;
/// Bytes of answers that may wait for the clients of one token. The largest answer has 16 MiB.
const MAX_OF_TOKEN: usize = 64 * 1024 * 1024;
/// Bytes of answers that may wait for all clients.
const MAX_OF_ALL: usize = 256 * 1024 * 1024;

/// Bounds what waits for clients that take it slowly, or not at all.
#[derive(Debug, Default)]
pub(super) struct Answers(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    of_all: usize,
    /// By token; those of clients without one are counted together.
    of_token: HashMap<Option<TokenId>, usize>,
}

/// Bytes that wait for a client, counted until they have left.
struct Counted {
    bytes: Bytes,
    token: Option<TokenId>,
    waiting: Arc<Mutex<Waiting>>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut waiting = lock(&self.waiting);
        waiting.of_all = waiting.of_all.saturating_sub(self.bytes.len());
        if let Some(count) = waiting.of_token.get_mut(&self.token) {
            *count = count.saturating_sub(self.bytes.len());
            if *count == 0 {
                waiting.of_token.remove(&self.token);
            }
        }
    }
}

impl Answers {
    /// Counts an answer until the client has taken it; refuses it where too much waits already. A stream ends instead.
    pub(super) async fn counted(&self, answer: Response, token: Option<TokenId>) -> Response {
        let (parts, body) = answer.into_parts();
        if body.size_hint().exact().is_none() {
            let answers = Self(Arc::clone(&self.0));
            // Without an error at its end, a client would take what came for all of it.
            let untaken = || axum::Error::new("too much waits for this client");
            let counted = body
                .into_data_stream()
                .map(move |part| part.and_then(|bytes| answers.count(bytes, token).ok_or_else(untaken)));
            return Response::from_parts(parts, Body::from_stream(counted));
        }
        // It is there as a whole.
        let Ok(bytes) = to_bytes(body, usize::MAX).await else { return Refusal::untaken().answer(Body::empty()).await };
        match self.count(bytes, token) {
            Some(bytes) => Response::from_parts(parts, Body::from(bytes)),
            None => Refusal::untaken().answer(Body::empty()).await,
        }
    }

    /// The same bytes, counted; nothing if there is no room for them.
    fn count(&self, bytes: Bytes, token: Option<TokenId>) -> Option<Bytes> {
        if bytes.len() <= SMALL {
            return Some(bytes);
        }
        let mut waiting = lock(&self.0);
        let of_token = waiting.of_token.get(&token).copied().unwrap_or_default() + bytes.len();
        if of_token > MAX_OF_TOKEN || waiting.of_all + bytes.len() > MAX_OF_ALL {
            return None;
        }
        waiting.of_all += bytes.len();
        waiting.of_token.insert(token, of_token);
        drop(waiting);
        Some(Bytes::from_owner(Counted { bytes, token, waiting: Arc::clone(&self.0) }))
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    const LARGE: usize = 16 * 1024 * 1024;

    async fn answer(answers: &Answers, token: u64) -> Result<Bytes, u16> {
        let answer = answers.counted(Response::new(Body::from(vec![b'x'; LARGE])), Some(TokenId(token))).await;
        match answer.status().as_u16() {
            200 => Ok(to_bytes(answer.into_body(), usize::MAX).await.unwrap()),
            code => Err(code),
        }
    }

    #[tokio::test]
    async fn what_waits_is_bounded_for_each_token_and_for_all_and_counts_until_it_is_taken() {
        let answers = Answers::default();
        let mut waiting = Vec::new();
        for token in 0..MAX_OF_ALL / MAX_OF_TOKEN {
            for _ in 0..MAX_OF_TOKEN / LARGE {
                waiting.push(answer(&answers, token as u64).await.unwrap());
            }
            assert_eq!(answer(&answers, token as u64).await, Err(503));
        }
        assert_eq!(answer(&answers, 99).await, Err(503));
        // A part of what is taken is still what waits.
        let part = waiting.pop().unwrap().slice(..1);
        assert_eq!(answer(&answers, 99).await, Err(503));
        drop(part);
        assert!(answer(&answers, 99).await.is_ok());
        drop(waiting);
        assert_eq!(lock(&answers.0).of_all, 0);
        assert!(lock(&answers.0).of_token.is_empty());
    }

    #[tokio::test]
    async fn a_stream_with_too_much_in_it_is_broken_off_and_small_parts_are_not_counted() {
        let answers = Answers::default();
        let parts = |size, count| {
            let parts = (0..count).map(move |_| Ok::<_, axum::Error>(Bytes::from(vec![b'x'; size])));
            Response::new(Body::from_stream(stream::iter(parts)))
        };
        let taken = |response: Response| response.into_body().into_data_stream().collect::<Vec<_>>();
        let small = taken(answers.counted(parts(SMALL, 2 * MAX_OF_TOKEN / SMALL), None).await).await;
        assert!(small.iter().all(Result::is_ok));
        let large = taken(answers.counted(parts(LARGE, 5), None).await).await;
        let fits = MAX_OF_TOKEN / LARGE;
        assert!(large[..fits].iter().all(Result::is_ok) && large[fits].is_err());
    }
}
