/// Prefix of the addresses that RabbitMQ hands to clients of its direct reply-to.
const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to.";

/// The ways to read the `reply_to` of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyTo<'a> {
    /// No address: the topic's default is used.
    Absent,
    /// RabbitMQ's direct reply-to: the default exchange, never mandatory.
    Direct(&'a str),
    /// From a peer: a topic, and failing that a queue.
    TopicFirst(&'a str),
    /// From a plain client: its queue, and failing that a topic.
    QueueFirst(&'a str),
}

impl<'a> ReplyTo<'a> {
    /// Reads an address, given the `type` of the request that carries it.
    #[must_use]
    pub fn read(reply_to: &'a str, message_type: &str) -> Self {
        if reply_to.is_empty() {
            Self::Absent
        } else if reply_to.starts_with(DIRECT_REPLY_TO) {
            Self::Direct(reply_to)
        } else if crate::message_type::is_peer(message_type) {
            Self::TopicFirst(reply_to)
        } else {
            Self::QueueFirst(reply_to)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ReplyTo;

    #[test]
    fn the_sender_decides_how_a_reply_address_is_read() {
        let peer = "RockBot.Tools.ToolInvokeRequest";
        assert_eq!(ReplyTo::read("", peer), ReplyTo::Absent);
        assert_eq!(ReplyTo::read("tool.result.ana", peer), ReplyTo::TopicFirst("tool.result.ana"));
        assert_eq!(ReplyTo::read("my-queue", ""), ReplyTo::QueueFirst("my-queue"));
        assert_eq!(ReplyTo::read("amq.rabbitmq.reply-to.g1.x", peer), ReplyTo::Direct("amq.rabbitmq.reply-to.g1.x"));
    }
}
