/// Longest AMQP short string, in bytes: ids, types, addresses and header names.
pub const MAX_SHORT_STRING: usize = 255;

/// The AMQP properties of a message, as read from or written to the broker.
///
/// Strings that are absent are `None`; an empty string is present and empty, as peers send it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties {
    /// MIME type of the body.
    pub content_type: Option<String>,
    /// Id of this message.
    pub message_id: Option<String>,
    /// Name of the payload's type.
    pub message_type: Option<String>,
    /// Echoed in the reply.
    pub correlation_id: Option<String>,
    /// Reply address: a topic or a queue.
    pub reply_to: Option<String>,
    /// Unix seconds.
    pub timestamp: Option<u64>,
    /// Login of the sender, verified by the broker.
    pub user_id: Option<String>,
    /// Milliseconds after which the broker takes the message out of a queue; `None`: never.
    pub expiration: Option<u64>,
    /// Whether the message survives a restart of the broker (`delivery_mode` 2).
    pub persistent: bool,
    /// Headers whose value is text, in the order of the wire.
    pub headers: Vec<(String, String)>,
}

impl Properties {
    /// The value of the header spelled exactly `name`.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Cuts `text` to what fits into an AMQP short string, at a character boundary.
#[must_use]
pub fn bounded(text: &str) -> &str {
    let mut end = text.len().min(MAX_SHORT_STRING);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{MAX_SHORT_STRING, bounded};

    #[test]
    fn a_short_text_is_kept() {
        assert_eq!(bounded("call_1"), "call_1");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = "ü".repeat(200);
        let cut = bounded(&text);
        assert_eq!(cut.len(), MAX_SHORT_STRING - 1);
        assert!(cut.chars().all(|c| c == 'ü'));
    }
}
