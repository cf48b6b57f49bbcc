use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};

use super::auth::Names;
use super::host::{address, is_named};
use super::refusal::Refusal;

/// How long a browser may remember what it was told, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
/// What a page may send.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
/// Headers that a page may read.
const EXPOSED: HeaderValue = HeaderValue::from_static("Mcp-Session-Id, WWW-Authenticate, Retry-After");

/// The page that a request comes from, as its browser says: none for a client that is no browser.
///
/// A page from elsewhere cannot leave its origin out, and must not use what only programs of this machine may.
pub(super) fn page(headers: &HeaderMap, names: &Names) -> Result<Option<HeaderValue>, Refusal> {
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else { return Ok(None) };
    let is_allowed = |text: &str| is_local(text) || names.origins.iter().any(|allowed| allowed == text);
    match origin.to_str() {
        Ok(text) if origins.next().is_none() && is_allowed(text) => Ok(Some(origin.clone())),
        _ => Err(Refusal::origin()),
    }
}

/// Whether a page is of this machine.
fn is_local(origin: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.and_then(|text| text.parse::<Authority>().ok()).is_some_and(|authority| {
        is_named(&authority, "localhost") || address(&authority).is_some_and(|address| address.is_loopback())
    })
}

/// Whether a browser asks if a page may send something.
pub(super) fn is_preflight(headers: &HeaderMap) -> bool {
    headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Tells the browser that the page may.
pub(super) fn preflight(page: Option<HeaderValue>, headers: &HeaderMap) -> Response {
    let mut answer = StatusCode::NO_CONTENT.into_response();
    let told = answer.headers_mut();
    told.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    told.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    // Whatever it wants to send: what the protocol adds to headers is not known here.
    if let Some(wanted) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        told.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    readable(page, answer)
}

/// Lets the page read the answer.
pub(super) fn readable(page: Option<HeaderValue>, mut answer: Response) -> Response {
    if let Some(page) = page {
        let told = answer.headers_mut();
        told.insert(ACCESS_CONTROL_ALLOW_ORIGIN, page);
        told.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        told.append(VARY, HeaderValue::from_static("Origin"));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_let_in(origins: &[&str]) -> bool {
        let names = Names { origins: vec!["https://app.example.com".to_owned()], ..Names::default() };
        let mut headers = HeaderMap::new();
        for origin in origins {
            headers.append(ORIGIN, origin.parse().unwrap());
        }
        page(&headers, &names).is_ok()
    }

    #[test]
    fn pages_of_this_machine_and_listed_ones_may_enter() {
        assert!(is_let_in(&[]));
        for origin in [
            "http://localhost",
            "https://localhost:6274",
            "http://LOCALHOST:1",
            "http://127.0.0.1:6274",
            "http://127.8.8.8",
            "http://[::1]:6274",
            "https://app.example.com",
        ] {
            assert!(is_let_in(&[origin]), "{origin}");
        }
    }

    #[test]
    fn other_pages_may_not() {
        for origin in [
            "http://evil.example",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example",
            "http://evil@127.0.0.1",
            "http://127.0.0.1@evil.example",
            "http://10.0.0.1",
            "http://app.example.com",
            "https://app.example.com:8443",
            "https://app.example.com.evil.example",
            "ftp://localhost",
            "localhost",
            "null",
            "*",
            "",
        ] {
            assert!(!is_let_in(&[origin]), "{origin}");
        }
        assert!(!is_let_in(&["http://localhost", "http://localhost"]));
        assert!(!is_let_in(&["http://localhost", "http://evil.example"]));
    }
}
