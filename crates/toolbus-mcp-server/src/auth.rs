//! Who may enter: which token is whose.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};
use tokio_util::sync::CancellationToken;
use toolbus_core::caller::AgentName;

use super::{TokenId, Visitor};

/// Knows the tokens, which may change at any time. Keeps their digests alone.
#[derive(Debug)]
pub struct Keeper {
    guests: RwLock<Arc<TokenTable>>,
    next: AtomicU64,
    stop: CancellationToken,
}

/// Who may enter now.
#[derive(Debug, Default)]
struct TokenTable {
    tokens: Vec<Known>,
    /// Present where clients without a token may.
    open: Option<Visitor>,
}

/// A token.
#[derive(Debug)]
struct Known {
    /// Of equal length for every token, so that comparing tells nothing of lengths either.
    digest: [u8; 32],
    visitor: Visitor,
}

/// What the keeper says to a request.
#[derive(Debug)]
pub enum Entry {
    /// Nobody may enter: there are no tokens, and the door is not open.
    Closed,
    /// Come in.
    Visitor(Visitor),
    /// A token is needed.
    NoToken,
    /// What is there in place of one token cannot be read.
    Unreadable,
    /// The token is none that counts.
    Wrong,
}

impl Keeper {
    /// Knows nobody. What its visitors have open ends with `stop`.
    #[must_use]
    pub fn new(stop: CancellationToken) -> Self {
        Self { guests: RwLock::default(), next: AtomicU64::new(1), stop }
    }

    /// Has these tokens count, and no other. A visitor whose token stays is not disturbed; one whose token does not is
    /// told.
    pub fn replace<'a>(&self, tokens: impl IntoIterator<Item = (AgentName, &'a str)>, is_open: bool) {
        let mut guests = self.guests.write().unwrap_or_else(PoisonError::into_inner);
        let known = |(agent, token): (AgentName, &str)| {
            let digest: [u8; 32] = Sha256::digest(token).into();
            let same = guests.tokens.iter().find(|known| known.digest == digest);
            let same = same.filter(|known| known.visitor.agent.as_ref() == Some(&agent));
            let visitor = same.map_or_else(|| self.visitor(Some(agent)), |known| known.visitor.clone());
            Known { digest, visitor }
        };
        let tokens: Vec<Known> = tokens.into_iter().map(known).collect();
        let open = is_open.then(|| guests.open.clone().unwrap_or_else(|| self.visitor(None)));
        let stays = |id: Option<TokenId>| tokens.iter().any(|known| known.visitor.token == id);
        for Known { visitor, .. } in guests.tokens.iter().filter(|known| !stays(known.visitor.token)) {
            visitor.revoked.cancel();
        }
        if let Some(visitor) = guests.open.as_ref().filter(|_| !is_open) {
            visitor.revoked.cancel();
        }
        *guests = Arc::new(TokenTable { tokens, open });
    }

    /// Whether the bearer of these headers may enter.
    #[must_use]
    pub fn judge(&self, headers: &HeaderMap) -> Entry {
        let guests = Arc::clone(&self.guests.read().unwrap_or_else(PoisonError::into_inner));
        if guests.tokens.is_empty() && guests.open.is_none() {
            return Entry::Closed;
        }
        if !headers.contains_key(AUTHORIZATION) {
            return guests.open.clone().map_or(Entry::NoToken, Entry::Visitor);
        }
        let Some(token) = bearer(headers) else { return Entry::Unreadable };
        guests.find(token).map_or(Entry::Wrong, Entry::Visitor)
    }

    fn visitor(&self, agent: Option<AgentName>) -> Visitor {
        let token = agent.as_ref().map(|_| TokenId(self.next.fetch_add(1, Ordering::Relaxed)));
        Visitor { agent, token, revoked: self.stop.child_token() }
    }
}

impl TokenTable {
    /// Compares with every token, whichever it is, so that the time tells nothing.
    fn find(&self, token: &[u8]) -> Option<Visitor> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let mut place = u64::MAX;
        for (index, known) in (0_u64..).zip(&self.tokens) {
            place.conditional_assign(&index, known.digest.ct_eq(&digest));
        }
        let known = self.tokens.get(usize::try_from(place).ok()?)?;
        Some(known.visitor.clone())
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

/// Who stands at the door: an extension of each request that was let in.
#[derive(Debug, Clone)]
pub struct Visitor {
    /// The agent that the token belongs to; absent for a client without a token, where the door is open.
    pub agent: Option<AgentName>,
    /// The token; absent where the door is open.
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

    /// In short what the keeper says.
    fn said(keeper: &Keeper, values: &[&str]) -> String {
        match keeper.judge(&headers(values)) {
            Entry::Visitor(visitor) => visitor.agent.map_or("anybody".to_owned(), |agent| agent.to_string()),
            other => format!("{other:?}"),
        }
    }

    fn visitor(keeper: &Keeper, value: &str) -> Visitor {
        match keeper.judge(&headers(&[value])) {
            Entry::Visitor(visitor) => visitor,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_token_lets_its_agent_in_and_nothing_else_does() {
        let keeper = Keeper::new(CancellationToken::new());
        assert_eq!(said(&keeper, &["Bearer s3cret"]), "Closed");
        keeper.replace([(agent("ana"), "s3cret"), (agent("bea"), "s3cret-of-bea"), (agent("bea"), "next")], false);
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
            assert_eq!(said(&keeper, values), expected, "{values:?}");
        }
    }

    #[test]
    fn an_open_door_lets_in_who_has_no_token_and_nobody_with_a_wrong_one() {
        let keeper = Keeper::new(CancellationToken::new());
        keeper.replace([(agent("ana"), "s3cret")], true);
        assert_eq!(said(&keeper, &[]), "anybody");
        assert_eq!(said(&keeper, &["Bearer s3cret"]), "ana");
        assert_eq!(said(&keeper, &["Bearer other"]), "Wrong");
    }

    #[test]
    fn a_token_that_is_taken_away_or_given_to_another_does_not_count_any_more() {
        let keeper = Keeper::new(CancellationToken::new());
        keeper.replace([(agent("ana"), "one"), (agent("bea"), "two"), (agent("cleo"), "three")], true);
        let [ana, bea, cleo] = ["one", "two", "three"].map(|token| visitor(&keeper, &format!("Bearer {token}")));
        let Entry::Visitor(anybody) = keeper.judge(&headers(&[])) else { panic!("not open") };
        assert!(ana.token != bea.token && anybody.token.is_none());
        keeper.replace([(agent("cleo"), "three"), (agent("ana"), "four"), (agent("ana"), "two")], false);
        assert!(ana.revoked.is_cancelled() && bea.revoked.is_cancelled() && anybody.revoked.is_cancelled());
        assert!(!cleo.revoked.is_cancelled());
        assert_eq!(visitor(&keeper, "Bearer three").token, cleo.token);
        assert_ne!(visitor(&keeper, "Bearer two").token, bea.token);
        assert_eq!((said(&keeper, &["Bearer one"]), said(&keeper, &[])), ("Wrong".to_owned(), "NoToken".to_owned()));
        keeper.replace([], false);
        assert_eq!(said(&keeper, &["Bearer three"]), "Closed");
    }

    #[test]
    fn all_visitors_are_told_of_the_end() {
        let stop = CancellationToken::new();
        let keeper = Keeper::new(stop.clone());
        keeper.replace([(agent("ana"), "one")], false);
        let ana = visitor(&keeper, "Bearer one");
        stop.cancel();
        assert!(ana.revoked.is_cancelled());
    }

    #[test]
    fn what_the_keeper_shows_of_itself_holds_no_token() {
        let keeper = Keeper::new(CancellationToken::new());
        keeper.replace([(agent("ana"), "s3cret")], false);
        assert!(!format!("{keeper:?}").contains("s3cret"));
    }
}
