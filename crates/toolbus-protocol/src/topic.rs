//! Topics: routing keys of the topic exchange, and the patterns that queues are bound by.

/// Requests to run a tool.
pub const TOOL_INVOKE: &str = "tool.invoke";
/// Requests to run a tool of an MCP server.
pub const TOOL_INVOKE_MCP: &str = "tool.invoke.mcp";
/// Topic of replies to requests without a reply address.
pub const TOOL_RESULT: &str = "tool.result";
/// Requests to cancel a running call.
pub const TOOL_CANCEL: &str = "tool.cancel";
/// Requests for the tools that the sender may use.
pub const TOOL_LIST: &str = "tool.list";
/// Requests for a hint which of the sender's services fit a text.
pub const TOOL_HINTS: &str = "tool.hints";
/// Requests for the description of a daemon.
pub const TOOL_PING: &str = "tool.ping";
/// Announcements of programs that the tools that they provide are there, or have changed.
pub const TOOL_ANNOUNCE: &str = "tool.announce";
/// Announcements of agents that a session is over.
pub const TOOL_SESSION_END: &str = "tool.session.end";

/// Requests to run a Python script.
pub const SCRIPT_INVOKE: &str = "script.invoke";
/// Topic of the outcomes of scripts whose requests have no reply address.
pub const SCRIPT_RESULT: &str = "script.result";

/// Requests for the index of MCP servers.
pub const MCP_REFRESH: &str = "tool.meta.mcp.refresh";
/// Requests about MCP servers.
pub const MCP_MANAGE: &str = "mcp.manage";

/// Returns the topic that replaces `control`, such as [`TOOL_LIST`], for the daemons that take calls from the topic
/// `invoke` alone: `tool.list.X` for `tool.invoke.X`. Absent for a topic that does not begin so.
#[must_use]
pub fn control_of(control: &str, invoke: &str) -> Option<String> {
    let rest = invoke.strip_prefix(TOOL_INVOKE)?;
    (rest.is_empty() || rest.starts_with('.')).then(|| format!("{control}{rest}"))
}

/// Returns the one of [`TOOL_LIST`], [`TOOL_HINTS`] and [`TOOL_PING`] that a topic is, or [is of](control_of).
#[must_use]
pub fn control_in(topic: &str) -> Option<&'static str> {
    let is_of =
        |control: &&str| topic.strip_prefix(control).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    [TOOL_LIST, TOOL_HINTS, TOOL_PING].into_iter().find(is_of)
}

/// Topic of the calls for `provider`, a program that provides tools.
#[must_use]
pub fn of_provider(provider: &str) -> String {
    format!("{TOOL_INVOKE}.provider.{provider}")
}

/// Topic of the lists of MCP servers for `agent`.
#[must_use]
pub fn mcp_servers(agent: &str) -> String {
    format!("tool.meta.mcp.{agent}")
}

/// Topic of the replies to requests of `agent` about MCP servers.
#[must_use]
pub fn mcp_manage_response(agent: &str) -> String {
    format!("mcp.manage.response.{agent}")
}

/// Topic of the notifications to `agent` that its tools changed.
#[must_use]
pub fn tools_changed(agent: &str) -> String {
    format!("tool.meta.tools.{agent}")
}

/// Topic of the due tasks that `agent` scheduled.
#[must_use]
pub fn scheduled_task(agent: &str) -> String {
    format!("scheduled.task.{agent}")
}

/// Announcements of agents.
pub const DISCOVERY_ANNOUNCE: &str = "discovery.announce";
/// Statements of agents about tasks that they work on.
pub const AGENT_TASK_STATUS: &str = "agent.task.status";

/// Topic of the tasks for `agent`.
#[must_use]
pub fn agent_task(agent: &str) -> String {
    format!("agent.task.{agent}")
}

/// Topic of the cancellations of tasks of `agent`.
#[must_use]
pub fn agent_task_cancel(agent: &str) -> String {
    format!("agent.task.cancel.{agent}")
}

/// Topic of the results of tasks that `caller` gave.
#[must_use]
pub fn agent_response(caller: &str) -> String {
    format!("agent.response.{caller}")
}

/// Reports of sub-agents.
pub const SUBAGENT_REPORT: &str = "subagent.report";

/// Topic of the tasks for the agents of `pool`.
#[must_use]
pub fn subagent_task(pool: &str) -> String {
    format!("subagent.task.{pool}")
}

/// Topic of the cancellations of tasks for the agents of `pool`.
#[must_use]
pub fn subagent_cancel(pool: &str) -> String {
    format!("subagent.cancel.{pool}")
}

/// Topic of the progress of the sub-agents of `agent`.
#[must_use]
pub fn subagent_progress(agent: &str) -> String {
    format!("subagent.progress.{agent}")
}

/// Topic of the outcomes of the tasks of the sub-agents of `agent`.
#[must_use]
pub fn subagent_result(agent: &str) -> String {
    format!("subagent.result.{agent}")
}

/// Topics on which requests travel: no reply may ever be published there.
///
/// As patterns; a topic named in the configuration comes on top of these.
pub const REQUEST_TOPICS: [&str; 20] = [
    "tool.invoke.#",
    "tool.list.#",
    "tool.hints.#",
    "tool.ping.#",
    "tool.cancel.#",
    "tool.announce.#",
    "tool.session.end.#",
    MCP_REFRESH,
    MCP_MANAGE,
    "script.invoke.#",
    "discovery.announce.#",
    "agent.task.#",
    "scheduled.task.#",
    "subagent.task.#",
    "subagent.cancel.#",
    SUBAGENT_REPORT,
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
    // Most pairs differ from their first letter on.
    if let (Some(&wanted), Some(found)) = (pattern.as_bytes().first(), topic.as_bytes().first())
        && wanted != *found
        && !matches!(wanted, b'*' | b'#')
    {
        return false;
    }
    let (mut pattern, mut topic) = (Words(Some(pattern)), Words(Some(topic)));
    // Where to go on when the words after the last `#` did not fit: one remembered position is enough, because a later
    // `#` can take over whatever an earlier one might. A hostile pattern costs at most pattern × topic steps.
    let mut retry: Option<(Words<'_>, Words<'_>)> = None;
    loop {
        match (pattern.next(), topic.clone().next()) {
            (Some("#"), _) => retry = Some((pattern, topic)),
            (None, None) => return true,
            (Some(word), Some(found)) if word == "*" || word == found => {
                topic.next();
            }
            _ => {
                let Some((after, from)) = &mut retry else { return false };
                if from.next().is_none() {
                    return false;
                }
                (pattern, topic) = (*after, *from);
            }
        }
    }
}

/// The words of a name, from left to right, without copying any.
#[derive(Clone, Copy)]
struct Words<'a>(Option<&'a str>);

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let rest = self.0?;
        let (word, rest) = match rest.split_once('.') {
            Some((word, rest)) => (word, Some(rest)),
            None => (rest, None),
        };
        self.0 = rest;
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::{TOOL_LIST, control_in, control_of, matches};

    #[test]
    fn each_topic_of_calls_has_a_topic_of_lists() {
        let table = [
            ("tool.invoke", Some("tool.list")),
            ("tool.invoke.lab", Some("tool.list.lab")),
            ("tool.invoke.a.b", Some("tool.list.a.b")),
            ("tool.invoker", None),
            ("lab.calls", None),
        ];
        for (invoke, list) in table {
            assert_eq!(control_of(TOOL_LIST, invoke).as_deref(), list, "{invoke}");
            assert!(list.is_none_or(|list| control_in(list) == Some(TOOL_LIST)), "{invoke}");
        }
        assert!(["tool.listing", "tool.lis", "tool.cancel"].into_iter().all(|topic| control_in(topic).is_none()));
    }

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
