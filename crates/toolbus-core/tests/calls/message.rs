//! Deliveries, and how they were settled.

use parking_lot::Mutex;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use toolbus_core::Clock;
use toolbus_core::bus::{Delivery, Settle};
use toolbus_protocol::Properties;

/// Settlement of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    Acknowledged,
    Requeued,
    Dropped,
}

/// Settlement of one delivery, whose connection it can lose.
#[derive(Clone, Default)]
pub(crate) struct Settlement {
    how: Arc<Mutex<Option<Settled>>>,
    lost: CancellationToken,
}

impl Settlement {
    pub(crate) fn get(&self) -> Option<Settled> {
        *self.how.lock()
    }

    /// Ends the connection that brought the delivery.
    pub(crate) fn lose(&self) {
        self.lost.cancel();
    }
}

struct Settler(Settlement);

impl Settler {
    fn settle(self, how: Settled) -> BoxFuture<'static, ()> {
        *self.0.how.lock() = Some(how);
        Box::pin(async {})
    }
}

impl Settle for Settler {
    fn acknowledge(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.settle(Settled::Acknowledged)
    }

    fn requeue(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.settle(Settled::Requeued)
    }

    fn lost(&self) -> Option<&CancellationToken> {
        Some(&self.0.lost)
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        self.0.how.lock().get_or_insert(Settled::Dropped);
    }
}

/// A request to be delivered.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) properties: Properties,
    pub(crate) body: Bytes,
    pub(crate) topic: &'static str,
    pub(crate) redelivered: bool,
    pub(crate) earlier_deliveries: u32,
}

/// A request of a peer named `ana`, with the reply on `tool.result.ana`.
pub(crate) fn request(body: &Value) -> Message {
    raw(body.to_string().into_bytes())
}

/// The same with any body.
pub(crate) fn raw(body: impl Into<Bytes>) -> Message {
    Message {
        properties: Properties {
            message_id: Some("0f8fad5bd9cb469fa16570867728950e".to_owned()),
            message_type: Some("RockBot.Tools.ToolInvokeRequest".to_owned()),
            correlation_id: Some("corr-1".to_owned()),
            reply_to: Some("tool.result.ana".to_owned()),
            headers: vec![("rb-source".to_owned(), "ana".to_owned())],
            ..Properties::default()
        },
        body: body.into(),
        topic: "tool.invoke",
        redelivered: false,
        earlier_deliveries: 0,
    }
}

/// A call of `tool` with these arguments.
pub(crate) fn call(tool: &str, arguments: Value) -> Message {
    request(&json!({"toolCallId": "call_1", "toolName": tool, "arguments": arguments}))
}

impl Message {
    pub(crate) fn reply_to(mut self, address: Option<&str>) -> Self {
        self.properties.reply_to = address.map(str::to_owned);
        self
    }

    pub(crate) fn typed(mut self, message_type: Option<&str>) -> Self {
        self.properties.message_type = message_type.map(str::to_owned);
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.properties.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same with another message id: another request.
    pub(crate) fn id(mut self, id: &str) -> Self {
        self.properties.message_id = Some(id.to_owned());
        self
    }

    pub(crate) fn redelivered(mut self) -> Self {
        self.redelivered = true;
        self
    }
}

pub(crate) fn delivery(message: Message) -> (Delivery, Settlement) {
    let settlement = Settlement::default();
    let delivery = Delivery {
        properties: message.properties.into(),
        size: message.body.len(),
        body: message.body,
        queue: "bus7.invoke".into(),
        routing_key: message.topic.into(),
        redelivered: message.redelivered,
        earlier_deliveries: message.earlier_deliveries,
        delivery_tag: 1,
        arrived: Clock::SYSTEM.now(),
        settle: Box::new(Settler(settlement.clone())),
    };
    (delivery, settlement)
}
