//! Bodies of responses, up to a limit.

use reqwest::Response;

/// Reads at most `limit` bytes of a body, after decompression. Returns them, and whether they are all of it.
///
/// # Errors
///
/// If the connection is lost, or the body cannot be decompressed.
pub async fn read_up_to(response: &mut Response, limit: usize) -> Result<(Vec<u8>, bool), reqwest::Error> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        let room = limit - bytes.len();
        if let Some(fitting) = chunk.get(..room).filter(|_| chunk.len() > room) {
            bytes.extend_from_slice(fitting);
            return Ok((bytes, false));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok((bytes, true))
}
