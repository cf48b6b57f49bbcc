use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::messages::{MESSAGES, MessageSchema, key, messages};
use super::operations::{Action, Operation, operations};

/// Version of AsyncAPI's bindings for AMQP.
const BINDING: &str = "0.3.0";
/// The channel of replies.
const REPLY: &str = "reply";

/// Builds the AsyncAPI document of a daemon. It refers to the document of [`messages`] as `messages.schema.json`, in the
/// same folder.
#[must_use]
pub fn asyncapi() -> Value {
    let operations = operations();
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Toolbus",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": env!("CARGO_PKG_LICENSE")},
            "description": "What a Toolbus daemon receives and sends on RabbitMQ. A caller sends what the daemon receives; so does a daemon that uses the tools of another, or of RockBot's programs. The exchange and the topics are those of the default configuration; where calls come on `tool.invoke.X`, lists, hints and pings are on `tool.list.X`, `tool.hints.X` and `tool.ping.X`. The specification is docs/wire.md.",
        },
        "defaultContentType": "application/json",
        "servers": {
            "rabbitmq": {
                "host": "localhost:5672",
                "protocol": "amqp",
                "protocolVersion": "0.9.1",
                "description": "RabbitMQ, from 3.10 on; `bus.url` has its address. `amqps` is for TLS.",
                "security": [{"type": "userPassword"}],
            },
        },
        "channels": channels(&operations),
        "operations": operations.iter().map(|operation| (operation.id.to_owned(), described(operation))).collect::<Map<_, _>>(),
        "components": {
            "messages": components(),
            "operationBindings": {
                "receive": {"amqp": {"ack": true, "bindingVersion": BINDING}},
                "send": {"amqp": {"deliveryMode": 2, "timestamp": true, "bindingVersion": BINDING}},
            },
        },
    })
}

/// The messages, with headers and bodies of the other document.
fn components() -> Map<String, Value> {
    let schemas = messages();
    let definition = |name: &str| json!({"$ref": format!("./messages.schema.json#/$defs/{name}")});
    let described = |message: &MessageSchema| {
        let described = json!({
            "name": message.name,
            "title": message.key(),
            "headers": definition(if message.is_read() { "RequestHeaders" } else { "ReplyHeaders" }),
            "payload": definition(message.key()),
            "bindings": {"amqp": {"messageType": message.name, "bindingVersion": BINDING}},
        });
        let summary = schemas.pointer(&format!("/$defs/{}/description", message.key()));
        (message.key().to_owned(), with(described, "summary", summary.cloned()))
    };
    MESSAGES.iter().map(described).collect()
}

/// The topics, and the addresses that requests name for their replies.
fn channels(operations: &[Operation]) -> Map<String, Value> {
    let mut topics: BTreeMap<&str, Vec<&'static str>> = BTreeMap::new();
    for operation in operations {
        topics.entry(&operation.topic).or_default().extend(operation.messages);
    }
    let topics = topics.iter().map(|(topic, messages)| (channel_id(topic), channel(topic, messages)));
    let replies: Vec<_> = operations.iter().flat_map(|operation| operation.replies).copied().collect();
    let reply = json!({
        "address": null,
        "description": "The address of a request's `reply_to`: a queue, on the default exchange, or a topic. Of a request of a type of RockBot or Toolbus it is tried as a topic first, of any other as a queue.",
        "messages": components_of(&replies),
    });
    topics.chain([(REPLY.to_owned(), reply)]).collect()
}

fn channel(topic: &str, messages: &[&'static str]) -> Value {
    let parameters = [("agent", "Name of the agent."), ("pool", "Name of the pool of agents.")];
    let parameter = parameters.into_iter().find(|(name, _)| topic.contains(&format!("{{{name}}}")));
    let channel = json!({
        "address": topic,
        "messages": components_of(messages),
        "bindings": {"amqp": {
            "is": "routingKey",
            "exchange": {"name": "rockbot", "type": "topic", "durable": true, "autoDelete": false, "vhost": "/"},
            "bindingVersion": BINDING,
        }},
    });
    with(channel, "parameters", parameter.map(|(name, meaning)| json!({name: {"description": meaning}})))
}

fn components_of(messages: &[&'static str]) -> Map<String, Value> {
    let component = |name| json!({"$ref": format!("#/components/messages/{name}")});
    messages.iter().map(|name| (key(name).to_owned(), component(key(name)))).collect()
}

fn described(operation: &Operation) -> Value {
    let action = match operation.action {
        Action::Receive => "receive",
        Action::Send => "send",
    };
    let channel = channel_id(&operation.topic);
    let described = json!({
        "action": action,
        "summary": operation.summary,
        "channel": {"$ref": format!("#/channels/{channel}")},
        "messages": in_channel(&channel, operation.messages),
        "bindings": {"$ref": format!("#/components/operationBindings/{action}")},
    });
    let reply = json!({
        "address": {"location": "$message.header#/reply_to", "description": "The property `reply_to` of AMQP."},
        "channel": {"$ref": format!("#/channels/{REPLY}")},
        "messages": in_channel(REPLY, operation.replies),
    });
    with(described, "reply", Some(reply).filter(|_| !operation.replies.is_empty()))
}

fn in_channel(channel: &str, names: &[&'static str]) -> Vec<Value> {
    names.iter().map(|name| json!({"$ref": format!("#/channels/{channel}/messages/{}", key(name))})).collect()
}

/// The object with one more field, if there is one.
fn with(mut object: Value, name: &str, field: Option<Value>) -> Value {
    if let (Some(fields), Some(field)) = (object.as_object_mut(), field) {
        fields.insert(name.to_owned(), field);
    }
    object
}

/// A topic as a name: `toolMetaToolsAgent` of `tool.meta.tools.{agent}`.
fn channel_id(topic: &str) -> String {
    let (mut id, mut is_start) = (String::new(), false);
    for c in topic.chars() {
        if c.is_ascii_alphanumeric() {
            id.push(if is_start { c.to_ascii_uppercase() } else { c });
        }
        is_start = !c.is_ascii_alphanumeric();
    }
    id
}
