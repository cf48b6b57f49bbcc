//! Topics: routing keys of the topic exchange, and the patterns that queues are bound by.

/// Requests to run a tool.
pub const TOOL_INVOKE: &str = "tool.invoke";
/// Where an answer goes that has no address.
pub const TOOL_RESULT: &str = "tool.result";
/// Requests to cancel a running call.
pub const TOOL_CANCEL: &str = "tool.cancel";

/// Topics on which requests travel: no answer may ever be published there.
///
/// As patterns; a topic named in the configuration comes on top of these.
pub const REQUEST_TOPICS: [&str; 15] = [
    "tool.invoke.#",
    "tool.list.#",
    "tool.ping.#",
    "tool.cancel.#",
    "tool.session.end.#",
    "tool.meta.mcp.refresh",
    "mcp.manage",
    "script.invoke.#",
    "discovery.announce.#",
    "agent.task.#",
    "scheduled.task.#",
    "llm.request.#",
    "user.message.#",
    "user.feedback.#",
    "user.history.request.#",
];

/// Whether `topic` matches `pattern`: `*` stands for one word, `#` for any number of words, none included.
///
/// Source: AMQP 0-9-1, topic exchange.
#[must_use]
pub fn matches(pattern: &str, topic: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('.').collect();
    let topic: Vec<&str> = topic.split('.').collect();
    words_match(&pattern, &topic)
}

/// Iterative with one remembered `#`, so that a hostile pattern costs at most pattern × topic steps.
fn words_match(pattern: &[&str], topic: &[&str]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < topic.len() {
        match pattern.get(p) {
            Some(&"#") => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(&word) if word == "*" || topic.get(t) == Some(&word) => {
                p += 1;
                t += 1;
            }
            _ => match retry {
                Some((after, from)) => {
                    p = after;
                    t = from + 1;
                    retry = Some((after, t));
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|word| *word == "#")
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_a_topic_exchange_does() {
        let table = [
            ("tool.invoke", "tool.invoke", true),
            ("tool.invoke", "tool.invoke.mcp", false),
            ("agent.*", "agent.task", true),
            ("agent.*", "agent.task.x", false),
            ("agent.*", "agent", false),
            ("agent.#", "agent", true),
            ("agent.#", "agent.task", true),
            ("agent.#", "agent.task.x", true),
            ("#", "anything.at.all", true),
            ("#.end", "end", true),
            ("#.end", "a.b.end", true),
            ("#.end", "a.b.ending", false),
            ("a.#.b.*", "a.b.b.c", true),
            ("a.#.b.*", "a.x.b", false),
            ("*.*", "a.b", true),
            ("*.#.*", "a", false),
        ];
        for (pattern, topic, expected) in table {
            assert_eq!(matches(pattern, topic), expected, "{pattern} {topic}");
        }
    }
}
