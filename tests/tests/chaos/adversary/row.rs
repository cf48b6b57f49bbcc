//! One line of the table: what is sent, and what must come of it.

use lapin::types::{AMQPValue, FieldTable};
use serde_json::{Value, json};
use toolbus_e2e::client::{Client, Request};
use toolbus_e2e::namespace::BrokerNamespace;

/// A line of the table.
pub(crate) struct Row {
    /// Description of the attempt, in words.
    pub(crate) what: String,
    pub(crate) sent: Sent,
    pub(crate) back: Back,
}

/// Required outcome of a message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Back {
    /// An error with this code; nothing is run.
    Refused(&'static str),
    /// A result of the backend of this id, and of no other.
    Runs(&'static str),
    /// This body; nothing is run.
    Body(Value),
    /// A list of exactly these tools; nothing is run.
    Lists(&'static [&'static str]),
    /// Nothing at all; nothing is run.
    Nothing,
    /// The message becomes a dead letter for this reason; nothing is run.
    Dead(&'static str),
}

/// The reply to a tool that is not there, or not for this caller.
pub(crate) const NOT_FOUND: Back = Back::Refused("tool_not_found");
/// The reply to a request that cannot be read, or whose arguments do not fit.
pub(crate) const INVALID: Back = Back::Refused("invalid_arguments");
/// The reply to a recipient that is not listed.
pub(crate) const NOT_ALLOWED: Back = Back::Refused("not_allowed");
/// The one dead letter of a refused reply address.
pub(crate) const NO_ADDRESS: Back = Back::Dead("reply_to_refused");

/// A message, by default from the agent `ana`.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    topic: &'static str,
    body: Vec<u8>,
    headers: FieldTable,
    kind: Option<String>,
    address: Option<String>,
    user: Option<&'static str>,
}

pub(crate) fn row(what: impl Into<String>, sent: Sent, back: Back) -> Row {
    Row { what: what.into(), sent, back }
}

/// A call of a tool, without arguments.
pub(crate) fn call(tool: &str) -> Sent {
    call_with(tool, &json!({}))
}

/// A call of a tool.
pub(crate) fn call_with(tool: &str, arguments: &Value) -> Sent {
    raw(json!({"toolName": tool, "arguments": arguments}).to_string())
}

/// Any bytes, as a call.
pub(crate) fn raw(body: impl Into<Vec<u8>>) -> Sent {
    let sent = Sent {
        topic: "tool.invoke",
        body: body.into(),
        headers: FieldTable::default(),
        kind: None,
        address: None,
        user: None,
    };
    sent.by("ana")
}

impl Sent {
    /// Sent with this name.
    pub(crate) fn by(self, agent: &str) -> Self {
        self.header("rb-source", agent)
    }

    pub(crate) fn header(self, name: &str, value: &str) -> Self {
        self.header_of(name, AMQPValue::LongString(value.into()))
    }

    pub(crate) fn header_of(mut self, name: &str, value: AMQPValue) -> Self {
        self.headers.insert(name.into(), value);
        self
    }

    /// Sent without any header.
    pub(crate) fn bare(mut self) -> Self {
        self.headers = FieldTable::default();
        self
    }

    pub(crate) fn on(mut self, topic: &'static str) -> Self {
        self.topic = topic;
        self
    }

    /// With this property `type`.
    pub(crate) fn of_type(mut self, kind: &str) -> Self {
        self.kind = Some(kind.to_owned());
        self
    }

    pub(crate) fn reply_to(mut self, address: &str) -> Self {
        self.address = Some(address.to_owned());
        self
    }

    /// With the property `user_id`, which the broker compares with the login.
    pub(crate) fn with_user(mut self, user: &'static str) -> Self {
        self.user = Some(user);
        self
    }

    pub(crate) const fn topic(&self) -> &'static str {
        self.topic
    }

    /// The message as it is published.
    pub(crate) fn request(&self, client: &Client, site: &BrokerNamespace) -> Request {
        let mut request = client.raw(self.body.clone());
        request.routing_key = self.topic.to_owned();
        request.headers = self.headers.clone();
        if let Some(kind) = &self.kind {
            request = request.with(|properties| properties.with_type(kind.as_str().into()));
        }
        if let Some(address) = &self.address {
            request = request.reply_to(&address.replace("{prefix}", &site.prefix));
        }
        if let Some(user) = self.user {
            request = request.with(|properties| properties.with_user_id(user.into()));
        }
        request
    }
}
