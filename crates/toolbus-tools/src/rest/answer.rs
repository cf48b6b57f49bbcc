//! From an HTTP answer to a result.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::tool::ToolOutput;
use toolbus_outbound::read_up_to;

use super::failure;
use super::mask::Mask;
use super::text::ContentType;

/// Most of an error's body that is passed on, in bytes.
const MAX_ERROR_BODY: usize = 4096;

/// Longest wait that a server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Reads the answer to its end, and judges it by its status.
///
/// `name` is the tool's, for messages; `limit` is in bytes after decompression; `mask` hides the credentials of the request.
pub(super) async fn read(name: &str, response: Response, limit: usize, mask: &Mask) -> Result<ToolOutput, ToolFailure> {
    match response.status() {
        status if status.is_success() => content(name, response, limit, mask).await.map(ToolOutput::text),
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Err(unavailable(name, &response))
        }
        _ => error(response, limit.min(MAX_ERROR_BODY), mask).await.map(ToolOutput::error),
    }
}

async fn content(name: &str, mut response: Response, limit: usize, mask: &Mask) -> Result<String, ToolFailure> {
    let announced = response.content_length().and_then(|length| usize::try_from(length).ok());
    let (bytes, is_whole) = match announced {
        Some(length) if length > limit => (Vec::new(), false),
        _ => read_up_to(&mut response, limit).await.map_err(|error| failure::while_reading(name, error))?,
    };
    if !is_whole {
        return Err(ToolFailure::new(
            Cause::ResultTooLarge,
            format!("Tool '{name}' answered with more than the {limit} bytes that are allowed. Ask for less."),
        ));
    }
    let content_type = ContentType::of(response.headers());
    content_type.decode(&bytes).map(|text| mask.whole(&text)).ok_or_else(|| {
        let shown = content_type.shown(mask);
        ToolFailure::new(Cause::InvalidResult, format!("Tool '{name}' answered with {shown}, which is not text."))
    })
}

/// `HTTP 404 Not Found: body`, for the model to read.
async fn error(mut response: Response, limit: usize, mask: &Mask) -> Result<String, ToolFailure> {
    let status = response.status();
    let wait = retry_after(response.headers())
        .map_or_else(String::new, |wait| format!(", try again after {} s", wait.as_secs()));
    // The status is the answer; a body that breaks off does not change it.
    let (bytes, is_whole) = read_up_to(&mut response, limit).await.unwrap_or_default();
    let content_type = ContentType::of(response.headers());
    let body = if is_whole {
        content_type.decode(&bytes).map(|text| mask.whole(&text))
    } else {
        content_type.decode_start(&bytes).map(|text| mask.start(&text))
    };
    let body = match body.as_deref().map(str::trim) {
        Some("") => String::new(),
        Some(body) if is_whole => format!(": {body}"),
        Some(body) => format!(": {body}… (cut)"),
        None => format!(": (a body of {}, which is not text)", content_type.shown(mask)),
    };
    Ok(format!("HTTP {status}{wait}{body}"))
}

fn unavailable(name: &str, response: &Response) -> ToolFailure {
    let message = format!("Tool '{name}' cannot serve now: HTTP {}.", response.status());
    let failure = ToolFailure::new(Cause::Unavailable, message);
    match retry_after(response.headers()) {
        Some(wait) => failure.with_retry_after(wait),
        None => failure,
    }
}

/// `Retry-After` in seconds. The form with a date is ignored: clocks differ.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}
