//! What identifies a request, across redeliveries, restarts and daemons.

use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::bus::Delivery;
use crate::caller::Caller;
use crate::ledger::{Fingerprint, RequestKey};
use crate::request::{Dialect, Request, RequestedSource};

/// What identifies a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestIdentity {
    pub(crate) key: RequestKey,
    /// What is asked for.
    pub(crate) fingerprint: Fingerprint,
    pub(crate) kind: IdentityKind,
}

/// By what a request is identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdentityKind {
    /// By a key that its caller gave for this purpose. It stands for one tool and one set of arguments.
    Given,
    /// By its `message_id`, and by what it asks for: publishers that count from one after each start reuse ids.
    MessageId,
    /// By its other ids, its reply address and its body, because it has neither. Another request may have the same.
    Content,
}

impl RequestIdentity {
    /// Identifies a request; `None` if it has no id at all, because then nothing tells it from another like it.
    pub(crate) fn of(request: &Request, delivery: &Delivery) -> Option<Self> {
        if request.idempotency_key.is_some() {
            return Self::given(request);
        }
        let Some(message_id) = &request.envelope.message_id else { return Self::of_content(request, delivery) };
        let fingerprint = asked(request, request.arguments.as_deref().unwrap_or_default().as_bytes());
        let mut key = scope(b"message", &request.caller);
        key.add(message_id.as_bytes());
        key.add(&fingerprint);
        Some(Self { key: RequestKey(key.end()), fingerprint: Fingerprint(fingerprint), kind: IdentityKind::MessageId })
    }

    /// Identifies a request by the key that its caller gave; `None` without one.
    pub(crate) fn given(request: &Request) -> Option<Self> {
        let given = request.idempotency_key.as_ref()?;
        let mut key = scope(b"given", &request.caller);
        key.add(given.as_bytes());
        let fingerprint = Fingerprint(asked(request, &canonical(request.arguments.as_deref())));
        Some(Self { key: RequestKey(key.end()), fingerprint, kind: IdentityKind::Given })
    }

    fn of_content(request: &Request, delivery: &Delivery) -> Option<Self> {
        let envelope = &request.envelope;
        if !request.has_call_id && envelope.correlation_id.is_empty() {
            return None;
        }
        let mut key = scope(b"content", &request.caller);
        let timestamp = envelope.timestamp.unwrap_or_default().to_le_bytes();
        let user = delivery.properties.user_id.as_deref().unwrap_or_default();
        for part in [&*envelope.correlation_id, &envelope.reply_to, user, &delivery.routing_key] {
            key.add(part.as_bytes());
        }
        key.add(&timestamp);
        key.add(&delivery.body);
        let key = key.end();
        Some(Self { key: RequestKey(key), fingerprint: Fingerprint(key), kind: IdentityKind::Content })
    }

    /// The key by which backends recognise a repetition: no other caller's request has the same. `None` if another
    /// request of this caller may have it.
    pub(crate) fn onward(&self) -> Option<Arc<str>> {
        (self.kind != IdentityKind::Content).then(|| self.key.to_string().into())
    }
}

/// Digests parts, each with its length.
struct Parts(Sha256);

impl Parts {
    fn new(purpose: &[u8]) -> Self {
        let mut parts = Self(Sha256::new());
        parts.add(purpose);
        parts
    }

    fn add(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn end(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// What a caller may use depends on its binding and profile, so each has its own requests.
fn scope(purpose: &[u8], caller: &Caller) -> Parts {
    let mut parts = Parts::new(purpose);
    for part in [Some(&caller.owner), caller.binding.as_ref(), caller.profile.as_ref()] {
        parts.add(part.map_or("", |part| part).as_bytes());
    }
    parts
}

/// The digest of what is asked for.
fn asked(request: &Request, arguments: &[u8]) -> [u8; 32] {
    let mut parts = Parts::new(match request.dialect {
        Dialect::Tool => b"tool",
        Dialect::Script => b"script",
    });
    let (route, server) = match &request.route {
        RequestedSource::Any => ("any", ""),
        RequestedSource::AnyServer => ("any-server", ""),
        RequestedSource::Server(server) => ("server", server.as_str()),
    };
    for part in [route, server, &request.tool_name] {
        parts.add(part.as_bytes());
    }
    parts.add(arguments);
    parts.end()
}

/// Arguments in one form, whatever the order of their fields; as they are if they are not JSON.
fn canonical(arguments: Option<&str>) -> Vec<u8> {
    let text = arguments.unwrap_or("{}");
    let mut bytes = Vec::with_capacity(text.len());
    match serde_json::from_str(text) {
        Ok(value) => write_canonical(&value, &mut bytes),
        Err(_) => bytes.extend_from_slice(text.as_bytes()),
    }
    bytes
}

/// Writes a value with sorted fields. The parser bounds its depth.
fn write_canonical(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            bytes.push(b'{');
            for (name, value) in fields {
                bytes.extend_from_slice(Value::from(name.as_str()).to_string().as_bytes());
                write_canonical(value, bytes);
            }
            bytes.push(b'}');
        }
        Value::Array(elements) => {
            bytes.push(b'[');
            for element in elements {
                write_canonical(element, bytes);
                bytes.push(b',');
            }
            bytes.push(b']');
        }
        scalar => bytes.extend_from_slice(scalar.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_the_same_whatever_the_order_of_their_fields() {
        let same = |one: &str, other: &str| canonical(Some(one)) == canonical(Some(other));
        assert!(same(r#"{"a":1,"b":{"c":[1,2],"d":null}}"#, r#" {"b":{"d":null,"c":[1, 2]}, "a":1}"#));
        assert!(same("{}", " { }") && canonical(None) == canonical(Some("{}")));
        for (one, other) in [
            (r#"{"a":1}"#, r#"{"a":"1"}"#),
            (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#),
            (r#"{"a":{}}"#, r#"{"a":[]}"#),
            (r#"{"a":[[1],2]}"#, r#"{"a":[[1,2]]}"#),
            (r#"{"a":"b\",\"c"}"#, r#"{"a":"b","c":""}"#),
            ("{", "{}"),
        ] {
            assert!(!same(one, other), "{one} {other}");
        }
    }
}
