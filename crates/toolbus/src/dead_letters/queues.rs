//! The queues of a daemon that have dead letters.

use toolbus_protocol::{message_type, topic};

use super::letter::Letter;
use crate::config::Config;

/// Ends of the names of the queues that have dead letters.
pub(crate) const QUEUES: [&str; 9] =
    ["invoke", "control", "mcp", "mcp-manage", "mcp-refresh", "script", "results", "tasks", "subagent-report"];
/// End of the name of a queue of dead letters.
const DEAD: &str = ".dlq";

/// A queue of the daemon that has a dead-letter queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LetterQueue {
    /// Name of the queue.
    pub(crate) queue: String,
    /// The topic of its requests, where all have the same.
    topic: Option<String>,
}

impl LetterQueue {
    /// Topic of a request whose letter does not have the one on which it came.
    pub(crate) fn topic_of(&self, letter: &Letter) -> Option<&str> {
        match letter.kind.as_deref() {
            Some(message_type::TOOL_LIST_REQUEST) => Some(topic::TOOL_LIST),
            Some(message_type::TOOL_HINTS_REQUEST) => Some(topic::TOOL_HINTS),
            Some(message_type::PING) => Some(topic::TOOL_PING),
            _ => self.topic.as_deref(),
        }
    }
}

/// The queues of this name, or all of the daemon's.
pub(crate) fn letter_queues(config: &Config, named: Option<&str>) -> Result<Vec<LetterQueue>, String> {
    let prefix = config.queue_prefix();
    let letter_queue = |end: &str| {
        let topic = match end {
            "invoke" => config.invoke_topics().into_iter().find(|topic| !topic.contains(['*', '#'])),
            "mcp" => Some(topic::TOOL_INVOKE_MCP.to_owned()),
            "mcp-manage" => Some(topic::MCP_MANAGE.to_owned()),
            "mcp-refresh" => Some(topic::MCP_REFRESH.to_owned()),
            "script" => Some(topic::SCRIPT_INVOKE.to_owned()),
            "subagent-report" => Some(topic::SUBAGENT_REPORT.to_owned()),
            _ => None,
        };
        LetterQueue { queue: format!("{prefix}.{end}"), topic }
    };
    let Some(named) = named else { return Ok(QUEUES.map(letter_queue).into()) };
    let name = named.strip_suffix(DEAD).unwrap_or(named);
    let end = name.strip_prefix(&format!("{prefix}.")).unwrap_or(name);
    match QUEUES.iter().find(|queue| **queue == end) {
        Some(end) => Ok(vec![letter_queue(end)]),
        None if name.contains('.') => Ok(vec![LetterQueue { queue: name.to_owned(), topic: None }]),
        None => Err(format!("there is no queue '{named}'; expected one of {}, or a whole name", QUEUES.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_known_by_the_end_of_its_name_and_by_all_of_it() {
        let config = Config::default();
        for name in ["mcp", "toolbus.mcp", "toolbus.mcp.dlq"] {
            let letter_queue = LetterQueue { queue: "toolbus.mcp".into(), topic: Some("tool.invoke.mcp".into()) };
            assert_eq!(letter_queues(&config, Some(name)), Ok(vec![letter_queue]), "{name}");
        }
        let reports = LetterQueue { queue: "toolbus.subagent-report".into(), topic: Some("subagent.report".into()) };
        assert_eq!(letter_queues(&config, Some("subagent-report")), Ok(vec![reports]));
        let others = letter_queues(&config, Some("toolbus.ana.invoke.dlq")).unwrap();
        assert_eq!(others, [LetterQueue { queue: "toolbus.ana.invoke".into(), topic: None }]);
        assert_eq!(letter_queues(&config, None).map(|letter_queues| letter_queues.len()), Ok(QUEUES.len()));
        insta::assert_snapshot!(letter_queues(&config, Some("invok")).unwrap_err(), @"there is no queue 'invok'; expected one of invoke, control, mcp, mcp-manage, mcp-refresh, script, results, tasks, subagent-report, or a whole name");
    }
}
