//! From a delivery to a call, or to the reason why there is none.

mod dialect;
mod script;

use std::sync::Arc;
use std::time::SystemTime;

use toolbus_protocol::message_type::{self, Kind};
use toolbus_protocol::{
    Envelope, ParseError, ToolInvokeRequest, bounded, derived_message_id, header, new_message_id, topic,
};

use self::dialect::Body;
pub(crate) use self::dialect::Dialect;
use crate::bus::Delivery;
use crate::caller::Caller;
use crate::deadline::TimeBudget;
use crate::failure::{Cause, ToolFailure};
use crate::gates::{Lookup, ToolRef};
use crate::reply::{Address, ReplyRules};
use crate::telemetry::DeadReason;

/// Longest tool name, call id or session id, in bytes: answers repeat the first two, and are small when they are errors.
const MAX_ECHOED: usize = 1024;

/// A delivery that asks for something and can be answered.
pub(crate) struct Request {
    pub(crate) envelope: Envelope,
    pub(crate) address: Address,
    pub(crate) caller: Arc<Caller>,
    pub(crate) call_id: Arc<str>,
    /// Whether the sender chose the call's id.
    pub(crate) has_call_id: bool,
    /// The tool, as the caller named it; empty when that could not be read.
    pub(crate) tool_name: String,
    /// Where the tool is looked for.
    pub(crate) route: Origin,
    pub(crate) arguments: Option<String>,
    pub(crate) budget: TimeBudget,
    /// The form of the request, and of its answer.
    pub(crate) dialect: Dialect,
    /// Whether the caller wants to hear of progress.
    pub(crate) wants_progress: bool,
}

/// Where a request says that its tool is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Anywhere.
    Any,
    /// At some MCP server.
    AnyServer,
    /// At this MCP server.
    Server(String),
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
pub(crate) fn decode(
    delivery: &Delivery,
    envelope: Envelope,
    caller: Caller,
    rules: &ReplyRules,
    max_body: usize,
) -> Decoded {
    let dialect = Dialect::of(&delivery.routing_key);
    match message_type::kind(&envelope.message_type, dialect.request_type()) {
        Kind::Request | Kind::Plain => {}
        Kind::Answer => return Decoded::Ignored,
        Kind::Foreign => {
            let detail = format!("type {:?} does not belong on this topic", envelope.message_type);
            return Decoded::Dead(DeadReason::UnknownType, detail);
        }
    }
    let address = match rules.check_call(&envelope, &delivery.routing_key, &caller) {
        Ok(address) => address,
        Err(refused) => return Decoded::Dead(DeadReason::ReplyToRefused, refused.to_string()),
    };
    let size = delivery.body.len();
    if size > max_body {
        let text = format!("The request has {size} bytes; at most {max_body} are taken. Send less.");
        return refused(delivery, envelope, address, caller, dialect.unread(), text);
    }
    match dialect.read(&delivery.body) {
        Ok(mut body) => match unusable(&mut body) {
            None => Decoded::Call(Request::new(delivery, envelope, address, caller, body.request)),
            Some(text) => refused(delivery, envelope, address, caller, body.request, text),
        },
        Err(error @ (ParseError::NotUtf8 { .. } | ParseError::NotJson(_) | ParseError::NotAnObject(_)))
            if envelope.reply_to.is_empty() =>
        {
            Decoded::Dead(DeadReason::Malformed, error.to_string())
        }
        Err(error) => {
            let text = format!("The request is not usable: {error}.");
            refused(delivery, envelope, address, caller, dialect.unread(), text)
        }
    }
}

/// Why a request that was read cannot be used. Cuts what is too long, because the answer repeats it.
fn unusable(Body { request, missing }: &mut Body) -> Option<String> {
    let mut text = None;
    let members = [
        ("toolName", Some(&mut request.tool_name)),
        ("toolCallId", request.tool_call_id.as_mut()),
        ("sessionId", request.session_id.as_mut()),
    ];
    for (member, value) in members {
        if let Some(value) = value.filter(|value| value.len() > MAX_ECHOED) {
            let size = value.len();
            text = Some(format!("The {member} has {size} bytes; at most {MAX_ECHOED} are taken. Use a shorter one."));
            *value = bounded(value).to_owned();
        }
    }
    if let Some(member) = *missing {
        text = Some(format!("The request is not usable: {}.", ParseError::Missing(member)));
    }
    text
}

fn refused(
    delivery: &Delivery,
    envelope: Envelope,
    address: Address,
    caller: Caller,
    request: ToolInvokeRequest,
    text: String,
) -> Decoded {
    let request = Request::new(delivery, envelope, address, caller, request);
    Decoded::Refused(request, ToolFailure::new(Cause::MalformedRequest, text))
}

impl Origin {
    fn read(envelope: &Envelope, topic: &str) -> Self {
        if Dialect::of(topic) == Dialect::Script {
            // It is for one tool, whatever server a header names.
            return Self::Any;
        }
        match envelope.header(header::MCP_SERVER).map(str::trim) {
            Some(server) if !server.is_empty() => Self::Server(bounded(server).to_owned()),
            _ if topic == topic::TOOL_INVOKE_MCP => Self::AnyServer,
            _ => Self::Any,
        }
    }
}

impl Request {
    /// The tool that the caller means.
    pub(crate) fn wanted(&self) -> ToolRef<'_> {
        let route = match &self.route {
            Origin::Any => Lookup::Name,
            Origin::AnyServer => Lookup::AnyServer,
            Origin::Server(server) => Lookup::Server(server),
        };
        ToolRef { route, name: &self.tool_name }
    }

    /// What tells its caller from others that share limits.
    pub(crate) fn sharer(&self) -> Arc<str> {
        self.caller.sharer(&self.address.written)
    }

    fn new(
        delivery: &Delivery,
        envelope: Envelope,
        address: Address,
        mut caller: Caller,
        request: ToolInvokeRequest,
    ) -> Self {
        let has_call_id = request.tool_call_id.is_some();
        caller.session = request.session_id.filter(|session| !session.is_empty()).map(Arc::from);
        // Not random where anything is known, so that a repeated answer is identical.
        let known = || match (&envelope.message_id, &*envelope.correlation_id) {
            (Some(id), _) => bounded(id).to_owned(),
            (None, "") => new_message_id(),
            (None, correlation_id) => derived_message_id(&caller.owner, "", correlation_id),
        };
        let call_id = request.tool_call_id.unwrap_or_else(known);
        Self {
            caller: caller.into(),
            call_id: call_id.into(),
            has_call_id,
            tool_name: request.tool_name,
            arguments: request.arguments,
            budget: TimeBudget::read(&envelope, SystemTime::now()),
            route: Origin::read(&envelope, &delivery.routing_key),
            dialect: Dialect::of(&delivery.routing_key),
            wants_progress: envelope.header(header::PROGRESS).is_some_and(|value| value.trim() == "1"),
            address,
            envelope,
        }
    }
}
