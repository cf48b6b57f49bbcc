//! The methods of the protocol.

pub(crate) mod call;
pub(crate) mod initialize;
pub(crate) mod listen;
mod resources;
mod tools;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use serde_json::value::RawValue;

use crate::door::Parts;
use crate::peer::Peer;
use crate::rpc::{self, Call, Id, RpcError};

/// How long a client may keep what it was told, in milliseconds: it is told of changes, if it listens.
const FRESH_MS: u64 = 5_000;

/// A method that there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Initialize,
    Discover,
    Ping,
    ListTools,
    CallTool,
    ListResources,
    ListResourceTemplates,
    ReadResource,
    Listen,
}

impl Method {
    const ALL: [Self; 9] = [
        Self::Initialize,
        Self::Discover,
        Self::Ping,
        Self::ListTools,
        Self::CallTool,
        Self::ListResources,
        Self::ListResourceTemplates,
        Self::ReadResource,
        Self::Listen,
    ];

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == text)
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Discover => "server/discover",
            Self::Ping => "ping",
            Self::ListTools => "tools/list",
            Self::CallTool => "tools/call",
            Self::ListResources => "resources/list",
            Self::ListResourceTemplates => "resources/templates/list",
            Self::ReadResource => "resources/read",
            Self::Listen => "subscriptions/listen",
        }
    }

    /// Whether it belongs to the revision that this peer speaks.
    pub(crate) const fn is_for(self, peer: &Peer) -> bool {
        match self {
            Self::Initialize => false,
            Self::Ping => !peer.is_alone(),
            Self::Discover | Self::Listen => peer.is_alone(),
            _ => true,
        }
    }
}

/// Answers a request whose answer is there at once.
pub(crate) async fn answer(parts: &Parts, peer: &Peer, method: Method, call: &Call<'_>) -> Result<Bytes, RpcError> {
    match method {
        Method::Ping => Ok(rpc::success(&call.id, json!({}))),
        Method::Discover => Ok(rpc::success(&call.id, initialize::discovered(&parts.settings))),
        Method::ListTools => tools::list(parts, peer, call).await,
        Method::ListResources => resources::list(parts, peer, call).await,
        Method::ListResourceTemplates => resources::templates(peer, call),
        Method::ReadResource => resources::read(parts, peer, call).await,
        Method::Initialize | Method::CallTool | Method::Listen => Err(RpcError::method_not_found(&call.method)),
    }
}

/// The request that a client does not want answered any more.
pub(crate) fn cancelled(params: &RawValue) -> Option<Id> {
    #[derive(Deserialize)]
    struct Cancelled<'a> {
        #[serde(borrow, rename = "requestId")]
        request_id: &'a RawValue,
    }
    let cancelled: Cancelled<'_> = serde_json::from_str(params.get()).ok()?;
    Id::of(cancelled.request_id)
}

/// Parameters of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
struct Listing {
    cursor: Option<String>,
}

/// Parameters that may be absent.
fn optional<P: DeserializeOwned + Default>(params: Option<&RawValue>) -> Result<P, RpcError> {
    params.map_or_else(|| Ok(P::default()), required)
}

fn required<P: DeserializeOwned>(params: &RawValue) -> Result<P, RpcError> {
    serde_json::from_str(params.get()).map_err(|error| RpcError::unreadable_params(&error))
}
