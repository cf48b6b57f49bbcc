//! Logging in with a token, and out.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::header::{ORIGIN, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::{Extension, Form};
use serde::Deserialize;

use super::access::{Access, NAME, OTHER_PAGE, is_from_here};
use super::{Console, PATH, page};
use crate::http::admin::{Actor, OperatorRight};
use crate::http::slots::ConnectionState;

/// Where to go after the login.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct After {
    next: String,
}

impl After {
    /// A path of the console, whatever was requested.
    fn path(&self) -> &str {
        let is_ours = self.next.strip_prefix(PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']));
        if is_ours && !self.next.contains(['\\', '\r', '\n']) { &self.next } else { PATH }
    }
}

type LoginState = State<(Arc<Access>, Arc<Console>)>;

pub(super) async fn login_page(State((_, console)): LoginState, Query(after): Query<After>) -> Response {
    page::login(&console.name, after.path(), None).into_response()
}

/// A filled in form.
#[derive(Debug, Deserialize)]
pub(super) struct Login {
    token: String,
    #[serde(flatten)]
    after: After,
}

pub(super) async fn login(
    State((access, console)): LoginState,
    connection: Option<Extension<Arc<ConnectionState>>>,
    headers: HeaderMap,
    Form(login): Form<Login>,
) -> Response {
    if !is_from_here(&headers) {
        return (StatusCode::FORBIDDEN, OTHER_PAGE).into_response();
    }
    let Some(right) = access.tokens.right(login.token.trim().as_bytes()) else {
        let connection = connection.as_ref().map(|Extension(connection)| connection);
        let (code, error) = match access.tokens.is_wrong(connection).await {
            true => (StatusCode::UNAUTHORIZED, "This is neither http.admin_token nor http.read_token."),
            false => (StatusCode::TOO_MANY_REQUESTS, "Too many wrong tokens are being given. Try again later."),
        };
        return (code, page::login(&console.name, login.after.path(), Some(error))).into_response();
    };
    access.close(&headers);
    let id = access.open(right);
    let remote = connection.and_then(|Extension(connection)| connection.remote());
    console.admin.audit.record(Actor::on_console(right == OperatorRight::Act, remote).record("login", true));
    tracing::info!(?right, "console: an operator logged in");
    ([(SET_COOKIE, cookie(&id, &headers))], Redirect::to(login.after.path())).into_response()
}

pub(super) async fn logout(State((access, _)): LoginState, headers: HeaderMap) -> Response {
    if !is_from_here(&headers) {
        return (StatusCode::FORBIDDEN, OTHER_PAGE).into_response();
    }
    access.close(&headers);
    ([(SET_COOKIE, cookie("", &headers) + "; Max-Age=0")], Redirect::to(&format!("{PATH}/login"))).into_response()
}

/// The cookie with this value, which a browser keeps until it ends. Where the page came over TLS, it goes out over TLS
/// alone.
fn cookie(id: &str, headers: &HeaderMap) -> String {
    let is_secure = headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https:"));
    let secure = if is_secure { "; Secure" } else { "" };
    format!("{NAME}={id}; Path={PATH}; HttpOnly; SameSite=Lax{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_pages_of_the_console_alone() {
        for (next, expected) in [
            ("/console/calls?agent=ana", "/console/calls?agent=ana"),
            ("", PATH),
            ("/consoles", PATH),
            ("//evil.example/console", PATH),
            ("https://evil.example", PATH),
            ("/console\\evil", PATH),
        ] {
            assert_eq!(After { next: next.to_owned() }.path(), expected, "{next:?}");
        }
    }
}
