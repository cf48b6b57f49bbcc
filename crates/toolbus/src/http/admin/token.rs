use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use toolbus_core::log::Throttle;

use super::view::Refusal;

/// How long a wrong token waits for its answer: as long as a client may hold a connection by saying nothing, so that
/// guessing holds up others no more than silence does. With the bound on connections, this bounds guesses per second.
pub(super) const PENALTY: Duration = Duration::from_secs(2);

/// The token that opens the routes for operators over TCP.
pub(super) struct Token {
    /// Of equal length for every token, so that comparing tells nothing of lengths either.
    digest: [u8; 32],
    wrong: Throttle,
}

impl Token {
    pub(super) fn new(token: &str) -> Self {
        Self { digest: Sha256::digest(token).into(), wrong: Throttle::default() }
    }

    fn is(&self, given: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        given.ct_eq(&self.digest).into()
    }
}

/// Lets nobody pass without the token. A wrong one is answered late, and logged.
pub(super) async fn check(State(token): State<Arc<Token>>, request: Request, next: Next) -> Response {
    match bearer(request.headers()) {
        Some(given) if token.is(given) => next.run(request).await,
        None => refused("a token is needed: `Authorization: Bearer`, with the value of http.admin_token"),
        Some(_) => {
            if let Some(left_out) = token.wrong.due() {
                tracing::warn!(left_out, "admin: a wrong token was given over HTTP");
            }
            tokio::time::sleep(PENALTY).await;
            refused("the token is not the value of http.admin_token")
        }
    }
}

/// The token of a request, if it gives exactly one.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (scheme, token) = given.next().filter(|_| given.next().is_none())?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}

fn refused(error: &str) -> Response {
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], Refusal::new(error)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_equal_as_a_whole() {
        let token = Token::new("s3cret");
        assert!(token.is(b"s3cret"));
        for other in ["", "s3cre", "s3cret ", "S3cret", "s3crets"] {
            assert!(!token.is(other.as_bytes()), "{other:?}");
        }
    }

    #[test]
    fn one_header_of_one_scheme_gives_a_token() {
        let given = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().unwrap());
            }
            bearer(&headers).map(|token| String::from_utf8(token.to_vec()).unwrap())
        };
        assert_eq!(given(&["Bearer abc"]).as_deref(), Some("abc"));
        assert_eq!(given(&["bearer  abc"]).as_deref(), Some("abc"));
        for none in [&[][..], &["abc"], &["Basic abc"], &["Bearerabc"], &["Bearer abc", "Bearer abc"]] {
            assert_eq!(given(none), None, "{none:?}");
        }
    }
}
