//! Who may enter: which token is whose.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::AgentName;

/// Knows the tokens, which may change at any time. Keeps their digests alone.
#[derive(Debug)]
pub struct TokenAuth {
    table: RwLock<Arc<TokenTable>>,
    next: AtomicU64,
    stop: CancellationToken,
}

/// Who may enter now.
#[derive(Debug, Default)]
struct TokenTable {
    tokens: Vec<KnownToken>,
    /// Present where clients without a token may.
    open: Option<Principal>,
}

/// A token.
#[derive(Debug)]
struct KnownToken {
    /// Of equal length for every token, so that comparing tells nothing of lengths either.
    digest: [u8; 32],
    principal: Principal,
}

/// What the auth says to a request.
#[derive(Debug)]
pub enum AuthOutcome {
    /// Nobody may enter: there are no tokens, and the server is not open.
    Closed,
    /// Come in.
    Principal(Principal),
    /// A token is needed.
    NoToken,
    /// What is there in place of one token cannot be read.
    Unreadable,
    /// The token is none that counts.
    Wrong,
}

impl TokenAuth {
    /// Knows nobody. What its visitors have open ends with `stop`.
    #[must_use]
    pub fn new(stop: CancellationToken) -> Self {
        Self { table: RwLock::default(), next: AtomicU64::new(1), stop }
    }

    /// Has these tokens count, and no other. A principal whose token stays is not disturbed; one whose token does not is
    /// told.
    pub fn replace<'a>(&self, tokens: impl IntoIterator<Item = (AgentName, &'a str)>, is_open: bool) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
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

    /// Whether the bearer of these headers may enter.
    #[must_use]
    pub fn authenticate(&self, headers: &HeaderMap) -> AuthOutcome {
        let table = Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner));
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
    /// Compares with every token, whichever it is, so that the time tells nothing.
    fn find(&self, token: &[u8]) -> Option<Principal> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let mut place = u64::MAX;
        for (index, known) in (0_u64..).zip(&self.tokens) {
            place.conditional_assign(&index, known.digest.ct_eq(&digest));
        }
        let known = self.tokens.get(usize::try_from(place).ok()?)?;
        Some(known.principal.clone())
    }
}

/// The token of a request, if it gives exactly one.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (scheme, token) = given.next().filter(|_| given.next().is_none())?.as_bytes().split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

/// Which token a client showed. Equal for equal tokens, and tells nothing of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenId(pub u64);

/// Who stands at the server: an extension of each request that was let in.
#[derive(Debug, Clone)]
pub struct Principal {
    /// The agent that the token belongs to; absent for a client without a token, where the server is open.
    pub agent: Option<AgentName>,
    /// The token; absent where the server is open.
    pub token: Option<TokenId>,
    /// Cancelled once the token does not count any more.
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

    /// In short what the auth says.
    fn said(auth: &TokenAuth, values: &[&str]) -> String {
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
        assert_eq!(said(&auth, &["Bearer s3cret"]), "Closed");
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
            assert_eq!(said(&auth, values), expected, "{values:?}");
        }
    }

    #[test]
    fn an_open_door_lets_in_who_has_no_token_and_nobody_with_a_wrong_one() {
        let auth = TokenAuth::new(CancellationToken::new());
        auth.replace([(agent("ana"), "s3cret")], true);
        assert_eq!(said(&auth, &[]), "anybody");
        assert_eq!(said(&auth, &["Bearer s3cret"]), "ana");
        assert_eq!(said(&auth, &["Bearer other"]), "Wrong");
    }

    #[test]
    fn a_token_that_is_taken_away_or_given_to_another_does_not_count_any_more() {
        let auth = TokenAuth::new(CancellationToken::new());
        auth.replace([(agent("ana"), "one"), (agent("bea"), "two"), (agent("cleo"), "three")], true);
        let [ana, bea, cleo] = ["one", "two", "three"].map(|token| principal(&auth, &format!("Bearer {token}")));
        let AuthOutcome::Principal(anybody) = auth.authenticate(&headers(&[])) else { panic!("not open") };
        assert!(ana.token != bea.token && anybody.token.is_none());
        auth.replace([(agent("cleo"), "three"), (agent("ana"), "four"), (agent("ana"), "two")], false);
        assert!(ana.revoked.is_cancelled() && bea.revoked.is_cancelled() && anybody.revoked.is_cancelled());
        assert!(!cleo.revoked.is_cancelled());
        assert_eq!(principal(&auth, "Bearer three").token, cleo.token);
        assert_ne!(principal(&auth, "Bearer two").token, bea.token);
        assert_eq!((said(&auth, &["Bearer one"]), said(&auth, &[])), ("Wrong".to_owned(), "NoToken".to_owned()));
        auth.replace([], false);
        assert_eq!(said(&auth, &["Bearer three"]), "Closed");
    }

    #[test]
    fn all_visitors_are_told_of_the_end() {
        let stop = CancellationToken::new();
        let auth = TokenAuth::new(stop.clone());
        auth.replace([(agent("ana"), "one")], false);
        let ana = principal(&auth, "Bearer one");
        stop.cancel();
        assert!(ana.revoked.is_cancelled());
    }

    #[test]
    fn what_the_keeper_shows_of_itself_holds_no_token() {
        let auth = TokenAuth::new(CancellationToken::new());
        auth.replace([(agent("ana"), "s3cret")], false);
        assert!(!format!("{auth:?}").contains("s3cret"));
    }
}
