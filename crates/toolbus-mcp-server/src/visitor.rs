use tokio_util::sync::CancellationToken;
use toolbus_core::caller::AgentName;

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
