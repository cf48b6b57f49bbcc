//! A call as its caller asked for it, whatever the form of its message.

use std::sync::Arc;

use toolbus_protocol::{Envelope, Random, ToolInvokeRequest, bounded, derived_message_id, header, message_type, topic};

use crate::address::Address;
use crate::bus::Delivery;
use crate::caller::Caller;
use crate::clock::Clock;
use crate::deadline::TimeBudget;

/// Where a tool is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// Among all tools, by the name that they are registered with.
    Name,
    /// Among the tools of MCP servers: by the name that they are registered with, or else by their servers' own.
    AnyServer,
    /// Among the tools of this MCP server, by its own name for them.
    Server(&'a str),
}

/// The tool that a caller means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolRef<'a> {
    /// Where to look.
    pub route: Lookup<'a>,
    /// The name.
    pub name: &'a str,
}

impl<'a> ToolRef<'a> {
    /// The tool that is registered with this name.
    #[must_use]
    pub const fn named(name: &'a str) -> Self {
        Self { route: Lookup::Name, name }
    }
}

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

/// The form in which a tool is asked for, and in which its caller is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Dialect {
    /// The request names its tool.
    #[default]
    Tool,
    /// The request is for one tool, which runs scripts.
    Script,
}

impl Dialect {
    /// The form that is spoken on a topic.
    pub(crate) fn of(topic: &str) -> Self {
        if topic == topic::SCRIPT_INVOKE { Self::Script } else { Self::Tool }
    }

    /// The type of its requests.
    pub(crate) const fn request_type(self) -> &'static str {
        match self {
            Self::Tool => message_type::TOOL_INVOKE_REQUEST,
            Self::Script => message_type::SCRIPT_INVOKE_REQUEST,
        }
    }
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

    pub(crate) fn new(
        delivery: &Delivery,
        envelope: Envelope,
        address: Address,
        mut caller: Caller,
        request: ToolInvokeRequest,
        (clock, random): (Clock, Random),
    ) -> Self {
        let has_call_id = request.tool_call_id.is_some();
        caller.session = request.session_id.filter(|session| !session.is_empty()).map(Arc::from);
        // Not random where anything is known, so that a repeated answer is identical.
        let known = || match (&envelope.message_id, &*envelope.correlation_id) {
            (Some(id), _) => bounded(id).to_owned(),
            (None, "") => random.id(),
            (None, correlation_id) => derived_message_id(&caller.owner, "", correlation_id),
        };
        let call_id = request.tool_call_id.unwrap_or_else(known);
        Self {
            caller: caller.into(),
            call_id: call_id.into(),
            has_call_id,
            tool_name: request.tool_name,
            arguments: request.arguments,
            budget: TimeBudget::read(&envelope, clock.wall()),
            route: Origin::read(&envelope, &delivery.routing_key),
            dialect: Dialect::of(&delivery.routing_key),
            wants_progress: envelope.header(header::PROGRESS).is_some_and(|value| value.trim() == "1"),
            address,
            envelope,
        }
    }
}
