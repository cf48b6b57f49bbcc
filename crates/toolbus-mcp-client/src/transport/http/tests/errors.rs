//! Failures before a response, and their meaning for a call.

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use rmcp::service::ServiceError;
use rmcp::transport::{DynamicTransportError, Transport as _};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use toolbus_core::failure::Cause;

use super::server::{Server, orderly, redirect, status};
use super::{error_of, open};
use crate::spec::HttpKind;
use crate::transport::http::{HttpError, HttpOpenError, HttpTransport, classify};

const KINDS: [HttpKind; 3] = [HttpKind::Detect, HttpKind::Streamable, HttpKind::Sse];

/// Reason why no handshake comes about.
async fn problem(url: &url::Url, kind: HttpKind) -> HttpOrOpen {
    match open(url, kind).await {
        Ok(mut transport) => HttpOrOpen::Http(transport.send(super::initialize()).await.unwrap_err()),
        Err(error) => HttpOrOpen::Open(error),
    }
}

#[derive(Debug, PartialEq)]
enum HttpOrOpen {
    Http(HttpError),
    Open(HttpOpenError),
}

impl HttpOrOpen {
    fn text(&self) -> String {
        match self {
            Self::Http(error) => error.to_string(),
            Self::Open(error) => error.to_string(),
        }
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let other = Server::start(orderly).await;
    for code in [301, 302, 303, 307, 308] {
        let to = format!("{}?token=s3cret#s3cret", other.url);
        let server = Server::start(move |_| redirect(code, &to)).await;
        for kind in KINDS {
            let text = problem(&server.url, kind).await.text();
            let advice = format!(
                "HTTP {code}; redirects are not followed: configure the address that it redirects to, {}",
                other.url
            );
            assert!(text.contains(&advice), "{kind:?}: {text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }
    assert_eq!(other.requests().len(), 0);
}

#[tokio::test]
async fn a_refused_connection_is_a_failure_to_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}/mcp").parse().unwrap();
    for kind in KINDS {
        let problem = problem(&url, kind).await;
        assert!(problem.text().ends_with("Connection refused (os error 111)"), "{problem:?}");
        match problem {
            HttpOrOpen::Open(error) => assert!(matches!(error, HttpOpenError::Refused(_)), "{error:?}"),
            HttpOrOpen::Http(error) => assert_eq!(classify(&error), Some(Cause::ConnectFailed)),
        }
    }
}

#[tokio::test]
async fn a_name_that_does_not_resolve_and_a_server_without_tls_are_failures_to_connect() {
    let server = Server::start(orderly).await;
    let mut tls = server.url.clone();
    tls.set_scheme("https").unwrap();
    for url in [tls, "http://nowhere.invalid/mcp".parse().unwrap()] {
        let HttpOrOpen::Http(error) = problem(&url, HttpKind::Streamable).await else { panic!() };
        assert_eq!(classify(&error), Some(Cause::ConnectFailed), "{error}");
        assert!(matches!(problem(&url, HttpKind::Sse).await, HttpOrOpen::Open(HttpOpenError::Refused(_))));
    }
}

/// The error of a call that the server refuses with a status.
async fn of_status(code: u16) -> HttpError {
    error_of(&Server::responding("tools/call", move |_| status(code, "internal: hunter2")).await).await
}

#[tokio::test]
async fn every_status_has_its_cause() {
    let table = [
        (400, Cause::Failed),
        (401, Cause::AuthRequired),
        (403, Cause::AuthRequired),
        (429, Cause::Unavailable),
        (500, Cause::Failed),
        (502, Cause::Unavailable),
        (503, Cause::Unavailable),
        (504, Cause::Unavailable),
    ];
    for (code, cause) in table {
        let error = of_status(code).await;
        assert_eq!((classify(&error), error.status), (Some(cause), Some(code)));
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
}

#[tokio::test]
async fn the_text_of_a_refusal_has_advice() {
    let text = async |code| {
        let text = of_status(code).await.to_string();
        let (_, rest) = text.split_once(" answered ").unwrap();
        rest.to_owned()
    };
    insta::assert_snapshot!(text(503).await, @"HTTP 503; it cannot serve now: try again later");
    insta::assert_snapshot!(text(405).await, @"HTTP 405; check the path of its URL, and its transport");
    insta::assert_snapshot!(text(500).await, @"HTTP 500; see the log of that server");
}

#[tokio::test]
async fn a_connection_that_ends_in_the_middle_is_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut some = [0; 64];
            stream.read_exact(&mut some).await.unwrap();
        }
    });
    let HttpOrOpen::Http(error) = problem(&url, HttpKind::Streamable).await else { panic!() };
    assert_eq!(classify(&error), Some(Cause::ConnectionLost), "{error}");
    assert!(matches!(problem(&url, HttpKind::Sse).await, HttpOrOpen::Open(HttpOpenError::Other(_))));
    server.abort();
}

#[tokio::test]
async fn the_cause_is_found_in_errors_of_rmcp() {
    let server = Server::start(|_| StatusCode::BAD_GATEWAY.into_response()).await;
    let HttpOrOpen::Http(error) = problem(&server.url, HttpKind::Streamable).await else { panic!() };
    let error = DynamicTransportError::new::<HttpTransport, rmcp::RoleClient>(error);
    assert_eq!(classify(&error), Some(Cause::Unavailable));
    assert_eq!(classify(&ServiceError::TransportSend(error)), Some(Cause::Unavailable));
    assert_eq!(classify(&ServiceError::TransportClosed), None);
}
