use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, WWW_AUTHENTICATE};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use toolbus_core::log::Throttle;
use toolbus_mcp_server::keeper::bearer;

use super::view::Refusal;
use crate::http::auth::slowed;
use crate::http::connections::Link;

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
    let link = request.extensions().get::<Arc<Link>>();
    match bearer(request.headers()) {
        Some(given) if token.is(given) => {
            // Where every place is taken, it keeps the one that it has.
            if let Some(link) = link {
                link.vouch(None).await;
            }
            next.run(request).await
        }
        None => refused("a token is needed: `Authorization: Bearer`, with the value of http.admin_token"),
        Some(_) => {
            if let Some(left_out) = token.wrong.due() {
                tracing::warn!(left_out, "admin: a wrong token was given over HTTP");
            }
            if !slowed(link).await {
                return closing(
                    StatusCode::TOO_MANY_REQUESTS,
                    "too many wrong tokens are being given; try again later",
                );
            }
            closing(StatusCode::UNAUTHORIZED, "the token is not the value of http.admin_token")
        }
    }
}

fn refused(error: &str) -> Response {
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], Refusal::new(error)).into_response()
}

/// The last answer of a connection.
fn closing(code: StatusCode, error: &str) -> Response {
    let headers = [(WWW_AUTHENTICATE, "Bearer"), (CONNECTION, "close")];
    (code, headers, Refusal::new(error)).into_response()
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
}
