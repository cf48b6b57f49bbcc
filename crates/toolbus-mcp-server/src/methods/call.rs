//! `tools/call`: a call of a tool, with all the steps of any call.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use toolbus_core::progress::ProgressSink;
use toolbus_protocol::TraceContext;

use crate::backend::BackendCall;
use crate::door::Parts;
use crate::flow::{CallFlow, Flow};
use crate::peer::Peer;
use crate::rpc::{Call, RpcError};

/// Longest name of a tool, in bytes: answers repeat it.
const MAX_NAME: usize = 1024;

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Params<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

/// Begins a call.
pub(crate) fn begin(
    parts: &Parts,
    peer: &Peer,
    call: &Call<'_>,
    token: Option<&RawValue>,
    trace: Option<TraceContext>,
) -> Result<Flow, RpcError> {
    let params = call.params.ok_or_else(|| RpcError::invalid_params("The parameter `name` is missing."))?;
    let Params { name, arguments } =
        serde_json::from_str(params.get()).map_err(|error| RpcError::unreadable_params(&error))?;
    if name.len() > MAX_NAME {
        let text = format!("The name has {} bytes; at most {MAX_NAME} are taken.", name.len());
        return Err(RpcError::invalid_params(text));
    }
    if arguments.is_some_and(|arguments| !arguments.get().starts_with('{')) {
        return Err(RpcError::invalid_params("The arguments are no JSON object."));
    }
    let underway = Parts::enter(peer, &call.id)?;
    let (sink, reports) = token.map(|_| ProgressSink::new()).unzip();
    let running = parts.backend.call(BackendCall {
        caller: Arc::clone(&peer.caller),
        tool: name.clone().into_owned(),
        arguments: arguments.map(|arguments| arguments.get().to_owned()),
        cancelled: underway.cancelled.clone(),
        trace,
        progress: sink,
    });
    let backend = Arc::clone(&parts.backend);
    Ok(Flow::Call(CallFlow::new(
        peer,
        call.id.clone(),
        backend,
        name.into_owned(),
        running,
        underway,
        token.zip(reports),
    )))
}
