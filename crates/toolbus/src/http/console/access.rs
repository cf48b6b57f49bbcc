//! Access to the console: tokens, the sessions that they open, and the refusal of forms of other pages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{COOKIE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Redirect, Response};
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use toolbus_core::Clock;
use toolbus_protocol::Random;
use url::form_urlencoded::{self, byte_serialize};

use super::PATH;
use crate::http::admin::{Actor, OperatorRight, OperatorTokens};
use crate::http::slots::ConnectionState;

/// Name of the cookie that holds the id of a session.
pub(super) const NAME: &str = "toolbus_console";
/// Time after which a session that is not used ends.
const IDLE: Duration = Duration::from_secs(8 * 60 * 60);
/// Sessions at a time with each token. A further one replaces the least recently used one.
const MAX_SESSIONS: usize = 64;
/// Largest form, in bytes: that with the arguments of a call.
const MAX_FORM: usize = 1024 * 1024;
/// Field of a form that shows that a page of this session has it.
pub(super) const PROOF: &str = "proof";
pub(super) const OTHER_PAGE: &str =
    "This request does not come from a page of this console. Reload the page, and try again.";

/// The tokens, and the sessions that were opened with them.
pub(super) struct Access {
    pub(super) tokens: OperatorTokens,
    sessions: Mutex<Vec<Session>>,
}

struct Session {
    /// Hash of the id in the browser's cookie: a copy of the memory opens no session.
    id: [u8; 32],
    visitor: Arc<Visitor>,
    used: Instant,
}

/// The visitor of a page.
pub(super) struct Visitor {
    /// Whether the token of operators was given, which lets act.
    pub(super) may_act: bool,
    /// Value of [`PROOF`] in forms of this session.
    pub(super) proof: String,
}

/// Fields of a form whose session and page were checked, or of an address that fills in a form.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub(super) struct Fields(Arc<[(String, String)]>);

impl Fields {
    /// The value of a field; empty if there is none.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value)
    }

    /// These fields, with others in front of them, which come first.
    pub(super) fn under<const N: usize>(&self, fields: [(&str, &str); N]) -> Self {
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self(fields.chain(self.0.iter().cloned()).collect())
    }
}

impl Access {
    pub(super) fn new(tokens: OperatorTokens) -> Self {
        Self { tokens, sessions: Mutex::default() }
    }

    /// Opens a session; returns its id.
    pub(super) fn open(&self, right: OperatorRight) -> String {
        let [id, proof] = [(); 2].map(|()| Random::SYSTEM.id());
        let session = Session {
            id: digest(&id),
            visitor: Arc::new(Visitor { may_act: right == OperatorRight::Act, proof }),
            used: Clock::SYSTEM.now(),
        };
        let mut sessions = self.sessions.lock();
        sessions.retain(|session| Clock::SYSTEM.since(session.used) < IDLE);
        // The sessions of readers, which may be many, evict none of operators.
        let may_act = right == OperatorRight::Act;
        let of_right = |session: &&Session| session.visitor.may_act == may_act;
        if sessions.iter().filter(of_right).count() >= MAX_SESSIONS {
            let oldest = sessions.iter().filter(of_right).map(|session| session.used).min();
            sessions.retain(|session| Some(session.used) != oldest);
        }
        sessions.push(session);
        id
    }

    fn find(&self, headers: &HeaderMap) -> Option<Arc<Visitor>> {
        let id = digest(cookie(headers)?);
        let mut sessions = self.sessions.lock();
        let session = sessions.iter_mut().find(|session| session.id == id)?;
        if Clock::SYSTEM.since(session.used) >= IDLE {
            return None;
        }
        session.used = Clock::SYSTEM.now();
        Some(Arc::clone(&session.visitor))
    }

    pub(super) fn close(&self, headers: &HeaderMap) {
        if let Some(id) = cookie(headers).map(digest) {
            self.sessions.lock().retain(|session| session.id != id);
        }
    }
}

fn digest(text: impl AsRef<[u8]>) -> [u8; 32] {
    Sha256::digest(text).into()
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies =
        headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(';'));
    cookies.filter_map(|pair| pair.trim().split_once('=')).find(|(name, _)| *name == NAME).map(|(_, id)| id)
}

/// Whether a browser sends this from a page of this server. Both headers are set by browsers alone.
pub(super) fn is_from_here(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| site != "same-origin") {
        return false;
    }
    let origin = text(ORIGIN).and_then(|origin| origin.parse::<Uri>().ok());
    let authority = origin.as_ref().and_then(Uri::authority).map(|authority| authority.as_str());
    authority.is_some() && authority == text(HOST)
}

/// Admits requests with a session, and actions from pages of this console alone.
pub(super) async fn enter(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let Some(visitor) = access.find(request.headers()) else {
        let path = request.uri().path_and_query().map_or("", |path| path.as_str());
        let path = format!("{PATH}{}", path.trim_end_matches('/'));
        let next: String = byte_serialize(path.as_bytes()).collect();
        return match *request.method() {
            Method::GET => Redirect::to(&format!("{PATH}/login?next={next}")).into_response(),
            _ => (StatusCode::UNAUTHORIZED, "The session is over. Log in again.\n").into_response(),
        };
    };
    if let Some(connection) = request.extensions().get::<Arc<ConnectionState>>() {
        connection.vouch(None).await;
    }
    let (mut parts, body) = request.into_parts();
    parts.extensions.insert(Arc::clone(&visitor));
    if parts.method == Method::GET || parts.method == Method::HEAD {
        return next.run(Request::from_parts(parts, body)).await;
    }
    if !is_from_here(&parts.headers) {
        return (StatusCode::FORBIDDEN, OTHER_PAGE).into_response();
    }
    if !visitor.may_act {
        let refusal = "This needs a session that was opened with http.admin_token: the other token lets read alone.\n";
        return (StatusCode::FORBIDDEN, refusal).into_response();
    }
    let Ok(body) = to_bytes(body, MAX_FORM).await else {
        return (StatusCode::PAYLOAD_TOO_LARGE, "The form is larger than 1 MiB.\n").into_response();
    };
    let fields = Fields(form_urlencoded::parse(&body).into_owned().collect());
    if !bool::from(fields.get(PROOF).as_bytes().ct_eq(visitor.proof.as_bytes())) {
        return (StatusCode::FORBIDDEN, OTHER_PAGE).into_response();
    }
    let remote = parts.extensions.get::<Arc<ConnectionState>>().and_then(|connection| connection.remote());
    parts.extensions.insert(Actor::on_console(visitor.may_act, remote));
    parts.extensions.insert(fields);
    next.run(Request::from_parts(parts, Body::empty())).await
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use toolbus_core::events::Discard;

    use super::*;
    use crate::config::{Config, HttpConfig};
    use crate::http::HttpAuth;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn forms_of_other_pages_are_refused() {
        for (pairs, expected) in [
            (&[("host", "a:1"), ("origin", "http://a:1")][..], true),
            (&[("host", "a:1"), ("origin", "https://a:1"), ("sec-fetch-site", "same-origin")], true),
            (&[("host", "a:1"), ("origin", "http://a:1"), ("sec-fetch-site", "cross-site")], false),
            (&[("host", "a:1"), ("origin", "http://a:2")], false),
            (&[("host", "a:1"), ("origin", "null")], false),
            (&[("host", "a:1")], false),
            (&[("origin", "http://a:1")], false),
        ] {
            assert_eq!(is_from_here(&headers(pairs)), expected, "{pairs:?}");
        }
    }

    #[test]
    fn the_sessions_used_last_are_kept() {
        let auth = HttpAuth::new(&Config::default(), Arc::new(Discard), CancellationToken::new());
        let access = Access::new(OperatorTokens::new(&HttpConfig::default(), &auth));
        let ids: Vec<_> = (0..=MAX_SESSIONS).map(|_| access.open(OperatorRight::Read)).collect();
        let found = ids.iter().filter(|id| {
            let cookie = HeaderValue::from_str(&format!("other=1; {NAME}={id}")).unwrap();
            access.find(&HeaderMap::from_iter([(COOKIE, cookie)])).is_some()
        });
        assert_eq!(found.count(), MAX_SESSIONS);
    }
}
