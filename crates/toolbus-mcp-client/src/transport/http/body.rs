//! Reading what a server answers, as far as there is room.

use reqwest::Response;

use super::error::{HttpError, HttpErrorKind};

/// Largest answer, in bytes after decompression.
pub(crate) const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// Largest answer to a request that failed, in bytes after decompression.
pub(super) const MAX_REFUSAL: usize = 64 * 1024;

/// Reads a body of at most `limit` bytes.
pub(super) async fn read(origin: &str, mut response: Response, limit: usize) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| HttpError::unanswered(origin, &error))? {
        if body.len() + chunk.len() > limit {
            let text = format!("the MCP server at {origin} answered more than {limit} bytes");
            return Err(HttpError::new(HttpErrorKind::TooLarge, text));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
