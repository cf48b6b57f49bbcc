use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

const REFUSAL: &str = "This server is addressed by IP address or as `localhost` only: check the host in the address, \
                       and the `Host` header that a proxy sends on.\n";

/// Refuses requests that name another host.
///
/// A page from elsewhere can make a browser send requests here by pointing its own name at this address (DNS
/// rebinding); the name is then still in `Host`. Literal addresses cannot be made to point anywhere, and are what
/// probes send.
pub(super) async fn check(request: Request, next: Next) -> Response {
    if is_ours(&request) { next.run(request).await } else { (StatusCode::MISDIRECTED_REQUEST, REFUSAL).into_response() }
}

fn is_ours(request: &Request) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next().and_then(|value| value.to_str().ok());
    let target_is_ours = |uri: &Uri| uri.authority().is_none_or(is_local);
    hosts.next().is_none()
        && target_is_ours(request.uri())
        && host.and_then(|host| host.parse::<Authority>().ok()).is_some_and(|authority| is_local(&authority))
}

/// Whether this is a literal address or `localhost`, with or without a port, and nothing more.
fn is_local(authority: &Authority) -> bool {
    let host = authority.host();
    let is_whole = authority.as_str().strip_prefix(host).is_some_and(|port| port.is_empty() || port.starts_with(':'));
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    is_whole && (host.eq_ignore_ascii_case("localhost") || literal.parse::<IpAddr>().is_ok())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::Request;

    use super::is_ours;

    fn request(target: &str, hosts: &[&str]) -> Request {
        let request = Request::builder().uri(target);
        hosts.iter().fold(request, |request, host| request.header("host", *host)).body(Body::empty()).unwrap()
    }

    #[test]
    fn addresses_and_localhost_are_ours() {
        for host in
            ["localhost", "LocalHost:8471", "127.0.0.1", "127.0.0.1:8471", "[::1]:8471", "10.1.2.3", "[fd00::1]"]
        {
            assert!(is_ours(&request("/readyz", &[host])), "{host}");
        }
    }

    #[test]
    fn names_that_somebody_may_point_here_are_not() {
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
    fn one_host_must_be_named_and_all_that_are_named_must_be_ours() {
        assert!(!is_ours(&request("/readyz", &[])));
        assert!(!is_ours(&request("/readyz", &["localhost", "localhost"])));
        assert!(!is_ours(&request("http://evil.example/readyz", &["localhost"])));
        assert!(is_ours(&request("http://127.0.0.1:1/readyz", &["localhost"])));
    }
}
