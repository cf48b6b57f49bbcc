//! Identity of a request: in this process, and across redeliveries, restarts and daemons.

use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::Arc;

use bytes::Bytes;

use serde_json::Value;
use sha2::{Digest, Sha256};
use toolbus_protocol::Properties;

use super::ledger::{Fingerprint, RequestKey, RunToken};
use crate::bus::Delivery;
use crate::caller::Caller;
use crate::failure::Effect;
use crate::request::{Dialect, Request, RequestedSource};

/// Keys by which a request is recognised, and what earlier deliveries did.
pub(crate) struct CallIdentity {
    /// Identity within this process.
    pub(crate) local: Option<LocalIdentity>,
    /// Identity in the ledger and in other processes, once it was needed.
    everywhere: Option<RequestIdentity>,
    /// Content of a request that has neither key nor `message_id`, of which the identity is made.
    content: Option<DeliveredContent>,
    /// Whether the broker has delivered the request before.
    pub(crate) is_redelivered: bool,
    /// Run that the ledger has, once the tool may begin.
    pub(crate) run: Option<RunToken>,
    /// Key of the call around this one, by which its backend recognises it.
    outer_key: Option<Arc<str>>,
}

/// Identity of a request in this process, where most requests are known only: it costs less than a digest that other
/// processes compute as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalIdentity {
    pub(crate) key: LocalKey,
    /// Content of the request, where it is no part of the key.
    pub(crate) fingerprint: Fingerprint,
    pub(crate) kind: IdentityKind,
}

/// Identifies a request in this process: a hash whose seeds no caller knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LocalKey(pub(crate) [u64; 2]);

/// Identity of a request everywhere, and for the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestIdentity {
    pub(crate) key: RequestKey,
    /// Content of the request.
    pub(crate) fingerprint: Fingerprint,
    pub(crate) kind: IdentityKind,
}

/// Of a delivery, what identifies a request that has no key and no `message_id`.
#[derive(Clone)]
struct DeliveredContent {
    properties: Arc<Properties>,
    routing_key: Arc<str>,
    body: Bytes,
}

/// Seeds of [`LocalKey`].
#[derive(Default)]
pub(crate) struct LocalKeys([RandomState; 2]);

/// By what a request is identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdentityKind {
    /// By a key that its caller gave for this purpose. It stands for one tool and one set of arguments.
    Given,
    /// By its `message_id`, and by its content: publishers that count from one after each start reuse ids.
    MessageId,
    /// By its other ids, its reply address and its body, because it has neither. Another request may have the same.
    Content,
}

impl CallIdentity {
    /// Identity of a request that was delivered.
    pub(crate) fn of_delivery(keys: &LocalKeys, request: &Request, delivery: &Delivery) -> Self {
        let everywhere = RequestIdentity::given(request);
        let local = everywhere.map(|given| keys.of(given)).or_else(|| keys.identify(request, delivery));
        let is_content = local.is_some_and(|identity| identity.kind == IdentityKind::Content);
        Self {
            local,
            everywhere,
            content: is_content.then(|| DeliveredContent::of(delivery)),
            is_redelivered: delivery.redelivered || delivery.earlier_deliveries > 0,
            run: None,
            outer_key: None,
        }
    }

    /// Identity of a request that no message brought. `outer_key` is that of the call around it.
    pub(crate) fn of_inner(keys: &LocalKeys, request: &Request, outer_key: Option<Arc<str>>) -> Self {
        let everywhere = RequestIdentity::given(request);
        let local = everywhere.map(|given| keys.of(given));
        Self { local, everywhere, content: None, is_redelivered: false, run: None, outer_key }
    }

    /// Identity of the request for the ledger and other processes. Computed when it is first needed: calls of read-only
    /// tools mostly end without.
    pub(crate) fn everywhere(&mut self, request: &Request) -> Option<RequestIdentity> {
        let identity = self.local?;
        if self.everywhere.is_none() {
            self.everywhere = RequestIdentity::of(request, identity.kind, self.content.as_ref());
        }
        self.everywhere
    }

    /// Whether its caller gave a key for it.
    pub(crate) fn is_given(&self) -> bool {
        self.local.is_some_and(|identity| identity.kind == IdentityKind::Given)
    }

    /// The run that the ledger has, and its request.
    pub(super) fn recorded(&self) -> Option<(RequestKey, RunToken)> {
        Some((self.everywhere?.key, self.run?))
    }

    /// The key by which a backend recognises a repetition.
    pub(crate) fn onward_key(&mut self, request: &Request, effect: Effect) -> Option<Arc<str>> {
        if effect == Effect::ReadOnly {
            return None;
        }
        self.outer_key.clone().or_else(|| self.everywhere(request)?.onward())
    }
}

impl LocalKeys {
    /// Identifies a request without a key; `None` if it has no id at all, because then nothing distinguishes it from
    /// another like it.
    fn identify(&self, request: &Request, delivery: &Delivery) -> Option<LocalIdentity> {
        let Request { envelope, caller, .. } = request;
        let scope = (&caller.owner, &caller.binding, &caller.profile);
        let (key, kind) = match &envelope.message_id {
            Some(message_id) => {
                let content = (request.dialect, &request.route, &request.tool_name, &request.arguments);
                (self.key(&(scope, message_id, content)), IdentityKind::MessageId)
            }
            None if !request.has_call_id && envelope.correlation_id.is_empty() => return None,
            None => {
                let sent = (&envelope.correlation_id, &envelope.reply_to, envelope.timestamp);
                let came = (&delivery.properties.user_id, &delivery.routing_key, &delivery.body);
                (self.key(&(scope, sent, came)), IdentityKind::Content)
            }
        };
        Some(LocalIdentity { key, fingerprint: Fingerprint([0; 32]), kind })
    }

    /// The same of a request that is identified everywhere.
    fn of(&self, RequestIdentity { key, fingerprint, kind }: RequestIdentity) -> LocalIdentity {
        LocalIdentity { key: self.key(&key), fingerprint, kind }
    }

    fn key(&self, value: &impl Hash) -> LocalKey {
        LocalKey(self.0.each_ref().map(|seed| seed.hash_one(value)))
    }
}

impl DeliveredContent {
    fn of(delivery: &Delivery) -> Self {
        let Delivery { properties, routing_key, body, .. } = delivery;
        Self { properties: Arc::clone(properties), routing_key: Arc::clone(routing_key), body: body.clone() }
    }
}

impl RequestIdentity {
    /// Identifies a request of this kind. `content` is there for one that has neither key nor `message_id`.
    fn of(request: &Request, kind: IdentityKind, content: Option<&DeliveredContent>) -> Option<Self> {
        match kind {
            IdentityKind::Given => Self::given(request),
            IdentityKind::MessageId => Self::of_message(request),
            IdentityKind::Content => Some(Self::of_content(request, content?)),
        }
    }

    fn of_message(request: &Request) -> Option<Self> {
        let message_id = request.envelope.message_id.as_ref()?;
        let fingerprint = request_digest(request, request.arguments.as_deref().unwrap_or_default().as_bytes());
        let mut key = scope(b"message", &request.caller);
        key.add(message_id.as_bytes());
        key.add(&fingerprint);
        Some(Self { key: RequestKey(key.end()), fingerprint: Fingerprint(fingerprint), kind: IdentityKind::MessageId })
    }

    fn given(request: &Request) -> Option<Self> {
        let given = request.idempotency_key.as_ref()?;
        let mut key = scope(b"given", &request.caller);
        key.add(given.as_bytes());
        let fingerprint = Fingerprint(request_digest(request, &canonical(request.arguments.as_deref())));
        Some(Self { key: RequestKey(key.end()), fingerprint, kind: IdentityKind::Given })
    }

    fn of_content(request: &Request, content: &DeliveredContent) -> Self {
        let envelope = &request.envelope;
        let DeliveredContent { properties, routing_key, body } = content;
        let mut key = scope(b"content", &request.caller);
        let timestamp = envelope.timestamp.unwrap_or_default().to_le_bytes();
        let user = properties.user_id.as_deref().unwrap_or_default();
        for part in [&*envelope.correlation_id, &envelope.reply_to, user, routing_key] {
            key.add(part.as_bytes());
        }
        key.add(&timestamp);
        key.add(body);
        let key = key.end();
        Self { key: RequestKey(key), fingerprint: Fingerprint(key), kind: IdentityKind::Content }
    }

    /// The key by which backends recognise a repetition: no other caller's request has the same. `None` if another
    /// request of this caller may have it.
    fn onward(&self) -> Option<Arc<str>> {
        (self.kind != IdentityKind::Content).then(|| self.key.to_string().into())
    }
}

/// Digests parts, each with its length.
struct PartsDigest(Sha256);

impl PartsDigest {
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

/// Scope of a caller's requests: the binding and profile are in it, because they decide what the caller may use.
fn scope(purpose: &[u8], caller: &Caller) -> PartsDigest {
    let mut parts = PartsDigest::new(purpose);
    for part in [Some(&caller.owner), caller.binding.as_ref(), caller.profile.as_ref()] {
        parts.add(part.map_or("", |part| part).as_bytes());
    }
    parts
}

/// Digest of the tool and arguments that a request names.
fn request_digest(request: &Request, arguments: &[u8]) -> [u8; 32] {
    let mut parts = PartsDigest::new(match request.dialect {
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
