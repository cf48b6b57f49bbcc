//! Authentication: the agents of bearer tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use parking_lot::RwLock;
use sha2::{Digest as _, Sha256};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::AgentName;

/// The table of tokens, replaceable at any time. Stores digests only.
#[derive(Debug)]
pub struct TokenAuth {
    table: RwLock<Arc<TokenTable>>,
    next: AtomicU64,
    stop: CancellationToken,
}

/// The tokens that are valid now.
#[derive(Debug, Default)]
struct TokenTable {
    tokens: Vec<KnownToken>,
    /// Set if anonymous clients are admitted.
    open: Option<Principal>,
}

/// A token.
#[derive(Debug)]
struct KnownToken {
    /// Of equal length for every token, so that comparing does not reveal lengths.
    digest: [u8; 32],
    principal: Principal,
}

/// The outcome of authenticating a request.
#[derive(Debug)]
pub enum AuthOutcome {
    /// No client is admitted: there are no tokens, and anonymous access is off.
    Closed,
    /// The client is admitted.
    Principal(Principal),
    /// The request has no token.
    NoToken,
    /// The `Authorization` header does not hold exactly one bearer token.
    Unreadable,
    /// The token is not valid.
    Wrong,
}

impl TokenAuth {
    /// Creates an empty token table. Cancelling `stop` ends every session opened through it.
    #[must_use]
    pub fn new(stop: CancellationToken) -> Self {
        Self { table: RwLock::default(), next: AtomicU64::new(1), stop }
    }

    /// Replaces the table. A principal whose token stays is not disturbed; the `revoked` token of any other is
    /// cancelled.
    pub fn replace<'a>(&self, tokens: impl IntoIterator<Item = (AgentName, &'a str)>, is_open: bool) {
        let mut table = self.table.write();
        let known = |(agent, token): (AgentName, &str)| {
            let digest: [u8; 32] = Sha256::digest(token).into();
            let same = table.tokens.iter().find(|known| known.digest == digest);
            let same = same.filter(|known| known.principal.agent.as_ref() == Some(&agent));
            let principal = same.map_or_else(|| self.principal(Some(agent)), |known| known.principal.clone());
            KnownToken { digest, principal }
        };
        let tokens: Vec<KnownToken> = tokens.into_iter().map(known).collect();
        let open = is_open.then(|| table.open.clone().unwrap_or_else(|| self.principal(None)));
        let stays = |id: Option<TokenId>| tokens.iter().any(|known| known.principal.token == id);
        for KnownToken { principal, .. } in table.tokens.iter().filter(|known| !stays(known.principal.token)) {
            principal.revoked.cancel();
        }
        if let Some(principal) = table.open.as_ref().filter(|_| !is_open) {
            principal.revoked.cancel();
        }
        *table = Arc::new(TokenTable { tokens, open });
    }

    /// Authenticates a request by its headers.
    #[must_use]
    pub fn authenticate(&self, headers: &HeaderMap) -> AuthOutcome {
        let table = Arc::clone(&self.table.read());
        if table.tokens.is_empty() && table.open.is_none() {
            return AuthOutcome::Closed;
        }
        if !headers.contains_key(AUTHORIZATION) {
            return table.open.clone().map_or(AuthOutcome::NoToken, AuthOutcome::Principal);
        }
        let Some(token) = bearer(headers) else { return AuthOutcome::Unreadable };
        table.find(token).map_or(AuthOutcome::Wrong, AuthOutcome::Principal)
    }

    fn principal(&self, agent: Option<AgentName>) -> Principal {
        let token = agent.as_ref().map(|_| TokenId(self.next.fetch_add(1, Ordering::Relaxed)));
        Principal { agent, token, revoked: self.stop.child_token() }
    }
}

impl TokenTable {
    /// Compares with every token, so that the time reveals nothing.
    fn find(&self, token: &[u8]) -> Option<Principal> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let mut position = u64::MAX;
        for (index, known) in (0_u64..).zip(&self.tokens) {
            position.conditional_assign(&index, known.digest.ct_eq(&digest));
        }
        let known = self.tokens.get(usize::try_from(position).ok()?)?;
        Some(known.principal.clone())
    }
}

/// The bearer token of a request, if it has exactly one.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (scheme, token) = given.next().filter(|_| given.next().is_none())?.as_bytes().split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

/// Identifies a token without revealing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenId(pub u64);

/// The authenticated client: an extension of each admitted request.
#[derive(Debug, Clone)]
pub struct Principal {
    /// The agent of the token; `None` for an anonymous client.
    pub agent: Option<AgentName>,
    /// The token; `None` for an anonymous client.
    pub token: Option<TokenId>,
    /// Cancelled when the token is revoked.
    pub revoked: CancellationToken,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> AgentName {
        AgentName::parse(name).unwrap()
    }

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        headers
    }

    /// The outcome in short.
    fn outcome(auth: &TokenAuth, values: &[&str]) -> String {
        match auth.authenticate(&headers(values)) {
            AuthOutcome::Principal(principal) => {
                principal.agent.map_or("anybody".to_owned(), |agent| agent.to_string())
            }
            other => format!("{other:?}"),
        }
    }

    fn principal(auth: &TokenAuth, value: &str) -> Principal {
        match auth.authenticate(&headers(&[value])) {
            AuthOutcome::Principal(principal) => principal,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_token_lets_its_agent_in_and_nothing_else_does() {
        let auth = TokenAuth::new(CancellationToken::new());
        assert_eq!(outcome(&auth, &["Bearer s3cret"]), "Closed");
        auth.replace([(agent("ana"), "s3cret"), (agent("bea"), "s3cret-of-bea"), (agent("bea"), "next")], false);
        let table: [(&[&str], &str); 12] = [
            (&["Bearer s3cret"], "ana"),
            (&["bearer   s3cret-of-bea "], "bea"),
            (&["Bearer next"], "bea"),
            (&["Bearer s3cre"], "Wrong"),
            (&["Bearer s3crets"], "Wrong"),
            (&["Bearer S3cret"], "Wrong"),
            (&["Bearer s3cret s3cret"], "Wrong"),
            (&["Bearer s3cret", "Bearer s3cret"], "Unreadable"),
            (&["Basic s3cret"], "Unreadable"),
            (&["s3cret"], "Unreadable"),
            (&["Bearer "], "Unreadable"),
            (&[], "NoToken"),
        ];
        for (values, expected) in table {
            assert_eq!(outcome(&auth, values), expected, "{values:?}");
        }
    }

    #[test]
    fn an_open_server_admits_anonymous_clients_but_no_wrong_token() {
        let auth = TokenAuth::new(CancellationToken::new());
        auth.replace([(agent("ana"), "s3cret")], true);
        assert_eq!(outcome(&auth, &[]), "anybody");
        assert_eq!(outcome(&auth, &["Bearer s3cret"]), "ana");
        assert_eq!(outcome(&auth, &["Bearer other"]), "Wrong");
    }

    #[test]
    fn a_removed_or_reassigned_token_is_revoked() {
        let auth = TokenAuth::new(CancellationToken::new());
        auth.replace([(agent("ana"), "one"), (agent("bea"), "two"), (agent("cleo"), "three")], true);
        let [ana, bea, cleo] = ["one", "two", "three"].map(|token| principal(&auth, &format!("Bearer {token}")));
        let AuthOutcome::Principal(anonymous) = auth.authenticate(&headers(&[])) else { panic!("not open") };
        assert!(ana.token != bea.token && anonymous.token.is_none());
        auth.replace([(agent("cleo"), "three"), (agent("ana"), "four"), (agent("ana"), "two")], false);
        assert!(ana.revoked.is_cancelled() && bea.revoked.is_cancelled() && anonymous.revoked.is_cancelled());
        assert!(!cleo.revoked.is_cancelled());
        assert_eq!(principal(&auth, "Bearer three").token, cleo.token);
        assert_ne!(principal(&auth, "Bearer two").token, bea.token);
        assert_eq!((outcome(&auth, &["Bearer one"]), outcome(&auth, &[])), ("Wrong".to_owned(), "NoToken".to_owned()));
        auth.replace([], false);
        assert_eq!(outcome(&auth, &["Bearer three"]), "Closed");
    }

    #[test]
    fn stopping_revokes_every_token() {
        let stop = CancellationToken::new();
        let auth = TokenAuth::new(stop.clone());
        auth.replace([(agent("ana"), "one")], false);
        let ana = principal(&auth, "Bearer one");
        stop.cancel();
        assert!(ana.revoked.is_cancelled());
    }

    #[test]
    fn the_debug_output_has_no_token() {
        let auth = TokenAuth::new(CancellationToken::new());
        auth.replace([(agent("ana"), "s3cret")], false);
        assert!(!format!("{auth:?}").contains("s3cret"));
    }
}
