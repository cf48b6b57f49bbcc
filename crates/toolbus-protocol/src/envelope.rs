use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Properties, TraceContext, bounded, header};

/// Further headers that are kept of a message; those beyond are as good as absent, unless they narrow what the sender
/// may do.
const MAX_HEADERS: usize = 64;

/// The meaning of a message's properties.
///
/// Everything from outside is still as the sender wrote it: bound it before using it as a name or address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Id of this message, when the sender gave one.
    pub message_id: Option<String>,
    /// Name of the payload's type; empty for a plain client.
    pub message_type: String,
    /// Echoed in the reply; empty when absent.
    pub correlation_id: String,
    /// Reply address; empty when absent.
    pub reply_to: String,
    /// Unix seconds at which the message was sent.
    pub timestamp: Option<u64>,
    /// The sender, as it names itself.
    pub source: Option<String>,
    /// The addressee, on replies.
    pub destination: Option<String>,
    /// The sender's trace.
    pub trace: Option<TraceContext>,
    /// Further headers, by envelope name, in the order of the wire.
    pub headers: Vec<(String, String)>,
}

impl Envelope {
    /// The envelope of a message that leaves now: of this type, from this sender, with an id of its own.
    #[must_use]
    pub fn outgoing(message_type: impl Into<String>, source: &str, message_id: String, now: SystemTime) -> Self {
        Self {
            message_id: Some(message_id),
            message_type: message_type.into(),
            timestamp: now.duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs()),
            source: Some(source.to_owned()),
            ..Self::default()
        }
    }

    /// Makes the message a reply to `request`: with its correlation id, for `destination`.
    #[must_use]
    pub fn replying_to(mut self, request: &Self, destination: Option<String>) -> Self {
        bounded(&request.correlation_id).clone_into(&mut self.correlation_id);
        self.destination = destination;
        self
    }

    /// Adds a further header, by its envelope name.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Reads the properties. Nothing is an error here: what is malformed is absent.
    #[must_use]
    pub fn read(properties: &Properties) -> Self {
        let mut envelope = Self {
            message_id: properties.message_id.clone().filter(|id| !id.is_empty()),
            message_type: properties.message_type.clone().unwrap_or_default(),
            correlation_id: properties.correlation_id.clone().unwrap_or_default(),
            reply_to: properties.reply_to.clone().unwrap_or_default(),
            timestamp: properties.timestamp.filter(|seconds| *seconds > 0),
            ..Self::default()
        };
        envelope.read_headers(properties);
        envelope
    }

    fn read_headers(&mut self, properties: &Properties) {
        let first = |names: [&str; 2]| names.into_iter().find_map(|name| properties.header(name));
        self.trace = first([header::PEER_TRACEPARENT, header::TRACEPARENT])
            .and_then(|parent| TraceContext::parse(parent, first([header::PEER_TRACESTATE, header::TRACESTATE])));
        self.source = properties.header(header::SOURCE).map(str::to_owned);
        self.destination = properties.header(header::DESTINATION).map(str::to_owned);
        for (key, value) in &properties.headers {
            if is_reserved(key) {
                continue;
            }
            let name = match key.strip_prefix("rb-") {
                Some(name) if name.starts_with("rb-") => name,
                Some(_) => key,
                None => continue,
            };
            let doubled = name.len() < key.len();
            let is_full = self.headers.len() >= MAX_HEADERS;
            match self.headers.iter_mut().find(|(known, _)| known == name) {
                Some((_, kept)) if doubled => kept.clone_from(value),
                None if !is_full || is_narrowing(name) => self.headers.push((name.to_owned(), value.clone())),
                _ => {}
            }
        }
    }

    /// The value of envelope header `name`, such as [`header::TIMEOUT_MS`].
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Writes the properties, persistent, as a peer expects them: absent strings are present and empty, headers doubled.
    #[must_use]
    pub fn into_properties(self) -> Properties {
        let mut headers = Vec::with_capacity(self.headers.len() + 6);
        headers.extend(self.source.map(|name| (header::SOURCE.to_owned(), name)));
        headers.extend(self.destination.map(|name| (header::DESTINATION.to_owned(), name)));
        headers.extend(self.headers.into_iter().map(|(name, value)| (header::on_the_wire(&name), value)));
        if let Some(trace) = &self.trace {
            for name in [header::PEER_TRACEPARENT, header::TRACEPARENT] {
                headers.push((name.to_owned(), trace.traceparent().to_owned()));
            }
            for name in [header::PEER_TRACESTATE, header::TRACESTATE] {
                headers.extend(trace.tracestate().map(|state| (name.to_owned(), state.to_owned())));
            }
        }
        Properties {
            content_type: Some("application/json".to_owned()),
            message_id: self.message_id,
            message_type: Some(self.message_type),
            correlation_id: Some(self.correlation_id),
            reply_to: Some(self.reply_to),
            timestamp: self.timestamp,
            user_id: None,
            expiration: None,
            persistent: true,
            headers,
        }
    }
}

/// Whether leaving this header out would give its sender more than it requests, a second run included.
fn is_narrowing(name: &str) -> bool {
    matches!(name, header::TOOL_PROFILE | header::BINDING | header::IDEMPOTENCY_KEY | header::HOPS)
}

fn is_reserved(key: &str) -> bool {
    matches!(
        key,
        header::SOURCE
            | header::DESTINATION
            | header::PEER_TRACEPARENT
            | header::PEER_TRACESTATE
            | header::TRACEPARENT
            | header::TRACESTATE
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Random;

    #[test]
    fn an_outgoing_message_has_an_id_a_sender_and_a_timestamp() {
        let now = UNIX_EPOCH + Duration::from_millis(1_700_000_000_900);
        let envelope = Envelope::outgoing("Toolbus.Pong", "here", Random::seeded(1).id(), now);
        assert_eq!(envelope.message_id, Some(Random::seeded(1).id()));
        assert_eq!((&*envelope.message_type, envelope.source.as_deref()), ("Toolbus.Pong", Some("here")));
        assert_eq!(envelope.timestamp, Some(1_700_000_000));
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Envelope::outgoing("", "", String::new(), before).timestamp, None);
    }

    #[test]
    fn a_reply_echoes_the_correlation_id_of_its_request() {
        let request = Envelope { correlation_id: "7".to_owned(), ..Envelope::default() };
        let reply = Envelope::default().replying_to(&request, Some("ana".to_owned())).with_header("rb-x", "1");
        assert_eq!((&*reply.correlation_id, reply.destination.as_deref()), ("7", Some("ana")));
        assert_eq!(reply.header("rb-x"), Some("1"));
    }
}
