//! Which hosts and origins a request may name: this server's own, and those that `http.allowed_hosts` and
//! `http.allowed_origins` list.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};

use super::refusal::HttpRefusal;

/// Names that are no addresses.
#[derive(Debug, Default)]
pub(super) struct HostNames {
    /// Of this server.
    pub(super) hosts: Vec<String>,
    /// Origins of pages that may use the MCP server.
    pub(super) origins: Vec<String>,
}

/// Time for which a browser may cache the response to a preflight, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
/// Methods that a page may use.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
/// Headers that a page may read.
const EXPOSED: HeaderValue = HeaderValue::from_static("Mcp-Session-Id, WWW-Authenticate, Retry-After");

/// Whether target and `Host` name this server.
pub(super) fn is_ours(request: &Request, names: &HostNames) -> bool {
    let is_name =
        |authority: &Authority| is_local(authority) || names.hosts.iter().any(|name| is_named(authority, name));
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next().and_then(|value| value.to_str().ok());
    let target_is_ours = |uri: &Uri| uri.authority().is_none_or(is_name);
    hosts.next().is_none()
        && target_is_ours(request.uri())
        && host.and_then(|host| host.parse::<Authority>().ok()).is_some_and(|authority| is_name(&authority))
}

/// Whether this is a literal address or `localhost`, with or without a port, and nothing more.
fn is_local(authority: &Authority) -> bool {
    is_named(authority, "localhost") || address(authority).is_some()
}

/// Whether this is a host of that name, with or without a port, and nothing more.
fn is_named(authority: &Authority, name: &str) -> bool {
    is_whole(authority) && authority.host().eq_ignore_ascii_case(name)
}

/// The literal address that this is, with or without a port, and nothing more.
fn address(authority: &Authority) -> Option<IpAddr> {
    let host = authority.host();
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    literal.parse().ok().filter(|_| is_whole(authority))
}

fn is_whole(authority: &Authority) -> bool {
    let rest = authority.as_str().strip_prefix(authority.host());
    rest.is_some_and(|port| port.is_empty() || port.starts_with(':'))
}

/// The `Origin` of a request; `None` for a client that is no browser.
///
/// # Errors
///
/// If the origin is neither of this machine nor in `http.allowed_origins`: a browser always sends it, so that no other
/// website uses what is open to programs of this machine.
pub(super) fn page(headers: &HeaderMap, names: &HostNames) -> Result<Option<HeaderValue>, HttpRefusal> {
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else { return Ok(None) };
    let is_allowed = |text: &str| is_local_page(text) || names.origins.iter().any(|allowed| allowed == text);
    match origin.to_str() {
        Ok(text) if origins.next().is_none() && is_allowed(text) => Ok(Some(origin.clone())),
        _ => Err(HttpRefusal::origin()),
    }
}

/// Whether an origin is of this machine.
fn is_local_page(origin: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.and_then(|text| text.parse::<Authority>().ok()).is_some_and(|authority| {
        is_named(&authority, "localhost") || address(&authority).is_some_and(|address| address.is_loopback())
    })
}

/// Whether a browser asks if a page may send a request.
pub(super) fn is_preflight(headers: &HeaderMap) -> bool {
    headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The response to a preflight: the page may.
pub(super) fn preflight(page: Option<HeaderValue>, request: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    // Any header: the headers of MCP extensions are not known here.
    if let Some(wanted) = request.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    readable(page, response)
}

/// Lets the page read the response.
pub(super) fn readable(page: Option<HeaderValue>, mut response: Response) -> Response {
    if let Some(page) = page {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, page);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn is_let_in(origins: &[&str]) -> bool {
        let names = HostNames { origins: vec!["https://app.example.com".to_owned()], ..HostNames::default() };
        let mut headers = HeaderMap::new();
        for origin in origins {
            headers.append(ORIGIN, origin.parse().unwrap());
        }
        page(&headers, &names).is_ok()
    }

    #[test]
    fn local_and_listed_origins_are_accepted() {
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

    fn is_ours(request: &Request) -> bool {
        let names = HostNames { hosts: vec!["toolbus.example.com".to_owned()], ..HostNames::default() };
        super::is_ours(request, &names)
    }

    fn request(target: &str, hosts: &[&str]) -> Request {
        let request = Request::builder().uri(target);
        hosts.iter().fold(request, |request, host| request.header("host", *host)).body(Body::empty()).unwrap()
    }

    #[test]
    fn addresses_and_localhost_are_accepted_hosts() {
        for host in
            ["localhost", "LocalHost:8471", "127.0.0.1", "127.0.0.1:8471", "[::1]:8471", "10.1.2.3", "[fd00::1]"]
        {
            assert!(is_ours(&request("/readyz", &[host])), "{host}");
        }
    }

    #[test]
    fn listed_names_are_accepted_hosts() {
        for host in ["toolbus.example.com", "Toolbus.Example.com:8443"] {
            assert!(is_ours(&request("/readyz", &[host])), "{host}");
        }
        for host in ["example.com", "a.toolbus.example.com", "toolbus.example.com.", "toolbus.example.com.evil.example"]
        {
            assert!(!is_ours(&request("/readyz", &[host])), "{host}");
        }
    }

    #[test]
    fn foreign_host_names_are_refused() {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost.",
            "127.1",
            "0x7f000001",
            "evil@127.0.0.1",
            "127.0.0.1@evil.example",
            "[::1].evil.example",
            "127.0.0.1 evil",
            "",
        ] {
            assert!(!is_ours(&request("/readyz", &[host])), "{host:?}");
        }
    }

    #[test]
    fn exactly_one_host_is_accepted_and_it_must_be_local() {
        assert!(!is_ours(&request("/readyz", &[])));
        assert!(!is_ours(&request("/readyz", &["localhost", "localhost"])));
        assert!(!is_ours(&request("http://evil.example/readyz", &["localhost"])));
        assert!(is_ours(&request("http://127.0.0.1:1/readyz", &["localhost"])));
    }
}
