//! Messages as a client sees them.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, ShortString};
use serde_json::Value;

/// A message that was received.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Exchange of the message.
    pub exchange: String,
    /// Topic of the message, or the queue's name on the default exchange.
    pub routing_key: String,
    /// Properties of the message, headers apart.
    pub properties: BasicProperties,
    /// Headers of the message, as text.
    pub headers: BTreeMap<String, String>,
    /// Body of the message.
    pub data: Vec<u8>,
}

impl Message {
    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn body(&self) -> Value {
        serde_json::from_slice(&self.data).unwrap_or_default()
    }

    /// The property `type`.
    #[must_use]
    pub fn kind(&self) -> &str {
        text(self.properties.kind())
    }

    /// The property `correlation_id`.
    #[must_use]
    pub fn correlation_id(&self) -> &str {
        text(self.properties.correlation_id())
    }

    /// The property `message_id`.
    #[must_use]
    pub fn message_id(&self) -> &str {
        text(self.properties.message_id())
    }

    /// A header, empty when absent.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The wire code of an error; empty for a result.
    #[must_use]
    pub fn code(&self) -> String {
        self.body().get("code").and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// The text of an error; empty for a result.
    #[must_use]
    pub fn error(&self) -> String {
        self.body().get("message").and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// The text of the result of a tool that succeeded.
    ///
    /// # Panics
    ///
    /// When it did not.
    #[must_use]
    #[track_caller]
    pub fn success(&self) -> String {
        assert_eq!((self.code().as_str(), &self.body()["isError"]), ("", &Value::Bool(false)), "{}", self.body());
        self.content()
    }

    /// The text of a result; empty for an error.
    #[must_use]
    pub fn content(&self) -> String {
        self.body().get("content").and_then(Value::as_str).unwrap_or_default().to_owned()
    }
}

impl From<Delivery> for Message {
    fn from(delivery: Delivery) -> Self {
        let headers = delivery.properties.headers().iter().flat_map(lapin::types::FieldTable::inner);
        let shown = |value: &AMQPValue| match value {
            AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
            other => format!("{other:?}"),
        };
        Self {
            exchange: delivery.exchange.to_string(),
            routing_key: delivery.routing_key.to_string(),
            headers: headers.map(|(name, value)| (name.to_string(), shown(value))).collect(),
            properties: delivery.properties,
            data: delivery.data,
        }
    }
}

fn text(value: &Option<ShortString>) -> &str {
    value.as_ref().map_or("", ShortString::as_str)
}
