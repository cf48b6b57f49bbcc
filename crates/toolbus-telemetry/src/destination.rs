//! Queues and topics that messages come from, as spans and metrics name them.

use std::collections::HashMap;
use std::sync::Arc;

use opentelemetry::KeyValue;
use parking_lot::RwLock;

use crate::attributes::{ErrorLabel, FAILURES, Prebuilt};
use crate::settings::BusIdentity;

/// Destinations with names of their own. Queues and topics come from configuration, but a queue of another party may
/// be bound to anything.
const MAX_DESTINATIONS: usize = 64;

const _: () = assert!((MAX_DESTINATIONS + 1) * FAILURES <= crate::tools::MAX_SERIES, "every destination may fail");

/// One queue together with one topic.
#[derive(Debug)]
pub(crate) struct Destination {
    /// `{exchange}:{topic}:{queue}`, without empty and repeated parts.
    pub(crate) name: Arc<str>,
    /// Name of the consumer's span.
    pub(crate) span_name: String,
    system: &'static str,
    server_address: Option<Arc<str>>,
    by_failure: Prebuilt<FAILURES>,
}

impl Destination {
    fn new(name: String, identity: &BusIdentity) -> Arc<Self> {
        Arc::new(Self {
            span_name: format!("process {name}"),
            name: name.into(),
            system: identity.system,
            server_address: identity.server_address.as_deref().map(Arc::from),
            by_failure: Prebuilt::default(),
        })
    }

    /// Attributes of `messaging.process.duration` and `messaging.client.consumed.messages`.
    pub(crate) fn processed(&self, failure: ErrorLabel) -> &[KeyValue] {
        self.by_failure.get(failure.index(), || {
            let fixed = [
                KeyValue::new("messaging.operation.name", "process"),
                KeyValue::new("messaging.system", self.system),
                KeyValue::new("messaging.destination.name", Arc::clone(&self.name)),
            ];
            let server = self.server_address.clone().map(|address| KeyValue::new("server.address", address));
            fixed.into_iter().chain(server).chain(failure.attribute())
        })
    }
}

/// The topics of each queue.
type KnownDestinations = HashMap<Arc<str>, Vec<(String, Arc<Destination>)>>;

/// Every destination that was seen, up to a limit.
#[derive(Debug)]
pub(crate) struct Destinations {
    identity: Arc<BusIdentity>,
    known: RwLock<KnownDestinations>,
    other: Arc<Destination>,
}

impl Destinations {
    pub(crate) fn new(identity: Arc<BusIdentity>) -> Self {
        let other = Destination::new("_other".to_owned(), &identity);
        Self { identity, known: RwLock::default(), other }
    }

    pub(crate) fn of(&self, queue: &Arc<str>, topic: &str) -> Arc<Destination> {
        let (found, full) = {
            let known = self.known.read();
            let of_queue = known.get(queue).and_then(|topics| topics.iter().find(|(known, _)| known == topic));
            (of_queue.map(|(_, destination)| Arc::clone(destination)), is_full(&known))
        };
        match found {
            Some(destination) => destination,
            None if full => Arc::clone(&self.other),
            None => self.add(queue, topic),
        }
    }

    fn add(&self, queue: &Arc<str>, topic: &str) -> Arc<Destination> {
        let mut known = self.known.write();
        if is_full(&known) {
            return Arc::clone(&self.other);
        }
        let topics = known.entry(Arc::clone(queue)).or_default();
        // Another message of the same kind may have been quicker.
        if let Some((_, destination)) = topics.iter().find(|(known, _)| known == topic) {
            return Arc::clone(destination);
        }
        let destination = Destination::new(name(&self.identity.exchange, topic, queue), &self.identity);
        topics.push((topic.to_owned(), Arc::clone(&destination)));
        destination
    }
}

fn is_full(known: &KnownDestinations) -> bool {
    known.values().map(Vec::len).sum::<usize>() >= MAX_DESTINATIONS
}

/// A message published to the queue itself went through the default exchange, which has no name.
fn name(exchange: &str, topic: &str, queue: &str) -> String {
    if topic == queue {
        return queue.to_owned();
    }
    let parts: Vec<&str> = [exchange, topic, queue].into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(":")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Destinations, MAX_DESTINATIONS, name};
    use crate::settings::BusIdentity;

    #[test]
    fn a_name_has_exchange_topic_and_queue_without_repetition() {
        assert_eq!(name("rockbot", "tool.invoke", "toolbus.invoke"), "rockbot:tool.invoke:toolbus.invoke");
        assert_eq!(name("rockbot", "toolbus.invoke", "toolbus.invoke"), "toolbus.invoke");
        assert_eq!(name("", "tool.invoke", "toolbus.invoke"), "tool.invoke:toolbus.invoke");
    }

    #[test]
    fn topics_without_number_share_one_name() {
        let identity = BusIdentity {
            system: "rabbitmq",
            exchange: "rockbot".into(),
            client_id: "toolbus".into(),
            server_address: None,
            server_port: None,
        };
        let destinations = Destinations::new(Arc::new(identity));
        let queue: Arc<str> = "any".into();
        for number in 0..MAX_DESTINATIONS {
            let destination = destinations.of(&queue, &format!("topic.{number}"));
            assert_eq!(*destination.name, format!("rockbot:topic.{number}:any"));
        }
        assert_eq!(&*destinations.of(&queue, "one.more").name, "_other");
        assert_eq!(&*destinations.of(&queue, "topic.7").name, "rockbot:topic.7:any");
    }
}
