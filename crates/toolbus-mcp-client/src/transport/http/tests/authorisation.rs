//! Credentials that are configured as they are sent.

use axum::response::Response;
use rmcp::transport::Transport as _;
use toolbus_core::Clock;
use toolbus_core::failure::Cause;

use super::server::{RecordedRequest, Server, orderly, status};
use super::{begin, call, endpoint, opener};
use crate::spec::{Credential, HttpKind};
use crate::transport::http::{HttpOpenError, Opener, classify};

fn challenged(code: u16, challenge: &str) -> Response {
    let mut response = status(code, "hunter2");
    response.headers_mut().insert("www-authenticate", challenge.parse().unwrap());
    response
}

fn bearer() -> Option<Credential> {
    Some(Credential::Bearer("t0ken".into()))
}

fn header(name: &str, value: &str) -> Option<Credential> {
    Some(Credential::Header { name: name.to_owned(), value: value.into() })
}

#[tokio::test]
async fn a_credential_is_sent_with_every_request() {
    let table = [(bearer(), "authorization", "Bearer t0ken"), (header("X-Api-Key", "k3y"), "x-api-key", "k3y")];
    for (credential, name, value) in table {
        let server = Server::start(orderly).await;
        let mut transport = opener(&server.url, HttpKind::Detect, credential).open().await.unwrap();
        begin(&mut transport).await.unwrap();
        transport.send(call(1)).await.unwrap();
        transport.close().await.unwrap();
        let requests = server.requests();
        assert!(requests.len() >= 5);
        assert!(requests.iter().all(|request| request.header(name) == Some(value)));
    }
}

#[tokio::test]
async fn headers_and_the_user_of_the_url_are_sent_and_give_way_to_the_credential() {
    let server = Server::start(orderly).await;
    let mut url = server.url.clone();
    url.set_username("Aladdin").unwrap();
    url.set_password(Some("open sesame")).unwrap();
    let mut endpoint = endpoint(&url, HttpKind::Streamable);
    endpoint.headers.insert("X-Team".to_owned(), "blue".into());
    for (credential, expected) in [(None, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="), (bearer(), "Bearer t0ken")] {
        let mut transport =
            Opener::new(&endpoint, credential, &Default::default(), Clock::SYSTEM).unwrap().open().await.unwrap();
        begin(&mut transport).await.unwrap();
        let request = server.requests().pop().unwrap();
        assert_eq!(request.headers.get_all("authorization").iter().collect::<Vec<_>>(), [expected]);
        assert_eq!(request.header("x-team"), Some("blue"));
    }
}

/// The error of a server that refuses everything.
async fn refused(credential: Option<Credential>, respond: fn(&RecordedRequest) -> Response) -> String {
    let server = Server::start(respond).await;
    let mut texts = Vec::new();
    for kind in [HttpKind::Detect, HttpKind::Sse] {
        let Err(HttpOpenError::AuthRequired { text }) = opener(&server.url, kind, credential.clone()).open().await
        else {
            panic!()
        };
        texts.push(text);
    }
    let mut transport = opener(&server.url, HttpKind::Streamable, credential).open().await.unwrap();
    let error = transport.send(super::initialize()).await.unwrap_err();
    assert_eq!(classify(&error), Some(Cause::AuthRequired));
    assert!(texts.iter().all(|text| *text == error.to_string()));
    error.to_string().replace(&server.url.origin().ascii_serialization(), "ORIGIN")
}

#[tokio::test]
async fn a_refusal_has_advice_and_no_text_of_the_server() {
    let plain: fn(&RecordedRequest) -> Response = |_| status(401, "hunter2");
    let challenge: fn(&RecordedRequest) -> Response =
        |_| challenged(401, r#"Bearer realm="hunter2", resource_metadata="https://evil/""#);
    for respond in [plain, challenge] {
        let (without, with) = (refused(None, respond).await, refused(bearer(), respond).await);
        insta::allow_duplicates! {
            insta::assert_snapshot!(without, @"the MCP server at ORIGIN answered HTTP 401; it asks for a credential and none is configured: configure one");
            insta::assert_snapshot!(with, @"the MCP server at ORIGIN answered HTTP 401; it does not accept the configured credential: renew it");
        }
    }
    let scope: fn(&RecordedRequest) -> Response =
        |_| challenged(403, r#"Bearer error="insufficient_scope", scope="hunter2""#);
    insta::assert_snapshot!(refused(bearer(), scope).await, @"the MCP server at ORIGIN answered HTTP 403; the configured credential lacks a scope that it asks for: add it");
    insta::assert_snapshot!(refused(bearer(), |_| status(403, "no")).await, @"the MCP server at ORIGIN answered HTTP 403; it does not accept the configured credential: renew it");
}

#[tokio::test]
async fn a_credential_that_cannot_be_sent_is_refused_before_anything_is() {
    let server = Server::start(orderly).await;
    let endpoint = endpoint(&server.url, HttpKind::Detect);
    let text =
        |credential| Opener::new(&endpoint, credential, &Default::default(), Clock::SYSTEM).err().unwrap().to_string();
    insta::assert_snapshot!(text(Some(Credential::Bearer(" ".into()))), @"the credential is empty: is the variable or file that it comes from set?");
    insta::assert_snapshot!(text(Some(Credential::Bearer("hunter2\n".into()))), @"the value of header `authorization` has characters that a header cannot carry (a line break at its end?)");
    insta::assert_snapshot!(text(header("a b", "x")), @"`a b` is not a valid header name");
    assert_eq!(server.requests().len(), 0);
}
