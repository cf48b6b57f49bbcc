//! Turns an HTTP response, or an error of the HTTP client, into a result or a failure of the call.

use std::error::Error;
use std::io;
use std::time::Duration;

use encoding_rs::{Encoding, UTF_8};
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use toolbus_core::failure::{Cause, ToolFailure};
use toolbus_core::results::{ResultRoom, too_large};
use toolbus_core::text::{shortened, with_dates};
use toolbus_core::tool::{ToolCall, ToolOutput, rounded_text};
use toolbus_outbound::{SendError, read_growing, read_up_to};

use super::credentials::ResponseMask;

/// Most of an error's body that is passed on, in bytes.
const MAX_ERROR_BODY: usize = 4096;

/// Longest wait that a server may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Limit to the part of a response that is read, in bytes after decompression.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResponseLimit<'a> {
    /// Bytes.
    pub(super) bytes: usize,
    /// Room for more.
    pub(super) room: Option<&'a ResultRoom>,
}

impl ResponseLimit<'_> {
    /// Bytes of the largest response.
    fn most(self) -> usize {
        self.room.map_or(self.bytes, |room| room.max_size().max(self.bytes))
    }

    /// Waits for room for the largest response.
    async fn grow(self) -> usize {
        if let Some(room) = self.room {
            room.reserve().await;
        }
        self.most()
    }
}

/// Reads the response to its end, and maps its status.
///
/// `name` is the tool's, for messages; `mask` hides the credentials of the request. A large response is decoded in a turn
/// of `call`.
pub(super) async fn read(
    name: &str,
    response: Response,
    limit: ResponseLimit<'_>,
    mask: &ResponseMask,
    call: &ToolCall,
) -> Result<ToolOutput, ToolFailure> {
    match response.status() {
        status if status.is_success() => content(name, response, limit, mask, call).await.map(ToolOutput::text),
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Err(unavailable(name, &response))
        }
        _ => error(response, limit.bytes.min(MAX_ERROR_BODY), mask).await.map(ToolOutput::error),
    }
}

async fn content(
    name: &str,
    mut response: Response,
    limit: ResponseLimit<'_>,
    mask: &ResponseMask,
    call: &ToolCall,
) -> Result<String, ToolFailure> {
    let announced = response.content_length().and_then(|length| usize::try_from(length).ok());
    let (bytes, is_whole) = match announced {
        Some(length) if length > limit.most() => (Vec::new(), false),
        _ => {
            let read = read_growing(&mut response, limit.bytes, limit.grow()).await;
            read.map_err(|error| while_reading(name, error))?
        }
    };
    if !is_whole {
        return Err(too_large(name, limit.most()));
    }
    if let Some(room) = limit.room {
        room.shrink(bytes.len());
    }
    let content_type = ContentType::of(response.headers());
    let (own_type, own_mask) = (content_type.clone(), mask.clone());
    let size = bytes.len();
    let decode = move || own_type.decode_whole(bytes).map(|text| own_mask.masked(text));
    call.in_turn(size, decode).await?.ok_or_else(|| {
        let shown = content_type.shown(mask);
        ToolFailure::new(Cause::InvalidResult, format!("Tool '{name}' answered with {shown}, which is not text."))
    })
}

/// `HTTP 404 Not Found: body`, for the model to read.
async fn error(mut response: Response, limit: usize, mask: &ResponseMask) -> Result<String, ToolFailure> {
    let status = response.status();
    let wait = retry_after(response.headers())
        .map_or_else(String::new, |wait| format!(", try again after {}", rounded_text(wait)));
    // The status is the response; a body that breaks off does not change it.
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

/// Longest content type that is shown, in characters.
const MAX_SHOWN: usize = 100;

/// The content type of a response.
#[derive(Debug, Clone)]
struct ContentType(String);

impl ContentType {
    fn of(headers: &HeaderMap) -> Self {
        let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Self(value.unwrap_or_default().to_owned())
    }

    /// The type, as a message may show it.
    fn shown(&self, mask: &ResponseMask) -> String {
        if self.0.is_empty() { "no type".to_owned() } else { shortened(&mask.whole(&self.0), MAX_SHOWN).into_owned() }
    }

    /// The named charset; UTF-8 if it is missing or unknown.
    fn encoding(&self) -> &'static Encoding {
        let charset = self.0.split(';').skip(1).find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
        });
        charset.and_then(|label| Encoding::for_label(label.as_bytes())).unwrap_or(UTF_8)
    }

    /// The bytes as text; `None` if they are not text.
    fn decode(&self, bytes: &[u8]) -> Option<String> {
        let (text, _, has_errors) = self.encoding().decode(bytes);
        // No text has a NUL, but many a binary format is valid UTF-8 up to it.
        (!has_errors && !text.contains('\0')).then(|| text.into_owned())
    }

    /// Variant without a copy of UTF-8 text, which may be large.
    fn decode_whole(&self, bytes: Vec<u8>) -> Option<String> {
        if self.encoding() != UTF_8 || Encoding::for_bom(&bytes).is_some() {
            return self.decode(&bytes);
        }
        String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
    }

    /// The same for the beginning of a longer text, whose last character may be cut.
    fn decode_start(&self, bytes: &[u8]) -> Option<String> {
        let whole = match std::str::from_utf8(bytes) {
            Err(error) if self.encoding() == UTF_8 && error.error_len().is_none() => error.valid_up_to(),
            _ => bytes.len(),
        };
        self.decode(bytes.get(..whole)?)
    }
}

/// The server had the request, or a part of it.
const LOST: (Cause, &str) =
    (Cause::ConnectionLost, "closed the connection before its answer was complete. It may have acted on the request");

/// A request that failed before there was a response.
pub(super) fn while_sending(name: &str, SendError { error, is_first }: SendError) -> ToolFailure {
    match judge(&error) {
        (Cause::ConnectFailed, _) if !is_first => named(name, LOST, error),
        verdict => named(name, verdict, error),
    }
}

/// A response that failed before its end, or a request that was sent once.
pub(super) fn while_reading(name: &str, error: reqwest::Error) -> ToolFailure {
    named(name, judge(&error), error)
}

/// The message names the tool; the host is logged, the rest of the URL never.
fn named(name: &str, (cause, what): (Cause, &str), error: reqwest::Error) -> ToolFailure {
    let error = error.without_url();
    ToolFailure::new(cause, format!("Tool '{name}' {what}.")).with_detail(chain(&error))
}

fn judge(error: &reqwest::Error) -> (Cause, &'static str) {
    if let Some(tls) = find_tls(error) {
        return match tls {
            rustls::Error::InvalidCertificate(_) => {
                (Cause::Failed, "has a TLS certificate that is not trusted. Only an operator can mend this")
            }
            _ => (Cause::Failed, "could not agree on a TLS connection. Only an operator can mend this"),
        };
    }
    if error.is_dns() {
        return (
            Cause::ConnectFailed,
            "could not be reached: its host name is not known. Nothing was sent; try again later",
        );
    }
    if error.is_connect() {
        return (
            Cause::ConnectFailed,
            "could not be reached: there was no connection. Nothing was sent; try again later",
        );
    }
    if error.is_interim() {
        return (Cause::InvalidResult, "answered with more than ten interim (1xx) responses");
    }
    if sources(error).filter_map(|source| source.downcast_ref::<hyper::Error>()).any(hyper::Error::is_parse) {
        return (Cause::InvalidResult, "answered with something that is not HTTP, or with too many headers");
    }
    let is_corrupt = sources(error)
        .filter_map(|source| source.downcast_ref::<io::Error>())
        .any(|error| matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput));
    if error.is_decode() && is_corrupt {
        return (Cause::InvalidResult, "answered with compressed data that is corrupt");
    }
    LOST
}

fn sources<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// TLS errors travel inside of I/O errors, which leave their content out of their sources.
fn find_tls(error: &reqwest::Error) -> Option<&rustls::Error> {
    sources(error).filter_map(|source| source.downcast_ref()).find_map(tls_inside)
}

fn tls_inside(mut outer: &io::Error) -> Option<&rustls::Error> {
    while let Some(inner) = outer.get_ref()?.downcast_ref() {
        outer = inner;
    }
    outer.get_ref()?.downcast_ref()
}

fn chain(error: &reqwest::Error) -> String {
    with_dates(&sources(error).map(ToString::to_string).collect::<Vec<_>>().join(": "))
}

#[cfg(test)]
mod tests {
    use super::ContentType;

    fn typed(text: &str) -> ContentType {
        ContentType(text.to_owned())
    }

    #[test]
    fn text_is_decoded_by_its_charset() {
        let table: [(&str, &[u8], &str); 7] = [
            ("", "grün".as_bytes(), "grün"),
            ("application/json", "grün".as_bytes(), "grün"),
            ("text/plain; charset=ISO-8859-1", b"gr\xfcn", "grün"),
            ("text/plain;format=flowed; Charset=\"windows-1252\"", b"gr\xfcn", "grün"),
            ("text/plain; charset=utf-16le", b"g\0r\0", "gr"),
            ("text/plain; charset=nonsense", "grün".as_bytes(), "grün"),
            ("text/plain", b"\xef\xbb\xbfx", "x"),
        ];
        for (content_type, bytes, text) in table {
            assert_eq!(typed(content_type).decode(bytes).as_deref(), Some(text), "{content_type}");
        }
    }

    #[test]
    fn a_body_that_is_no_text_is_not_decoded() {
        for bytes in [&b"gr\xfcn"[..], b"\x89PNG\r\n\x1a\n", b"PK\x03\x04\0\0"] {
            assert_eq!(typed("application/json").decode(bytes), None);
        }
    }

    #[test]
    fn the_start_of_a_text_may_end_within_a_character() {
        assert_eq!(typed("").decode_start("grü".as_bytes().get(..3).unwrap()).as_deref(), Some("gr"));
        assert_eq!(typed("").decode_start(b"g\xffr"), None);
    }
}
