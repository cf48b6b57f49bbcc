//! From a delivery to a call, or to the reason why there is none.

use std::sync::Arc;
use std::time::SystemTime;

use toolbus_protocol::message_type::{self, Kind};
use toolbus_protocol::{Envelope, ParseError, ToolInvokeRequest, new_message_id};

use crate::bus::Delivery;
use crate::deadline::Granted;
use crate::failure::{Cause, ToolFailure};
use crate::reply::{Address, ReplyRules};
use crate::telemetry::DeadReason;

/// Name of a caller that does not say who it is.
const UNKNOWN_CALLER: &str = "unknown";

/// A delivery that asks for something and can be answered.
pub(crate) struct Request {
    pub(crate) envelope: Envelope,
    pub(crate) address: Address,
    pub(crate) caller: Arc<str>,
    pub(crate) call_id: Arc<str>,
    /// Whether the sender chose the call's id.
    pub(crate) has_call_id: bool,
    /// The tool, as the caller named it; empty when that could not be read.
    pub(crate) tool_name: String,
    pub(crate) session_id: Option<Arc<str>>,
    pub(crate) arguments: Option<String>,
    pub(crate) granted: Granted,
}

/// What a delivery on a topic for requests is.
pub(crate) enum Decoded {
    /// A request that can be run.
    Call(Request),
    /// A request that is refused as it stands.
    Refused(Request, ToolFailure),
    /// Nobody's request: an answer or an announcement. It is settled and never answered.
    Ignored,
    /// It can be neither run nor answered.
    Dead(DeadReason, String),
}

/// Reads a delivery. The size is checked before anything is parsed.
pub(crate) fn decode(delivery: &Delivery, envelope: Envelope, rules: &ReplyRules, max_body: usize) -> Decoded {
    match message_type::kind(&envelope.message_type, message_type::TOOL_INVOKE_REQUEST) {
        Kind::Request | Kind::Plain => {}
        Kind::Answer => return Decoded::Ignored,
        Kind::Foreign => {
            let detail = format!("type {:?} does not belong on this topic", envelope.message_type);
            return Decoded::Dead(DeadReason::UnknownType, detail);
        }
    }
    let address = match rules.check(&envelope.reply_to, &envelope.message_type) {
        Ok(address) => address,
        Err(refused) => return Decoded::Dead(DeadReason::ReplyToRefused, refused.to_string()),
    };
    let size = delivery.body.len();
    if size > max_body {
        let text = format!("The request has {size} bytes; at most {max_body} are taken. Send less.");
        return refused(envelope, address, text);
    }
    match ToolInvokeRequest::parse(&delivery.body) {
        Ok(request) => Decoded::Call(Request::new(envelope, address, request)),
        Err(error @ (ParseError::NotUtf8 { .. } | ParseError::NotJson(_) | ParseError::NotAnObject(_)))
            if envelope.reply_to.is_empty() =>
        {
            Decoded::Dead(DeadReason::Malformed, error.to_string())
        }
        Err(error) => refused(envelope, address, format!("The request is not usable: {error}.")),
    }
}

fn refused(envelope: Envelope, address: Address, text: String) -> Decoded {
    let request = Request::new(envelope, address, ToolInvokeRequest::default());
    Decoded::Refused(request, ToolFailure::new(Cause::MalformedRequest, text))
}

impl Request {
    fn new(envelope: Envelope, address: Address, request: ToolInvokeRequest) -> Self {
        let has_call_id = request.tool_call_id.is_some();
        let call_id = request.tool_call_id.or_else(|| envelope.message_id.clone()).unwrap_or_else(new_message_id);
        Self {
            caller: envelope.source.as_deref().unwrap_or(UNKNOWN_CALLER).into(),
            call_id: call_id.into(),
            has_call_id,
            tool_name: request.tool_name,
            session_id: request.session_id.map(Arc::from),
            arguments: request.arguments,
            granted: Granted::read(&envelope, SystemTime::now()),
            address,
            envelope,
        }
    }
}
