//! Bodies of responses, up to a limit.

use std::future::ready;

use reqwest::Response;
use tokio::task::coop::consume_budget;

/// Reads at most `limit` bytes of a body, after decompression. Returns them, and whether they are all of it.
///
/// # Errors
///
/// If the connection is lost, or the body cannot be decompressed.
pub async fn read_up_to(response: &mut Response, limit: usize) -> Result<(Vec<u8>, bool), reqwest::Error> {
    read_growing(response, limit, ready(limit)).await
}

/// The same, where a longer body has the limit that `grow` gives, for which it waits.
///
/// # Errors
///
/// Like [`read_up_to`].
pub async fn read_growing(
    response: &mut Response,
    mut limit: usize,
    grow: impl Future<Output = usize>,
) -> Result<(Vec<u8>, bool), reqwest::Error> {
    // Bytes that grow are moved to twice the room again and again. Room that is not used takes no memory.
    let announced = response.content_length().and_then(|length| usize::try_from(length).ok());
    let mut bytes = Vec::with_capacity(announced.unwrap_or_default().min(limit));
    let mut grow = Some(grow);
    while let Some(chunk) = response.chunk().await? {
        // Decompressed chunks are ready at once, again and again.
        consume_budget().await;
        if bytes.len() + chunk.len() > limit
            && let Some(grow) = grow.take()
        {
            limit = grow.await.max(limit);
            bytes.reserve_exact(limit - bytes.len());
        }
        let room = limit - bytes.len();
        if let Some(fitting) = chunk.get(..room).filter(|_| chunk.len() > room) {
            bytes.extend_from_slice(fitting);
            return Ok((bytes, false));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok((bytes, true))
}
