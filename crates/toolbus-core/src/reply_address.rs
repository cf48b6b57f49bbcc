//! Addresses that replies may go to.
//!
//! A reply is a message with the daemon's authority, so its address is checked before the tool runs.

use toolbus_protocol::{Envelope, MAX_SHORT_STRING, ReplyTo, topic};

use crate::bus::Target;
use crate::caller::{AgentName, Caller};

/// Rules of the addresses that replies may go to.
#[derive(Debug, Clone)]
pub struct ReplyRules {
    /// Patterns of the topics that replies may go to.
    pub reply_topics: Vec<String>,
    /// Topics on which this daemon takes requests.
    pub request_topics: Vec<String>,
    /// Prefix of this daemon's own queues.
    pub queue_prefix: String,
    /// Topic for replies to requests without an address.
    pub default_topic: String,
    /// Whether a caller may name no topic but its own, in which its name comes last: where the broker verifies the
    /// caller.
    pub own_topics_only: bool,
}

/// A checked address: the routes to try, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) first: Target,
    pub(crate) second: Option<Target>,
    pub(crate) mandatory: bool,
    /// Whether a peer means a topic that replies may not go to, so that a queue of that name is hardly there.
    pub(crate) is_doubtful: bool,
    /// As the sender wrote it; empty when absent.
    pub(crate) written: String,
}

impl Address {
    /// For a call that publishes no reply.
    pub(crate) const fn none() -> Self {
        let first = Target::Queue(String::new());
        Self { first, second: None, mandatory: false, is_doubtful: false, written: String::new() }
    }
}

/// An address that no reply may go to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressRefused {
    #[error("it is a topic for requests")]
    RequestTopic,
    #[error("it is a queue of a daemon or an agent")]
    OwnedQueue,
    #[error("it is a topic of another agent, or of none")]
    OthersTopic,
    #[error("bus.reply_topics does not permit this topic, and there is no queue of that name")]
    Nowhere,
    #[error("there is no queue of that name")]
    NoQueue,
    #[error("the broker does not let the daemon publish there: {0}")]
    Forbidden(String),
    #[error("it is longer than {MAX_SHORT_STRING} bytes")]
    TooLong,
}

impl ReplyRules {
    /// The address of a call that arrived on `topic_of_call`. Without one, a bridge's reply goes to its caller alone,
    /// and what became of a script to a topic of its own, as peers expect.
    pub(crate) fn check_call(
        &self,
        envelope: &Envelope,
        topic_of_call: &str,
        caller: &Caller,
    ) -> Result<Address, AddressRefused> {
        let address = self.check(&envelope.reply_to, &envelope.message_type, caller)?;
        if !envelope.reply_to.is_empty() {
            return Ok(address);
        }
        let default = match (topic_of_call, &caller.agent) {
            (topic::SCRIPT_INVOKE, _) => topic::SCRIPT_RESULT.to_owned(),
            (topic::TOOL_INVOKE_MCP, Some(agent)) => format!("{}.{agent}", topic::TOOL_RESULT),
            _ => return Ok(address),
        };
        Ok(Address { first: Target::Topic(default), ..address })
    }

    /// Reads an address and decides which routes it has.
    pub(crate) fn check(&self, reply_to: &str, message_type: &str, caller: &Caller) -> Result<Address, AddressRefused> {
        let address = |first: Target, second: Option<Target>, mandatory| Address {
            first,
            second,
            mandatory,
            is_doubtful: false,
            written: reply_to.to_owned(),
        };
        let topic = |name: &str| match self.is_reply_topic(name) {
            true if self.own_topics_only && !is_own(name, caller) => Err(AddressRefused::OthersTopic),
            known => Ok(known.then(|| Target::Topic(name.to_owned()))),
        };
        let queue = |name: &str| Target::Queue(name.to_owned());
        Ok(match ReplyTo::read(reply_to, message_type) {
            ReplyTo::Absent => address(Target::Topic(self.default_topic.clone()), None, true),
            // Never mandatory: the broker returns such a message although it delivers it.
            ReplyTo::Direct(name) => address(queue(checked_length(name)?), None, false),
            ReplyTo::TopicFirst(name) => {
                self.check_name(name)?;
                match topic(name)? {
                    Some(topic) => address(topic, Some(queue(name)), true),
                    None => Address { is_doubtful: true, ..address(queue(name), None, true) },
                }
            }
            ReplyTo::QueueFirst(name) => {
                self.check_name(name)?;
                address(queue(name), topic(name)?, true)
            }
        })
    }

    fn check_name(&self, name: &str) -> Result<(), AddressRefused> {
        checked_length(name)?;
        let requests = self.request_topics.iter().map(String::as_str).chain(topic::REQUEST_TOPICS);
        if requests.into_iter().any(|pattern| topic::matches(pattern, name)) {
            return Err(AddressRefused::RequestTopic);
        }
        let owned = |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
        if owned(&self.queue_prefix) || owned("toolbus") || owned("rockbot") {
            return Err(AddressRefused::OwnedQueue);
        }
        Ok(())
    }

    fn is_reply_topic(&self, name: &str) -> bool {
        self.reply_topics.iter().any(|pattern| topic::matches(pattern, name))
    }
}

/// Whether the caller's name comes last in a topic.
fn is_own(topic: &str, caller: &Caller) -> bool {
    let agent = caller.agent.as_ref().map(AgentName::as_str);
    agent.and_then(|agent| topic.strip_suffix(agent)).is_some_and(|before| before.ends_with('.'))
}

fn checked_length(name: &str) -> Result<&str, AddressRefused> {
    if name.len() > MAX_SHORT_STRING { Err(AddressRefused::TooLong) } else { Ok(name) }
}
