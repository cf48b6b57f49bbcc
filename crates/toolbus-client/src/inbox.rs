use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use toolbus_core::bus::{Bus, Delivery, Ownership, Subscription};
use toolbus_protocol::{message_type, new_message_id};

use crate::pending::Pending;

/// Answers that may be on their way to one client at a time.
const PREFETCH: u16 = 64;

/// Where a client hears of what is for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inbox {
    /// A queue that lasts as long as the connection.
    Own {
        /// Topics that it is bound to besides.
        topics: Vec<String>,
    },
    /// A queue that somebody made for it, and bound to topics.
    Given {
        /// The queue.
        queue: String,
        /// The topic that answers are to go to.
        reply_to: String,
        /// The other topics on which something is heard. What comes by any other way was sent by nobody knows whom.
        topics: Vec<String>,
    },
}

/// An inbox that is consumed.
pub(crate) struct Opened {
    pub(crate) queue: String,
    pub(crate) reply_to: String,
    /// The topics that count; absent: everything that comes.
    trusted: Option<Vec<String>>,
    deliveries: mpsc::Receiver<Delivery>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self::Own { topics: Vec::new() }
    }
}

impl Inbox {
    pub(crate) fn open(self, bus: &dyn Bus) -> Opened {
        let (subscription, reply_to, trusted) = match self {
            Self::Own { topics } => {
                let queue = format!("reply.{}", new_message_id());
                let reply_to = queue.clone();
                (Subscription { queue, topics, prefetch: PREFETCH, ownership: Ownership::Replica }, reply_to, None)
            }
            Self::Given { queue, reply_to, topics } => {
                let trusted = topics.into_iter().chain([reply_to.clone()]).collect();
                let topics = Vec::new();
                let ownership = Ownership::Existing;
                (Subscription { queue, topics, prefetch: PREFETCH, ownership }, reply_to, Some(trusted))
            }
        };
        let queue = subscription.queue.clone();
        Opened { queue, reply_to, trusted, deliveries: bus.consume(subscription) }
    }
}

impl Opened {
    /// Hands what comes to whom it is for, until the bus is closed.
    pub(crate) async fn receive(mut self, pending: Arc<Pending>, news: watch::Sender<u64>) {
        while let Some(delivery) = self.deliveries.recv().await {
            let is_trusted =
                self.trusted.as_ref().is_none_or(|topics| topics.iter().any(|topic| **topic == *delivery.routing_key));
            let kind = delivery.properties.message_type.as_deref();
            let unclaimed = match kind {
                _ if !is_trusted => Some(delivery),
                Some(message_type::TOOLS_CHANGED) => {
                    news.send_modify(|count| *count += 1);
                    Some(delivery)
                }
                Some(message_type::TOOL_PROGRESS) => {
                    pending.report(&delivery);
                    Some(delivery)
                }
                _ => pending.answer(delivery),
            };
            if let Some(done) = unclaimed {
                done.settle.acknowledge().await;
            }
        }
    }
}
