use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::auth::{self, Entrance, Names};

const REFUSAL: &str = "this server is addressed by IP address, as `localhost`, or by a name that its operator lists in \
                       http.allowed_hosts: check the host in the address, and the `Host` header that a proxy sends on";

/// Refuses requests that name another host.
///
/// A page from elsewhere can make a browser send requests here by pointing its own name at this address (DNS
/// rebinding); the name is then still in `Host`. Literal addresses cannot be made to point anywhere, and are what
/// probes send.
pub(super) async fn check(State(entrance): State<Arc<Entrance>>, request: Request, next: Next) -> Response {
    if is_ours(&request, &entrance.names()) {
        return next.run(request).await;
    }
    match is_for_door(request.uri().path()) {
        true => auth::misdirected(REFUSAL, request.into_body()).await,
        false => (StatusCode::MISDIRECTED_REQUEST, format!("{REFUSAL}\n")).into_response(),
    }
}

/// Whether it is a client of MCP that asks, which reads errors of its protocol alone.
fn is_for_door(path: &str) -> bool {
    path.strip_prefix("/mcp").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn is_ours(request: &Request, names: &Names) -> bool {
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
pub(super) fn is_named(authority: &Authority, name: &str) -> bool {
    is_whole(authority) && authority.host().eq_ignore_ascii_case(name)
}

/// The literal address that this is, with or without a port, and nothing more.
pub(super) fn address(authority: &Authority) -> Option<IpAddr> {
    let host = authority.host();
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    literal.parse().ok().filter(|_| is_whole(authority))
}

fn is_whole(authority: &Authority) -> bool {
    let rest = authority.as_str().strip_prefix(authority.host());
    rest.is_some_and(|port| port.is_empty() || port.starts_with(':'))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn is_ours(request: &Request) -> bool {
        let names = Names { hosts: vec!["toolbus.example.com".to_owned()], ..Names::default() };
        super::is_ours(request, &names)
    }

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
    fn names_that_are_listed_are_ours() {
        for host in ["toolbus.example.com", "Toolbus.Example.com:8443"] {
            assert!(is_ours(&request("/readyz", &[host])), "{host}");
        }
        for host in ["example.com", "a.toolbus.example.com", "toolbus.example.com.", "toolbus.example.com.evil.example"]
        {
            assert!(!is_ours(&request("/readyz", &[host])), "{host}");
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
