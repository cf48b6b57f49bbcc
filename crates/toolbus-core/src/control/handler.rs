//! Handlers of other crates for requests on topics of their own.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use toolbus_protocol::{Envelope, ParseError};

use super::MAX_CONTROL_BODY;
use crate::Clock;
use crate::caller::Caller;
use crate::deadline::{Budgets, TimeBudget, inner};
use crate::reply_address::Address;
use crate::turns::{SMALL, Turn};

/// Handles the requests of one topic.
pub trait ControlHandler: Send + Sync + 'static {
    /// The one type of request that the topic carries; absent where it carries several, and the handler distinguishes
    /// them.
    fn message_type(&self) -> Option<&'static str>;

    /// Whether the topic carries replies and announcements, which never have a reply: of any type, and from any sender,
    /// also where the daemon serves one agent alone.
    fn is_listening(&self) -> bool {
        false
    }

    /// Whether its requests run tools. The senders do not repeat such requests, so their replies are kept until the
    /// broker takes them, as those to other calls are.
    fn runs_calls(&self) -> bool {
        false
    }

    /// Longest body that it reads, in bytes.
    fn max_body(&self) -> usize {
        MAX_CONTROL_BODY
    }

    /// Obeys a request and returns the reply, if any. The reply is sent when the request has an address.
    ///
    /// # Errors
    ///
    /// If the request is refused: its sender gets a reply if possible; otherwise the request becomes a dead letter.
    /// After [`ControlError::StoreAway`] it goes back to its queue instead.
    fn handle<'a>(&'a self, request: &'a ControlRequest) -> BoxFuture<'a, Result<Option<ControlReply>, ControlError>>;

    /// Reply to a request that is refused for this reason; absent: a `ToolError`.
    fn refusal(&self, _request: &ControlRequest, _reason: &str) -> Option<ControlReply> {
        None
    }
}

/// A request that was read.
#[derive(Debug)]
pub struct ControlRequest {
    /// Properties and headers of the request.
    pub envelope: Envelope,
    /// Who sent it.
    pub caller: Arc<Caller>,
    /// Body of the request; not read yet.
    pub body: Bytes,
    pub(super) address: Option<Address>,
    pub(super) clock: Clock,
}

/// A message to send back.
pub struct ControlReply {
    pub(super) message_type: Cow<'static, str>,
    pub(super) body: Vec<u8>,
    pub(super) persistent: bool,
    pub(super) provider: Option<&'static str>,
    /// Held until the message is sent.
    pub(super) turn: Option<Turn>,
}

impl ControlReply {
    /// A message of this type.
    #[must_use]
    pub fn new(message_type: impl Into<Cow<'static, str>>, body: &impl serde::Serialize) -> Self {
        Self {
            message_type: message_type.into(),
            body: serde_json::to_vec(body).unwrap_or_default(),
            persistent: true,
            provider: None,
            turn: None,
        }
    }

    /// Ends the turn in which the message was made. A large message counts as kept until it is sent: only so much of
    /// them is held in memory at a time.
    #[must_use]
    pub fn in_turn(mut self, mut turn: Turn) -> Self {
        if self.size() > SMALL {
            turn.keep(self.size());
            self.turn = Some(turn);
        }
        self
    }

    /// Names the kind of backend that it comes from.
    #[must_use]
    pub const fn of(mut self, provider: &'static str) -> Self {
        self.provider = Some(provider);
        self
    }

    /// Size of the message's body, in bytes.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.body.len()
    }
}

/// Reason why a request is not obeyed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The topic carries no request of this type.
    #[error("its type {0} does not belong on this topic")]
    Type(String),
    /// The body does not fit its type.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] ParseError),
    /// The request has no effect but its reply, and no address for one.
    #[error("it says nowhere to answer")]
    NoAddress,
    /// Only an agent can send this, and the sender is none.
    #[error("its sender is no agent")]
    NoAgent,
    /// The store is not available: the request is delivered again later.
    #[error("the store is away")]
    StoreAway,
}

impl ControlRequest {
    /// Whether the sender left an address for a reply.
    #[must_use]
    pub const fn has_address(&self) -> bool {
        self.address.is_some()
    }

    /// Key that the sender shares limits under.
    #[must_use]
    pub fn sharer(&self) -> Arc<str> {
        self.caller.sharer(self.address.as_ref().map_or("", |address| &address.written))
    }

    /// Time until which the sender waits for a reply, by its budget; at most `most` from now.
    #[must_use]
    pub fn deadline(&self, most: Duration) -> Instant {
        let (budget, now) = (TimeBudget::read(&self.envelope, self.clock.wall()), self.clock.now());
        inner(budget.deadline(now, None, Budgets { default: most, max: most }), now)
    }
}

#[cfg(test)]
mod tests {
    use toolbus_protocol::header;

    use super::*;

    #[test]
    fn a_deadline_ends_before_the_senders_budget_and_before_the_limit() {
        let (clock, most) = (Clock::manual(), Duration::from_secs(25));
        let table = [(None, 10..=25), (Some("60000"), 10..=25), (Some("4000"), 0..=4), (Some("nonsense"), 10..=25)];
        for (budget, expected) in table {
            let headers = budget.map(|text| (header::TIMEOUT_MS.to_owned(), text.to_owned())).into_iter().collect();
            let envelope = Envelope { headers, ..Envelope::default() };
            let request = ControlRequest {
                envelope,
                caller: Arc::new(Caller::unknown()),
                body: Bytes::new(),
                address: None,
                clock,
            };
            let left = request.deadline(most).saturating_duration_since(clock.now());
            assert!(left < Duration::from_secs(*expected.end()), "{budget:?} {left:?}");
            assert!(left > Duration::from_secs(*expected.start()), "{budget:?} {left:?}");
        }
    }
}
